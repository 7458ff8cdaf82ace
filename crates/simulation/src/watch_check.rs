//! A watcher that notes whether it sees each change once and in order.

use std::sync::Arc;
use std::time::Duration;

use davit_access::UserInfo;
use davit_apiserver::ResponseBody;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

use crate::checks::{CLAIMS, PODS, REPLICA_SETS, text};
use crate::cluster::SimulatedCluster;

/// What is watched: the prefix of its keys, and where it is served.
pub type Watched = (&'static str, &'static str);

/// All that witnesses watch.
pub const WATCHED: [Watched; 3] = [
    (PODS, "/api/v1/pods"),
    (REPLICA_SETS, "/apis/apps/v1/replicasets"),
    (CLAIMS, "/apis/resource.k8s.io/v1/resourceclaims"),
];

/// The watcher.
pub struct WatchCheck {
    cluster: Arc<SimulatedCluster>,
    watched: Watched,
    rng: StdRng,
    /// It has seen everything up to here.
    revision: Option<u64>,
    /// How many changes it has seen.
    seen: usize,
}

impl std::fmt::Debug for WatchCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchCheck({:?}, {} seen)", self.revision, self.seen)
    }
}

impl WatchCheck {
    /// One that has seen nothing yet.
    pub fn new(cluster: &Arc<SimulatedCluster>, watched: Watched, rng: StdRng) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            watched,
            rng,
            revision: None,
            seen: 0,
        }
    }

    /// Watches until it is dropped, by ever new watches.
    pub async fn run(mut self) {
        loop {
            if self.watch_once().await.is_none() {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
    }

    async fn call(&self, uri: &str) -> Option<Response<ResponseBody>> {
        let running = self.cluster.network.running()?;
        let request = Request::get(uri).body(Empty::<bytes::Bytes>::new()).ok()?;
        let user = UserInfo::new("watch-check", &["system:masters"]);
        tokio::select! {
            biased;
            () = running.cut.cancelled() => None,
            answer = running.server.call(request, user) => Some(answer),
        }
    }

    /// None when it did not work.
    async fn watch_once(&mut self) -> Option<()> {
        let from = match self.revision {
            Some(revision) => revision,
            None => self.list().await?,
        };
        self.revision = Some(from);
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={from}",
            self.watched.1
        );
        let answer = self.call(&uri).await?;
        if answer.status() == 410 {
            self.revision = None;
            return None;
        }
        if answer.status() != 200 {
            return None;
        }
        let running = self.cluster.network.running()?;
        let mut body = answer.into_body();
        let life = Duration::from_millis(self.rng.random_range(100..20_000));
        let end = tokio::time::sleep(life);
        let mut end = std::pin::pin!(end);
        let mut rest: Vec<u8> = Vec::new();
        loop {
            let frame = tokio::select! {
                biased;
                () = running.cut.cancelled() => return None,
                () = &mut end => return Some(()),
                frame = body.frame() => frame?.ok()?,
            };
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=at).collect();
                let event: Value = serde_json::from_slice(&line).ok()?;
                self.take(&event)?;
            }
        }
    }

    async fn list(&self) -> Option<u64> {
        let answer = self.call(self.watched.1).await?;
        if answer.status() != 200 {
            return None;
        }
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        let list: Value = serde_json::from_slice(&body).ok()?;
        text(&list, "/metadata/resourceVersion").parse().ok()
    }

    fn take(&mut self, event: &Value) -> Option<()> {
        let seen = self.revision?;
        let revision: u64 = text(event, "/object/metadata/resourceVersion")
            .parse()
            .unwrap_or(0);
        let written = self.cluster.written.lock();
        let from = written.partition_point(|(revision, _)| *revision <= seen);
        let mut later = written[from..].iter();
        let next = later.find(|(_, key)| key.starts_with(self.watched.0));
        let next = next.cloned();
        drop(written);
        match event["type"].as_str() {
            Some("ERROR") => {
                if event["object"]["code"] == 410 {
                    self.revision = None;
                }
                return None;
            }
            Some("BOOKMARK") => {
                let missed = next.filter(|(next, _)| *next <= revision);
                if revision < seen || missed.is_some() {
                    self.report(format!(
                        "bookmark {revision} after {seen}: {missed:?} was not seen"
                    ));
                }
                self.revision = Some(revision.max(seen));
                return Some(());
            }
            _ => {}
        }
        let object = &event["object"];
        let namespace = text(object, "/metadata/namespace");
        let name = text(object, "/metadata/name");
        let found = (revision, format!("{}{namespace}/{name}", self.watched.0));
        if next.as_ref() != Some(&found) {
            self.report(format!(
                "after {seen} a watcher sees {found:?}, what was written is {next:?}"
            ));
        }
        self.seen += 1;
        self.revision = Some(revision);
        Some(())
    }

    fn report(&self, what: String) {
        self.cluster.note(format_args!("VIOLATION {what}"));
        self.cluster.checks.lock().report(what);
    }
}
