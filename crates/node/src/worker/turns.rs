//! In which order the containers of a pod are stopped (KEP-753): app containers at once, sidecars after all of them, the
//! last one first.

use davit_pods::pod::{PodExt, Role};
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The containers of one pod that end together.
pub(super) struct Turns {
    /// By the names of containers, in the order of the pod.
    ends: Vec<(String, Role, CancellationToken)>,
}

/// When one of them may be stopped. Dropped, it says that its container has ended, or is given up.
#[derive(Default)]
pub(super) struct Turn {
    after: Vec<CancellationToken>,
    end: CancellationToken,
}

impl Turns {
    /// Of those containers of a pod that run.
    pub(super) fn new<'a>(pod: &Pod, running: impl Iterator<Item = &'a str>) -> Self {
        let running: Vec<&str> = running.collect();
        let ends = pod
            .all_containers()
            .iter()
            .filter(|(_, c)| running.contains(&c.name.as_str()))
            .map(|(role, c)| (c.name.clone(), *role, CancellationToken::new()))
            .collect();
        Self { ends }
    }

    /// The turn of one container. One that the pod does not name waits for nobody.
    pub(super) fn of(&self, name: &str) -> Turn {
        let Some(at) = self.ends.iter().position(|(n, ..)| n == name) else {
            return Turn::default();
        };
        let (_, role, end) = &self.ends[at];
        let mut after = Vec::new();
        if *role == Role::Sidecar {
            let later = self
                .ends
                .iter()
                .enumerate()
                .filter(|(other, (_, role, _))| {
                    *role == Role::Main || (*role == Role::Sidecar && *other > at)
                });
            after.extend(later.map(|(_, (.., end))| end.clone()));
        }
        Turn {
            after,
            end: end.clone(),
        }
    }
}

impl Turn {
    /// Waits for those that end before, at most this long.
    pub(super) async fn come(&self, left: Duration) {
        let all = async {
            for end in &self.after {
                end.cancelled().await;
            }
        };
        // Out of time the container is stopped with what is always left, whoever still runs.
        let _ = tokio::time::timeout(left, all).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end.cancel();
    }
}
