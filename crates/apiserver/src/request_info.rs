//! What a request asks for, read from its method and path alone.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::query::Query;

/// The attributes of a request that authorization, admission and the handlers go by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The path, decoded.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`,
    /// `proxy`; the lower-cased method for non-resource requests.
    pub verb: String,
    /// Whether the path names a resource of the API.
    pub is_resource: bool,
    /// `api` or `apis`.
    pub prefix: String,
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, when the path names one.
    pub namespace: Option<String>,
    /// Plural resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Object name, or empty.
    pub name: String,
    /// What follows the subresource (proxy paths), with its leading slash; empty otherwise.
    pub rest: String,
    /// The field selector of a list, watch or deletecollection, as sent.
    pub field_selector: String,
    /// The label selector of a list, watch or deletecollection, as sent.
    pub label_selector: String,
}

const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Reads a request line.
    pub(crate) fn parse(method: &Method, raw_path: &str, query: &Query) -> Self {
        let mut info = Self {
            path: percent_decode_str(raw_path)
                .decode_utf8_lossy()
                .into_owned(),
            verb: method.as_str().to_ascii_lowercase(),
            ..Self::default()
        };
        let parts: Vec<String> = raw_path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let mut parts = parts.as_slice();
        match parts.first().map(String::as_str) {
            Some("api") if parts.len() >= 3 => {
                info.prefix = "api".into();
                info.version.clone_from(&parts[1]);
                parts = &parts[2..];
            }
            Some("apis") if parts.len() >= 4 => {
                info.prefix = "apis".into();
                info.group.clone_from(&parts[1]);
                info.version.clone_from(&parts[2]);
                parts = &parts[3..];
            }
            _ => return info,
        }
        info.is_resource = true;
        let mut verb = verb_of_method(method);
        let mut watch_prefix = false;
        if parts[0] == "watch" && parts.len() > 1 {
            watch_prefix = true;
            verb = "watch";
            parts = &parts[1..];
        } else if parts[0] == "proxy" && parts.len() > 1 {
            verb = "proxy";
            parts = &parts[1..];
        }
        if parts[0] == "namespaces" && parts.len() > 1 {
            info.namespace = Some(parts[1].clone());
            // `namespaces/{n}/status` is about the namespace itself
            if parts.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&parts[2].as_str()) {
                parts = &parts[2..];
            }
        }
        info.resource = parts.first().cloned().unwrap_or_default();
        info.name = parts.get(1).cloned().unwrap_or_default();
        info.subresource = parts.get(2).cloned().unwrap_or_default();
        if parts.len() > 3 {
            info.rest = rest_of(raw_path, parts.len() - 3);
        } else if parts.len() == 3 && raw_path.ends_with('/') {
            info.rest = "/".into();
        }
        info.verb = collection_verb(verb, &mut info.name, query, watch_prefix).into();
        if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            let selector = |key| query.get(key).unwrap_or_default().to_owned();
            info.field_selector = selector("fieldSelector");
            info.label_selector = selector("labelSelector");
        }
        info
    }

    /// `resource/subresource` or `resource`.
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// Whether the field selector admits only objects whose `field` is `value`.
    pub(crate) fn selects_field(&self, field: &str, value: &str) -> bool {
        davit_api::fields::FieldSelector::parse(&self.field_selector)
            .is_ok_and(|selector| selector.requires_exact_match(field) == Some(value))
    }

    /// Whether the request may stay open: no deadline, no place in the in-flight count.
    pub fn is_long_running(&self) -> bool {
        if !self.is_resource {
            return false;
        }
        matches!(self.verb.as_str(), "watch" | "proxy")
            || matches!(
                self.subresource.as_str(),
                "attach" | "exec" | "proxy" | "log" | "portforward"
            )
    }

    /// Whether the request only reads.
    pub fn is_read_only(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "get" | "list" | "watch" | "head" | "options"
        )
    }
}

/// The last `count` segments of the raw path, undecoded, with leading slash.
fn rest_of(raw_path: &str, count: usize) -> String {
    let trimmed = raw_path.trim_end_matches('/');
    let mut at = trimmed.len();
    for _ in 0..count {
        at = trimmed[..at].rfind('/').unwrap_or(0);
        while at > 0 && trimmed.as_bytes()[at - 1] == b'/' {
            at -= 1;
        }
    }
    raw_path[at..].to_owned()
}

fn verb_of_method(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Turns get and delete without a name into their collection forms. A `metadata.name` field
/// selector carries the name to authorization.
fn collection_verb(
    verb: &'static str,
    name: &mut String,
    query: &Query,
    watch_prefix: bool,
) -> &'static str {
    if watch_prefix {
        return "watch";
    }
    if !name.is_empty() {
        // a watch of one object through its own URL is not offered
        return verb;
    }
    match verb {
        "get" => {
            if let Some(selected) = query.get("fieldSelector").and_then(|selector| {
                selector.split(',').find_map(|term| {
                    term.strip_prefix("metadata.name==")
                        .or(term.strip_prefix("metadata.name="))
                })
            }) {
                selected.clone_into(name);
            }
            if query.flag("watch") { "watch" } else { "list" }
        }
        "delete" => "deletecollection",
        verb => verb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, url: &str) -> RequestInfo {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query))
    }

    #[test]
    fn paths_map_to_verbs_and_names() {
        let cases = [
            ("GET", "/api/v1/pods", "list", "", None, "pods", "", ""),
            (
                "GET",
                "/api/v1/pods?watch=true",
                "watch",
                "",
                None,
                "pods",
                "",
                "",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b",
                "get",
                "",
                Some("a"),
                "pods",
                "b",
                "",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods/b/exec",
                "create",
                "",
                Some("a"),
                "pods",
                "b",
                "exec",
            ),
            (
                "GET",
                "/api/v1/namespaces/a",
                "get",
                "",
                Some("a"),
                "namespaces",
                "a",
                "",
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update",
                "",
                Some("a"),
                "namespaces",
                "a",
                "finalize",
            ),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "deletecollection",
                "apps",
                Some("a"),
                "deployments",
                "",
                "",
            ),
            (
                "GET",
                "/apis/apps/v1/watch/deployments",
                "watch",
                "apps",
                None,
                "deployments",
                "",
                "",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dx",
                "list",
                "",
                None,
                "pods",
                "x",
                "",
            ),
        ];
        for (method, url, verb, group, namespace, resource, name, subresource) in cases {
            let info = parse(method, url);
            assert!(info.is_resource, "{url}");
            assert_eq!(info.verb, verb, "{url}");
            assert_eq!(info.group, group, "{url}");
            assert_eq!(info.namespace.as_deref(), namespace, "{url}");
            assert_eq!(info.resource, resource, "{url}");
            assert_eq!(info.name, name, "{url}");
            assert_eq!(info.subresource, subresource, "{url}");
        }
    }

    #[test]
    fn short_paths_are_not_resources() {
        for path in ["/", "/api", "/api/v1", "/apis/apps/v1", "/healthz/ping"] {
            assert!(!parse("GET", path).is_resource, "{path}");
        }
    }

    #[test]
    fn proxy_paths_keep_their_rest_undecoded() {
        let info = parse("GET", "/api/v1/nodes/n/proxy/logs/a%2Fb/");
        assert_eq!(info.subresource, "proxy");
        assert_eq!(info.rest, "/logs/a%2Fb/");
        assert_eq!(parse("GET", "/api/v1/nodes/n/proxy/").rest, "/");
        assert_eq!(parse("GET", "/api/v1/nodes/n/proxy").rest, "");
    }
}
