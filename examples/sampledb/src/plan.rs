//! What is to be done next for a database, from what is there. No step may assume that the one before was made by this
//! process, or that it was made at all: whoever looks goes on from what is seen.

/// A job that was found, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Absent,
    Running,
    /// It has set the data to this version, or saved them.
    Complete {
        version: u32,
    },
    /// What its last pod said.
    Failed(String),
}

/// What was seen of a database and its objects.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) deleted: bool,
    /// Whether a last backup is wanted.
    pub(crate) keep_last: bool,
    pub(crate) wanted: u32,
    /// Version of the data, once there are any.
    pub(crate) present: Option<u32>,
    /// Whether no pod of the stateful set is there, nor will be one.
    pub(crate) stopped: bool,
    pub(crate) init: JobState,
    /// The upgrade to the version that is wanted.
    pub(crate) upgrade: JobState,
    pub(crate) last: JobState,
}

/// The jobs that work on the claim with the data, one at a time and with the database down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Init,
    Upgrade,
    Last,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The database is to be up, with data of this version.
    Serve(u32),
    /// The same, since the upgrade has failed.
    ServeAfter {
        version: u32,
        failure: String,
    },
    /// The database is to be down, for this work.
    Stop(Work),
    Start(Work),
    Await(Work),
    /// The work has failed, and there is nothing to go back to.
    Failed {
        work: Work,
        message: String,
    },
    /// The data are of this version now.
    Record(u32),
    /// The data are saved or not wanted: claim, stateful set and finalizer go.
    Release,
}

impl Observed {
    pub(crate) fn next(&self) -> Step {
        let Some(present) = self.present else {
            return self.begin();
        };
        // An upgrade that has begun is ended first, whatever else is wanted: it has the data.
        match &self.upgrade {
            JobState::Running => return Step::Await(Work::Upgrade),
            JobState::Complete { version } if *version > present => return Step::Record(*version),
            _ => {}
        }
        if self.deleted {
            return self.end();
        }
        if self.wanted <= present {
            return Step::Serve(present);
        }
        match &self.upgrade {
            JobState::Failed(failure) => Step::ServeAfter {
                version: present,
                failure: failure.clone(),
            },
            _ if self.stopped => Step::Start(Work::Upgrade),
            _ => Step::Stop(Work::Upgrade),
        }
    }

    fn begin(&self) -> Step {
        match &self.init {
            JobState::Running => Step::Await(Work::Init),
            JobState::Complete { version } => Step::Record(*version),
            // nobody has been told that there is a database
            _ if self.deleted => Step::Release,
            JobState::Absent => Step::Start(Work::Init),
            JobState::Failed(message) => Step::Failed {
                work: Work::Init,
                message: message.clone(),
            },
        }
    }

    fn end(&self) -> Step {
        match &self.last {
            _ if !self.keep_last => Step::Release,
            JobState::Complete { .. } => Step::Release,
            JobState::Running => Step::Await(Work::Last),
            JobState::Failed(message) => Step::Failed {
                work: Work::Last,
                message: message.clone(),
            },
            JobState::Absent if self.stopped => Step::Start(Work::Last),
            JobState::Absent => Step::Stop(Work::Last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving() -> Observed {
        Observed {
            deleted: false,
            keep_last: true,
            wanted: 1,
            present: Some(1),
            stopped: false,
            init: JobState::Complete { version: 1 },
            upgrade: JobState::Absent,
            last: JobState::Absent,
        }
    }

    fn failed() -> JobState {
        JobState::Failed("no room".to_owned())
    }

    #[test]
    fn a_new_database_is_set_up_before_it_serves() {
        let mut seen = Observed {
            present: None,
            stopped: true,
            init: JobState::Absent,
            ..serving()
        };
        assert_eq!(seen.next(), Step::Start(Work::Init));
        seen.init = JobState::Running;
        assert_eq!(seen.next(), Step::Await(Work::Init));
        // the job made what was wanted when it began
        seen.init = JobState::Complete { version: 1 };
        seen.wanted = 2;
        assert_eq!(seen.next(), Step::Record(1));
        seen.init = failed();
        let message = "no room".to_owned();
        let work = Work::Init;
        assert_eq!(seen.next(), Step::Failed { work, message });
        seen.deleted = true;
        assert_eq!(seen.next(), Step::Release);
    }

    #[test]
    fn an_upgrade_has_the_data_for_itself_and_runs_once() {
        let mut seen = Observed {
            wanted: 2,
            ..serving()
        };
        assert_eq!(seen.next(), Step::Stop(Work::Upgrade));
        seen.stopped = true;
        assert_eq!(seen.next(), Step::Start(Work::Upgrade));
        seen.upgrade = JobState::Running;
        assert_eq!(seen.next(), Step::Await(Work::Upgrade));
        seen.deleted = true;
        assert_eq!(seen.next(), Step::Await(Work::Upgrade));
        seen.upgrade = JobState::Complete { version: 2 };
        assert_eq!(seen.next(), Step::Record(2));
        seen.deleted = false;
        seen.present = Some(2);
        assert_eq!(seen.next(), Step::Serve(2));
    }

    #[test]
    fn a_failed_upgrade_leaves_the_old_version_serving() {
        let seen = Observed {
            wanted: 2,
            stopped: true,
            upgrade: failed(),
            ..serving()
        };
        let failure = "no room".to_owned();
        assert_eq!(
            seen.next(),
            Step::ServeAfter {
                version: 1,
                failure
            }
        );
    }

    #[test]
    fn nothing_is_released_before_the_last_backup() {
        let mut seen = Observed {
            deleted: true,
            ..serving()
        };
        assert_eq!(seen.next(), Step::Stop(Work::Last));
        seen.stopped = true;
        assert_eq!(seen.next(), Step::Start(Work::Last));
        seen.last = failed();
        let message = "no room".to_owned();
        let work = Work::Last;
        assert_eq!(seen.next(), Step::Failed { work, message });
        seen.last = JobState::Complete { version: 1 };
        assert_eq!(seen.next(), Step::Release);
        seen.last = JobState::Absent;
        seen.keep_last = false;
        assert_eq!(seen.next(), Step::Release);
    }

    /// Every state: data that somebody was told of are released after a backup, or when none is wanted.
    #[test]
    fn in_no_state_are_data_lost() {
        let states = [
            JobState::Absent,
            JobState::Running,
            JobState::Complete { version: 2 },
            failed(),
        ];
        for bits in 0..16_u32 {
            for (upgrade, last) in states
                .iter()
                .flat_map(|u| states.iter().map(move |l| (u, l)))
            {
                let seen = Observed {
                    deleted: bits & 1 != 0,
                    keep_last: bits & 2 != 0,
                    stopped: bits & 4 != 0,
                    wanted: 1 + (bits >> 3),
                    present: Some(1),
                    init: JobState::Complete { version: 1 },
                    upgrade: upgrade.clone(),
                    last: last.clone(),
                };
                let step = seen.next();
                let saved = matches!(last, JobState::Complete { .. }) || !seen.keep_last;
                assert!(step != Step::Release || (seen.deleted && saved), "{seen:?}");
                let up = matches!(step, Step::Serve(_) | Step::ServeAfter { .. });
                assert!(!up || *upgrade != JobState::Running, "{seen:?}");
                assert!(!matches!(step, Step::Start(_)) || seen.stopped, "{seen:?}");
            }
        }
    }
}
