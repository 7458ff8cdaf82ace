//! The store over another one that has kube-apiserver's keys and values.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use davit_store::{
    Change, Committed, Error, KeyValue, ListOptions, Listing, Marks, Operation, Result, Store,
    WatchEvent, WatchSource, WatchStream, Write,
};
use futures::Stream;

use crate::codec::Codec;
use crate::keys::{from_kubernetes, to_kubernetes};

/// Puts objects into a store as kube-apiserver does.
///
/// What is there and no object that davit knows is left out of lists and watches. A value that cannot be read is handed on as
/// it is and logged: whoever decodes it says so for the object.
pub struct KubeStore {
    inner: Arc<dyn Store>,
    codec: Codec,
}

impl std::fmt::Debug for KubeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KubeStore({:?})", self.codec)
    }
}

fn inner_key(key: &str) -> Result<String> {
    to_kubernetes(key).ok_or_else(|| Error::InvalidKey {
        key: key.chars().take(128).collect(),
        reason: "it is of no resource",
    })
}

/// A pair as davit has it; `None` if it is none of davit's.
fn own_pair(codec: Codec, pair: KeyValue) -> Option<KeyValue> {
    let key = from_kubernetes(&pair.key)?;
    let value = match codec.decode(&key, &pair.value) {
        Ok(value) => value,
        Err(error) => {
            tracing::error!(key = &*pair.key, %error, "a stored object cannot be read");
            pair.value
        }
    };
    Some(KeyValue {
        key: key.into(),
        value,
        ..pair
    })
}

impl KubeStore {
    /// Puts kube-apiserver's form in front of `inner`.
    pub fn new(inner: Arc<dyn Store>, codec: Codec) -> Self {
        Self { inner, codec }
    }

    /// Whether the value of a key would be stored in another form if it were written now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn is_stale(&self, key: &str) -> Result<bool> {
        let Some(pair) = self.inner.get(&inner_key(key)?).await? else {
            return Ok(false);
        };
        let stale = self.codec.is_stale(key, &pair.value);
        stale.map_err(|error| failed("decode a stored value", key, &error))
    }

    fn pair(&self, pair: KeyValue) -> Option<KeyValue> {
        own_pair(self.codec, pair)
    }

    /// An error in which the caller finds its own key.
    fn own_error(&self, error: Error, key: String) -> Error {
        match error {
            Error::Conflict { current, .. } => Error::Conflict {
                key,
                current: current.and_then(|pair| self.pair(*pair)).map(Box::new),
            },
            Error::NotFound { .. } => Error::NotFound { key },
            Error::OutcomeUnknown { .. } => Error::OutcomeUnknown { key },
            Error::TooLarge { size, limit, .. } => Error::TooLarge { key, size, limit },
            Error::InvalidKey { reason, .. } => Error::InvalidKey { key, reason },
            other => other,
        }
    }

    /// All pairs of the store, page by page. Those that are not davit's take no place in a page.
    async fn list_all(&self, opts: ListOptions) -> Result<Listing> {
        let start = opts.start.as_deref().map(after).transpose()?;
        let mut asked = ListOptions { start, ..opts };
        loop {
            let mut listing = self.inner.list("", asked.clone()).await?;
            let last = listing.items.last().map(|pair| format!("{}\0", pair.key));
            let items = std::mem::take(&mut listing.items).into_iter();
            listing.items = items.filter_map(|pair| self.pair(pair)).collect();
            if !listing.items.is_empty() || !listing.more || last.is_none() {
                return Ok(listing);
            }
            // the same snapshot
            asked.revision = Some(listing.revision);
            asked.start = last;
        }
    }
}

/// Where a list goes on: a key, or the first one behind it.
fn after(start: &str) -> Result<String> {
    match start.strip_suffix('\0') {
        Some(key) => Ok(format!("{}\0", inner_key(key)?)),
        None => inner_key(start),
    }
}

fn failed(action: &'static str, key: &str, error: &crate::CodecError) -> Error {
    Error::Io {
        action,
        detail: format!("{key}: {error}"),
    }
}

#[async_trait]
impl Store for KubeStore {
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
        let found = self.inner.get(&inner_key(key)?).await?;
        Ok(found.and_then(|pair| self.pair(pair)))
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        let found = self.inner.get_at(&inner_key(key)?, revision).await?;
        Ok(found.and_then(|pair| self.pair(pair)))
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        if prefix.is_empty() {
            return self.list_all(opts).await;
        }
        let start = opts.start.as_deref().map(after).transpose()?;
        let opts = ListOptions { start, ..opts };
        let mut listing = self.inner.list(&inner_key(prefix)?, opts).await?;
        let items = std::mem::take(&mut listing.items).into_iter();
        listing.items = items.filter_map(|pair| self.pair(pair)).collect();
        Ok(listing)
    }

    async fn commit(&self, write: Write) -> Result<Committed> {
        let inner = inner_key(&write.key)?;
        let (key, mut given) = (write.key, None);
        let op = match write.op {
            Operation::Delete => Operation::Delete,
            Operation::Put(value) => {
                let encoded = self.codec.encode(&key, &value);
                let encoded = encoded.map_err(|error| failed("encode a value", &key, &error))?;
                given = Some(value);
                Operation::Put(encoded)
            }
        };
        let write = Write {
            key: inner,
            op,
            ..write
        };
        let committed = match self.inner.commit(write).await {
            Ok(committed) => committed,
            Err(error) => return Err(self.own_error(error, key)),
        };
        let current = committed.current.zip(given);
        Ok(Committed {
            revision: committed.revision,
            current: current.map(|(pair, value)| KeyValue {
                key: key.into(),
                value,
                ..pair
            }),
            previous: committed.previous.and_then(|pair| self.pair(pair)),
        })
    }

    /// The pairs before changes are left out: to translate what hardly anybody reads would cost as much as the change.
    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        let inner = self.inner.watch(&inner_key(prefix)?, after).await;
        let stream = inner.map_err(|error| match error {
            Error::Overflow { limit, .. } => Error::Overflow {
                prefix: prefix.to_owned(),
                limit,
            },
            other => other,
        })?;
        Ok(WatchStream::new(Source {
            stream,
            codec: self.codec,
        }))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    fn expires(&self) -> bool {
        self.inner.expires()
    }

    async fn health(&self) -> Result<()> {
        self.inner.health().await
    }

    async fn size(&self) -> Option<u64> {
        self.inner.size().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

struct Source {
    stream: WatchStream,
    codec: Codec,
}

impl Source {
    /// The event as davit has it; `None` if it is about nothing of davit's.
    fn event(&self, event: WatchEvent) -> Option<WatchEvent> {
        let WatchEvent::Change(change) = event else {
            return Some(event);
        };
        let key = from_kubernetes(&change.key)?;
        let current = change.current.clone();
        Some(WatchEvent::Change(Arc::new(Change {
            revision: change.revision,
            key: key.into(),
            current: current.and_then(|pair| own_pair(self.codec, pair)),
            previous: None,
        })))
    }
}

impl Stream for Source {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(event)) => {
                    if let Some(event) = self.event(event) {
                        return Poll::Ready(Some(Ok(event)));
                    }
                }
                other => return Poll::Ready(other),
            }
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
