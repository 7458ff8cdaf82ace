//! Files and directories in memory, and how they came about.

use std::collections::BTreeMap;
use std::collections::HashMap;

/// A file or a directory; not given twice.
pub type Node = u64;

/// The directory in which everything is.
pub(super) const ROOT: Node = 1;

/// One change, in the order in which they happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new file or directory.
    Made {
        /// Where.
        dir: Node,
        /// Called what.
        name: String,
        /// Itself.
        node: Node,
        /// It is a directory.
        is_dir: bool,
    },
    /// A name is gone.
    Removed {
        /// Where.
        dir: Node,
        /// Which.
        name: String,
    },
    /// A name is another one's now.
    Renamed {
        /// Where it was.
        from: (Node, String),
        /// Where it is; what was there is gone.
        to: (Node, String),
    },
    /// Bytes are in a file.
    Written {
        /// Which.
        node: Node,
        /// Where.
        at: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A file has another length.
    Resized {
        /// Which.
        node: Node,
        /// In bytes.
        len: u64,
    },
    /// All before this of a file, or of a directory's names, is on the disk.
    Synced {
        /// Which.
        node: Node,
    },
    /// The program has said something, such as that it counts on a write.
    Said(u64),
}

/// All that happened below a recorder, on top of what was there.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// In order.
    pub events: Vec<Event>,
}

/// What is in a file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Content {
    /// Up to the last byte that was written; zeros follow.
    pub(super) bytes: Vec<u8>,
    pub(super) len: u64,
}

impl Content {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (start, end) = (at as usize, at as usize + bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(bytes);
        self.len = self.len.max(end as u64);
    }

    fn resize(&mut self, len: u64) {
        self.bytes
            .truncate(usize::try_from(len).unwrap_or(usize::MAX));
        self.len = len;
    }
}

/// What is in the directory after some events.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: HashMap<Node, Content>,
    pub(super) dirs: HashMap<Node, BTreeMap<String, Node>>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self::default();
        tree.dirs.insert(ROOT, BTreeMap::new());
        tree
    }

    pub(super) fn child(&self, dir: Node, name: &str) -> Option<Node> {
        self.dirs.get(&dir)?.get(name).copied()
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Made {
                dir,
                name,
                node,
                is_dir,
            } => {
                if *is_dir {
                    self.dirs.entry(*node).or_default();
                } else {
                    self.files.entry(*node).or_default();
                }
                self.name(*dir, name, *node);
            }
            Event::Removed { dir, name } => {
                if let Some(names) = self.dirs.get_mut(dir) {
                    names.remove(name);
                }
            }
            Event::Renamed { from, to } => {
                let node = self.dirs.get_mut(&from.0).and_then(|d| d.remove(&from.1));
                if let Some(node) = node {
                    self.name(to.0, &to.1, node);
                }
            }
            Event::Written { node, at, bytes } => {
                self.files.entry(*node).or_default().write(*at, bytes);
            }
            Event::Resized { node, len } => {
                self.files.entry(*node).or_default().resize(*len);
            }
            Event::Synced { .. } | Event::Said(_) => {}
        }
    }

    fn name(&mut self, dir: Node, name: &str, node: Node) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.insert(name.to_owned(), node);
        }
    }
}
