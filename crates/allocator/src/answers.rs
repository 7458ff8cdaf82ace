//! What was found out about nodes, kept from one attempt to the next.
//!
//! Whether a node has devices for claims depends on what the claims and their classes say, on the
//! pools the node sees, on what is held of these, and, where slices select nodes by labels, on the
//! node's labels. Pods from one template ask the same again and again while between two of them a
//! node or two change, so an answer is kept until something it depends on changes. Then the node is
//! looked at anew, and if it has the [signature](NodeSignature) of one that has answered, that is its answer, too: the
//! search runs once for all nodes of a kind in one state. Nothing is guessed: an answer that is kept
//! is the one the search gave.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use parking_lot::Mutex;

use crate::device::{PoolId, Reach};
use crate::features::Features;
use crate::inventory::Inventory;
use crate::node::NodeView;
use crate::signature::NodeSignature;

/// Labels of a node.
type Labels = BTreeMap<String, String>;

/// For how many different sets of claims answers are kept; those asked for least recently go first.
const MOST_PLANS: usize = 32;
/// Answers of how many different signatures are kept for one set of claims.
const MOST_SIGNATURES: usize = 1 << 15;

/// Bytes of a question that is kept. Claims of a pod may have fifty million.
const MOST_WORDS: usize = 64 << 10;

/// A node's answer to claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// There are devices. For each request with alternatives the index of the one that would be
    /// taken, as in [`Allocation::chosen`](crate::Allocation).
    Found(Arc<[usize]>),
    /// There are not enough devices.
    Missing,
}

/// What claims ask for, without what tells one claim from another: claims with equal questions get
/// equal answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Of the words, which are long, taken once: every node is asked.
    digest: u64,
    words: Arc<[u8]>,
}

impl Hash for Question {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Question {
    /// The question of claims that are to be allocated together, in their order. `None` if it
    /// cannot be put into words, or into too many; nothing is remembered then.
    pub fn new(claims: &[Arc<ResourceClaim>], features: Features) -> Option<Self> {
        let specs: Vec<_> = claims.iter().map(|c| &c.spec).collect();
        let mut words = serde_json::to_vec(&specs).ok()?;
        if words.len() > MOST_WORDS {
            return None;
        }
        words.extend(format!("{features:?}").into_bytes());
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        Some(Self {
            digest: hasher.finish(),
            words: words.into(),
        })
    }
}

/// A moment in the order of changes: what was read no later than this is as old as this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

/// What an attempt has read.
#[derive(Debug, Clone, Copy)]
pub struct Picture {
    /// When.
    pub at: Moment,
    /// Whether some slice selects nodes by their labels
    /// ([`Inventory::selects_nodes`]).
    pub selects_nodes: bool,
}

impl Picture {
    /// What an answer depends on of a node's labels.
    fn labels<'a>(&self, labels: impl FnOnce() -> &'a Labels) -> u64 {
        if !self.selects_nodes {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        labels().hash(&mut hasher);
        hasher.finish()
    }
}

/// An answer, and what it holds for.
#[derive(Debug, Clone)]
struct Kept {
    /// What it was found in is not older than this.
    at: Moment,
    labels: u64,
    answer: Answer,
}

#[derive(Debug, Default)]
struct Plan {
    used: u64,
    /// By place of the node.
    nodes: Vec<Option<Kept>>,
    /// By what they are given to: these hold for ever.
    by_signature: HashMap<NodeSignature, Answer, RandomState>,
}

#[derive(Debug, Default)]
struct Inner {
    now: Moment,
    /// The places of nodes in the lists below.
    places: HashMap<Arc<str>, usize, RandomState>,
    /// When something changed that this node sees, by place.
    changed: Vec<Moment>,
    /// When something changed that any node may see.
    changed_for_all: Moment,
    /// When classes changed: what was read before says nothing any more.
    cleared: Moment,
    plans: HashMap<Question, Plan, RandomState>,
    /// Counts what was kept, for the age of plans.
    uses: u64,
    asked: u64,
    hits: u64,
}

/// Answers of nodes, for as long as they hold.
///
/// Who changes inventory or usage says so, at once and under the same lock; who reads them takes
/// the [`Moment`] under that lock as well. Then an attempt that still works on an older picture
/// neither gets newer answers nor leaves older ones behind.
#[derive(Debug, Default)]
pub struct Answers {
    inner: Mutex<Inner>,
}

impl Inner {
    fn place(&mut self, node: &Arc<str>) -> usize {
        if let Some(place) = self.places.get(node) {
            return *place;
        }
        let place = self.changed.len();
        self.places.insert(node.clone(), place);
        self.changed.push(Moment::default());
        place
    }

    /// Whether nothing that the node at this place sees has changed since the answer and since what was read.
    fn is_current(&self, place: usize, kept: &Kept, read: &Picture) -> bool {
        let changed = self.changed.get(place).copied().unwrap_or_default();
        let changed = changed.max(self.changed_for_all);
        changed <= kept.at && changed <= read.at
    }

    /// Keeps a node's answer, unless it has changed since it was read.
    fn keep(&mut self, question: &Question, node: NodeView<'_>, read: &Picture, answer: Answer) {
        let place = match self.places.get(node.name) {
            Some(place) => *place,
            None => self.place(&Arc::from(node.name)),
        };
        if self.changed[place].max(self.changed_for_all) > read.at {
            return;
        }
        self.uses += 1;
        let used = self.uses;
        let Some(plan) = self.plans.get_mut(question) else {
            return;
        };
        plan.used = used;
        if plan.nodes.len() <= place {
            plan.nodes.resize(place + 1, None);
        }
        plan.nodes[place] = Some(Kept {
            at: read.at,
            labels: read.labels(|| node.labels),
            answer,
        });
    }
}

impl Answers {
    /// How many answers were asked for, and how many of them were known.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.asked, inner.hits)
    }

    /// The moment of what is read now.
    pub fn now(&self) -> Moment {
        self.inner.lock().now
    }

    /// The slices of a pool, or what is held of its devices, have changed. To be called with the
    /// inventory in which the nodes that see the pool can be found: when slices come or go, before
    /// and after.
    pub fn pool_changed(&self, inventory: &Inventory, pool: &PoolId) {
        let mut inner = self.inner.lock();
        inner.now.0 += 1;
        let now = inner.now;
        for reach in inventory.reaches(pool) {
            match reach {
                Reach::Node(node) => {
                    let place = inner.place(node);
                    inner.changed[place] = now;
                }
                _ => inner.changed_for_all = now,
            }
        }
    }

    /// The same for all pools in which an allocation has devices.
    pub fn allocation_changed(&self, inventory: &Inventory, allocation: &AllocationResult) {
        let results = allocation.devices.iter().flat_map(|d| &d.results).flatten();
        let mut last: Option<PoolId> = None;
        for result in results {
            let pool = PoolId {
                driver: result.driver.as_str().into(),
                pool: result.pool.as_str().into(),
            };
            if last.as_ref() != Some(&pool) {
                self.pool_changed(inventory, &pool);
            }
            last = Some(pool);
        }
    }

    /// Everything may have changed: classes say something else.
    pub fn all_changed(&self) {
        let mut inner = self.inner.lock();
        inner.now.0 += 1;
        inner.changed_for_all = inner.now;
        inner.cleared = inner.now;
        inner.plans.clear();
    }

    /// The place of a node among those that answer, which it keeps.
    pub fn place(&self, node: &Arc<str>) -> usize {
        self.inner.lock().place(node)
    }

    /// The answer of a node, if it is known and holds for what was read at `read`.
    pub fn get(&self, question: &Question, node: NodeView<'_>, read: &Picture) -> Option<Answer> {
        let place = self.inner.lock().places.get(node.name).copied();
        // One that is not there has not answered.
        self.get_at(place.unwrap_or(usize::MAX), question, || node.labels, read)
    }

    /// As [`Answers::get`], of a node whose place is known. Its labels are asked for only where they matter.
    pub fn get_at<'a>(
        &self,
        place: usize,
        question: &Question,
        labels: impl FnOnce() -> &'a Labels,
        read: &Picture,
    ) -> Option<Answer> {
        let mut inner = self.inner.lock();
        inner.asked += 1;
        let kept = inner.plans.get(question)?.nodes.get(place)?.as_ref()?;
        let holds = inner.is_current(place, kept, read) && kept.labels == read.labels(labels);
        let answer = holds.then(|| kept.answer.clone())?;
        inner.hits += 1;
        Some(answer)
    }

    /// The places whose nodes are known to have too few devices by what was read at `read`: what [`Answers::get_at`] says,
    /// for who is about to ask thousands. None where labels matter, which places do not know.
    pub fn missing(&self, question: &Question, read: &Picture) -> Vec<bool> {
        let inner = self.inner.lock();
        let plan = inner.plans.get(question).filter(|_| !read.selects_nodes);
        let nodes = plan.map(|plan| &*plan.nodes).unwrap_or_default();
        let is_missing = |(place, kept): (usize, &Option<Kept>)| {
            kept.as_ref().is_some_and(|kept| {
                kept.answer == Answer::Missing
                    && kept.labels == 0
                    && inner.is_current(place, kept, read)
            })
        };
        nodes.iter().enumerate().map(is_missing).collect()
    }

    /// The answer of a node of this signature, if one has answered. It is kept as the node's own.
    pub fn by_signature(
        &self,
        question: &Question,
        node: NodeView<'_>,
        read: &Picture,
        signature: NodeSignature,
    ) -> Option<Answer> {
        let mut inner = self.inner.lock();
        if inner.cleared > read.at {
            return None;
        }
        let answer = inner
            .plans
            .get(question)?
            .by_signature
            .get(&signature)?
            .clone();
        inner.hits += 1;
        inner.keep(question, node, read, answer.clone());
        Some(answer)
    }

    /// Keeps what was found in what was read at `read`, on a node of this signature.
    pub fn keep(
        &self,
        question: &Question,
        node: NodeView<'_>,
        read: &Picture,
        signature: NodeSignature,
        answer: Answer,
    ) {
        let mut inner = self.inner.lock();
        if inner.cleared > read.at {
            return;
        }
        inner.uses += 1;
        let used = inner.uses;
        if !inner.plans.contains_key(question) && inner.plans.len() >= MOST_PLANS {
            let oldest = inner.plans.iter().min_by_key(|(_, plan)| plan.used);
            if let Some(oldest) = oldest.map(|(question, _)| question.clone()) {
                inner.plans.remove(&oldest);
            }
        }
        let plan = inner.plans.entry(question.clone()).or_default();
        plan.used = used;
        if plan.by_signature.len() >= MOST_SIGNATURES {
            plan.by_signature.clear();
        }
        plan.by_signature.insert(signature, answer.clone());
        inner.keep(question, node, read, answer);
    }
}
