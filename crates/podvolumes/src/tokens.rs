//! Service account tokens that volumes bring: those of projected files and those that CSI drivers ask for.

use super::error::Cause;
use davit_pods::objects::{ObjectSource, Token};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Pod UID, volume, what in it.
type TokenKey = (String, String, String);

struct Cached {
    token: Token,
    issued: jiff::Timestamp,
}

/// Tokens that are good for a while.
pub(super) struct Tokens {
    objects: Arc<dyn ObjectSource>,
    cached: Mutex<HashMap<TokenKey, Cached>>,
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
        self.cached.lock().retain(|(pod, _, _), _| pod != uid);
    }

    /// A token for one use of a volume; a new one after 80 % of its life or a day.
    ///
    /// # Errors
    /// The API server gives none, and the last one is over.
    pub(super) async fn token(
        &self,
        pod: &Pod,
        volume: &str,
        what: &str,
        audience: Option<&str>,
        seconds: i64,
    ) -> Result<Token, Cause> {
        let key = (pod.uid().to_owned(), volume.to_owned(), what.to_owned());
        let now = jiff::Timestamp::now();
        if let Some(cached) = self.cached.lock().get(&key) {
            let life = cached.token.expires.duration_since(cached.issued);
            let age = now.duration_since(cached.issued);
            let old = age >= life * 4 / 5 || age >= jiff::SignedDuration::from_hours(24);
            if !old {
                return Ok(cached.token.clone());
            }
        }
        let token = match self.objects.token(pod, audience, seconds).await {
            Ok(token) => token,
            Err(error) => {
                // The old one is good until it ends.
                let cached = self.cached.lock();
                let usable = cached.get(&key).filter(|c| c.token.expires > now);
                return usable.map(|c| c.token.clone()).ok_or(Cause::Object(error));
            }
        };
        let given = token.clone();
        self.cached
            .lock()
            .insert(key, Cached { token, issued: now });
        Ok(given)
    }
}
