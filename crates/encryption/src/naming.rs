//! What the keys of a store say: of which resource a value is, and what is authenticated with it.

use std::borrow::Cow;

/// What a key says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<'a> {
    /// Group (empty for the core group) and plural name of the resource; `None` for what is never encrypted.
    pub resource: Option<(&'a str, &'a str)>,
    /// What ciphers authenticate with the value.
    pub context: Cow<'a, str>,
}

/// Reads keys.
pub trait Naming: Send + Sync + 'static {
    /// What a key says.
    fn named<'a>(&self, key: &'a str) -> Named<'a>;
}

/// Keys `/registry/{group or core}/{plural}/...`, which are authenticated as they are.
#[derive(Debug, Clone, Copy)]
pub struct OwnNaming;

impl Naming for OwnNaming {
    fn named<'a>(&self, key: &'a str) -> Named<'a> {
        let mut parts = key
            .strip_prefix("/registry/")
            .unwrap_or_default()
            .split('/');
        let resource = parts.next().zip(parts.next());
        Named {
            resource: resource
                .map(|(group, plural)| (if group == "core" { "" } else { group }, plural)),
            context: Cow::Borrowed(key),
        }
    }
}
