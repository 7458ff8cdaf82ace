//! Where the store's keys are in etcd, and etcd's words as the store's.

use std::sync::Arc;

use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::{Compare, compare};
use davit_proto::etcd::mvccpb;
use davit_store::KeyValue;

/// The end of a range that has none.
const NO_END: &[u8] = b"\0";

/// The place of the store below a prefix: nothing else in that etcd is read or written, but for the compactor's key, which
/// is everybody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    prefix: String,
}

impl Layout {
    /// Whether the store may have such a key.
    pub(crate) fn takes(key: &str) -> bool {
        key.starts_with('/')
    }

    /// `prefix` as people write it, with or without slashes around.
    pub(crate) fn new(prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        Self {
            prefix: if inner.is_empty() {
                String::new()
            } else {
                format!("/{inner}")
            },
        }
    }

    /// The key that says who owns the store. No key of the store: those begin with a slash.
    pub(crate) fn owner(&self) -> Bytes {
        Bytes::from(format!("{}:owner", self.prefix))
    }

    /// A key that nobody writes.
    pub(crate) fn empty(&self) -> Bytes {
        Bytes::from(format!("{}:health", self.prefix))
    }

    pub(crate) fn key(&self, key: &str) -> Bytes {
        Bytes::from(format!("{}{key}", self.prefix))
    }

    /// The first key of a prefix, from `start` on, and where the prefix ends.
    pub(crate) fn range(&self, prefix: &str, start: Option<&str>) -> (Bytes, Bytes) {
        // All keys begin with a slash, and there are others beside the store's.
        let prefix = if prefix.is_empty() { "/" } else { prefix };
        let first = self.key(start.filter(|start| *start > prefix).unwrap_or(prefix));
        (first, end_of(self.key(prefix).as_ref()))
    }

    /// A pair as the store's; `None` if its key is no text or not of the store, or a revision of it is none.
    pub(crate) fn pair(&self, pair: mvccpb::KeyValue) -> Option<KeyValue> {
        Some(KeyValue {
            key: self.own_key(&pair.key)?,
            value: pair.value,
            mod_revision: u64::try_from(pair.mod_revision).ok()?,
            create_revision: u64::try_from(pair.create_revision).ok()?,
        })
    }

    pub(crate) fn own_key(&self, key: &[u8]) -> Option<Arc<str>> {
        let text = std::str::from_utf8(key).ok()?;
        let own = text.strip_prefix(&self.prefix)?;
        own.starts_with('/').then(|| Arc::from(own))
    }
}

fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(NO_END)
}

/// That the last write of a key was that of a revision; zero for a key that does not exist.
pub(crate) fn written_at(key: Bytes, revision: u64) -> Compare {
    Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Mod.into(),
        key,
        target_union: Some(compare::TargetUnion::ModRevision(revision.cast_signed())),
    }
}

/// That a key exists.
pub(crate) fn exists(key: Bytes) -> Compare {
    Compare {
        result: compare::CompareResult::Greater.into(),
        target: compare::CompareTarget::Version.into(),
        key,
        target_union: Some(compare::TargetUnion::Version(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (written, key) in [
            ("/davit", "/davit/a"),
            ("davit/", "/davit/a"),
            ("/", "/a"),
            ("", "/a"),
            ("/a/b/", "/a/b/a"),
        ] {
            assert_eq!(Layout::new(written).key("/a"), key, "{written}");
        }
    }

    #[test]
    fn ranges() {
        let layout = Layout::new("/x");
        let range = |prefix, start| layout.range(prefix, start);
        assert_eq!(range("/a/", None), ("/x/a/".into(), "/x/a0".into()));
        assert_eq!(
            range("/a/", Some("/a/c")),
            ("/x/a/c".into(), "/x/a0".into())
        );
        assert_eq!(range("/a/", Some("/A")).0, "/x/a/");
        let all = Layout::new("");
        assert_eq!(all.range("", None), ("/".into(), "0".into()));
        assert_eq!(end_of(&[1, 255]), Bytes::from_static(&[2]));
        assert_eq!(end_of(&[255]), NO_END);
    }

    #[test]
    fn keys_of_others_are_not_the_stores() {
        let layout = Layout::new("/x");
        assert_eq!(layout.own_key(b"/x/a").as_deref(), Some("/a"));
        assert_eq!(layout.own_key(b"/y/a"), None);
        assert_eq!(layout.own_key(b"/x:owner"), None);
        assert_eq!(layout.own_key(&[255]), None);
    }
}
