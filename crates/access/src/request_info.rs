//! What a request asks for, read from its method and path alone.
//!
//! Authorization, admission and the handlers all go by the one [`RequestInfo`]: nothing of the path
//! is read a second time. What is not as kube-apiserver would route it is marked as not served
//! ([`RequestInfo::unserved`]) instead of being read kindly, since somebody further on may read it
//! otherwise.

use davit_api::fields::FieldSelector;
use davit_api::labels::Selector;
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
    /// What follows the subresource (proxy paths), undecoded with its leading slash; empty otherwise.
    pub rest: String,
    /// The field selector of a list, watch or deletecollection, as sent.
    pub field_selector: String,
    /// The label selector of a list, watch or deletecollection, as sent.
    pub label_selector: String,
    /// The resource is named below a namespace: `namespaces/{namespace}/{resource}`.
    pub in_namespace: bool,
    /// The verb comes from the deprecated prefix `watch/`.
    pub watch_prefix: bool,
    /// Nothing is served at this path by this method, whoever asks.
    pub unserved: bool,
}

const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Reads a request line.
    pub fn parse(method: &Method, raw_path: &str, query: &Query) -> Self {
        let segments = Segments::of(raw_path);
        let mut info = Self {
            path: percent_decode_str(raw_path)
                .decode_utf8_lossy()
                .into_owned(),
            verb: method.as_str().to_ascii_lowercase(),
            ..Self::default()
        };
        let at = match segments.text(0).as_str() {
            "api" if segments.len() >= 3 => {
                info.version = segments.text(1);
                2
            }
            "apis" if segments.len() >= 4 => {
                info.group = segments.text(1);
                info.version = segments.text(2);
                3
            }
            _ => {
                info.unserved = !segments.are_plain(segments.len());
                return info;
            }
        };
        info.prefix = segments.text(0);
        info.is_resource = true;
        info.parse_resource(method, &segments, at);
        info.parse_selectors(query);
        info
    }

    /// Reads a request line as the pipeline does: the path, held to where its resource is. `namespaced` says whether
    /// objects of the resource are in namespaces, `None` for what is not known.
    pub fn read(
        method: &Method,
        uri: &http::Uri,
        namespaced: impl FnOnce(&Self) -> Option<bool>,
    ) -> Self {
        let query = Query::parse(uri.query().unwrap_or_default());
        let mut info = Self::parse(method, uri.path(), &query);
        let namespaced = namespaced(&info);
        info.hold_to(namespaced);
        info
    }

    /// Takes the namespace from a path that puts something there that is in none, and marks what is not served.
    pub fn hold_to(&mut self, namespaced: Option<bool>) {
        let (true, Some(namespaced)) = (self.is_resource, namespaced) else {
            return;
        };
        if self.is_namespaced() && !namespaced {
            self.namespace = None;
            self.unserved = true;
        }
        // an object is watched by its path in its namespace only
        if self.watch_prefix && !self.name.is_empty() && namespaced && self.namespace.is_none() {
            self.unserved = true;
        }
    }

    /// Whether anything can be served at this path by this method.
    #[must_use]
    pub fn is_served(&self) -> bool {
        !self.unserved
    }

    /// Reads what follows group and version, from segment `at` on.
    fn parse_resource(&mut self, method: &Method, segments: &Segments<'_>, mut at: usize) {
        verb_of_method(method).clone_into(&mut self.verb);
        let special = segments.text(at);
        if matches!(special.as_str(), "watch" | "proxy") {
            // proxying by prefix has been gone for long
            self.watch_prefix = special == "watch";
            self.unserved = !self.watch_prefix || method != Method::GET;
            self.verb = special;
            at += 1;
        }
        let left = segments.len().saturating_sub(at);
        if segments.text(at) == "namespaces" && left > 1 {
            self.namespace = Some(segments.text(at + 1));
            // `namespaces/{n}/status` is about the namespace itself
            let own = NAMESPACE_SUBRESOURCES.contains(&segments.text(at + 2).as_str());
            if left > 2 && !own {
                self.in_namespace = true;
                at += 2;
            }
        }
        self.resource = segments.text(at);
        self.name = segments.text(at + 1);
        self.subresource = segments.text(at + 2);
        if !self.subresource.is_empty() {
            segments.after(at + 2).clone_into(&mut self.rest);
        }
        self.unserved |= self.resource.is_empty()
            || !segments.are_plain(at + 3)
            || (self.watch_prefix && !self.subresource.is_empty());
    }

    /// Turns get and delete without a name into their collection forms. A `metadata.name` field
    /// selector carries the name to authorization, and the handlers hold it to that.
    fn parse_selectors(&mut self, query: &Query) {
        let selector = |key| query.get(key).unwrap_or_default().to_owned();
        if self.name.is_empty() && self.verb == "get" {
            self.verb = if query.flag("watch") { "watch" } else { "list" }.to_owned();
            let fields = FieldSelector::parse(&selector("fieldSelector")).unwrap_or_default();
            let name = fields.requires_exact_match("metadata.name");
            let name = name.filter(|name| is_plain(name)).unwrap_or_default();
            name.clone_into(&mut self.name);
        } else if self.name.is_empty() && self.verb == "delete" {
            "deletecollection".clone_into(&mut self.verb);
        }
        if matches!(self.verb.as_str(), "list" | "watch" | "deletecollection") {
            self.field_selector = selector("fieldSelector");
            self.label_selector = selector("labelSelector");
        }
    }

    /// Whether the path names an object, or a resource, inside a namespace. The namespace of a
    /// path to a namespace itself is that of the object only.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.in_namespace
            || (self.namespace.is_some()
                && !(self.group.is_empty() && self.resource == "namespaces"))
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
        FieldSelector::parse(&self.field_selector)
            .is_ok_and(|selector| selector.requires_exact_match(field) == Some(value))
    }

    /// Whether the label selector admits only objects whose `label` is `value`.
    pub(crate) fn selects_label(&self, label: &str, value: &str) -> bool {
        self.label_selector
            .parse::<Selector>()
            .is_ok_and(|selector| selector.requires_exact_match(label) == Some(value))
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

/// The segments of a raw path, decoded one by one.
struct Segments<'a> {
    path: &'a str,
    /// Where each begins and ends.
    bounds: Vec<(usize, usize)>,
}

impl<'a> Segments<'a> {
    /// A slash at the end begins no segment.
    fn of(path: &'a str) -> Self {
        let mut bounds = Vec::new();
        let mut begin = usize::from(path.starts_with('/'));
        for part in path[begin..].split('/') {
            bounds.push((begin, begin + part.len()));
            begin += part.len() + 1;
        }
        if bounds.last().is_some_and(|(begin, end)| begin == end) {
            bounds.pop();
        }
        Self { path, bounds }
    }

    fn len(&self) -> usize {
        self.bounds.len()
    }

    fn raw(&self, at: usize) -> Option<&'a str> {
        let (begin, end) = self.bounds.get(at)?;
        self.path.get(*begin..*end)
    }

    /// A segment, decoded; empty past the end.
    fn text(&self, at: usize) -> String {
        percent_decode_str(self.raw(at).unwrap_or_default())
            .decode_utf8_lossy()
            .into_owned()
    }

    /// Everything after a segment, undecoded.
    fn after(&self, at: usize) -> &'a str {
        let end = self.bounds.get(at).map(|(_, end)| *end);
        end.and_then(|end| self.path.get(end..)).unwrap_or_default()
    }

    /// Whether nobody can read the first `count` segments otherwise than they are read here.
    fn are_plain(&self, count: usize) -> bool {
        (0..count.min(self.len())).all(|at| {
            let decoded = percent_decode_str(self.raw(at).unwrap_or_default()).decode_utf8();
            decoded.is_ok_and(|text| is_plain(&text))
        })
    }
}

/// What the name of an object may be in a path.
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#path-segment-names>
fn is_plain(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && !text.contains(['/', '%'])
        && !text.contains(char::is_control)
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

#[cfg(test)]
mod tests;
