//! Conversions of single objects that were asked for lately.
//!
//! All watchers of a kind in a version want the same events in it: what the webhook of the kind is asked for one of them is the
//! others' answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use davit_api::status::Status;
use davit_watchcache::CachedObject;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;

/// How many conversions are kept, and how many bytes of objects they are of, save that the last one is kept whatever it weighs.
const MOST: usize = 128;
const BYTES: usize = 4 << 20;

/// Key and revision of an object, and whether it is the state before that revision.
type Key = (Arc<str>, u64, bool);
type Answer = OnceCell<Result<Value, Status>>;

/// The last conversions into one version.
#[derive(Default)]
pub(super) struct RecentConversions {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    answers: HashMap<Key, (Arc<Answer>, usize)>,
    order: VecDeque<Key>,
    bytes: usize,
}

impl Kept {
    fn of(&mut self, key: &Key, size: usize) -> Arc<Answer> {
        if let Some((answer, _)) = self.answers.get(key) {
            return Arc::clone(answer);
        }
        let answer = Arc::<Answer>::default();
        self.answers
            .insert(key.clone(), (Arc::clone(&answer), size));
        self.order.push_back(key.clone());
        self.bytes += size;
        while self.order.len() > MOST || (self.bytes > BYTES && self.order.len() > 1) {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            self.forget(&oldest);
        }
        answer
    }

    fn forget(&mut self, key: &Key) {
        if let Some((_, size)) = self.answers.remove(key) {
            self.bytes -= size;
        }
    }
}

impl RecentConversions {
    /// The object as `convert` brings it into the version: whoever asks meanwhile waits for the same answer. One that is an error
    /// is for those who wait for it and nobody else.
    ///
    /// # Errors
    /// Those of `convert`.
    pub(super) async fn get(
        &self,
        object: &CachedObject,
        convert: impl Future<Output = Result<Value, Status>>,
    ) -> Result<Value, Status> {
        let key = (
            Arc::clone(object.key()),
            object.revision(),
            object.is_departed(),
        );
        let answer = self.kept.lock().of(&key, object.json_len());
        let found = answer.get_or_init(|| convert).await;
        if found.is_err() {
            let mut kept = self.kept.lock();
            let is_same = |(held, _): &(Arc<Answer>, usize)| Arc::ptr_eq(held, &answer);
            if kept.answers.get(&key).is_some_and(is_same) {
                kept.forget(&key);
            }
        }
        found.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use davit_store::KeyValue;
    use davit_watchcache::Header;
    use serde_json::json;

    use super::*;

    fn object(revision: u64, size: usize) -> CachedObject {
        let pair = KeyValue {
            key: "/registry/g/k/n".into(),
            value: vec![b' '; size].into(),
            mod_revision: revision,
            create_revision: 1,
        };
        CachedObject::new(&pair, Header::default())
    }

    #[tokio::test(start_paused = true)]
    async fn watchers_share_what_a_slow_converter_answers() {
        let recent = Arc::new(RecentConversions::default());
        let asked = Arc::new(AtomicUsize::new(0));
        let ask = async |revision: u64, fails: bool| {
            let watchers = (0..100).map(|_| {
                let (recent, asked) = (Arc::clone(&recent), Arc::clone(&asked));
                tokio::spawn(async move {
                    let convert = async {
                        asked.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_secs(29)).await;
                        match fails {
                            true => Err(Status::internal("no")),
                            false => Ok(json!(revision)),
                        }
                    };
                    recent.get(&object(revision, 10), convert).await
                })
            });
            for watcher in watchers.collect::<Vec<_>>() {
                let answer = watcher.await.unwrap();
                assert_eq!(answer.is_err(), fails);
            }
            asked.swap(0, Ordering::SeqCst)
        };
        assert_eq!(ask(1, false).await, 1);
        assert_eq!(ask(2, false).await, 1, "another state of the object");
        assert_eq!(ask(1, false).await, 0, "it is kept");
        assert_eq!(ask(3, true).await, 1, "all who wait are told of the error");
        assert_eq!(ask(3, false).await, 1, "and nobody later");
    }

    #[tokio::test]
    async fn what_is_kept_has_an_end() {
        let recent = RecentConversions::default();
        for revision in 0..1000 {
            let convert = async { Ok(json!(revision)) };
            recent
                .get(&object(revision, 100_000), convert)
                .await
                .unwrap();
            let failing = async { Err(Status::internal("no")) };
            let failed = recent.get(&object(revision + 5000, 10), failing).await;
            assert!(failed.is_err());
        }
        let kept = recent.kept.lock();
        assert!(kept.bytes <= BYTES && kept.order.len() <= MOST);
        let sizes = kept.answers.values().map(|(_, size)| size);
        assert_eq!(kept.bytes, sizes.sum::<usize>());
        assert!(!kept.answers.is_empty());
    }
}
