//! The words of the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Error, Result};

/// A key with its value and the revisions of its first and last write.
///
/// Clones share the key and the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Arc<str>,
    /// The value, exactly as written.
    pub value: Bytes,
    /// Revision of the write that produced this value.
    pub mod_revision: u64,
    /// Revision of the write that created the key; a deleted and recreated key has
    /// a new one.
    pub create_revision: u64,
}

/// One committed write, as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Revision of the write.
    pub revision: u64,
    /// The key written.
    pub key: Arc<str>,
    /// The pair after the write; `None` if it was a delete.
    pub current: Option<KeyValue>,
    /// The pair before the write; `None` if the key did not exist. A remote engine may lack it when history was compacted
    /// while the watch was behind.
    pub previous: Option<KeyValue>,
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key exists and this is its `mod_revision`.
    Revision(u64),
    /// Anything. A delete still fails with [`Error::NotFound`] if there is nothing.
    Any,
}

/// What a write does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Sets the value.
    Put(Bytes),
    /// Removes the key.
    Delete,
}

/// A compare-and-swap write of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// The condition.
    pub expect: Expect,
    /// The effect.
    pub op: Operation,
    /// How long the pair is to be there unless it is written again. Engines that cannot do that keep it
    /// ([`crate::Store::expires`]).
    pub ttl: Option<Duration>,
}

impl Write {
    /// The pair goes by itself after a while, where the engine can do that.
    #[must_use]
    pub fn lasting(mut self, ttl: Option<Duration>) -> Self {
        self.ttl = ttl;
        self
    }

    /// Creates `key`, which must not exist.
    pub fn create(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Absent,
            op: Operation::Put(value.into()),
            ttl: None,
        }
    }

    /// Replaces the value of `key`, last written at `revision`.
    pub fn update(key: impl Into<String>, revision: u64, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Revision(revision),
            op: Operation::Put(value.into()),
            ttl: None,
        }
    }

    /// Sets `key` whatever it is.
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Any,
            op: Operation::Put(value.into()),
            ttl: None,
        }
    }

    /// Deletes `key`, last written at `revision`.
    pub fn delete(key: impl Into<String>, revision: u64) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Revision(revision),
            op: Operation::Delete,
            ttl: None,
        }
    }

    /// Deletes `key` whatever it is.
    pub fn delete_any(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Any,
            op: Operation::Delete,
            ttl: None,
        }
    }

    /// Checks the form of the key and the size of the value.
    ///
    /// Fails with [`Error::InvalidKey`] or [`Error::TooLarge`].
    pub fn check(&self, max_value_bytes: usize) -> Result<()> {
        const MAX_KEY: usize = 4096;
        let invalid = |reason| {
            let key = self.key.chars().take(128).collect();
            Err(Error::InvalidKey { key, reason })
        };
        if self.key.is_empty() {
            return invalid("it is empty");
        }
        if self.key.len() > MAX_KEY {
            return invalid("it is longer than 4096 bytes");
        }
        if self.key.contains('\0') {
            return invalid("it holds a NUL byte");
        }
        match &self.op {
            Operation::Put(value) if value.len() > max_value_bytes => Err(Error::TooLarge {
                key: self.key.clone(),
                size: value.len(),
                limit: max_value_bytes,
            }),
            _ => Ok(()),
        }
    }
}

/// The answer to a successful write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the write.
    pub revision: u64,
    /// The pair after the write; `None` after a delete.
    pub current: Option<KeyValue>,
    /// The pair before the write; `None` if the key did not exist.
    pub previous: Option<KeyValue>,
}

/// How much of a prefix to list, and as of when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Leave out keys before this one. The key itself is listed: a page that ended
    /// with key `k` goes on at `k` with a NUL byte appended.
    pub start: Option<String>,
    /// At most this many pairs; `None` means all.
    pub limit: Option<usize>,
    /// The state at this revision; `None` means the current one.
    pub revision: Option<u64>,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The pairs in key order.
    pub items: Vec<KeyValue>,
    /// The revision of the snapshot.
    pub revision: u64,
    /// Whether the limit cut the list.
    pub more: bool,
    /// How many pairs follow the page.
    pub remaining: usize,
}

/// The smallest string greater than every string that starts with `prefix`;
/// `None` if there is no such string.
#[must_use]
pub fn prefix_end(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            // The surrogates are not characters.
            '\u{D7FF}' => Some('\u{E000}'),
            _ => char::from_u32(last as u32 + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_bounds_the_prefix() {
        assert_eq!(prefix_end("/pods/").as_deref(), Some("/pods0"));
        assert_eq!(prefix_end("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(prefix_end(""), None);
        assert_eq!(prefix_end("\u{10FFFF}"), None);
    }

    #[test]
    fn check_names_the_fault() {
        assert!(matches!(
            Write::put("", "x").check(1),
            Err(Error::InvalidKey { .. })
        ));
        assert!(matches!(
            Write::put("a\0", "x").check(1),
            Err(Error::InvalidKey { .. })
        ));
        assert!(matches!(
            Write::put("a", "xy").check(1),
            Err(Error::TooLarge {
                size: 2,
                limit: 1,
                ..
            })
        ));
        assert!(Write::put("a", "x").check(1).is_ok());
    }
}
