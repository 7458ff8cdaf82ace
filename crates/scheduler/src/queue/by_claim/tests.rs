//! A change that concerns few of the pods that wait wakes those that it would wake if all were asked.

use crate::framework::{
    Action, AffectedPods, ClusterEvent, EventObject, EventResource, Hint, Status,
};
use crate::pod::PodInfo;
use crate::queue::{Failure, Queue, QueueOptions, Rules};
use k8s_openapi::api::resource::v1::ResourceClaim;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pods that name claims are held back until these are known, and refused by `Devices` (news of their claims help) or by
/// `Others` (changes of nodes do).
struct Claims {
    known: bool,
    narrow: bool,
}

impl Rules for Claims {
    fn rank(&self, _: &PodInfo) -> i64 {
        0
    }
    fn gate(&self, pod: &PodInfo) -> Option<Status> {
        let gated = pod.claim_names().next().is_some() && !self.known;
        gated.then(|| Status::unresolvable("no claim yet").by("Devices"))
    }
    fn hint(
        &self,
        plugin: &str,
        event: &ClusterEvent,
        pod: &PodInfo,
        object: &EventObject,
    ) -> Hint {
        let helps = match (plugin, object) {
            (
                "Devices",
                EventObject::Claim {
                    new: Some(claim), ..
                },
            ) => {
                let name = claim.metadata.name.as_deref();
                pod.claim_names().any(|named| Some(named) == name)
            }
            ("Others", _) => event.resource == EventResource::Node,
            _ => false,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
    fn affected(
        &self,
        plugin: &str,
        _: &str,
        event: &ClusterEvent,
        object: &EventObject,
    ) -> AffectedPods {
        match (plugin, object) {
            _ if !self.narrow => AffectedPods::All,
            ("Devices", EventObject::Claim { .. }) => AffectedPods::NamingClaim,
            ("Others", _) if event.resource == EventResource::Node => AffectedPods::All,
            _ => AffectedPods::Nobody,
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set { pod: u8, claims: Vec<u8> },
    Pop,
    Fail { pod: u8, by: Option<&'static str> },
    Claim(u8),
    Node,
    Known(bool),
    Remove(u8),
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    let few = || 0_u8..4;
    prop_oneof![
        3 => (few(), proptest::collection::vec(few(), 0..3))
            .prop_map(|(pod, claims)| Step::Set { pod, claims }),
        3 => Just(Step::Pop),
        3 => (few(), prop_oneof![Just(None), Just(Some("Devices")), Just(Some("Others"))])
            .prop_map(|(pod, by)| Step::Fail { pod, by }),
        3 => few().prop_map(Step::Claim),
        1 => Just(Step::Node),
        1 => any::<bool>().prop_map(Step::Known),
        1 => few().prop_map(Step::Remove),
        1 => Just(Step::Later),
    ]
}

fn pod(uid: u8, claims: &[u8]) -> Arc<PodInfo> {
    let claims = claims.iter().enumerate();
    let claims = claims.map(|(entry, claim)| {
        json!({"name": format!("e{entry}"), "resourceClaimName": format!("c{claim}")})
    });
    let pod = json!({"metadata": {"name": uid.to_string(), "namespace": "ns", "uid": uid.to_string()},
        "spec": {"containers": [], "resourceClaims": claims.collect::<Vec<_>>()}});
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn apply(queue: &mut Queue, step: &Step, rules: &mut Claims, now: &mut Instant) -> Option<String> {
    let event = |resource| ClusterEvent::new(resource, Action::ADD);
    match step {
        Step::Set { pod: uid, claims } => queue.set(pod(*uid, claims), rules, *now),
        Step::Pop => {
            return queue
                .pop(rules, *now)
                .map(|taken| taken.pod.uid.to_string());
        }
        Step::Fail { pod, by } => {
            let failure = Failure {
                plugins: by.iter().copied().collect(),
                ..Failure::default()
            };
            queue.fail(&pod.to_string(), failure, rules, *now);
        }
        Step::Claim(name) => {
            let claim =
                json!({"metadata": {"name": format!("c{name}"), "namespace": "ns"}, "spec": {}});
            let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
            let object = EventObject::Claim {
                old: None,
                new: Some(Arc::new(claim)),
            };
            let woken = queue.on_event(&event(EventResource::ResourceClaim), &object, rules, *now);
            return Some(woken.to_string());
        }
        Step::Node => {
            let object = EventObject::Other;
            let woken = queue.on_event(&event(EventResource::Node), &object, rules, *now);
            return Some(woken.to_string());
        }
        Step::Known(known) => rules.known = *known,
        Step::Remove(pod) => queue.remove(&pod.to_string()),
        Step::Later => *now += Duration::from_secs(2),
    }
    None
}

proptest! {
    #[test]
    fn who_is_not_asked_would_not_have_been_woken(steps in proptest::collection::vec(step(), 0..80)) {
        let start = Instant::now();
        let mut all = (Queue::new(QueueOptions::default()), Claims { known: true, narrow: false }, start);
        let mut few = (Queue::new(QueueOptions::default()), Claims { known: true, narrow: true }, start);
        for step in &steps {
            let a = apply(&mut all.0, step, &mut all.1, &mut all.2);
            let b = apply(&mut few.0, step, &mut few.1, &mut few.2);
            prop_assert_eq!(a, b, "{:?}", step);
            prop_assert_eq!(all.0.counts(), few.0.counts(), "{:?}", step);
        }
    }
}
