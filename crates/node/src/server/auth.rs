//! Who calls the node server, and what they may do.

use crate::access::{AccessOptions, Authorize};
use davit_client::subject::Subject;
use davit_client::{AccessAttributes, Reviewed, Reviews};
use http::{HeaderMap, Method, header};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller(Reviewed);

impl Caller {
    fn anonymous() -> Self {
        Self(Reviewed {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Reviewed::default()
        })
    }

    /// The user.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the caller has shown nothing.
    pub(super) fn is_anonymous(&self) -> bool {
        self.name() == "system:anonymous"
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let token = value
        .strip_prefix("Bearer ")
        .or_else(|| value.strip_prefix("bearer "))?;
    Some(token.trim())
}

/// Whom a client's certificates (its own first) stand for now: they may have ended since the connection was made.
pub(super) fn by_certificate(
    clients: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
) -> Option<Caller> {
    let (own, intermediates) = chain.split_first()?;
    let now = UnixTime::now();
    if let Err(error) = clients.verify_client_cert(own, intermediates, now) {
        tracing::debug!(%error, "client certificate refused");
        return None;
    }
    let subject = Subject::of_certificate(own).ok()?;
    let mut groups = subject.organizations;
    groups.push("system:authenticated".to_owned());
    Some(Caller(Reviewed {
        name: subject.common_name,
        groups,
        ..Reviewed::default()
    }))
}

/// Asks the API server about callers.
pub(super) struct Access {
    reviews: Reviews,
    node: String,
    options: AccessOptions,
}

fn first_segment(path: &str) -> &str {
    let path = path.trim_start_matches('/');
    path.split('/').next().unwrap_or_default()
}

/// The subresources of nodes that a path belongs to: who may one of them is served. Who is to read what the node says of its
/// pods needs no `proxy`, which lets run programs in all containers (KEP-2862).
pub(super) fn subresources(path: &str) -> &'static [&'static str] {
    match first_segment(path) {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

/// The paths by which something is executed or reached in a container, whatever the method: WebSockets begin with GET.
const EXECUTING: [&str; 4] = ["exec", "attach", "run", "portForward"];

/// The API verb of a request.
pub(super) fn verb(method: &Method, path: &str) -> &'static str {
    if EXECUTING.contains(&first_segment(path)) {
        return "create";
    }
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

impl Access {
    pub(super) fn new(client: kube::Client, node: String, options: AccessOptions) -> Self {
        let kept = [options.token_for, options.allowed_for, options.denied_for];
        Self {
            reviews: Reviews::new(client.clone(), client, kept),
            node,
            options,
        }
    }

    /// Who calls without a certificate that counts: whoever the bearer token stands for. A wrong one makes nobody anonymous.
    pub(super) async fn without_certificate(&self, headers: &HeaderMap) -> Option<Caller> {
        match bearer(headers).filter(|_| self.options.tokens) {
            Some(token) => self.by_token(token).await,
            None => self.options.anonymous.then(Caller::anonymous),
        }
    }

    async fn by_token(&self, token: &str) -> Option<Caller> {
        self.reviews.token(token).await.map(Caller)
    }

    /// Whether the caller may do this. Without an answer from the API server only `system:masters` may.
    pub(super) async fn allows(&self, caller: &Caller, method: &Method, path: &str) -> bool {
        if self.options.authorize == Authorize::AlwaysAllow {
            return true;
        }
        for subresource in subresources(path) {
            let wanted = ResourceAttributes {
                verb: Some(verb(method, path).to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(self.node.clone()),
                version: Some("v1".to_owned()),
                ..ResourceAttributes::default()
            };
            let wanted = AccessAttributes::Resource(Box::new(wanted));
            if self.reviews.allows(&caller.0, wanted).await {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executing_is_creating_whatever_the_method() {
        for path in [
            "/exec/ns/p/c",
            "//exec/ns/p/c",
            "/attach/a",
            "/run/a",
            "/portForward/a/b",
        ] {
            assert_eq!(verb(&Method::GET, path), "create", "{path}");
            assert_eq!(subresources(path), ["proxy"], "{path}");
        }
        assert_eq!(subresources("/pods"), ["pods", "proxy"]);
        assert_eq!(subresources("/podsx"), ["proxy"]);
        assert_eq!(verb(&Method::GET, "/pods"), "get");
        assert_eq!(verb(&Method::GET, "/containerLogs/ns/exec/c"), "get");
        assert_eq!(subresources("/metrics/resource"), ["metrics"]);
    }
}
