//! Secrets of type `kubernetes.io/service-account-token` are filled with a token of the service account they name, and
//! deleted with it; tokens that were made for accounts and are long unused are marked invalid, later deleted.
//!
//! Specified in <https://kubernetes.io/docs/concepts/configuration/secret/#serviceaccount-token-secrets> and
//! <https://kubernetes.io/docs/concepts/security/service-accounts/#legacy-serviceaccount-token-cleaner>.

mod cleaner;
mod signer;

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::watcher;
use std::sync::Arc;
use std::time::Duration;

use davit_client::signing::SigningKeyError;
pub use signer::TokenSigner;

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const NOT_SYNCED: Duration = Duration::from_secs(1);

pub(crate) fn spawn(spawner: &mut Spawner<'_>, signer: Option<TokenSigner>, ca: Option<String>) {
    let of_type = watcher::Config::default().fields(&format!("type={TYPE}"));
    let secrets: Informer<Secret> = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        of_type,
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    cleaner::spawn(spawner, secrets.clone());
    // whoever has no key leaves the Secrets to another
    let filling = spawner.start("serviceaccount-token-controller").zip(signer);
    let Some((mut spawner, signer)) = filling else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Tokens {
        client: spawner.client.clone(),
        informers: informers.clone(),
        secrets: secrets.clone(),
        signer: Arc::new(signer),
        ca,
    });
    spawner.feed(&secrets, &queue, |secret: &Secret| {
        vec![ObjectKey::of(secret)]
    });
    let of_account = secrets;
    spawner.feed(
        &informers.service_accounts,
        &queue,
        move |account: &ServiceAccount| {
            let held = of_account.list();
            held.iter()
                .filter(|secret| {
                    secret.metadata.namespace == account.metadata.namespace
                        && annotation(secret, ACCOUNT) == account.metadata.name.as_deref()
                })
                .map(|secret| ObjectKey::of(secret.as_ref()))
                .collect()
        },
    );
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    let annotations = secret.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn data<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    Some(secret.data.as_ref()?.get(key)?.0.as_slice())
}

/// What is to be done with a Secret.
#[derive(Debug, PartialEq)]
enum Plan {
    Keep,
    /// Its account is gone, or is another one of the same name.
    Delete,
    /// What it lacks is filled in.
    Fill(Box<Secret>),
}

/// Whether the account is the one that the Secret means.
fn is_meant(secret: &Secret, account: Option<&ServiceAccount>) -> bool {
    let uid = annotation(secret, ACCOUNT_UID).filter(|uid| !uid.is_empty());
    account
        .is_some_and(|account| uid.is_none_or(|uid| account.metadata.uid.as_deref() == Some(uid)))
}

fn plan(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    ca: Option<&str>,
    sign: impl FnOnce(&Secret, &ServiceAccount) -> Result<String, SigningKeyError>,
) -> Result<Plan, SigningKeyError> {
    let Some(account) = account.filter(|account| is_meant(secret, Some(account))) else {
        return Ok(Plan::Delete);
    };
    let mut new = secret.clone();
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let annotations = new.metadata.annotations.get_or_insert_default();
    for (key, value) in [
        (ACCOUNT, &account.metadata.name),
        (ACCOUNT_UID, &account.metadata.uid),
    ] {
        annotations.insert(key.to_owned(), value.clone().unwrap_or_default());
    }
    let fields = new.data.get_or_insert_default();
    if let Some(ca) = ca {
        fields.insert(CA.to_owned(), ByteString(ca.as_bytes().to_vec()));
    }
    if data(secret, NAMESPACE).is_none_or(<[u8]>::is_empty) {
        let text = ByteString(namespace.into_bytes());
        fields.insert(NAMESPACE.to_owned(), text);
    }
    if data(secret, TOKEN).is_none_or(<[u8]>::is_empty) {
        let token = sign(secret, account)?;
        fields.insert(TOKEN.to_owned(), ByteString(token.into_bytes()));
    }
    Ok(match new == *secret {
        true => Plan::Keep,
        false => Plan::Fill(Box::new(new)),
    })
}

struct Tokens {
    client: kube::Client,
    informers: Informers,
    secrets: Informer<Secret>,
    signer: Arc<TokenSigner>,
    ca: Option<String>,
}

impl Tokens {
    /// The account, asked of the API server where the informer may lag.
    async fn account(
        &self,
        secret: &Secret,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ServiceAccount>, Error> {
        let known = self.informers.service_accounts.get(Some(namespace), name);
        if let Some(known) = known.filter(|known| is_meant(secret, Some(known))) {
            return Ok(Some((*known).clone()));
        }
        let api: kube::Api<ServiceAccount> = kube::Api::namespaced(self.client.clone(), namespace);
        api.get_opt(name)
            .await
            .context(|| format!("read service account {namespace}/{name}"))
    }
}

#[async_trait]
impl Reconcile for Tokens {
    const NAME: &'static str = "serviceaccount-token-controller";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if self.secrets.wait_synced(NOT_SYNCED).await.is_err() {
            return Ok(Next::After(NOT_SYNCED));
        }
        let Some(secret) = self.secrets.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if secret.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let Some(name) = annotation(&secret, ACCOUNT).filter(|name| !name.is_empty()) else {
            return Ok(Next::Wait);
        };
        let account = self.account(&secret, &key.namespace, name).await?;
        let plan = plan(&secret, account.as_ref(), self.ca.as_deref(), |s, a| {
            self.signer.sign(s, a)
        });
        let plan = plan.map_err(|error| Error::Invalid(format!("token of {key}: {error}")))?;
        let api: kube::Api<Secret> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        match plan {
            Plan::Keep => {}
            Plan::Delete => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: secret.metadata.uid.clone(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                let deleted = api.delete(&key.name, &params).await;
                gone_is_none(deleted).context(|| format!("delete token secret {key}"))?;
            }
            Plan::Fill(new) => {
                let written = api.replace(&key.name, &PostParams::default(), &new).await;
                gone_is_none(written).context(|| format!("fill token secret {key}"))?;
            }
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: &str) -> ServiceAccount {
        let mut account = ServiceAccount::default();
        account.metadata.name = Some("a".to_owned());
        account.metadata.uid = Some(uid.to_owned());
        account
    }

    fn secret() -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some("s".to_owned());
        secret.metadata.namespace = Some("n".to_owned());
        let name = (ACCOUNT.to_owned(), "a".to_owned());
        secret.metadata.annotations = Some([name].into());
        secret
    }

    fn signed(_: &Secret, _: &ServiceAccount) -> Result<String, SigningKeyError> {
        Ok("t".to_owned())
    }

    #[test]
    fn a_secret_is_filled_once() {
        let plan = |secret: &Secret| plan(secret, Some(&account("u")), Some("CA"), signed).unwrap();
        let Plan::Fill(filled) = plan(&secret()) else {
            panic!("nothing is filled in")
        };
        assert_eq!(annotation(&filled, ACCOUNT_UID), Some("u"));
        assert_eq!(data(&filled, TOKEN), Some(&b"t"[..]));
        assert_eq!(data(&filled, NAMESPACE), Some(&b"n"[..]));
        assert_eq!(data(&filled, CA), Some(&b"CA"[..]));
        assert_eq!(plan(&filled), Plan::Keep);
    }

    #[test]
    fn a_secret_goes_with_its_account() {
        let Plan::Fill(filled) = plan(&secret(), Some(&account("u")), None, signed).unwrap() else {
            panic!("nothing is filled in")
        };
        let anew = plan(&filled, Some(&account("v")), None, signed).unwrap();
        assert_eq!(anew, Plan::Delete);
        assert_eq!(plan(&filled, None, None, signed).unwrap(), Plan::Delete);
    }
}
