//! Measuring trees for many who ask: one walk of a tree at a time, whose result all get.
//!
//! Containers decide how large their trees are, and everything that asks for a node's figures has them measured. So there
//! are two threads at most, whoever asks, and what was slow to measure is kept ten times as long as it took, ten minutes at most.
//!
//! A tree that cannot be walked in ten seconds has twelve times as long from then on, in its turn: limits on storage would
//! mean nothing to whoever makes a million empty files first.

use crate::usage::{DiskUse, MAX_TIME, measure_within};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that walk.
const WALKERS: usize = 2;
/// How many times as long as a walk took its result is kept.
const KEPT: u32 = 10;
/// But no longer than this: much can be written meanwhile.
const KEPT_AT_MOST: Duration = Duration::from_secs(600);
/// Trees that took as long are walked by one of the threads only; the other is for quick ones.
const SLOW: Duration = Duration::from_secs(1);
/// How long such a tree is walked.
const SLOW_TIME: Duration = Duration::from_secs(120);
/// Trees that wait to be walked.
const MAX_WAITING: usize = 4096;

/// Bytes and inodes below a directory, counted as [`measure_tree`](crate::measure_tree) does, by threads for all who ask.
/// What was found lately may be the answer, and after `until` what was found before; `None` when nothing was yet.
#[must_use]
pub fn disk_use(dir: impl AsRef<Path>, until: Instant) -> Option<DiskUse> {
    static ALL: Walks = Walks::new(|dir, time| measure_within(&dir, time));
    ALL.ask(dir.as_ref(), until)
}

/// Walks a tree, as long as it may take.
type Walk = fn(PathBuf, Duration) -> DiskUse;

struct Walks {
    walk: Walk,
    trees: Mutex<Option<Trees>>,
    walked: Condvar,
}

#[derive(Default)]
struct Trees {
    known: HashMap<PathBuf, Tree>,
    waiting: VecDeque<PathBuf>,
    walkers: usize,
    /// A walker is in a tree that was slow before.
    slow: bool,
}

#[derive(Default)]
struct Tree {
    last: Option<Measurement>,
    /// Waits for a walk, or is being walked.
    wanted: bool,
    /// Who waits for the answer.
    askers: usize,
}

#[derive(Clone, Copy)]
struct Measurement {
    at: Instant,
    took: Duration,
    found: DiskUse,
}

impl Measurement {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < (self.took * KEPT).min(KEPT_AT_MOST)
    }
}

impl Trees {
    fn is_slow(&self, dir: &Path) -> bool {
        let last = self.known.get(dir).and_then(|tree| tree.last);
        last.is_some_and(|last| last.took >= SLOW)
    }

    /// The next tree for a walker, and whether it is a slow one.
    fn next(&mut self) -> Option<(PathBuf, bool)> {
        let fits = |dir: &PathBuf| !(self.slow && self.is_slow(dir));
        let index = self.waiting.iter().position(fits)?;
        let dir = self.waiting.remove(index)?;
        let is_slow = self.is_slow(&dir);
        self.slow |= is_slow;
        Some((dir, is_slow))
    }

    /// Forgets what nobody would be told.
    fn forget(&mut self) {
        self.known.retain(|_, tree| {
            let is_kept = |last: Measurement| last.at.elapsed() < last.took * KEPT * KEPT;
            tree.wanted || tree.askers > 0 || tree.last.is_some_and(is_kept)
        });
    }
}

impl Walks {
    const fn new(walk: Walk) -> Self {
        Self {
            walk,
            trees: Mutex::new(None),
            walked: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Trees>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&'static self, dir: &Path, until: Instant) -> Option<DiskUse> {
        let asked = Instant::now();
        let mut guard = self.lock();
        let all = guard.get_or_insert_default();
        let is_full = all.waiting.len() >= MAX_WAITING;
        let tree = all.known.entry(dir.to_owned()).or_default();
        if let Some(last) = tree.last.filter(Measurement::is_fresh) {
            return Some(last.found);
        }
        if !tree.wanted && !is_full {
            tree.wanted = true;
            all.waiting.push_back(dir.to_owned());
        }
        tree.askers += 1;
        self.start(all);
        let found = loop {
            let tree = guard.as_mut()?.known.get_mut(dir)?;
            let last = tree.last;
            let left = until.saturating_duration_since(Instant::now());
            // A walk that was under way when this was asked is good enough.
            if last.is_some_and(|last| last.at >= asked) || left.is_zero() || !tree.wanted {
                tree.askers -= 1;
                break last.map(|last| last.found);
            }
            let waited = self.walked.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        guard.as_mut()?.forget();
        found
    }

    /// Starts a walker if there is something for one more.
    fn start(&'static self, all: &mut Trees) {
        if all.walkers >= WALKERS || all.waiting.is_empty() {
            return;
        }
        let walker = TreeWalker(self);
        let started = std::thread::Builder::new()
            .name("disk-use".to_owned())
            .spawn(move || walker.run());
        // Without a thread those who ask wait in vain, for as long as they said.
        if started.is_ok() {
            all.walkers += 1;
        }
    }
}

/// A thread that walks.
struct TreeWalker(&'static Walks);

impl TreeWalker {
    fn run(self) {
        loop {
            let mut guard = self.0.lock();
            let Some(all) = guard.as_mut() else {
                return;
            };
            let Some((dir, is_slow)) = all.next() else {
                all.walkers -= 1;
                return;
            };
            drop(guard);
            let begun = Instant::now();
            let time = if is_slow { SLOW_TIME } else { MAX_TIME };
            let found = (self.0.walk)(dir.clone(), time);
            let mut guard = self.0.lock();
            if let Some(all) = guard.as_mut() {
                all.slow &= !is_slow;
                let tree = all.known.entry(dir).or_default();
                tree.wanted = false;
                let (at, took) = (Instant::now(), begun.elapsed());
                tree.last = Some(Measurement { at, took, found });
                all.forget();
            }
            self.0.walked.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn counted(bytes: u64, inodes: u64) -> DiskUse {
        DiskUse {
            bytes,
            inodes,
            in_part: false,
        }
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn one_walk_answers_all_who_ask_meanwhile_and_for_a_while_after() {
        static WALKED: AtomicUsize = AtomicUsize::new(0);
        static ALL: Walks = Walks::new(|_, _| {
            let walked = WALKED.fetch_add(1, Ordering::SeqCst) as u64;
            std::thread::sleep(Duration::from_millis(300));
            counted(walked, 1)
        });
        let asking = || ALL.ask(Path::new("/tree"), Instant::now() + SOON);
        std::thread::scope(|scope| {
            let askers: Vec<_> = (0..8).map(|_| scope.spawn(asking)).collect();
            for asker in askers {
                assert_eq!(asker.join().unwrap(), Some(counted(0, 1)));
            }
        });
        assert_eq!(asking(), Some(counted(0, 1)), "kept for ten times as long");
        assert_eq!(WALKED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn whoever_asks_there_are_two_walkers_and_the_impatient_get_what_is_known() {
        static NOW: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        static ALL: Walks = Walks::new(|dir, _| {
            MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            NOW.fetch_sub(1, Ordering::SeqCst);
            counted(dir.as_os_str().len() as u64, 0)
        });
        assert_eq!(ALL.ask(Path::new("impatient"), Instant::now()), None);
        std::thread::scope(|scope| {
            for n in 0..16 {
                scope.spawn(move || {
                    let dir = format!("{n:04}");
                    let found = ALL.ask(Path::new(&dir), Instant::now() + SOON);
                    assert_eq!(found, Some(counted(4, 0)));
                });
            }
        });
        assert_eq!(MOST.load(Ordering::SeqCst), WALKERS);
        let later = Instant::now() + SOON;
        assert_eq!(ALL.ask(Path::new("impatient"), later), Some(counted(9, 0)));
        assert_eq!(
            ALL.ask(Path::new("impatient"), Instant::now()),
            Some(counted(9, 0))
        );
    }

    #[test]
    fn slow_trees_leave_a_walker_to_others_and_the_old_is_forgotten() {
        let mut all = Trees::default();
        let mut know = |name: &str, took: Duration, ago: Duration| {
            let tree = all.known.entry(PathBuf::from(name)).or_default();
            tree.last = Some(Measurement {
                at: Instant::now().checked_sub(ago).unwrap(),
                took,
                found: counted(0, 0),
            });
        };
        know("slow", SLOW, Duration::ZERO);
        know("slower", SLOW * 2, Duration::ZERO);
        know("old", Duration::from_millis(1), Duration::from_secs(1));
        all.waiting = ["slow", "slower", "new"].map(PathBuf::from).into();
        assert_eq!(all.next(), Some((PathBuf::from("slow"), true)));
        assert_eq!(all.next(), Some((PathBuf::from("new"), false)));
        assert_eq!(all.next(), None);
        all.forget();
        let mut kept: Vec<_> = all.known.keys().collect();
        kept.sort();
        assert_eq!(kept, [Path::new("slow"), Path::new("slower")]);
    }

    /// Whoever makes a tree that takes long is not let write for as long as he likes after it.
    #[test]
    fn slow_trees_have_more_time_and_are_not_believed_for_ever() {
        static TIMES: Mutex<Vec<Duration>> = Mutex::new(Vec::new());
        static ALL: Walks = Walks::new(|_, time| {
            TIMES.lock().unwrap().push(time);
            counted(1, 1)
        });
        let ask = || ALL.ask(Path::new("/tree"), Instant::now() + SOON);
        assert_eq!(ask(), Some(counted(1, 1)));
        let took = |took: Duration, ago: Duration| {
            let mut guard = ALL.lock();
            // What was quick may have been forgotten meanwhile.
            let tree = guard.as_mut().unwrap().known.entry("/tree".into());
            tree.or_default().last = Some(Measurement {
                at: Instant::now().checked_sub(ago).unwrap(),
                took,
                found: counted(2, 2),
            });
        };
        took(SLOW_TIME, KEPT_AT_MOST / 2);
        assert_eq!(ask(), Some(counted(2, 2)));
        took(SLOW_TIME, KEPT_AT_MOST);
        assert_eq!(ask(), Some(counted(1, 1)));
        assert_eq!(*TIMES.lock().unwrap(), [MAX_TIME, SLOW_TIME]);
    }
}
