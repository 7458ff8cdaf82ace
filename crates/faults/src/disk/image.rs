//! From a recording to what the disk may hold.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::tree::{Content, Event, Node, ROOT, Recording, Tree};
use crate::Dice;

/// What of the changes that nobody synced is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// All of it: the kernel has written everything in time.
    All,
    /// Nothing. File systems that keep a journal have their names as of the last sync of anything.
    Nothing,
    /// Some of it, by a seed. As a file system with a journal: names up to some moment, not earlier than the last sync
    /// of anything.
    Some(u64),
    /// Some of it, by a seed; a name counts on the sync of its own directory only.
    SomeWithoutJournal(u64),
}

/// What a disk holds.
#[derive(Debug)]
pub struct Image {
    tree: Tree,
}

/// Bytes that reach the disk as one: a sector, or a block.
const UNITS: [u64; 2] = [512, 4096];

impl Recording {
    /// What the disk holds if the power goes right before event `cut`.
    #[must_use]
    pub fn image(&self, cut: usize, survival: Survival) -> Image {
        let events = &self.events[..cut];
        let mut choice = Choice::new(events, survival);
        let mut tree = Tree::new();
        for (index, event) in events.iter().enumerate() {
            match event {
                Event::Made { .. } | Event::Removed { .. } | Event::Renamed { .. } => {
                    if choice.has_name(index, event) {
                        tree.apply(event);
                    } else if let Event::Made { node, is_dir, .. } = event {
                        // Without a name, though something may be written into it.
                        if *is_dir {
                            tree.dirs.entry(*node).or_default();
                        } else {
                            tree.files.entry(*node).or_default();
                        }
                    }
                }
                Event::Resized { node, .. } => {
                    if choice.has_length(index, *node) {
                        tree.apply(event);
                    }
                }
                Event::Written { node, at, bytes } => {
                    let before = tree.files.get(node).map_or(0, |file| file.len);
                    let longer = choice.has_length(index, *node);
                    for (at, piece) in choice.pieces(index, *node, *at, bytes) {
                        tree.apply(&Event::Written {
                            node: *node,
                            at,
                            bytes: piece,
                        });
                    }
                    let end = *at + bytes.len() as u64;
                    let len = if longer { end.max(before) } else { before };
                    tree.apply(&Event::Resized { node: *node, len });
                }
                Event::Synced { .. } | Event::Said(_) => {}
            }
        }
        Image { tree }
    }

    /// What was said before event `cut`.
    pub fn said(&self, cut: usize) -> impl Iterator<Item = u64> {
        self.events[..cut].iter().filter_map(|event| match event {
            Event::Said(what) => Some(*what),
            _ => None,
        })
    }
}

impl Image {
    /// Puts everything into an empty directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_to(&self, dir: &Path) -> io::Result<()> {
        self.write_dir(ROOT, dir)
    }

    fn write_dir(&self, node: Node, path: &Path) -> io::Result<()> {
        let empty = BTreeMap::new();
        for (name, node) in self.tree.dirs.get(&node).unwrap_or(&empty) {
            let path = path.join(name);
            if self.tree.dirs.contains_key(node) {
                std::fs::create_dir(&path)?;
                self.write_dir(*node, &path)?;
            } else if let Some(file) = self.tree.files.get(node) {
                write_sparse(&path, file)?;
            }
        }
        Ok(())
    }
}

/// Leaves holes where nothing but zeros is, as there were.
fn write_sparse(path: &Path, content: &Content) -> io::Result<()> {
    const PIECE: usize = 4096;
    let file = std::fs::File::create(path)?;
    for (index, piece) in content.bytes.chunks(PIECE).enumerate() {
        if *piece != [0; PIECE][..piece.len()] {
            file.write_all_at(piece, (index * PIECE) as u64)?;
        }
    }
    file.set_len(content.len)
}

/// What is lost, decided as it is asked about.
struct Choice {
    survival: Survival,
    dice: Dice,
    unit: u64,
    /// The last sync of each node, and of any.
    synced: HashMap<Node, usize>,
    synced_any: usize,
    /// Where the surviving changes of something end.
    ends: HashMap<What, usize>,
    cut: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Names(Node),
    Length(Node),
    Unit(Node, u64),
}

impl Choice {
    fn new(events: &[Event], survival: Survival) -> Self {
        let (Survival::Some(seed) | Survival::SomeWithoutJournal(seed)) = survival else {
            return Self::of(events, survival, Dice::new(0));
        };
        Self::of(events, survival, Dice::new(seed))
    }

    fn of(events: &[Event], survival: Survival, mut dice: Dice) -> Self {
        let mut synced = HashMap::new();
        let mut synced_any = 0;
        for (index, event) in events.iter().enumerate() {
            if let Event::Synced { node } = event {
                synced.insert(*node, index);
                synced_any = index;
            }
        }
        Self {
            survival,
            unit: UNITS[dice.below(UNITS.len())],
            dice,
            synced,
            synced_any,
            ends: HashMap::new(),
            cut: events.len(),
        }
    }

    fn has_name(&mut self, index: usize, event: &Event) -> bool {
        let dir = match event {
            Event::Made { dir, .. } | Event::Removed { dir, .. } => *dir,
            Event::Renamed { to, .. } => to.0,
            _ => return true,
        };
        match self.survival {
            Survival::SomeWithoutJournal(_) => {
                let synced = self.synced.get(&dir).copied();
                self.survives(What::Names(dir), index, synced)
            }
            _ => self.survives(What::Names(ROOT), index, Some(self.synced_any)),
        }
    }

    fn has_length(&mut self, index: usize, node: Node) -> bool {
        let synced = self.synced.get(&node).copied();
        self.survives(What::Length(node), index, synced)
    }

    /// The parts of a write that are on the disk.
    fn pieces(&mut self, index: usize, node: Node, at: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let synced = self.synced.get(&node).copied();
        if synced.is_some_and(|synced| index < synced) {
            return vec![(at, bytes.to_vec())];
        }
        let mut pieces = Vec::new();
        let end = at + bytes.len() as u64;
        let mut from = at;
        while from < end {
            let number = from / self.unit;
            let to = end.min((number + 1) * self.unit);
            if self.survives(What::Unit(node, number), index, synced) {
                let piece = &bytes[(from - at) as usize..(to - at) as usize];
                pieces.push((from, piece.to_vec()));
            }
            from = to;
        }
        pieces
    }

    /// Whether the change at `index` is among those of `what` that are on the disk: all before the sync, and some after.
    fn survives(&mut self, what: What, index: usize, synced: Option<usize>) -> bool {
        if synced.is_some_and(|synced| index < synced) {
            return true;
        }
        match self.survival {
            Survival::All => true,
            Survival::Nothing => false,
            Survival::Some(_) | Survival::SomeWithoutJournal(_) => {
                let first = synced.unwrap_or(0);
                let (dice, cut) = (&mut self.dice, self.cut);
                // All and nothing are the ends that matter most.
                let end = self
                    .ends
                    .entry(what)
                    .or_insert_with(|| match dice.below(4) {
                        0 => first,
                        1 => cut,
                        _ => first + dice.below(cut - first + 1),
                    });
                index < *end
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str, node: Node) -> Event {
        Event::Made {
            dir: ROOT,
            name: name.to_owned(),
            node,
            is_dir: false,
        }
    }

    fn written(at: u64, byte: u8, len: usize) -> Event {
        Event::Written {
            node: 2,
            at,
            bytes: vec![byte; len],
        }
    }

    fn file(image: &Image) -> Option<Vec<u8>> {
        let node = image.tree.child(ROOT, "a")?;
        let content = image.tree.files.get(&node)?;
        let mut bytes = content.bytes.clone();
        bytes.resize(content.len as usize, 0);
        Some(bytes)
    }

    #[test]
    fn what_was_synced_is_there_and_the_rest_may_be() {
        let recording = Recording {
            events: vec![
                made("a", 2),
                written(0, 1, 8192),
                Event::Synced { node: 2 },
                Event::Synced { node: ROOT },
                written(0, 2, 8192),
                Event::Said(7),
                written(4096, 3, 8192),
            ],
        };
        assert_eq!(recording.said(5).count(), 0);
        assert_eq!(recording.said(6).collect::<Vec<_>>(), [7]);
        assert_eq!(file(&recording.image(0, Survival::All)), None);
        assert_eq!(file(&recording.image(1, Survival::Nothing)), None);
        let all = recording.image(7, Survival::All);
        assert_eq!(file(&all).unwrap(), [vec![2; 4096], vec![3; 8192]].concat());
        let none = recording.image(7, Survival::Nothing);
        assert_eq!(file(&none).unwrap(), vec![1; 8192]);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let image = recording.image(7, Survival::Some(seed));
            let bytes = file(&image).unwrap();
            assert!(bytes.len() == 8192 || bytes.len() == 12288);
            seen.insert((bytes[0], bytes[4096], bytes.get(8192).copied()));
        }
        // Blocks go their own way: the later one is there and the earlier one is not, and a length without its bytes.
        for some in [(1, 3, None), (2, 1, None), (1, 1, Some(0)), (1, 2, Some(3))] {
            assert!(seen.contains(&some), "{some:?} in {seen:?}");
        }
        assert!(!seen.iter().any(|(first, ..)| *first == 3));
    }

    #[test]
    fn names_go_with_the_journal_or_with_their_directory() {
        let recording = Recording {
            events: vec![
                made("a", 2),
                written(0, 1, 10),
                Event::Synced { node: 2 },
                Event::Renamed {
                    from: (ROOT, "a".to_owned()),
                    to: (ROOT, "b".to_owned()),
                },
            ],
        };
        let names = |survival| {
            let image = recording.image(4, survival);
            image.tree.dirs[&ROOT].keys().cloned().collect::<String>()
        };
        assert_eq!(names(Survival::All), "b");
        assert_eq!(names(Survival::Nothing), "a");
        let some: std::collections::BTreeSet<String> =
            (0..50).map(|s| names(Survival::Some(s))).collect();
        assert_eq!(some.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        let some: std::collections::BTreeSet<String> = (0..50)
            .map(|s| names(Survival::SomeWithoutJournal(s)))
            .collect();
        assert_eq!(some.into_iter().collect::<Vec<_>>(), ["", "a", "b"]);
    }
}
