//! A disk that is full: a small file system that the test fills and frees.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{Error, Store, Write};

/// A mounted tmpfs, unmounted at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` for those who may not mount.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(dir.path())
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then_some(Self(dir))
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.0.path().join("ballast")
    }

    /// Writes until nothing fits any more.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.ballast()).unwrap();
        loop {
            match file.write(&[1; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

async fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, EmbeddedOptions::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_full_disk_takes_deletions_and_space_heals_it() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: mounting a small file system needs root");
        return;
    };
    let dir = disk.0.path().join("store");
    let store = open(&dir).await;
    for key in ["a", "b", "c"] {
        store
            .commit(Write::put(key, vec![1_u8; 10_000]))
            .await
            .unwrap();
    }
    assert!(store.health().await.is_ok());

    disk.fill();
    let refused = store.commit(Write::put("d", "x")).await.unwrap_err();
    assert!(matches!(refused, Error::Full), "{refused}");
    assert!(refused.to_string().contains("no space left on device"));
    assert!(matches!(store.health().await, Err(Error::Full)));
    store.commit(Write::delete_any("a")).await.unwrap();
    assert!(store.get("b").await.unwrap().is_some());
    drop(store);

    // Somebody takes what the reserve gave.
    disk.fill();
    let store = open(&dir).await;
    assert!(matches!(store.health().await, Err(Error::Full)));
    assert!(store.get("a").await.unwrap().is_none());
    store.commit(Write::delete_any("b")).await.unwrap();
    let refused = store.commit(Write::put("d", "x")).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");

    std::fs::remove_file(disk.ballast()).unwrap();
    let healed = async {
        while store.health().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), healed)
        .await
        .unwrap();
    let revision = store.commit(Write::put("d", "x")).await.unwrap().revision;
    drop(store);
    let store = open(&dir).await;
    assert_eq!(store.revision(), revision);
    assert!(store.get("b").await.unwrap().is_none());
    assert!(store.get("c").await.unwrap().is_some());
}
