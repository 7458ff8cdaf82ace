//! Kinds of others whose server, or the webhook that converts their objects, does not answer in time. Each question about one
//! of their objects would hold a worker of a controller, and who makes many objects of such a kind, has them own many, or has
//! many autoscalers or budgets look at them, would hold all.

use kube::discovery::ApiResource;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is asked about a kind after that.
const PAUSE: Duration = Duration::from_secs(60);

/// Why a kind was not asked about, or has not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlowKindError {
    /// It is not asked about: `plural.group`.
    #[error("the server of {0} has not answered in time and is not asked for a while")]
    Paused(String),
    /// It has not answered.
    #[error("took longer than {0:?}")]
    TimedOut(Duration),
}

/// When the kinds, by `plural.group`, are asked about again.
#[derive(Debug, Default)]
pub struct SlowKinds {
    until: Mutex<HashMap<String, Instant>>,
}

impl SlowKinds {
    /// Asks about an object of a kind: of Kubernetes' own as long as it takes.
    ///
    /// # Errors
    /// Its server does not answer in time, or has not lately.
    pub async fn ask<T>(
        &self,
        resource: &ApiResource,
        question: impl Future<Output = T>,
    ) -> Result<T, SlowKindError> {
        if is_own(resource) {
            return Ok(question.await);
        }
        let resource = format!("{}.{}", resource.plural, resource.group);
        let now = Instant::now();
        let waits = {
            let mut until = self.until.lock();
            until.retain(|_, until| *until > now);
            until.contains_key(&resource)
        };
        if waits {
            return Err(SlowKindError::Paused(resource));
        }
        let answered = timeout(PATIENCE, question).await;
        answered.map_err(|_| {
            let until = Instant::now() + PAUSE;
            self.until.lock().insert(resource, until);
            SlowKindError::TimedOut(PATIENCE)
        })
    }
}

/// Whether a kind is one of Kubernetes' own.
pub fn is_own(resource: &ApiResource) -> bool {
    let mut own = davit_api::kinds::builtin().resources.iter();
    own.any(|row| row.group == resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::GroupVersionKind;
    use std::future::{pending, ready};

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_does_not_answer_is_not_asked_for_a_while() {
        let kind = |group: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", "K"));
        let (slow, other, own) = (kind("slow.test"), kind("other.test"), kind("apps"));
        let kinds = SlowKinds::default();
        let began = Instant::now();
        let silent = kinds.ask(&slow, pending::<()>()).await;
        assert!(matches!(silent, Err(SlowKindError::TimedOut(_))));
        assert_eq!(began.elapsed(), PATIENCE);
        for _ in 0..1000 {
            assert!(kinds.ask(&slow, pending::<()>()).await.is_err());
        }
        assert_eq!(began.elapsed(), PATIENCE);
        assert_eq!(kinds.ask(&other, ready(1)).await.unwrap(), 1);
        let late = async { tokio::time::sleep(2 * PATIENCE).await };
        assert!(kinds.ask(&own, late).await.is_ok());
        tokio::time::sleep(PAUSE).await;
        assert_eq!(kinds.ask(&slow, ready(2)).await.unwrap(), 2);
    }
}
