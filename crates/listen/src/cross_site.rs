//! Requests that a page of another site makes in the name of a user whose browser has a client certificate.
//!
//! A browser shows its certificate to whoever asks, whichever page makes the request: any site that the user visits could
//! write to the API, or open a terminal, in his name. Tokens are not shown by themselves, so requests without a certificate
//! are nobody's matter here. Programs are no browsers, and send none of these headers.
//!
//! What pods and other servers answer comes through the API server, and so from the origin of its API: a page among it would be no
//! other site's. It has an origin of its own ([`CONFINED`]), as long as the browser is asked by nobody but its user.

use crate::passed_on::ON_BEHALF_OF;
use http::header::{HOST, HeaderName, ORIGIN, UPGRADE, USER_AGENT};
use http::{HeaderMap, Method, Uri};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The policy of a page that may run and look as it likes, and is another site to this one.
pub const CONFINED: &str =
    "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

/// Whether a page in the answer would act by the user's certificate: a browser shows it here itself. Between it and
/// `kubectl proxy` the certificate is the latter's, which says for whom it asks.
pub fn must_confine(headers: &HeaderMap) -> bool {
    let is_browser = headers.contains_key(SITE)
        || headers.contains_key(MODE)
        || text(headers, USER_AGENT).starts_with("Mozilla/");
    is_browser && !headers.contains_key(FORWARDED_FOR)
}

/// A page of another site has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("forbidden: a page of another site may not act by the browser's client certificate")]
pub struct ForeignPage;

/// Refuses what a page of another site asks for. To be called for connections that show a certificate.
///
/// # Errors
/// [`ForeignPage`], if it is such a request.
pub fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ForeignPage> {
    let text = |name: HeaderName| text(headers, name);
    // somebody follows a link: the other page does not see the answer, and has none of it in a frame of its own
    let is_visit = matches!(*method, Method::GET | Method::HEAD)
        && text(MODE) == "navigate"
        && text(DESTINATION) == "document"
        && !headers.contains_key(UPGRADE);
    let is_foreign = matches!(text(SITE), "cross-site" | "same-site") && !is_visit;
    match is_foreign || opens_from_elsewhere(uri, headers) {
        true => Err(ForeignPage),
        false => Ok(()),
    }
}

/// Whether an API server or another program has passed the request on: what a browser has said is said of the program's address
/// then, and the program has judged it. A page can add neither field to what it asks for elsewhere, unless the server allows it
/// beforehand (CORS), which davit's do not.
pub fn is_passed_on(headers: &HeaderMap) -> bool {
    headers.contains_key(ON_BEHALF_OF) || headers.contains_key(FORWARDED_FOR)
}

/// Browsers open WebSockets to everywhere, and some say only by `Origin` which page asks for it.
fn opens_from_elsewhere(uri: &Uri, headers: &HeaderMap) -> bool {
    let origin = text(headers, ORIGIN);
    let is_browser = text(headers, USER_AGENT).starts_with("Mozilla/");
    if !headers.contains_key(UPGRADE) || origin.is_empty() || !is_browser {
        return false;
    }
    let host = uri.authority().map(http::uri::Authority::as_str);
    let host = host.unwrap_or_else(|| text(headers, HOST));
    origin.strip_prefix("https://") != Some(host)
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn is_refused(method: Method, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().method(method).uri("/api/v1/pods");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        check(&parts.method, &parts.uri, &parts.headers).is_err()
    }

    #[test]
    fn programs_and_the_own_page_are_answered() {
        assert!(!is_refused(Method::POST, &[]));
        assert!(!is_refused(
            Method::POST,
            &[("sec-fetch-site", "same-origin")]
        ));
        assert!(!is_refused(Method::GET, &[("sec-fetch-site", "none")]));
        let program = [
            ("upgrade", "websocket"),
            ("origin", "http://localhost"),
            ("user-agent", "kubectl/v1.36"),
        ];
        assert!(!is_refused(Method::GET, &program));
        let page = [
            ("upgrade", "websocket"),
            ("host", "10.0.0.1:6443"),
            ("origin", "https://10.0.0.1:6443"),
            ("user-agent", "Mozilla/5.0"),
        ];
        assert!(!is_refused(Method::GET, &page));
    }

    #[test]
    fn what_an_api_server_passes_on_is_told_from_what_a_page_asks_for() {
        let of = |name: &'static str| {
            let value = http::HeaderValue::from_static("1");
            is_passed_on(
                &[(HeaderName::from_static(name), value)]
                    .into_iter()
                    .collect(),
            )
        };
        // kube-apiserver adds the second, and hands on the browser's own `Origin` with it
        assert!(of("davit-on-behalf-of") && of("x-forwarded-for"));
        assert!(!of("origin") && !of("sec-fetch-site"));
    }

    #[test]
    fn answers_to_browsers_are_confined_and_those_to_programs_are_not() {
        let confines = |headers: &[(&'static str, &'static str)]| {
            let pairs = headers.iter().map(|(name, value)| {
                let value = http::HeaderValue::from_static(value);
                (HeaderName::from_static(name), value)
            });
            must_confine(&pairs.collect())
        };
        assert!(confines(&[("sec-fetch-site", "none")]));
        assert!(confines(&[("user-agent", "Mozilla/5.0")]));
        assert!(!confines(&[("user-agent", "kubectl/v1.36")]));
        let by_kubectl = [
            ("sec-fetch-site", "same-origin"),
            ("x-forwarded-for", "127.0.0.1"),
        ];
        assert!(!confines(&by_kubectl));
        // what such a page asks for is what another site asks for
        let socket = [
            ("upgrade", "websocket"),
            ("origin", "null"),
            ("user-agent", "Mozilla/5.0"),
        ];
        assert!(is_refused(Method::GET, &socket));
    }

    #[test]
    fn pages_of_others_are_refused_but_for_links() {
        for site in ["cross-site", "same-site"] {
            assert!(is_refused(Method::POST, &[("sec-fetch-site", site)]));
            assert!(is_refused(Method::GET, &[("sec-fetch-site", site)]));
            let leads_to = |what| {
                let link = [("sec-fetch-site", site), ("sec-fetch-mode", "navigate")];
                [&link[..], &[("sec-fetch-dest", what)]].concat()
            };
            assert!(!is_refused(Method::GET, &leads_to("document")));
            assert!(is_refused(Method::POST, &leads_to("document")), "a form");
            for part in ["iframe", "frame", "object", "embed"] {
                assert!(is_refused(Method::GET, &leads_to(part)), "{part}");
            }
        }
        for origin in ["https://evil.example", "http://10.0.0.1:6443", "null"] {
            let socket = [
                ("upgrade", "websocket"),
                ("host", "10.0.0.1:6443"),
                ("origin", origin),
                ("user-agent", "Mozilla/5.0"),
            ];
            assert!(is_refused(Method::GET, &socket), "{origin}");
        }
    }
}
