//! The webhook's certificate: one for all replicas, in a Secret of the operator's; its authority stands in the webhook's
//! configuration. It is made anew before it ends.

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::{Timestamp, ToSpan};
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use rcgen::{CertificateParams, KeyPair};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Name of the Secret, of the Service and of the configuration.
pub(crate) const NAME: &str = "sampledb-webhook";
/// Annotation with the end of the certificate.
const ENDS: &str = "demo.davit.dev/not-after";
const GOOD_FOR_DAYS: i64 = 365;
const RENEW_BEFORE_DAYS: i64 = 60;
/// How often it is looked whether another replica has made a new one.
const LOOK: Duration = Duration::from_secs(600);

/// What the webhook serves with; exchanged while it serves.
#[derive(Debug)]
pub(crate) struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(
            &self.0.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

/// Takes the certificate of the Secret, which is made if nobody has made one.
///
/// # Errors
/// When the API server does not let it.
pub(crate) async fn take(client: &Client, namespace: &str) -> Result<Arc<ServingCertificate>> {
    let key = key_of(&current(client, namespace).await?)?;
    Ok(Arc::new(ServingCertificate(RwLock::new(key))))
}

/// Keeps the certificate as the Secret has it, and the Secret's in time.
pub(crate) async fn follow(client: Client, namespace: String, serving: Arc<ServingCertificate>) {
    loop {
        tokio::time::sleep(LOOK).await;
        match current(&client, &namespace)
            .await
            .and_then(|secret| key_of(&secret))
        {
            Ok(key) => *serving.0.write().unwrap_or_else(PoisonError::into_inner) = key,
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the webhook's certificate was not read"
            ),
        }
    }
}

/// The Secret with a certificate that is good, told to the API server.
async fn current(client: &Client, namespace: &str) -> Result<Secret> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = secrets
        .get_opt(NAME)
        .await
        .context("read the webhook's Secret")?;
    let secret = match found {
        Some(secret) if good(&secret) => secret,
        Some(old) => {
            let mut new = made(namespace)?;
            new.metadata.resource_version = old.metadata.resource_version;
            secrets
                .replace(NAME, &PostParams::default(), &new)
                .await
                .context("renew the webhook's Secret")?
        }
        None => match secrets
            .create(&PostParams::default(), &made(namespace)?)
            .await
        {
            Ok(secret) => secret,
            // another replica was faster
            Err(kube::Error::Api(status)) if status.code == 409 => secrets.get(NAME).await?,
            Err(error) => return Err(error).context("make the webhook's Secret"),
        },
    };
    let bundle = secret
        .data
        .as_ref()
        .and_then(|data| data.get("tls.crt"))
        .context("no tls.crt")?;
    let all: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let patch = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "webhooks": [{"name": "sampledbs.demo.davit.dev", "clientConfig": {"caBundle": bundle}}]});
    let params = PatchParams {
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    };
    all.patch(NAME, &params, &Patch::Strategic(patch))
        .await
        .context("tell the API server of the certificate")?;
    Ok(secret)
}

fn good(secret: &Secret) -> bool {
    let annotations = secret.metadata.annotations.as_ref();
    let ends = annotations
        .and_then(|a| a.get(ENDS))
        .and_then(|text| text.parse::<Timestamp>().ok());
    let now = Timestamp::now();
    ends.is_some_and(|ends| ends.duration_since(now).as_hours() > RENEW_BEFORE_DAYS * 24)
        && key_of(secret).is_ok()
}

/// A certificate that is its own authority.
fn made(namespace: &str) -> Result<Secret> {
    let key = KeyPair::generate().context("make a key")?;
    let names = [
        format!("{NAME}.{namespace}.svc"),
        format!("{NAME}.{namespace}.svc.cluster.local"),
    ];
    let mut params = CertificateParams::new(names).context("names of the certificate")?;
    let now = Timestamp::now();
    let ends = now
        .checked_add((GOOD_FOR_DAYS * 24).hours())
        .context("end of the certificate")?;
    let at = |time: Timestamp| std::time::SystemTime::from(time).into();
    params.not_before = at(now
        .checked_sub(1.hour())
        .context("begin of the certificate")?);
    params.not_after = at(ends);
    let certificate = params.self_signed(&key).context("sign the certificate")?;
    let data = [
        ("tls.crt", certificate.pem()),
        ("tls.key", key.serialize_pem()),
    ];
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            annotations: Some(BTreeMap::from([(ENDS.to_owned(), ends.to_string())])),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(
            data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())))
                .into(),
        ),
        ..Secret::default()
    })
}

fn key_of(secret: &Secret) -> Result<Arc<CertifiedKey>> {
    let field = |name: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(name));
        value
            .map(|value| value.0.as_slice())
            .with_context(|| format!("the webhook's Secret has no {name}"))
    };
    let chain = CertificateDer::from_pem_slice(field("tls.crt")?).context("tls.crt")?;
    let key = PrivateKeyDer::from_pem_slice(field("tls.key")?).context("tls.key")?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).context("tls.key")?;
    Ok(Arc::new(CertifiedKey::new(vec![chain], key)))
}
