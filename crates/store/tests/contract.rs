//! The contract suite on the embedded engine.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use davit_store::contract::Harness;
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{Committed, KeyValue, ListOptions, Listing, Result, Store, WatchStream, Write};
use tempfile::TempDir;

const WATCH_LIMIT: usize = 512;

struct Embedded;

/// A store with the directory it lives in.
struct Temporary {
    store: EmbeddedStore,
    _dir: TempDir,
}

#[async_trait]
impl Harness for Embedded {
    async fn open(&self) -> Arc<dyn Store> {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions {
            watch_buffer: WATCH_LIMIT,
            ..EmbeddedOptions::default()
        };
        let store = EmbeddedStore::open(dir.path(), options).await.unwrap();
        Arc::new(Temporary { store, _dir: dir })
    }

    fn watch_limit(&self) -> Option<usize> {
        Some(WATCH_LIMIT)
    }
}

#[async_trait]
impl Store for Temporary {
    fn revision(&self) -> u64 {
        self.store.revision()
    }
    async fn current_revision(&self) -> Result<u64> {
        self.store.current_revision().await
    }
    async fn oldest_revision(&self) -> Result<u64> {
        self.store.oldest_revision().await
    }
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        self.store.get(key).await
    }
    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        self.store.get_at(key, revision).await
    }
    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        self.store.list(prefix, opts).await
    }
    async fn commit(&self, write: Write) -> Result<Committed> {
        self.store.commit(write).await
    }
    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        self.store.watch(prefix, after).await
    }
    async fn compact(&self, revision: u64) -> Result<()> {
        self.store.compact(revision).await
    }
    async fn health(&self) -> Result<()> {
        self.store.health().await
    }
    async fn close(&self) {
        self.store.close().await;
    }
}

davit_store::contract_tests!(Embedded);
