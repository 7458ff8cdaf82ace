//! A backup of a store that is written to, and a store made of it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use davit_store::backup::{BackupEncoder, BackupReader, REVISION_BUMP};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{Error, ListOptions, Store, Write};

async fn backup(store: &dyn Store) -> Vec<u8> {
    let revision = store.current_revision().await.unwrap();
    let (mut encoder, first) = BackupEncoder::begin(revision);
    let mut bytes = first.to_vec();
    let mut start = None;
    loop {
        let page = ListOptions {
            start,
            limit: Some(7),
            revision: Some(revision),
        };
        let listing = store.list("", page).await.unwrap();
        bytes.extend_from_slice(&encoder.pairs(&listing.items));
        start = listing.items.last().map(|pair| format!("{}\0", pair.key));
        if !listing.more {
            break;
        }
    }
    bytes.extend_from_slice(&encoder.end());
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_made_of_a_backup_is_the_one_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions::default;
    let old = EmbeddedStore::open(dir.path().join("old"), options())
        .await
        .unwrap();
    let old = Arc::new(old);
    for n in 0..100 {
        old.commit(Write::put(format!("/k/{}", n % 40), format!("{n}")))
            .await
            .unwrap();
    }
    old.commit(Write::delete_any("/k/3")).await.unwrap();
    let before = old.list("", ListOptions::default()).await.unwrap();
    // Others go on writing while it is taken.
    let writer = tokio::spawn({
        let old = Arc::clone(&old);
        async move {
            for n in 0..200 {
                old.commit(Write::put(format!("/k/{}", n % 40), "later"))
                    .await
                    .unwrap();
            }
        }
    });
    let revision = old.current_revision().await.unwrap();
    let bytes = backup(&*old).await;
    writer.await.unwrap();
    let read = BackupReader::new(bytes.as_slice()).unwrap();
    assert!(read.revision() >= revision);
    let at = ListOptions {
        revision: Some(read.revision()),
        ..ListOptions::default()
    };
    let then = old.list("", at).await.unwrap();
    assert_eq!(then.items.len(), before.items.len());

    let place = dir.path().join("new");
    EmbeddedStore::restore(&place, read).unwrap();
    let new = EmbeddedStore::open(&place, options()).await.unwrap();
    assert_eq!(
        new.list("", ListOptions::default()).await.unwrap().items,
        then.items
    );
    assert_eq!(new.revision(), then.revision + REVISION_BUMP);
    assert_eq!(new.oldest_revision().await.unwrap(), new.revision());
    // Who resumes from before begins anew.
    assert!(matches!(
        new.watch("/", then.revision).await,
        Err(Error::Compacted { .. })
    ));
    let written = new.commit(Write::put("/k/1", "again")).await.unwrap();
    assert_eq!(written.revision, new.revision());
    new.close().await;
    drop(new);
    let again = EmbeddedStore::open(&place, options()).await.unwrap();
    assert_eq!(again.get("/k/1").await.unwrap().unwrap().value, "again");

    // What is there is not replaced.
    let read = BackupReader::new(bytes.as_slice()).unwrap();
    drop(again);
    assert!(matches!(
        EmbeddedStore::restore(&place, read),
        Err(Error::NotEmpty { .. })
    ));
}

#[test]
fn a_damaged_backup_makes_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let (encoder, first) = BackupEncoder::begin(5);
    let mut bytes = [first, encoder.end()].concat();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let read = BackupReader::new(bytes.as_slice()).unwrap();
    assert!(EmbeddedStore::restore(dir.path(), read).is_err());
    assert!(!dir.path().join("complete").exists());
}
