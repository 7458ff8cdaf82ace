//! Kinds of others whose server, or the webhook that converts their objects, does not answer in time. Each question about one
//! of their objects would hold a worker of a controller, and who makes many objects of such a kind, has them own many, or has
//! many autoscalers or budgets look at them, would hold all.

use crate::controller::Error;
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is asked about a kind after that.
const PAUSE: Duration = Duration::from_secs(60);

/// When the kinds, by `plural.group`, are asked about again.
#[derive(Debug, Default)]
pub(crate) struct SlowKinds {
    until: Mutex<HashMap<String, Instant>>,
}

impl SlowKinds {
    /// Asks about an object of a kind: of Kubernetes' own as long as it takes.
    ///
    /// # Errors
    /// Its server does not answer in time, or has not lately.
    pub(crate) async fn ask<T>(
        &self,
        resource: &ApiResource,
        question: impl Future<Output = T>,
    ) -> Result<T, Error> {
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
            let why = "has not answered in time and is not asked for a while";
            return Err(Error::Invalid(format!("the server of {resource} {why}")));
        }
        let answered = timeout(PATIENCE, question).await;
        answered.map_err(|_| {
            let until = Instant::now() + PAUSE;
            self.until.lock().insert(resource, until);
            Error::TimedOut(PATIENCE)
        })
    }
}

/// Whether a kind is one of Kubernetes' own.
pub(crate) fn is_own(resource: &ApiResource) -> bool {
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
        assert!(matches!(silent, Err(Error::TimedOut(_))));
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
