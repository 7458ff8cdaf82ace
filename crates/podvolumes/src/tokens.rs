//! Service account tokens that volumes bring: those of projected files and those that CSI drivers ask for.

use super::error::Cause;
use davit_pods::objects::{ObjectSource, Token};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many different tokens a pod has: each is asked of the API server, and again before it ends.
const MOST: usize = 256;

/// The audience, if any is named, and for how many seconds: who wants the same has the same token.
type TokenKey = (Option<String>, i64);

struct Cached {
    token: Token,
    issued: jiff::Timestamp,
}

impl Cached {
    fn is_old(&self, now: jiff::Timestamp) -> bool {
        let life = self.token.expires.duration_since(self.issued);
        let age = now.duration_since(self.issued);
        // Of a clock that was set back since: the API server refuses what begins later.
        let of_later = age < jiff::SignedDuration::ZERO;
        of_later || age >= life * 4 / 5 || age >= jiff::SignedDuration::from_hours(24)
    }
}

/// Tokens that are good for a while.
pub(super) struct Tokens {
    objects: Arc<dyn ObjectSource>,
    /// By UID of the pod.
    cached: Mutex<HashMap<String, HashMap<TokenKey, Cached>>>,
}

impl Tokens {
    pub(super) fn new(objects: Arc<dyn ObjectSource>) -> Self {
        Self {
            objects,
            cached: Mutex::default(),
        }
    }

    /// Forgets those of a pod.
    pub(super) fn forget(&self, uid: &str) {
        self.cached.lock().remove(uid);
    }

    /// A token of the pod's account; a new one after 80 % of its life or a day.
    ///
    /// # Errors
    /// The API server gives none, and the last one is over; or the pod has as many others as a pod may have.
    pub(super) async fn token(
        &self,
        pod: &Pod,
        audience: Option<&str>,
        seconds: i64,
    ) -> Result<Token, Cause> {
        let key = (audience.map(str::to_owned), seconds);
        let now = jiff::Timestamp::now();
        if let Some(of_pod) = self.cached.lock().get(pod.uid()) {
            match of_pod.get(&key) {
                Some(cached) if !cached.is_old(now) => return Ok(cached.token.clone()),
                None if of_pod.len() >= MOST => return Err(Cause::TooManyTokens(MOST)),
                _ => {}
            }
        }
        let token = match self.objects.token(pod, audience, seconds).await {
            Ok(token) => token,
            Err(error) => {
                // The old one is good until it ends.
                let cached = self.cached.lock();
                let held = cached.get(pod.uid()).and_then(|of_pod| of_pod.get(&key));
                let usable = held.filter(|c| c.token.expires > now);
                return usable.map(|c| c.token.clone()).ok_or(Cause::Object(error));
            }
        };
        let given = token.clone();
        let mut cached = self.cached.lock();
        let of_pod = cached.entry(pod.uid().to_owned()).or_default();
        of_pod.insert(key, Cached { token, issued: now });
        Ok(given)
    }
}
