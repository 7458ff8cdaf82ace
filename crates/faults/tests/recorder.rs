//! The recorder under programs' usual calls: what it says happened is what is there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use davit_faults::disk::{Recorder, Survival};

/// Names below a directory, and what files hold.
fn contents(dir: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            for (below, bytes) in contents(&path) {
                found.insert(format!("{name}/{below}"), bytes);
            }
            found.insert(name, None);
        } else {
            found.insert(name, Some(fs::read(&path).unwrap()));
        }
    }
    found
}

fn work(dir: &Path) {
    fs::create_dir(dir.join("d")).unwrap();
    let mut file = File::create(dir.join("d/a")).unwrap();
    file.write_all(&vec![1; 300_000]).unwrap();
    file.seek(SeekFrom::Start(10)).unwrap();
    file.write_all(b"middle").unwrap();
    file.write_all_at(b"far", 400_000).unwrap();
    file.set_len(400_001).unwrap();
    file.sync_all().unwrap();
    fs::rename(dir.join("d/a"), dir.join("b")).unwrap();
    fs::write(dir.join("c"), "first").unwrap();
    fs::write(dir.join("c"), "2nd").unwrap();
    File::options()
        .append(true)
        .open(dir.join("c"))
        .unwrap()
        .write_all(b"+")
        .unwrap();
    fs::write(dir.join("gone"), "x").unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    fs::remove_dir(dir.join("d")).unwrap();
    File::open(dir).unwrap().sync_all().unwrap();
    for n in 0..200 {
        fs::write(dir.join(format!("many-{n}")), n.to_string()).unwrap();
    }
    assert!(fs::metadata(dir.join("d")).is_err());
    assert!(fs::remove_file(dir.join("none")).is_err());
}

#[test]
fn all_that_was_recorded_is_all_that_happened() {
    let (dir, copy, synced) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let Some(recorder) = Recorder::mount_or_skip(dir.path()) else {
        return;
    };
    work(dir.path());
    let there = contents(dir.path());
    assert_eq!(there.len(), 202);
    let recording = recorder.end();
    assert!(contents(dir.path()).is_empty());
    let last = recording.events.len();
    recording
        .image(last, Survival::All)
        .write_to(copy.path())
        .unwrap();
    assert_eq!(contents(copy.path()), there);
    // What came after the last sync is not there, nor is what c holds, which nobody synced.
    recording
        .image(last, Survival::Nothing)
        .write_to(synced.path())
        .unwrap();
    let left = contents(synced.path());
    assert_eq!(left.keys().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(left["b"], there["b"]);
    assert_eq!(left["c"], Some(Vec::new()));
}
