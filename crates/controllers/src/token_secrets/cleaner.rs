//! Token Secrets that accounts refer to, that no pod mounts and that nobody has used for a year are marked invalid; a
//! year later they are deleted. What was made by hand stays.

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, cluster_key, gone_is_none,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::{Timestamp, ToSpan, tz::TimeZone};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use std::time::Duration;

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// How long a token may be unused, and how long it stays invalid.
const PERIOD_DAYS: i32 = 365;
const LOOK: Duration = Duration::from_secs(24 * 3600);
const FIRST_LOOK: Duration = Duration::from_secs(60);

pub(super) fn spawn(spawner: &mut Spawner<'_>, secrets: Informer<Secret>) {
    let Some(spawner) = &mut spawner.start("legacy-serviceaccount-token-cleaner-controller") else {
        return;
    };
    let queue = spawner.controller(Cleaner {
        client: spawner.client.clone(),
        informers: spawner.informers.clone(),
        secrets,
    });
    queue.add_after(cluster_key("look"), FIRST_LOOK);
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    Mark,
    Delete,
}

fn label(secret: &Secret, key: &str) -> Option<Date> {
    secret.metadata.labels.as_ref()?.get(key)?.parse().ok()
}

/// What becomes of a Secret that an account refers to; `since` its use is tracked.
fn fate(secret: &Secret, since: Date, today: Date) -> Fate {
    let is_over = |date: Date| {
        date.checked_add(PERIOD_DAYS.days())
            .is_ok_and(|end| end < today)
    };
    // what was never used was not used since tracking began
    let used = label(secret, LAST_USED).map_or(since, |used| used.max(since));
    let created = secret.metadata.creation_timestamp.as_ref();
    let created = created.map_or(since, |at| at.0.to_zoned(TimeZone::UTC).date());
    if !is_over(used.max(created)) {
        return Fate::Keep;
    }
    match label(secret, INVALID_SINCE) {
        None => Fate::Mark,
        Some(invalid) if is_over(invalid) => Fate::Delete,
        Some(_) => Fate::Keep,
    }
}

fn mounts(pod: &Pod, secret: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut volumes = spec.volumes.iter().flatten();
    volumes.any(|volume| {
        let projected = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
        let mut projected = projected.into_iter().flatten();
        let direct = volume.secret.as_ref();
        direct.is_some_and(|s| s.secret_name.as_deref() == Some(secret))
            || projected.any(|p| p.secret.as_ref().is_some_and(|s| s.name == secret))
    })
}

struct Cleaner {
    client: kube::Client,
    informers: Informers,
    secrets: Informer<Secret>,
}

impl Cleaner {
    /// Since when the API server notes the use of tokens.
    async fn since(&self) -> Result<Option<Date>, Error> {
        let maps: kube::Api<ConfigMap> = kube::Api::namespaced(self.client.clone(), "kube-system");
        let map = maps
            .get_opt(TRACKING)
            .await
            .context(|| format!("read config map kube-system/{TRACKING}"))?;
        let data = map.and_then(|map| map.data);
        Ok(data.and_then(|data| data.get(SINCE)?.parse().ok()))
    }

    async fn carry_out(&self, secret: &Secret, fate: &Fate, today: Date) -> Result<(), Error> {
        let key = ObjectKey::of(secret);
        let api: kube::Api<Secret> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let preconditions = Preconditions {
            uid: secret.metadata.uid.clone(),
            resource_version: secret.metadata.resource_version.clone(),
        };
        match fate {
            Fate::Keep => {}
            Fate::Mark => {
                let patch = json!({ "metadata": {
                    "uid": preconditions.uid,
                    "resourceVersion": preconditions.resource_version,
                    "labels": { INVALID_SINCE: today.to_string() },
                } });
                let params = PatchParams::default();
                let marked = api.patch(&key.name, &params, &Patch::Merge(patch)).await;
                gone_is_none(marked).context(|| format!("mark token secret {key} invalid"))?;
            }
            Fate::Delete => {
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                let deleted = api.delete(&key.name, &params).await;
                gone_is_none(deleted).context(|| format!("delete token secret {key}"))?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Cleaner {
    const NAME: &'static str = "legacy-serviceaccount-token-cleaner";
    const WORKERS: usize = 1;

    async fn sync(&self, _key: &ObjectKey) -> Result<Next, Error> {
        let Some(since) = self.since().await? else {
            return Ok(Next::After(LOOK));
        };
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let pods = self.informers.pods.list();
        for secret in self.secrets.list() {
            let name = secret.metadata.name.as_deref().unwrap_or_default();
            let namespace = secret.metadata.namespace.as_deref();
            let account = super::annotation(&secret, super::ACCOUNT).unwrap_or_default();
            let account = self.informers.service_accounts.get(namespace, account);
            let refers = account.is_some_and(|account| {
                let mut secrets = account.secrets.iter().flatten();
                secrets.any(|secret| secret.name.as_deref() == Some(name))
            });
            let mounted = || {
                pods.iter()
                    .any(|pod| pod.metadata.namespace.as_deref() == namespace && mounts(pod, name))
            };
            if !refers || mounted() {
                continue;
            }
            let fate = fate(&secret, since, today);
            self.carry_out(&secret, &fate, today).await?;
        }
        Ok(Next::After(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(labels: &[(&str, &str)]) -> Secret {
        let mut secret = Secret::default();
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        secret.metadata.labels = Some(labels.collect());
        secret
    }

    #[test]
    fn unused_tokens_are_marked_and_a_year_later_deleted() {
        let date = |text: &str| text.parse::<Date>().unwrap();
        let since = date("2024-01-01");
        let of = |labels: &[(&str, &str)], today| fate(&secret(labels), since, date(today));
        assert_eq!(of(&[], "2024-12-01"), Fate::Keep);
        assert_eq!(of(&[], "2025-01-02"), Fate::Mark);
        let used = [(LAST_USED, "2024-06-01")];
        assert_eq!(of(&used, "2025-05-01"), Fate::Keep);
        assert_eq!(of(&used, "2025-06-03"), Fate::Mark);
        let marked = [(LAST_USED, "2024-06-01"), (INVALID_SINCE, "2025-06-03")];
        assert_eq!(of(&marked, "2026-06-01"), Fate::Keep);
        assert_eq!(of(&marked, "2026-06-05"), Fate::Delete);
    }
}
