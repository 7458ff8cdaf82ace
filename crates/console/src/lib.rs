//! The console: a web page that shows a cluster to whoever may read it.
//!
//! What is here are files, built from `console/` by `cargo xtask console` and embedded, and the headers they go with.
//! They are the same for everybody and hold no secret, so they are served to everybody; whatever the page shows, it asks
//! the API for in the name of its user.

#![forbid(unsafe_code)]

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, Method, Response, StatusCode};

/// Where the page is.
pub const PATH: &str = "/console";

/// The file that is the page itself.
const SHELL: &str = "index.html";

/// Nothing from elsewhere, nothing inline, no markup made of text, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// What the page may never use of a browser.
const PERMISSIONS: &str = "camera=(), microphone=(), geolocation=(), usb=(), serial=(), payment=()";

struct File {
    name: &'static str,
    etag: &'static str,
    /// Bytes before compression.
    length: usize,
    gzip: &'static [u8],
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Whether a path is the console's matter: it, or something below it.
pub fn owns(path: &str) -> bool {
    path.strip_prefix(PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request for a path that is the console's, as the client wrote it: names are compared, never decoded or resolved.
pub fn answer(method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
    let name = path.strip_prefix(PATH).unwrap_or_default();
    let name = match name.strip_prefix('/').unwrap_or(name) {
        "" => SHELL,
        // the page has one address
        SHELL => "",
        name => name,
    };
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    file.answer(*method == Method::HEAD, headers)
}

impl File {
    fn answer(&self, head: bool, headers: &HeaderMap) -> Response<Bytes> {
        let is_shell = self.name == SHELL;
        let held = headers.get(IF_NONE_MATCH);
        if !is_shell && held.is_some_and(|held| lists(held, self.etag)) {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            self.describe(response.headers_mut());
            return response;
        }
        let packed = accepts_gzip(headers);
        let length = if packed { self.gzip.len() } else { self.length };
        let body = match (head, packed) {
            (true, _) => Bytes::new(),
            (false, true) => Bytes::from_static(self.gzip),
            (false, false) => self.unpacked(),
        };
        let mut response = Response::new(body);
        let answered = response.headers_mut();
        self.describe(answered);
        answered.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type()));
        answered.insert(CONTENT_LENGTH, HeaderValue::from(length));
        if packed {
            answered.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    /// What goes with the file and with the answer that it is unchanged.
    fn describe(&self, headers: &mut HeaderMap) {
        // the page itself is read anew each time, and leads to the rest, which is asked for by its tag
        let cache = if self.name == SHELL {
            "no-store"
        } else {
            headers.insert(ETAG, HeaderValue::from_static(self.etag));
            "no-cache"
        };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        protect(headers);
    }

    fn unpacked(&self) -> Bytes {
        let mut content = Vec::with_capacity(self.length);
        // what was compressed at build time is whole
        let _infallible = GzDecoder::new(self.gzip).read_to_end(&mut content);
        content.into()
    }

    fn content_type(&self) -> &'static str {
        match self.name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }
}

fn plain(code: StatusCode, text: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(text.as_bytes()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    protect(headers);
    response
}

fn protect(headers: &mut HeaderMap) {
    let values = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
    ];
    for (name, value) in values {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn lists(held: &HeaderValue, etag: &str) -> bool {
    let held = held.to_str().unwrap_or_default();
    let mut tags = held.split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut offers = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    offers.any(|offer| {
        let mut parts = offer.split(';').map(str::trim);
        let coding = parts.next().unwrap_or_default();
        let refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        matches!(coding, "gzip" | "*") && !refused
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
    use super::*;

    fn get(path: &str) -> Response<Bytes> {
        answer(&Method::GET, path, &HeaderMap::new())
    }

    fn asking(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_page_names_only_files_that_are_here() {
        let page = get(PATH);
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let text = String::from_utf8(page.body().to_vec()).unwrap();
        let named: Vec<&str> = text
            .split('"')
            .filter(|part| part.starts_with("/console/"))
            .collect();
        assert_eq!(named.len(), 3, "{text}");
        for path in named {
            assert_eq!(get(path).status(), StatusCode::OK, "{path}");
        }
        assert!(!text.contains("://"), "{text}");
        assert!(!text.contains("<style") && !text.contains("style="));
        assert_eq!(get("/console/").body(), page.body());
    }

    #[test]
    fn no_file_names_another_host() {
        for file in FILES {
            let text = String::from_utf8(file.unpacked().to_vec()).unwrap();
            let hosts = text.split("://").skip(1).filter(|rest| {
                let host: String = rest
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || "-.".contains(*c))
                    .collect();
                host.contains('.') && host != "www.w3.org"
            });
            let hosts: Vec<&str> = hosts.map(|rest| &rest[..rest.len().min(40)]).collect();
            assert!(hosts.is_empty(), "{}: {hosts:?}", file.name);
        }
    }

    #[test]
    fn paths_are_compared_and_never_resolved() {
        for path in [
            "/console/index.html",
            "/console/../version",
            "/console/..%2fversion",
            "/console/%2e%2e/version",
            "/console//console.js",
            "/console/./console.js",
            "/console/console.js/",
            "/console/console.js%00",
            "/console/CONSOLE.JS",
            "/console/files/console.js",
            "/console\\console.js",
        ] {
            assert_eq!(get(path).status(), StatusCode::NOT_FOUND, "{path}");
        }
        assert!(owns("/console") && owns("/console/x"));
        assert!(!owns("/consoles") && !owns("/Console") && !owns("/api/console"));
    }

    #[test]
    fn only_reading_is_answered() {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let refused = answer(&method, PATH, &HeaderMap::new());
            assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(refused.headers()[ALLOW], "GET, HEAD");
        }
        let head = answer(&Method::HEAD, "/console/console.js", &HeaderMap::new());
        let whole = get("/console/console.js");
        assert!(head.body().is_empty());
        assert_eq!(
            head.headers()[CONTENT_LENGTH],
            HeaderValue::from(whole.body().len())
        );
    }

    #[test]
    fn every_answer_forbids_frames_and_foreign_content() {
        for path in [PATH, "/console/console.js", "/console/nothing"] {
            let answer = get(path);
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
            assert_eq!(answer.headers()[X_FRAME_OPTIONS], "DENY");
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
        assert_eq!(get(PATH).headers()[CACHE_CONTROL], "no-store");
    }

    #[test]
    fn compressed_and_plain_are_the_same_and_known_by_tag() {
        let path = "/console/style.css";
        let plain = get(path);
        let packed = answer(&Method::GET, path, &asking(ACCEPT_ENCODING, "br, gzip"));
        assert_eq!(packed.headers()[CONTENT_ENCODING], "gzip");
        let mut content = Vec::new();
        GzDecoder::new(&packed.body()[..])
            .read_to_end(&mut content)
            .unwrap();
        assert_eq!(content, plain.body()[..]);
        let refusing = answer(&Method::GET, path, &asking(ACCEPT_ENCODING, "gzip;q=0"));
        assert!(!refusing.headers().contains_key(CONTENT_ENCODING));
        let mut known = HeaderMap::new();
        known.insert(IF_NONE_MATCH, plain.headers()[ETAG].clone());
        let unchanged = answer(&Method::GET, path, &known);
        assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
        assert!(unchanged.body().is_empty());
    }
}
