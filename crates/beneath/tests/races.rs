//! Somebody exchanges directories of the root for links while work is done in it. Whatever the outcome of each step,
//! nothing outside the root may change.
#![allow(clippy::unwrap_used)]

use davit_beneath::{Links, Permissions, Root, TargetKind};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Exchanges pairs of names of a directory, round and round, until dropped.
struct Exchanger {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchanger {
    fn start(pairs: Vec<(PathBuf, PathBuf)>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                for (one, other) in &pairs {
                    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                }
            }
        });
        Exchanger {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What must not change: path, kind and mode, size, number of names.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (u32, u64, u64)> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        if stat.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        all.insert(path, (stat.mode(), stat.size(), stat.nlink()));
    }
    all
}

#[derive(Debug, Clone, Copy)]
enum Step {
    MakeDirs,
    Target,
    Write,
    CreateNew,
    Symlink,
    Fifo,
    HardLink,
    Rename,
    Remove,
    RemoveTree,
    Walk,
    Change,
    Read,
}

fn apply(root: &Root, step: Step, path: &str) {
    let mine = Permissions::mode(0o741);
    // What comes out is not the point here: refused or done inside are both fine.
    let _ = match step {
        Step::MakeDirs => root.mkdir_all(path, 0o741).map(drop),
        Step::Target => root.target(path, TargetKind::File).map(drop),
        Step::Write => root.write(path, b"evil", &mine),
        Step::CreateNew => root.create_new(path, 0o741).map(drop),
        Step::Symlink => root.symlink("evil", path),
        Step::Fifo => root.mknod(path, FileType::Fifo, 0, &mine).map(drop),
        Step::HardLink => root.hard_link(path, "name"),
        Step::Rename => root
            .rename(path, "moved")
            .and_then(|()| root.rename("moved", path)),
        Step::Remove => root.remove_file(path),
        Step::RemoveTree => root.remove_tree(path),
        Step::Walk => root.walk(|_, inode| inode.set(&mine)),
        Step::Change => root.entry(path).and_then(|inode| inode.set(&mine)),
        Step::Read => match root.read_limited(path, 100) {
            Ok(content) => {
                assert_ne!(content, b"secret", "read out of the root by {path}");
                Ok(())
            }
            Err(error) => Err(error),
        },
    };
}

fn step() -> impl Strategy<Value = Step> {
    use Step::{
        Change, CreateNew, Fifo, HardLink, MakeDirs, Read, Remove, RemoveTree, Rename, Symlink,
        Target, Walk, Write,
    };
    proptest::sample::select(vec![
        MakeDirs, Target, Write, CreateNew, Symlink, Fifo, HardLink, Rename, Remove, RemoveTree,
        Walk, Change, Read,
    ])
}

/// Paths of few names, so that they meet the exchanged ones and each other.
fn path() -> impl Strategy<Value = String> {
    let part = proptest::sample::select(vec!["a", "b", "c", "..", "victim", "sub", "secret"]);
    proptest::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_outside_changes(
        links in proptest::sample::select(vec![Links::Confined, Links::Inside, Links::Refused]),
        steps in proptest::collection::vec((step(), path()), 20..60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("r/root"), dir.path().join("victim"));
        fs::create_dir_all(outside.join("sub/a/b")).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::write(outside.join("a"), "secret").unwrap();
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir_all(inside.join("b/a")).unwrap();
        fs::create_dir_all(inside.join("c/victim")).unwrap();
        symlink(&outside, inside.join("out")).unwrap();
        symlink("../../victim", inside.join("up")).unwrap();
        symlink("../../../victim/sub", inside.join("b/deep")).unwrap();
        symlink("/proc/self/cwd", inside.join("magic")).unwrap();
        let before = picture(&outside);
        let at = |name: &str| inside.join(name);
        let exchanger = Exchanger::start(vec![
            (at("a"), at("out")),
            (at("b"), at("up")),
            (at("b/a"), at("b/deep")),
            (at("c"), at("magic")),
            (at("a"), at("b")),
        ]);
        let root = Root::open(&inside, links).unwrap();
        for (step, path) in steps {
            apply(&root, step, &path);
        }
        drop(exchanger);
        prop_assert_eq!(picture(&outside), before);
        let beside: Vec<_> = fs::read_dir(dir.path().join("r")).unwrap().collect();
        prop_assert_eq!(beside.len(), 1);
        prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}

/// The same way again and again: each round the parent may be a directory or a link when it is used.
#[test]
fn parents_exchanged_for_links_for_many_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("root"), dir.path().join("victim"));
    fs::create_dir_all(inside.join("p")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "secret").unwrap();
    symlink(&outside, inside.join("l")).unwrap();
    let before = picture(&outside);
    let _exchanger = Exchanger::start(vec![(inside.join("p"), inside.join("l"))]);
    for links in [Links::Confined, Links::Inside, Links::Refused] {
        let root = Root::open(&inside, links).unwrap();
        for round in 0..200 {
            let name = format!("p/x{}", round % 4);
            apply(&root, Step::MakeDirs, &format!("{name}/y/z"));
            apply(&root, Step::Write, &name);
            apply(&root, Step::Target, &format!("{name}/file"));
            apply(&root, Step::Fifo, "p/fifo");
            apply(&root, Step::Read, "p/f");
            apply(&root, Step::Change, "p");
            apply(&root, Step::Walk, "");
            apply(&root, Step::RemoveTree, &name);
            apply(&root, Step::RemoveTree, "p/f");
        }
    }
    assert_eq!(picture(&outside), before);
}
