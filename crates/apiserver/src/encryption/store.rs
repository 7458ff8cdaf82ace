//! A store whose values are encrypted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use davit_store::{
    Change, Committed, Error, KeyValue, ListOptions, Listing, Marks, Operation, Result, Store,
    WatchEvent, WatchSource, WatchStream, Write,
};
use futures::Stream;

use super::{Encryption, EncryptionError};

/// Encrypts what goes into a store and decrypts what comes out of it.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    encryption: Arc<Encryption>,
}

impl std::fmt::Debug for EncryptedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EncryptedStore")
    }
}

fn failed(action: &'static str, key: &str, error: &EncryptionError) -> Error {
    Error::Io {
        action,
        detail: format!("{key}: {error}"),
    }
}

fn decrypted(encryption: &Encryption, mut pair: KeyValue) -> Result<KeyValue> {
    let plain = encryption.decrypt(&pair.key, pair.value);
    pair.value = plain
        .map_err(|error| failed("decrypt a stored value", &pair.key, &error))?
        .value;
    Ok(pair)
}

fn decrypted_error(encryption: &Encryption, error: Error) -> Error {
    match error {
        Error::Conflict {
            key,
            current: Some(pair),
        } => match decrypted(encryption, *pair) {
            Ok(pair) => Error::Conflict {
                key,
                current: Some(Box::new(pair)),
            },
            Err(error) => error,
        },
        error => error,
    }
}

impl EncryptedStore {
    /// Puts `encryption` in front of `inner`.
    pub fn new(inner: Arc<dyn Store>, encryption: Arc<Encryption>) -> Self {
        Self { inner, encryption }
    }

    /// Whether the value of a key would be stored otherwise if it were written now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn is_stale(&self, key: &str) -> Result<bool> {
        let Some(pair) = self.inner.get(key).await? else {
            return Ok(false);
        };
        self.encryption
            .decrypt(key, pair.value)
            .map(|plain| plain.stale)
            .map_err(|error| failed("decrypt a stored value", key, &error))
    }

    fn plain(&self, pair: KeyValue) -> Result<KeyValue> {
        decrypted(&self.encryption, pair)
    }
}

#[async_trait]
impl Store for EncryptedStore {
    fn revision(&self) -> u64 {
        self.inner.revision()
    }

    async fn current_revision(&self) -> Result<u64> {
        self.inner.current_revision().await
    }

    async fn oldest_revision(&self) -> Result<u64> {
        self.inner.oldest_revision().await
    }

    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let found = self.inner.get(key).await?;
        found.map(|pair| self.plain(pair)).transpose()
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        let found = self.inner.get_at(key, revision).await?;
        found.map(|pair| self.plain(pair)).transpose()
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        let mut listing = self.inner.list(prefix, opts).await?;
        let items = std::mem::take(&mut listing.items);
        listing.items = items
            .into_iter()
            .map(|pair| self.plain(pair))
            .collect::<Result<_>>()?;
        Ok(listing)
    }

    async fn commit(&self, mut write: Write) -> Result<Committed> {
        if let Operation::Put(value) = write.op {
            let stored = self.encryption.encrypt(&write.key, value);
            let stored = stored.map_err(|error| failed("encrypt a value", &write.key, &error))?;
            write.op = Operation::Put(stored);
        }
        let committed = self.inner.commit(write).await;
        let mut committed = committed.map_err(|error| decrypted_error(&self.encryption, error))?;
        // the write is done: what it replaced is told only if it can be read
        let readable = |pair: Option<KeyValue>| pair.and_then(|pair| self.plain(pair).ok());
        committed.current = readable(committed.current);
        committed.previous = readable(committed.previous);
        Ok(committed)
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        let stream = self.inner.watch(prefix, after).await?;
        Ok(WatchStream::new(Source {
            stream,
            encryption: Arc::clone(&self.encryption),
        }))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn health(&self) -> Result<()> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

struct Source {
    stream: WatchStream,
    encryption: Arc<Encryption>,
}

impl Source {
    fn plain(&self, event: WatchEvent) -> Result<WatchEvent> {
        let WatchEvent::Change(change) = event else {
            return Ok(event);
        };
        let current = change.current.clone();
        let current = current
            .map(|pair| decrypted(&self.encryption, pair))
            .transpose()?;
        let previous = change.previous.clone();
        // a state that is over is left out when its key is gone
        let previous = previous.and_then(|pair| decrypted(&self.encryption, pair).ok());
        Ok(WatchEvent::Change(Arc::new(Change {
            revision: change.revision,
            key: Arc::clone(&change.key),
            current,
            previous,
        })))
    }
}

impl Stream for Source {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.stream).poll_next(cx);
        polled.map(|item| item.map(|item| item.and_then(|event| self.plain(event))))
    }
}

impl WatchSource for Source {
    fn request_progress(&mut self) {
        self.stream.request_progress();
    }

    fn marks(&self) -> Option<Arc<Marks>> {
        self.stream.marks()
    }
}
