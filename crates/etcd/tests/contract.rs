//! The contract suite on real etcd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server;

use std::sync::Arc;

use async_trait::async_trait;
use davit_etcd::{EtcdOptions, EtcdStore};
use davit_store::Store;
use davit_store::contract::Harness;

const WATCH_LIMIT: usize = 512;

struct Etcd(server::Server);

#[async_trait]
impl Harness for Etcd {
    async fn open(&self) -> Arc<dyn Store> {
        let mut options = EtcdOptions::new(vec![self.0.url()], "contract");
        options.watch_buffer = WATCH_LIMIT;
        Arc::new(EtcdStore::open(options).await.unwrap())
    }

    fn watch_limit(&self) -> Option<usize> {
        Some(WATCH_LIMIT)
    }
}

macro_rules! on_etcd {
    () => {
        match server::Server::start() {
            Some(server) => Etcd(server),
            None => return,
        }
    };
}

davit_store::contract_tests!(on_etcd!());
