//! How a server comes up: the objects that every cluster has, the loops that go on.

use std::sync::{Arc, Weak};
use std::time::Duration;

use davit_task::Task;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{bootstrap, roles};
use crate::server::{ApiServer, Error, Options};
use crate::{aggregator, crd, event_ttl, flow_objects, node_rounds};

/// The component in names of tasks.
const COMPONENT: &str = "apiserver";
/// How long plugins that keep keys of encryption at rest may take to answer at start.
const PLUGINS_READY: Duration = Duration::from_secs(20);

impl ApiServer {
    /// Makes a server and sees to it that the objects every cluster has are there. It answers
    /// [`ApiServer::call`] at once; [`ApiServer::serve`] puts it on a socket.
    ///
    /// # Errors
    /// When keys, TLS or the first objects cannot be made.
    pub fn new(options: Options) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        // Boxed, here and where others of the house are entered: what runs is compiled in its own crate, once, and not by
        // everybody who starts it.
        Self::start(options).boxed()
    }

    async fn start(options: Options) -> Result<Arc<Self>, Error> {
        same_family(&options)?;
        let encryption = options.encryption.clone();
        if let Some(encryption) = &encryption {
            encryption.ready(PLUGINS_READY).await?;
        }
        let server = Arc::new(Self::made_of(options)?);
        server.make_first_objects().await?;
        if let Some(encryption) = encryption {
            server.keep("encryption", move |_, cancel| {
                let encryption = encryption.clone();
                async move { encryption.attend(cancel).await }
            });
        }
        server.lifecycle().serve();
        server.keep("aggregator", |server, _| aggregator::run(server));
        server.keep("event-ttl", |server, _| event_ttl::run(server));
        server.keep("resource-metrics", |server, _| node_rounds::run(server));
        Ok(server)
    }

    /// The objects that every cluster has, and what follows them.
    async fn make_first_objects(self: &Arc<Self>) -> Result<(), Error> {
        bootstrap::objects(self).await?;
        if self.flow_control().is_enabled() {
            self.control_flow().await?;
        }
        let follows = crd::follow(self).await;
        self.own(follows.map_err(|s| Error::of_bootstrap("custom kinds", s))?);
        if self.uses_rbac() {
            let made = roles::ensure(self).await;
            made.map_err(|(what, status)| Error::of_bootstrap(what, status))?;
        }
        Ok(())
    }

    async fn control_flow(self: &Arc<Self>) -> Result<(), Error> {
        let control = Arc::clone(self.flow_control());
        let kept = flow_objects::ensure(self, &control).await;
        kept.map_err(|s| Error::of_bootstrap("priority and fairness objects", s))?;
        let cancel = self.shutdown().clone();
        let weak = Arc::downgrade(self);
        let task = Task::new(COMPONENT, "priority-and-fairness", cancel.clone());
        let follow = task.retry(move || {
            flow_objects::follow(weak.clone(), Arc::clone(&control), cancel.clone())
        });
        self.own(AbortOnDropHandle::new(tokio::spawn(follow)));
        Ok(())
    }

    /// Starts a loop in the background, which ends with the server and is made anew when it panics.
    fn keep<W: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        make: impl Fn(Weak<Self>, CancellationToken) -> W + Send + 'static,
    ) {
        let (server, cancel) = (Arc::downgrade(self), self.shutdown().clone());
        let task = Task::new(COMPONENT, name, cancel.clone());
        let work = task.retry(move || make(Weak::clone(&server), cancel.clone()));
        self.nodes().track(work);
    }
}

/// Whoever reaches the Service `kubernetes` must be able to reach what is behind it.
fn same_family(options: &Options) -> Result<(), Error> {
    let range = options.service_ranges.primary();
    let is_other = |address: &std::net::IpAddr| {
        !address.is_unspecified() && davit_netplan::Family::of(*address) != range.family()
    };
    match options.advertise_address.filter(is_other) {
        Some(address) => Err(Error::Family {
            range: range.to_string(),
            address: address.to_string(),
        }),
        None => Ok(()),
    }
}
