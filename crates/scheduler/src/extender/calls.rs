//! Calls: POST of JSON over HTTP/1.1 connections that are kept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::quote;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

use super::Extender;
use crate::config::{ExtenderConfiguration, ExtenderTls};

/// Longest answer: the objects of five thousand nodes.
const LONGEST_ANSWER: usize = 64 << 20;
/// An answer is about what was asked, and so many times as long as the question at most, beside this: what is read of it takes
/// many times its bytes.
const LONGER: usize = 4;
const SPARE: usize = 1 << 20;

/// Why an extender has not answered.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    /// What the configuration names cannot be used.
    #[error("extender {url}: {what}: {cause}")]
    Configuration {
        /// The URL prefix.
        url: String,
        /// Which part of it.
        what: &'static str,
        /// Why.
        cause: String,
    },
    /// No answer came.
    #[error("Post {}: {cause}", quote(url))]
    Transport {
        /// Where it was expected.
        url: String,
        /// Why.
        cause: String,
    },
    /// An answer that is not a success.
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Refused {
        /// The call.
        verb: String,
        /// Where it was made.
        url: String,
        /// The HTTP status.
        code: u16,
    },
    /// An answer that is none.
    #[error("extender {url}: {cause}")]
    Malformed {
        /// Where it came from.
        url: String,
        /// What is wrong.
        cause: String,
    },
    /// What the extender says itself, or about nodes and pods that are not asked about.
    #[error("{0}")]
    Answer(String),
    /// It has failed too often to be asked now.
    #[error("extender {url} is not asked for a while: {last}")]
    LeftAlone {
        /// The URL prefix.
        url: &'static str,
        /// Its last failure.
        last: String,
    },
}

/// Makes the client of an extender.
pub(super) fn client(config: &ExtenderConfiguration) -> Result<kube::Client, ExtenderError> {
    let unusable = |what: &'static str, cause: String| ExtenderError::Configuration {
        url: config.url_prefix.clone(),
        what,
        cause,
    };
    let url: Uri = config
        .url_prefix
        .parse()
        .map_err(|e: http::uri::InvalidUri| unusable("urlPrefix", e.to_string()))?;
    let mut settings = kube::Config::new(url);
    // The time for a whole call is counted around it, and nothing is asked twice behind its back.
    settings.connect_timeout = None;
    settings.read_timeout = None;
    settings.write_timeout = None;
    settings.default_retry = false;
    let tls = config.tls_config.clone().unwrap_or_default();
    settings.accept_invalid_certs = tls.insecure;
    settings.tls_server_name = Some(tls.server_name.clone()).filter(|n| !n.is_empty());
    if let Some(pem) = material(&tls.ca_data, &tls.ca_file).map_err(|e| unusable("caFile", e))? {
        let certificates = CertificateDer::pem_slice_iter(&pem)
            .map(|c| c.map(|c| c.to_vec()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| unusable("caData", e.to_string()))?;
        settings.root_cert = Some(certificates);
    }
    show_certificate(&tls, &mut settings).map_err(|e| unusable("certFile, keyFile", e))?;
    kube::Client::try_from(settings).map_err(|e| unusable("tlsConfig", root_cause(&e)))
}

/// Has the client show its certificate, if it has one.
fn show_certificate(tls: &ExtenderTls, settings: &mut kube::Config) -> Result<(), String> {
    let certificate = material(&tls.cert_data, &tls.cert_file)?;
    let key = material(&tls.key_data, &tls.key_file)?;
    if let (Some(certificate), Some(key)) = (certificate, key) {
        settings.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
        settings.auth_info.client_key_data = Some(STANDARD.encode(key).into());
    }
    Ok(())
}

/// What is given as data in base64, or else in a file.
fn material(data: &str, file: &str) -> Result<Option<Vec<u8>>, String> {
    if !data.is_empty() {
        return STANDARD.decode(data).map(Some).map_err(|e| e.to_string());
    }
    if file.is_empty() {
        return Ok(None);
    }
    std::fs::read(file)
        .map(Some)
        .map_err(|e| format!("{file}: {e}"))
}

/// Makes a call; the answer is JSON.
pub(super) async fn post(
    extender: &Extender,
    verb: &str,
    body: &Value,
) -> Result<Value, ExtenderError> {
    let url = format!("{}/{verb}", extender.name.trim_end_matches('/'));
    let failed = |cause: String| ExtenderError::Transport {
        url: url.clone(),
        cause,
    };
    let body = body.to_string().into_bytes();
    let longest = body.len().saturating_mul(LONGER).saturating_add(SPARE);
    let longest = longest.min(LONGEST_ANSWER);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/{verb}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(|e| failed(e.to_string()))?;
    let answer = async {
        let response = extender.client.send(request).await;
        let response = response.map_err(|e| failed(root_cause(&e)))?;
        if response.status() != StatusCode::OK {
            return Err(ExtenderError::Refused {
                verb: verb.to_owned(),
                url: url.clone(),
                code: response.status().as_u16(),
            });
        }
        let body = Limited::new(response.into_body(), longest);
        let body = body.collect().await.map_err(|e| failed(e.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| ExtenderError::Malformed {
            url: url.clone(),
            cause: e.to_string(),
        })
    };
    match tokio::time::timeout(extender.timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(failed("context deadline exceeded".to_owned())),
    }
}

/// What lies at the bottom of an error; the layers above only say that something failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}
