//! Asking extenders beside the decisions. An extender is asked about one pod at a time, as its authors expect of a
//! scheduler; pods that need one which is busy wait their turn, all others go on.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tokio::time::Instant;

use super::engine::{Done, Engine};
use crate::extender::{ExtenderAnswers, ExtenderError, ExtenderQuestion};
use crate::queue::{Rules, Taken};

/// A pod about which extenders are asked.
pub(super) struct Consultation {
    taken: Taken,
    answers: ExtenderAnswers,
    began: Instant,
}

/// A pod that waits for extenders.
pub(super) struct Parked {
    taken: Taken,
    /// The extenders, by place.
    places: BTreeSet<usize>,
    began: Instant,
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
            self.next_parked += 1;
            let key = (Reverse(self.profiles.rank(&pod)), self.next_parked);
            let parked = Parked {
                taken,
                places,
                began,
            };
            self.parked.insert(key, parked);
            return;
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
            if !self.queue.contains(&parked.taken.pod.uid) {
                self.parked.remove(&key);
                continue;
            }
            if self.is_asking(&parked.places) {
                continue;
            }
            if let Some(parked) = self.parked.remove(&key) {
                // The cluster may have changed: the attempt begins anew.
                self.decide(parked.taken, ExtenderAnswers::default(), parked.began);
            }
        }
    }
}
