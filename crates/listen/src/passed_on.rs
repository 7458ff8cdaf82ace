//! For whom a request is counted that somebody passes on for others.

use http::{HeaderName, HeaderValue};

/// Tells users apart whose requests the API server passes on to a node: there all of them are the API server's, and whoever
/// took all that it may have left nothing to anybody else. The name of nobody, since it is told to nodes.
pub const ON_BEHALF_OF: HeaderName = HeaderName::from_static("davit-on-behalf-of");

/// As whom a request of `caller` is counted, which it may pass on for whomever it likes.
pub fn counted_as(caller: &str, on_behalf_of: Option<&HeaderValue>) -> String {
    match on_behalf_of.and_then(|value| value.to_str().ok()) {
        Some(other) => format!("{caller} for {other}"),
        None => caller.to_owned(),
    }
}
