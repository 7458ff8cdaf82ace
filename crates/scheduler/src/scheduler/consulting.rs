//! Asking extenders beside the decisions. An extender is asked about one pod at a time, as its authors expect of a
//! scheduler; pods that need one which is busy wait their turn, all others go on.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::engine::{Done, Engine};
use crate::extender::{ExtenderAnswers, ExtenderError, ExtenderQuestion};
use crate::group::{GroupAnswers, GroupQuestion};
use crate::pod::PodInfo;
use crate::queue::{Rules, Taken};

/// A pod about which extenders are asked.
pub(super) struct Consultation {
    taken: Taken,
    answers: ExtenderAnswers,
    began: Instant,
}

/// Pods of a group about which extenders are asked.
pub(super) struct GroupConsultation {
    members: Vec<Taken>,
    answers: GroupAnswers,
    began: Instant,
    /// The pod about which they are asked now, or were last.
    about: Arc<str>,
}

/// A pod, or pods of a group, that wait for extenders.
pub(super) struct Parked {
    waiting: Waiting,
    /// The extenders, by place.
    places: BTreeSet<usize>,
    began: Instant,
}

enum Waiting {
    Pod(Taken),
    Group(Vec<Taken>),
}

impl Waiting {
    fn pods(&self) -> &[Taken] {
        match self {
            Self::Pod(taken) => std::slice::from_ref(taken),
            Self::Group(members) => members,
        }
    }
}

impl Engine {
    /// Asks extenders about a pod, or has it wait for them.
    pub(super) fn consult(
        &mut self,
        taken: Taken,
        question: ExtenderQuestion,
        mut answers: ExtenderAnswers,
        began: Instant,
    ) {
        let (pod, places) = (taken.pod.clone(), self.extenders.places(&taken.pod));
        if self.is_asking(&places) {
            return self.park(&pod, Waiting::Pod(taken), places, began);
        }
        answers.rounds += 1;
        let extenders = self.extenders.clone();
        let mut consultation = Box::new(Consultation {
            taken,
            answers,
            began,
        });
        let asking = self.work.spawn(async move {
            let pod = consultation.taken.pod.clone();
            let answers = &mut consultation.answers;
            let result = extenders.ask(&pod, question, answers).await;
            Done::Consulted(consultation, result)
        });
        self.binding.insert(asking.id(), pod.uid.clone());
        self.asked.insert(pod.uid.clone(), places);
    }

    /// Asks extenders about pods of a group, one after the other, or has the group wait for them.
    pub(super) fn consult_about_group(
        &mut self,
        members: Vec<Taken>,
        questions: Vec<GroupQuestion>,
        mut answers: GroupAnswers,
        began: Instant,
    ) {
        let Some(first) = questions.first().map(|asked| asked.pod.clone()) else {
            return;
        };
        let pods = questions.iter();
        let places: BTreeSet<usize> = pods.flat_map(|q| self.extenders.places(&q.pod)).collect();
        if self.is_asking(&places) {
            return self.park(&first, Waiting::Group(members), places, began);
        }
        for asked in &questions {
            let known = answers.entry(asked.pod.uid.clone()).or_default();
            known.rounds += 1;
            known.start.get_or_insert(asked.start);
        }
        let uids = members.iter().map(|taken| taken.pod.uid.clone()).collect();
        let extenders = self.extenders.clone();
        let mut consultation = Box::new(GroupConsultation {
            members,
            answers,
            began,
            about: first.uid.clone(),
        });
        let asking = self.work.spawn(async move {
            let mut result = Ok(());
            for GroupQuestion { pod, question, .. } in questions {
                consultation.about = pod.uid.clone();
                let answers = consultation.answers.entry(pod.uid.clone()).or_default();
                result = extenders.ask(&pod, question, answers).await;
                if result.is_err() {
                    break;
                }
            }
            Done::GroupConsulted(consultation, result)
        });
        self.asking_groups.insert(asking.id(), uids);
        self.asked.insert(first.uid.clone(), places);
    }

    /// Goes on with a group about which extenders have been asked.
    pub(super) fn group_consulted(
        &mut self,
        consultation: GroupConsultation,
        result: Result<(), ExtenderError>,
    ) {
        let GroupConsultation {
            members,
            answers,
            began,
            about,
        } = consultation;
        for taken in &members {
            self.asked.remove(&taken.pod.uid);
        }
        match result {
            Ok(()) => self.decide_about_group(members, answers, began),
            Err(error) => self.fail_group(&members, &about, &error.to_string(), began),
        }
        self.resume_parked();
    }

    fn park(&mut self, pod: &PodInfo, waiting: Waiting, places: BTreeSet<usize>, began: Instant) {
        self.next_parked += 1;
        let key = (Reverse(self.profiles.rank(pod)), self.next_parked);
        let parked = Parked {
            waiting,
            places,
            began,
        };
        self.parked.insert(key, parked);
    }

    fn is_asking(&self, places: &BTreeSet<usize>) -> bool {
        self.asked.values().any(|busy| !busy.is_disjoint(places))
    }

    /// Goes on with a pod about which extenders have been asked.
    pub(super) fn consulted(
        &mut self,
        consultation: Consultation,
        result: Result<(), ExtenderError>,
    ) {
        let Consultation {
            taken,
            answers,
            began,
        } = consultation;
        let uid = &taken.pod.uid;
        self.asked.remove(uid);
        // Otherwise the pod is gone, or has been bound by somebody else.
        if self.queue.contains(uid) {
            match result {
                Ok(()) => self.decide(taken, answers, began),
                Err(error) => self.fail_attempt(&taken, error.to_string(), began),
            }
        }
        self.resume_parked();
    }

    /// Takes up the pods that wait for extenders which are free now.
    pub(super) fn resume_parked(&mut self) {
        let keys: Vec<_> = self.parked.keys().copied().collect();
        for key in keys {
            let Some(parked) = self.parked.get(&key) else {
                continue;
            };
            let mut pods = parked.waiting.pods().iter();
            if !pods.any(|taken| self.queue.contains(&taken.pod.uid)) {
                self.parked.remove(&key);
                continue;
            }
            if self.is_asking(&parked.places) {
                continue;
            }
            let Some(Parked { waiting, began, .. }) = self.parked.remove(&key) else {
                continue;
            };
            // The cluster may have changed: the attempt begins anew.
            match waiting {
                Waiting::Pod(taken) => self.decide(taken, ExtenderAnswers::default(), began),
                Waiting::Group(members) => {
                    self.decide_about_group(members, GroupAnswers::new(), began);
                }
            }
        }
    }
}
