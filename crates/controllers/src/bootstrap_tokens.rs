//! Bootstrap tokens: the ConfigMap `kube-public/cluster-info` carries a signature by each of them, and expired ones are
//! deleted.
//!
//! A machine that knows a token can so tell that the cluster it found is the right one before it trusts it. Specified
//! in <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#configmap-signing>.

use async_trait::async_trait;
use davit_client::bootstrap_token::{
    BootstrapToken, SECRET_NAMESPACE, SECRET_TYPE, SIGNATURE_PREFIX,
};
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use std::collections::BTreeMap;
use std::time::Duration;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
const NOT_SYNCED: Duration = Duration::from_secs(1);

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let of_type = watcher::Config::default().fields(&format!("type={SECRET_TYPE}"));
    let tokens: Informer<Secret> = Informer::spawn(
        kube::Api::namespaced(spawner.shared.clone(), SECRET_NAMESPACE),
        of_type,
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    sign(spawner, &tokens);
    clean(spawner, &tokens);
}

fn sign(spawner: &mut Spawner<'_>, tokens: &Informer<Secret>) {
    let Some(spawner) = &mut spawner.start("bootstrap-signer-controller") else {
        return;
    };
    let named = watcher::Config::default().fields(&format!("metadata.name={CLUSTER_INFO}"));
    let maps: Informer<ConfigMap> = Informer::spawn(
        kube::Api::namespaced(spawner.shared.clone(), PUBLIC),
        named,
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    let queue = spawner.controller(Signer {
        client: spawner.client.clone(),
        tokens: tokens.clone(),
        maps: maps.clone(),
    });
    let key = || ObjectKey {
        namespace: PUBLIC.to_owned(),
        name: CLUSTER_INFO.to_owned(),
    };
    spawner.feed(tokens, &queue, move |_: &Secret| vec![key()]);
    spawner.feed(&maps, &queue, |map: &ConfigMap| vec![ObjectKey::of(map)]);
}

fn clean(spawner: &mut Spawner<'_>, tokens: &Informer<Secret>) {
    let Some(spawner) = &mut spawner.start("token-cleaner-controller") else {
        return;
    };
    let queue = spawner.controller(Cleaner {
        client: spawner.client.clone(),
        tokens: tokens.clone(),
    });
    spawner.feed(tokens, &queue, |token: &Secret| vec![ObjectKey::of(token)]);
}

fn field(secret: &Secret, key: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes
        .and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
        .unwrap_or_default()
}

/// How long the token is good for yet; none if it is for ever.
fn remaining(secret: &Secret, now: Timestamp) -> Option<Duration> {
    let text = field(secret, "expiration");
    if text.is_empty() {
        return None;
    }
    // what cannot be read is treated as over, as authentication does
    let end: Timestamp = text.parse().unwrap_or(Timestamp::MIN);
    let left = end.duration_since(now);
    Some(Duration::try_from(left).unwrap_or(Duration::ZERO))
}

/// The signatures that the ConfigMap should carry.
fn signatures<'a>(
    tokens: impl Iterator<Item = &'a Secret>,
    kubeconfig: &str,
    now: Timestamp,
) -> BTreeMap<String, String> {
    let signing = tokens.filter(|token| {
        field(token, "usage-bootstrap-signing") == "true"
            && remaining(token, now).is_none_or(|left| !left.is_zero())
    });
    signing
        .filter_map(|token| {
            let text = format!(
                "{}.{}",
                field(token, "token-id"),
                field(token, "token-secret")
            );
            text.parse::<BootstrapToken>().ok()
        })
        .map(|token| {
            let key = format!("{SIGNATURE_PREFIX}{}", token.id());
            (key, token.sign(kubeconfig))
        })
        .collect()
}

struct Signer {
    client: kube::Client,
    tokens: Informer<Secret>,
    maps: Informer<ConfigMap>,
}

#[async_trait]
impl Reconcile for Signer {
    const NAME: &'static str = "bootstrap-signer";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if self.tokens.wait_synced(NOT_SYNCED).await.is_err() {
            return Ok(Next::After(NOT_SYNCED));
        }
        let Some(map) = self.maps.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let held = map.data.clone().unwrap_or_default();
        let Some(kubeconfig) = held.get(KUBECONFIG) else {
            return Ok(Next::Wait);
        };
        let tokens = self.tokens.list();
        let tokens = tokens.iter().map(AsRef::as_ref);
        let mut wanted = held.clone();
        wanted.retain(|name, _| !name.starts_with(SIGNATURE_PREFIX));
        wanted.extend(signatures(tokens, kubeconfig, Timestamp::now()));
        if wanted == held {
            return Ok(Next::Wait);
        }
        let new = ConfigMap {
            data: Some(wanted),
            ..(*map).clone()
        };
        let api: kube::Api<ConfigMap> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let written = api.replace(&key.name, &PostParams::default(), &new).await;
        gone_is_none(written).context(|| format!("sign config map {key}"))?;
        Ok(Next::Wait)
    }
}

struct Cleaner {
    client: kube::Client,
    tokens: Informer<Secret>,
}

#[async_trait]
impl Reconcile for Cleaner {
    const NAME: &'static str = "token-cleaner";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(token) = self.tokens.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        match remaining(&token, Timestamp::now()) {
            None => Ok(Next::Wait),
            Some(left) if !left.is_zero() => Ok(Next::After(left)),
            Some(_) => {
                let api: kube::Api<Secret> =
                    kube::Api::namespaced(self.client.clone(), &key.namespace);
                let deleted = api.delete(&key.name, &DeleteParams::default()).await;
                gone_is_none(deleted).context(|| format!("delete expired token {key}"))?;
                Ok(Next::Wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn token(expiration: &str) -> Secret {
        let data = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
            ("expiration", expiration),
        ];
        Secret {
            data: Some(
                data.iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    #[test]
    fn tokens_sign_until_they_expire() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = token("2026-01-01T01:00:00Z");
        assert_eq!(remaining(&good, now), Some(Duration::from_secs(3600)));
        let signed = signatures(std::iter::once(&good), "text", now);
        let signer: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
        assert!(signer.has_signed("text", &signed["jws-kubeconfig-abcdef"]));
        let over = token("2025-01-01T00:00:00Z");
        assert_eq!(remaining(&over, now), Some(Duration::ZERO));
        assert!(signatures(std::iter::once(&over), "text", now).is_empty());
    }
}
