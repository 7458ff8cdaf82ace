//! Clients that do something at random, and note when they asked, what, and what they were told.

use davit_faults::Dice;
use davit_faults::history::{
    Action, Change, Event, History, Listed, Moment, Objects, Operation, Token, Told, Watched,
};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
    VersionMatch, WatchEvent, WatchParams,
};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The objects, at one server.
pub(crate) type Maps = kube::Api<ConfigMap>;

const KEYS: usize = 6;
/// After this a request counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(4);
/// Objects whose names begin otherwise are others'.
const OURS: &str = "history-";
const CONTENT: &str = "write";

/// What everybody notes, and whether it goes on.
pub(crate) struct Book {
    start: Instant,
    history: parking_lot::Mutex<History>,
    tokens: AtomicU64,
    stopped: AtomicBool,
    /// The revision that watchers wait for; 0 while it is not known.
    last: AtomicU64,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            history: parking_lot::Mutex::default(),
            tokens: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            last: AtomicU64::new(0),
        }
    }
}

impl Book {
    fn now(&self) -> Moment {
        Moment::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    fn token(&self) -> Token {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Clients end after what they are about.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn operations(&self) -> usize {
        self.history.lock().operations.len()
    }

    pub(crate) fn into_history(self) -> History {
        self.history.into_inner()
    }
}

fn seen(map: &ConfigMap) -> Option<(String, (Token, u64))> {
    let name = map.metadata.name.clone()?;
    let content = map.data.as_ref()?.get(CONTENT)?;
    let revision = map.metadata.resource_version.as_ref()?;
    let seen = (content.parse().unwrap(), revision.parse().unwrap());
    name.starts_with(OURS).then_some((name, seen))
}

fn object(key: &str, token: Token, revision: Option<u64>) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(key.to_owned());
    map.metadata.resource_version = revision.map(|revision| revision.to_string());
    map.data = Some([(CONTENT.to_owned(), token.to_string())].into());
    map
}

/// An answer in time, or none.
async fn answer<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T, Option<kube::Error>> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(Some),
        Err(_) => Err(None),
    }
}

/// What an error says; `None` if the request was never sent.
fn refusal(error: Option<&kube::Error>) -> Option<Told> {
    match error {
        Some(kube::Error::Api(status)) => Some(match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => Told::Exists,
            (409, _) => Told::Conflict,
            (404, _) => Told::Absent,
            _ => Told::Unknown,
        }),
        Some(error) if format!("{error:?}").contains("Connect,") => None,
        _ => Some(Told::Unknown),
    }
}

/// One client: what it knows of objects, and the servers it may ask, the first one before the others.
struct Client {
    book: std::sync::Arc<Book>,
    servers: Vec<Maps>,
    dice: Dice,
    known: std::collections::HashMap<String, u64>,
    /// A revision of some list.
    listed: u64,
}

/// Works until it is told to stop.
pub(crate) async fn work(book: std::sync::Arc<Book>, servers: Vec<Maps>, dice: Dice) {
    let mut client = Client {
        book,
        servers,
        dice,
        known: std::collections::HashMap::new(),
        listed: 0,
    };
    while !client.book.stopped.load(Ordering::Acquire) {
        let went = if client.dice.once(6) {
            client.list().await
        } else {
            client.operate().await
        };
        if !went {
            // Not to ask who is away a thousand times a second.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !went || client.dice.once(20) {
            client.servers.rotate_left(1);
        }
    }
}

impl Client {
    fn choose(&mut self, key: &str) -> Action {
        let token = self.book.token();
        let known = self.known.get(key).copied();
        match self.dice.below(16) {
            0..=3 => Action::Create(token),
            4..=7 => known.map_or(Action::Create(token), |revision| {
                Action::Update(token, revision)
            }),
            8 | 9 => Action::Patch(token),
            10 | 11 => Action::Delete(known.filter(|_| self.dice.once(2))),
            _ => Action::Get,
        }
    }

    /// One request for one object; whether it was answered.
    async fn operate(&mut self) -> bool {
        let key = format!("{OURS}{}", self.dice.below(KEYS));
        let action = self.choose(&key);
        let began = self.book.now();
        let asked = ask(&self.servers[0], &key, action).await;
        let ended = self.book.now();
        let told = match asked {
            Ok(told) => told,
            Err(error) => match refusal(error.as_ref()) {
                // A read that finds nothing is an answer; one without an answer says nothing.
                Some(Told::Absent) if action == Action::Get => Told::Seen(None),
                Some(told) if action != Action::Get => told,
                _ => return false,
            },
        };
        match told {
            Told::Written(revision) | Told::Seen(Some((_, revision))) => {
                self.known.insert(key.clone(), revision);
            }
            Told::Deleted | Told::Absent | Told::Seen(None) => drop(self.known.remove(&key)),
            _ => {}
        }
        let operation = Operation {
            key,
            began,
            ended,
            action,
            told,
        };
        self.book.history.lock().operations.push(operation);
        told != Told::Unknown
    }

    /// A list of some kind; whether it was answered.
    async fn list(&mut self) -> bool {
        let mut params = ListParams::default();
        match self.dice.below(5) {
            0 => params = params.match_any(),
            1 if self.listed > 0 => {
                params = params
                    .at(&self.listed.to_string())
                    .matching(VersionMatch::Exact);
            }
            2 | 3 => params.limit = Some(1 + self.dice.below(3) as u32),
            _ => {}
        }
        let current = params.resource_version.is_none() && params.version_match.is_none();
        let Ok(list) = list(&self.book, &self.servers[0], params, current).await else {
            return false;
        };
        self.listed = list.pages[0];
        self.book.history.lock().lists.push(list);
        true
    }
}

async fn ask(maps: &Maps, key: &str, action: Action) -> Result<Told, Option<kube::Error>> {
    let written = |map: &ConfigMap| Told::Written(seen(map).unwrap().1.1);
    Ok(match action {
        Action::Create(token) => {
            let map = object(key, token, None);
            written(&answer(maps.create(&PostParams::default(), &map)).await?)
        }
        Action::Update(token, revision) => {
            let map = object(key, token, Some(revision));
            written(&answer(maps.replace(key, &PostParams::default(), &map)).await?)
        }
        Action::Patch(token) => {
            let patch = serde_json::json!({"data": {CONTENT: token.to_string()}});
            let patch = Patch::Merge(patch);
            written(&answer(maps.patch(key, &PatchParams::default(), &patch)).await?)
        }
        Action::Delete(revision) => {
            let preconditions = revision.map(|revision| Preconditions {
                resource_version: Some(revision.to_string()),
                uid: None,
            });
            let params = DeleteParams {
                preconditions,
                ..DeleteParams::default()
            };
            answer(maps.delete(key, &params)).await?;
            Told::Deleted
        }
        Action::Get => Told::Seen(seen(&answer(maps.get(key)).await?).map(|(_, seen)| seen)),
    })
}

fn revision_of(page: &ObjectList<ConfigMap>) -> u64 {
    page.metadata
        .resource_version
        .as_ref()
        .unwrap()
        .parse()
        .unwrap()
}

/// All pages of a list.
async fn list(
    book: &Book,
    maps: &Maps,
    mut params: ListParams,
    current: bool,
) -> Result<Listed, Option<kube::Error>> {
    let began = book.now();
    let (mut pages, mut objects) = (Vec::new(), Objects::new());
    loop {
        let page = answer(maps.list(&params)).await?;
        pages.push(revision_of(&page));
        for (key, seen) in page.items.iter().filter_map(seen) {
            let twice = objects.insert(key.clone(), seen);
            assert!(twice.is_none(), "{key} is twice in a list");
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(Listed {
        began,
        ended: book.now(),
        current,
        pages,
        objects,
    })
}

/// Removes what a run before this one has left.
pub(crate) async fn clear(maps: &Maps) {
    for number in 0..KEYS {
        let key = format!("{OURS}{number}");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !matches!(answer(maps.get_opt(&key)).await, Ok(None)) {
            assert!(Instant::now() < deadline, "{key} cannot be removed");
            let _gone = answer(maps.delete(&key, &DeleteParams::default())).await;
        }
    }
}

/// After everybody has stopped: a change that tells watchers that there is no more to come.
pub(crate) async fn last_change(book: &Book, servers: &[Maps]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        for maps in servers {
            let map = object("last", 0, None);
            if let Ok(made) = answer(maps.create(&PostParams::default(), &map)).await {
                let revision = made.metadata.resource_version.unwrap();
                book.last
                    .store(revision.parse().unwrap(), Ordering::Release);
                // For a next run.
                while answer(maps.delete("last", &DeleteParams::default()))
                    .await
                    .is_err()
                {
                    assert!(
                        Instant::now() < deadline,
                        "the last change cannot be undone"
                    );
                }
                return;
            }
            // One whose answer was lost.
            let _gone = answer(maps.delete("last", &DeleteParams::default())).await;
        }
        assert!(Instant::now() < deadline, "no server takes the last change");
    }
}

/// Lists, then watches from what it has seen, through cuts and at one server and another, until the last change.
pub(crate) async fn watch(book: std::sync::Arc<Book>, mut servers: Vec<Maps>, mut dice: Dice) {
    loop {
        let Ok(start) = list(&book, &servers[0], ListParams::default(), true).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            servers.rotate_left(1);
            continue;
        };
        let mut watched = Watched {
            from: start.pages[0],
            start: start.objects.clone(),
            events: Vec::new(),
        };
        book.history.lock().lists.push(start);
        // What others changed counts as seen as well.
        let mut last = watched.from;
        let gone = loop {
            let end = book.last.load(Ordering::Acquire);
            if end > 0 && last >= end {
                break false;
            }
            match connection(&book, &servers[0], &mut watched, &mut last, &mut dice).await {
                Ok(()) => {}
                Err(Some(kube::Error::Api(status))) if status.code == 410 => break true,
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    servers.rotate_left(1);
                }
            }
            if dice.once(4) {
                servers.rotate_left(1);
            }
        };
        book.history.lock().watches.push(watched);
        if !gone {
            return;
        }
        println!("a watcher was told to begin anew");
    }
}

/// One connection of a watch, which ends after some events, or some time.
async fn connection(
    book: &Book,
    maps: &Maps,
    watched: &mut Watched,
    last: &mut u64,
    dice: &mut Dice,
) -> Result<(), Option<kube::Error>> {
    let params = WatchParams::default().timeout(1 + dice.below(5) as u32);
    let events = answer(maps.watch(&params, &last.to_string())).await?;
    let mut events = std::pin::pin!(events);
    let mut left = 1 + dice.below(60);
    while left > 0 {
        left -= 1;
        // Longer than any watch asks for.
        let next = tokio::time::timeout(Duration::from_secs(8), events.try_next()).await;
        let Ok(next) = next else {
            return Err(None);
        };
        let event = match next.map_err(Some)? {
            None => return Ok(()),
            Some(WatchEvent::Error(status)) => return Err(Some(kube::Error::Api(status))),
            Some(event) => event,
        };
        let when = book.now();
        let event = match &event {
            WatchEvent::Added(map) => changed(map, last, Change::Added),
            WatchEvent::Modified(map) => changed(map, last, Change::Modified),
            WatchEvent::Deleted(map) => changed(map, last, |_| Change::Deleted),
            WatchEvent::Bookmark(mark) => {
                *last = mark.metadata.resource_version.parse().unwrap();
                Some(Event::Bookmark(*last))
            }
            WatchEvent::Error(_) => None,
        };
        watched.events.extend(event.map(|event| (when, event)));
        let end = book.last.load(Ordering::Acquire);
        if end > 0 && *last >= end {
            return Ok(());
        }
    }
    Ok(())
}

/// A change of ours; one of others says at least how far the watch is.
fn changed(map: &ConfigMap, last: &mut u64, change: impl Fn(Token) -> Change) -> Option<Event> {
    *last = map
        .metadata
        .resource_version
        .as_ref()
        .unwrap()
        .parse()
        .unwrap();
    let Some((key, (token, revision))) = seen(map) else {
        return Some(Event::Bookmark(*last));
    };
    Some(Event::Changed {
        revision,
        key,
        change: change(token),
    })
}
