//! The list and watch behind an informer, for all kinds alike.

use super::ObjectKey;
use crate::pause::Pause;
use crate::received::Received;
use davit_task::Task;
use futures::StreamExt;
use kube::runtime::watcher;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Where a list and watch of a kind puts what it hears. All that is of the kind's type is behind it, so that the rest is
/// compiled once.
pub(super) trait WatchTarget: Send + Sync {
    /// The kind, for people.
    fn kind(&self) -> Cow<'static, str>;
    /// The plural name of the resource.
    fn resource(&self) -> Cow<'static, str>;
    /// The object is there in this state. One that cannot be read stays as it was seen last.
    fn apply(&self, object: &Received);
    /// The object is gone.
    fn delete(&self, object: &Received);
    /// All objects have been listed: those of other names are gone.
    fn finish_list(&self, listed: &HashSet<ObjectKey>);
}

/// Lists and watches until cancelled. One that is started again lists anew: what it missed meanwhile becomes a difference.
pub(super) fn keep_watching(
    api: kube::Api<Received>,
    config: watcher::Config,
    target: Arc<dyn WatchTarget>,
    cancel: CancellationToken,
) -> impl Future<Output = ()> {
    let task = Task::new("client", "informer", cancel.clone());
    let kind = target.resource();
    let watching = task.keep(move || {
        let (target, cancel) = (target.clone(), cancel.clone());
        let (api, config) = (api.clone(), config.clone());
        async move {
            let watching = fill(&*target, api, config);
            // Dropping the watch half-way is safe: the store is only ever changed between awaits.
            tokio::select! { biased; () = cancel.cancelled() => {} () = watching => {} }
        }
    });
    watching.instrument(tracing::error_span!("informer", %kind))
}

async fn fill(target: &dyn WatchTarget, api: kube::Api<Received>, config: watcher::Config) {
    let mut events = std::pin::pin!(watcher(api, config));
    let mut listed: HashSet<ObjectKey> = HashSet::new();
    let mut pause = Pause::default();
    while let Some(event) = events.next().await {
        pause.heed(&event);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(ObjectKey::of(&object));
                target.apply(&object);
            }
            Ok(watcher::Event::InitDone) => target.finish_list(&std::mem::take(&mut listed)),
            Ok(watcher::Event::Apply(object)) => target.apply(&object),
            Ok(watcher::Event::Delete(object)) => target.delete(&object),
            Err(error) => pause.after(&error, &target.kind()).await,
        }
    }
}
