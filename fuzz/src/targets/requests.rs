//! What a path of a request asks for.

use davit_access::RequestInfo;
use davit_api::kinds::builtin;
use http::{Method, Uri};
use percent_encoding::percent_decode_str;

/// The methods that a byte stands for.
const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
];

/// Any method, path and query: what is served is what every reader finds in it, and is where its resource is.
pub fn request_path(data: &[u8]) {
    let [method, url @ ..] = data else { return };
    let method = METHODS[usize::from(*method) % METHODS.len()];
    let (Ok(method), Ok(uri)) = (method.parse::<Method>(), Uri::try_from(url)) else {
        return;
    };
    let info = RequestInfo::read(&method, &uri, scope);
    if !info.is_served() {
        return;
    }
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    assert_eq!(info.path, path);
    assert!(!path.contains("//") || info.rest.contains('/'), "{path:?}");
    let read = Reading::of(method.as_str(), &path);
    let read = read.expect("what is served can be read by others");
    assert_eq!(read.is_resource, info.is_resource);
    if !info.is_resource {
        return;
    }
    let ours = Reading {
        is_resource: true,
        verb: read.verb,
        group: &info.group,
        version: &info.version,
        namespace: info.namespace.as_deref().unwrap_or_default(),
        resource: &info.resource,
        // A field selector stands for the name of a list.
        name: if info.verb == read.verb {
            &info.name
        } else {
            read.name
        },
        subresource: &info.subresource,
    };
    assert_eq!(read, ours);
    let lists = matches!(info.verb.as_str(), "list" | "watch" | "deletecollection");
    assert!(
        info.verb == read.verb || (lists && read.name.is_empty()),
        "{}",
        info.verb
    );
    for text in [&info.resource, &info.name, &info.subresource] {
        let odd = text.contains(['/', '%']) || matches!(text.as_str(), "." | "..");
        assert!(!odd, "{text:?}");
    }
    if scope(&info) == Some(false) {
        assert!(!info.is_namespaced(), "{path:?} is in a namespace");
        let own = info.resource == "namespaces" && *info.name == *ours.namespace;
        assert!(ours.namespace.is_empty() || own, "{path:?}");
    }
    let rest = info.rest.as_str();
    assert!(uri.path().ends_with(rest), "{rest:?} of {path:?}");
    assert!(rest.is_empty() || !info.subresource.is_empty());
}

/// Whether objects of a built-in kind are in namespaces.
fn scope(info: &RequestInfo) -> Option<bool> {
    let mut rows = builtin().resources.iter();
    let of = |row: &&davit_api::kinds::ResourceRow| {
        row.group == info.group && row.version == info.version && row.plural == info.resource
    };
    rows.find(of).map(|row| row.namespaced)
}

/// What the request info factory of k8s.io/apiserver finds in a path that is decoded as a whole, before it looks at the
/// query. <https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>
#[derive(Debug, PartialEq, Eq, Default)]
struct Reading<'a> {
    is_resource: bool,
    verb: &'a str,
    group: &'a str,
    version: &'a str,
    namespace: &'a str,
    resource: &'a str,
    name: &'a str,
    subresource: &'a str,
}

impl<'a> Reading<'a> {
    /// `None` where that reader gives up.
    fn of(method: &'a str, path: &'a str) -> Option<Self> {
        let path = path.trim_matches('/');
        let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
        let (group, version, mut parts) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Some(Self::default()),
        };
        let mut verb = match method {
            "POST" => "create",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "",
        };
        if let [prefix @ ("watch" | "proxy"), rest @ ..] = parts {
            if rest.is_empty() {
                return None;
            }
            (verb, parts) = (*prefix, rest);
        }
        let mut namespace = "";
        if let ["namespaces", name, rest @ ..] = parts {
            namespace = name;
            if !matches!(rest, [] | ["status" | "finalize", ..]) {
                parts = rest;
            }
        }
        let at = |index: usize| parts.get(index).copied().unwrap_or_default();
        Some(Self {
            is_resource: true,
            verb,
            group,
            version,
            namespace,
            resource: at(0),
            name: at(1),
            subresource: if verb == "proxy" { "" } else { at(2) },
        })
    }
}
