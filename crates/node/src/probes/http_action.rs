//! What `httpGet` of probes and hooks asks of a container, with the redirects that a kubelet follows: those to the same
//! host, whatever the port.

use super::http::{BODY, HttpRequest, HttpResponse, http_get};
use crate::dial::{PodEndpoint, connect, port_number};
use davit_api::host_port::host_port;
use davit_oci::runtime::Runtime;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod};
use url::{Position, Url};

/// Requests for one action, the first among them.
const MOST: usize = 10;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HttpActionError {
    /// No container port of that name, or no number of a port.
    Port,
    /// What failed, for people.
    Failed(String),
}

/// Who is asked.
pub(crate) struct HttpTarget<'a> {
    /// By which pods without address are reached.
    pub runtime: &'a dyn Runtime,
    /// The pod.
    pub pod: &'a Pod,
    /// The container, which names ports.
    pub container: &'a Container,
    /// Where the pod is reached.
    pub reach: &'a PodEndpoint,
}

/// One request.
struct Place {
    https: bool,
    /// `host:port`.
    authority: String,
    port: u16,
    path: String,
    /// The action's `Host` header is for the server that it names.
    keeps_host: bool,
}

impl Place {
    fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

impl HttpTarget<'_> {
    /// Makes the request; the caller sets the deadline.
    ///
    /// # Errors
    /// No such port, no connection, no answer, redirects without end.
    pub(crate) async fn get(
        &self,
        action: &HTTPGetAction,
    ) -> Result<HttpResponse, HttpActionError> {
        let mut place = self.first(action).ok_or(HttpActionError::Port)?;
        for _ in 0..MOST {
            let url = place.url();
            let failed = |error: &dyn std::fmt::Display| {
                HttpActionError::Failed(format!("Get \"{url}\": {error}"))
            };
            let response = self.ask(&place, action).await.map_err(|e| failed(&e))?;
            match redirected(&place, &response).map_err(|e| failed(&e))? {
                Some(next) => place = next,
                None => return Ok(response),
            }
        }
        let url = place.url();
        Err(HttpActionError::Failed(format!(
            "Get \"{url}\": stopped after {MOST} redirects"
        )))
    }

    fn first(&self, action: &HTTPGetAction) -> Option<Place> {
        let port = port_number(&action.port, self.container)?;
        let path = action.path.as_deref().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        Some(Place {
            https: action.scheme.as_deref() == Some("HTTPS"),
            authority: authority(host(action), self.reach, port),
            port,
            path: format!("{slash}{path}"),
            keeps_host: true,
        })
    }

    async fn ask(&self, place: &Place, action: &HTTPGetAction) -> Result<HttpResponse, String> {
        let (host, port) = (host(action), place.port);
        let stream = connect(self.runtime, self.pod, self.reach, host, port).await;
        let stream = stream.map_err(|error| format!("dial tcp {}: {error}", place.authority))?;
        let headers = action.http_headers.iter().flatten();
        let headers = headers
            .filter(|header| place.keeps_host || !header.name.eq_ignore_ascii_case("host"))
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect();
        let request = HttpRequest {
            authority: place.authority.clone(),
            path: place.path.clone(),
            https: place.https,
            headers,
            body_limit: BODY,
        };
        let answer = http_get(stream, request).await;
        answer.map_err(|error| error.to_string())
    }
}

fn host(action: &HTTPGetAction) -> Option<&str> {
    action.host.as_deref().filter(|host| !host.is_empty())
}

/// `host:port` of what is asked: the host that is given, else the pod's address.
pub(crate) fn authority(given: Option<&str>, reach: &PodEndpoint, port: u16) -> String {
    let host = given
        .filter(|host| !host.is_empty())
        .or(reach.ips.first().map(String::as_str))
        .unwrap_or("127.0.0.1");
    host_port(host, port)
}

/// Where the answer leads to; nowhere when it is no redirect, or one to another host.
fn redirected(from: &Place, response: &HttpResponse) -> Result<Option<Place>, String> {
    let location = match (response.status, response.location.as_deref()) {
        (301 | 302 | 303 | 307 | 308, Some(location)) if !location.is_empty() => location,
        _ => return Ok(None),
    };
    let bad = |error| format!("failed to parse Location header {location:?}: {error}");
    let base = Url::parse(&from.url()).map_err(bad)?;
    let to = base.join(location).map_err(bad)?;
    if to.host_str() != base.host_str() {
        return Ok(None);
    }
    let (Some(port), true) = (
        to.port_or_known_default(),
        matches!(to.scheme(), "http" | "https"),
    ) else {
        return Err(format!("unsupported protocol scheme \"{}\"", to.scheme()));
    };
    let host = to.host_str().unwrap_or_default();
    Ok(Some(Place {
        https: to.scheme() == "https",
        authority: format!("{host}:{port}"),
        port,
        path: to[Position::BeforePath..Position::AfterQuery].to_owned(),
        keeps_host: from.keeps_host && Url::parse(location).is_err(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn place(path: &str) -> Place {
        Place {
            https: false,
            authority: "[fd00::1]:8080".into(),
            port: 8080,
            path: path.into(),
            keeps_host: true,
        }
    }

    fn next(status: u16, location: &str) -> Result<Option<String>, String> {
        let response = HttpResponse {
            status,
            location: Some(location.to_owned()),
            body: Bytes::new(),
        };
        let next = redirected(&place("/a/b?c=d"), &response)?;
        Ok(next.map(|next| format!("{} {} {}", next.url(), next.port, next.keeps_host)))
    }

    #[test]
    fn redirects_stay_at_their_host() {
        for (location, to) in [
            ("/healthz", "http://[fd00::1]:8080/healthz 8080 true"),
            ("x/../y?z#f", "http://[fd00::1]:8080/a/y?z 8080 true"),
            ("?e", "http://[fd00::1]:8080/a/b?e 8080 true"),
            ("https://[fd00::1]/x", "https://[fd00::1]:443/x 443 false"),
            ("//[fd00:0::1]:9/x", "http://[fd00::1]:9/x 9 true"),
        ] {
            for status in [301, 302, 303, 307, 308] {
                assert_eq!(next(status, location).unwrap().unwrap(), to, "{location}");
            }
            for status in [200, 300, 304, 404] {
                assert_eq!(next(status, location), Ok(None), "{status}");
            }
        }
        for elsewhere in [
            "http://0.0.0.0/",
            "//example.com/",
            "https://[fd00::2]:8080/",
            "",
        ] {
            assert_eq!(next(302, elsewhere), Ok(None), "{elsewhere}");
        }
        assert!(
            next(302, "http://[")
                .unwrap_err()
                .starts_with("failed to parse Location")
        );
    }

    #[test]
    fn addresses_of_ipv6_stand_in_brackets() {
        let reach = |ips: &[&str]| PodEndpoint {
            sandbox: String::new(),
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        };
        assert_eq!(authority(None, &reach(&["fd00::1"]), 80), "[fd00::1]:80");
        assert_eq!(
            authority(Some(""), &reach(&["10.0.0.1"]), 80),
            "10.0.0.1:80"
        );
        assert_eq!(authority(Some("web"), &reach(&["fd00::1"]), 80), "web:80");
        assert_eq!(authority(Some("[::1]"), &reach(&[]), 80), "[::1]:80");
        assert_eq!(authority(None, &reach(&[]), 80), "127.0.0.1:80");
    }
}
