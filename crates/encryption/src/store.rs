//! A store whose values are encrypted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use davit_store::{
    Change, Committed, Error, KeyValue, ListOptions, Listing, MOST_UNREADABLE, Marks, Operation,
    Result, Store, UnreadableValue, WatchEvent, WatchSource, WatchStream, Write,
};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};

use super::{Encryption, EncryptionError, Naming, OwnNaming};

/// Encrypts what goes into a store and decrypts what comes out of it.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    sealed: Sealed,
}

/// What opens and closes the values of a store.
#[derive(Clone)]
struct Sealed {
    encryption: Arc<Encryption>,
    naming: Arc<dyn Naming>,
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

fn unreadable(key: &str, revision: u64, error: &EncryptionError) -> UnreadableValue {
    UnreadableValue {
        key: key.to_owned(),
        revision,
        detail: error.to_string(),
    }
}

impl Sealed {
    async fn unlock(&self, pair: &KeyValue) {
        let named = self.naming.named(&pair.key);
        self.encryption.unlock(&named, &pair.value).await;
    }

    fn open(&self, mut pair: KeyValue) -> Result<KeyValue, UnreadableValue> {
        let plain = self
            .encryption
            .decrypt_as(&self.naming.named(&pair.key), pair.value);
        pair.value = plain
            .map_err(|error| unreadable(&pair.key, pair.mod_revision, &error))?
            .value;
        Ok(pair)
    }

    fn open_error(&self, error: Error) -> Error {
        match error {
            Error::Conflict {
                key,
                current: Some(pair),
            } => match self.open(*pair) {
                Ok(pair) => Error::Conflict {
                    key,
                    current: Some(Box::new(pair)),
                },
                Err(unreadable) => unreadable.into(),
            },
            error => error,
        }
    }

    fn open_event(&self, event: WatchEvent) -> Result<WatchEvent> {
        let WatchEvent::Change(change) = event else {
            return Ok(event);
        };
        let current = change.current.clone();
        let current = current.map(|pair| self.open(pair)).transpose()?;
        let previous = change.previous.clone();
        // a state that is over is left out when its key is gone
        let previous = previous.and_then(|pair| self.open(pair).ok());
        Ok(WatchEvent::Change(Arc::new(Change {
            revision: change.revision,
            key: Arc::clone(&change.key),
            current,
            previous,
        })))
    }

    async fn unlock_event(self, event: WatchEvent) -> Result<WatchEvent> {
        if let WatchEvent::Change(change) = &event {
            for pair in [&change.current, &change.previous].into_iter().flatten() {
                self.unlock(pair).await;
            }
        }
        self.open_event(event)
    }
}

impl EncryptedStore {
    /// Puts `encryption` in front of `inner`, whose keys are davit's own.
    pub fn new(inner: Arc<dyn Store>, encryption: Arc<Encryption>) -> Self {
        Self::named(inner, encryption, Arc::new(OwnNaming))
    }

    /// Puts `encryption` in front of `inner`, whose keys say what `naming` reads.
    pub fn named(
        inner: Arc<dyn Store>,
        encryption: Arc<Encryption>,
        naming: Arc<dyn Naming>,
    ) -> Self {
        let sealed = Sealed { encryption, naming };
        Self { inner, sealed }
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
        self.sealed.unlock(&pair).await;
        let named = self.sealed.naming.named(key);
        let plain = self.sealed.encryption.decrypt_as(&named, pair.value);
        plain
            .map(|plain| plain.stale)
            .map_err(|error| unreadable(key, pair.mod_revision, &error).into())
    }

    async fn plain(&self, pair: KeyValue) -> Result<KeyValue, UnreadableValue> {
        self.sealed.unlock(&pair).await;
        self.sealed.open(pair)
    }

    async fn plain_option(&self, pair: Option<KeyValue>) -> Result<Option<KeyValue>> {
        match pair {
            Some(pair) => Ok(Some(self.plain(pair).await?)),
            None => Ok(None),
        }
    }

    /// Whether the plugins that keep keys are well; none when there are none.
    pub fn plugins_are_well(&self) -> Option<bool> {
        let encryption = &self.sealed.encryption;
        let faults = || encryption.faults().is_empty();
        encryption.has_plugins().then(faults)
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
        let mut found = Vec::new();
        for pair in items {
            match self.plain(pair).await {
                Ok(pair) => listing.items.push(pair),
                Err(_) if found.len() == MOST_UNREADABLE => {
                    return Err(Error::Unreadable { found, more: true });
                }
                Err(unreadable) => found.push(unreadable),
            }
        }
        if !found.is_empty() {
            return Err(Error::Unreadable { found, more: false });
        }
        Ok(listing)
    }

    async fn commit(&self, mut write: Write) -> Result<Committed> {
        if let Operation::Put(value) = write.op {
            let named = self.sealed.naming.named(&write.key);
            let ready = self.sealed.encryption.prepare(&named).await;
            ready.map_err(|error| failed("encrypt a value", &write.key, &error))?;
            let stored = self.sealed.encryption.encrypt_as(&named, value);
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
                    self.sealed.unlock(pair).await;
                }
                return Err(self.sealed.open_error(error));
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
            sealed: self.sealed.clone(),
        }))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn size(&self) -> Option<u64> {
        self.inner.size().await
    }

    fn expires(&self) -> bool {
        self.inner.expires()
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
    sealed: Sealed,
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
            if !self.sealed.encryption.has_plugins() {
                return Poll::Ready(Some(self.sealed.open_event(event)));
            }
            let opening = self.sealed.clone().unlock_event(event);
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
