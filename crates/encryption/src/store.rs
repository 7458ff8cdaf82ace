//! A store whose values are encrypted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use davit_store::{
    Change, Committed, Error, KeyValue, ListOptions, Listing, Marks, Operation, Result, Store,
    WatchEvent, WatchSource, WatchStream, Write,
};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};

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

    /// The store behind, where values are encrypted.
    pub fn inner(&self) -> Arc<dyn Store> {
        Arc::clone(&self.inner)
    }

    /// Whether the value of a key would be stored otherwise if it were written now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn is_stale(&self, key: &str) -> Result<bool> {
        let Some(pair) = self.inner.get(key).await? else {
            return Ok(false);
        };
        self.encryption.unlock(key, &pair.value).await;
        self.encryption
            .decrypt(key, pair.value)
            .map(|plain| plain.stale)
            .map_err(|error| failed("decrypt a stored value", key, &error))
    }

    async fn plain(&self, pair: KeyValue) -> Result<KeyValue> {
        self.encryption.unlock(&pair.key, &pair.value).await;
        decrypted(&self.encryption, pair)
    }

    async fn plain_option(&self, pair: Option<KeyValue>) -> Result<Option<KeyValue>> {
        match pair {
            Some(pair) => self.plain(pair).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the plugins that keep keys are well; none when there are none.
    pub fn plugins_are_well(&self) -> Option<bool> {
        let faults = || self.encryption.faults().is_empty();
        self.encryption.has_plugins().then(faults)
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
        self.plain_option(self.inner.get(key).await?).await
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        self.plain_option(self.inner.get_at(key, revision).await?)
            .await
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        let mut listing = self.inner.list(prefix, opts).await?;
        let items = std::mem::take(&mut listing.items);
        for pair in items {
            listing.items.push(self.plain(pair).await?);
        }
        Ok(listing)
    }

    async fn commit(&self, mut write: Write) -> Result<Committed> {
        if let Operation::Put(value) = write.op {
            let ready = self.encryption.prepare(&write.key).await;
            ready.map_err(|error| failed("encrypt a value", &write.key, &error))?;
            let stored = self.encryption.encrypt(&write.key, value);
            let stored = stored.map_err(|error| failed("encrypt a value", &write.key, &error))?;
            write.op = Operation::Put(stored);
        }
        let committed = self.inner.commit(write).await;
        let mut committed = match committed {
            Ok(committed) => committed,
            Err(error) => {
                if let Error::Conflict {
                    current: Some(pair),
                    ..
                } = &error
                {
                    self.encryption.unlock(&pair.key, &pair.value).await;
                }
                return Err(decrypted_error(&self.encryption, error));
            }
        };
        // the write is done: what it replaced is told only if it can be read
        committed.current = self.plain_option(committed.current).await.unwrap_or(None);
        committed.previous = self.plain_option(committed.previous).await.unwrap_or(None);
        Ok(committed)
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        let stream = self.inner.watch(prefix, after).await?;
        Ok(WatchStream::new(Source {
            stream,
            opening: None,
            encryption: Arc::clone(&self.encryption),
        }))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn size(&self) -> Option<u64> {
        self.inner.size().await
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
    /// An event whose keys a plugin is asked for.
    opening: Option<BoxFuture<'static, Result<WatchEvent>>>,
    encryption: Arc<Encryption>,
}

fn plain_event(encryption: &Encryption, event: WatchEvent) -> Result<WatchEvent> {
    let WatchEvent::Change(change) = event else {
        return Ok(event);
    };
    let current = change.current.clone();
    let current = current
        .map(|pair| decrypted(encryption, pair))
        .transpose()?;
    let previous = change.previous.clone();
    // a state that is over is left out when its key is gone
    let previous = previous.and_then(|pair| decrypted(encryption, pair).ok());
    Ok(WatchEvent::Change(Arc::new(Change {
        revision: change.revision,
        key: Arc::clone(&change.key),
        current,
        previous,
    })))
}

async fn unlocked_event(encryption: Arc<Encryption>, event: WatchEvent) -> Result<WatchEvent> {
    if let WatchEvent::Change(change) = &event {
        for pair in [&change.current, &change.previous].into_iter().flatten() {
            encryption.unlock(&pair.key, &pair.value).await;
        }
    }
    plain_event(&encryption, event)
}

impl Stream for Source {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(opening) = &mut self.opening {
                let event = ready!(opening.as_mut().poll(cx));
                self.opening = None;
                return Poll::Ready(Some(event));
            }
            let event = match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(event)) => event,
                other => return Poll::Ready(other),
            };
            if !self.encryption.has_plugins() {
                return Poll::Ready(Some(plain_event(&self.encryption, event)));
            }
            let opening = unlocked_event(Arc::clone(&self.encryption), event);
            self.opening = Some(opening.boxed());
        }
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
