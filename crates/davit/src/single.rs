//! The components alone: `davit server` and `node`; and what those that are attached have in common.

use crate::args::{Node, Server};
use crate::cluster_ca::cluster_ca;
use crate::components::{NodeStart, Stop, lacks_privileges, node_name, run_node, start_server};
use crate::node_identity::Identity;
use crate::shutdown::{Received, STOPPING, Signals};
use crate::{features, owner, paths, pod_ranges, service_manager};
use anyhow::{Context, Result, bail};
use davit_api::features::{COORDINATED_LEADER_ELECTION, Features};
use davit_apiserver::version::{MAJOR, MINOR};
use davit_apiserver::{KubeletAuthority, ServiceRange, ServiceRanges};
use davit_client::{Candidacy, LeaderElector};
use davit_scheduler::config::LeaderElectionConfiguration;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(crate) async fn server(args: Server) -> Result<()> {
    let started = std::time::Instant::now();
    let mut signals = Signals::new()?;
    let data_dir = paths::data_dir(args.serving.data_dir(args.options.data_dir.as_deref()))?;
    paths::protect_data_dir(&data_dir)?;
    let _owned = owner::own(&data_dir, "server")?;
    let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
    features::remark(&args.gates.feature_gates);
    let starting = start_server(
        &args.options,
        args.gates.feature_gates.clone(),
        KubeletAuthority::Any,
        args.serving.files()?,
        &data_dir,
        &mut tasks,
        cancel.clone(),
    );
    let Some(running) = signals.unless_received(starting).await? else {
        return Ok(());
    };
    let (ms, kubeconfig) = (started.elapsed().as_millis(), running.kubeconfig.display());
    println!(
        "ready in {ms} ms  kubeconfig={kubeconfig}  server={}",
        running.url
    );
    let outcome = tokio::select! {
        () = signals.recv() => Ok(()),
        ended = tasks.join_next() => finish(ended),
    };
    cancel.cancel();
    let stopping = async {
        while let Some(ended) = tasks.join_next().await {
            finish(Some(ended))?;
        }
        Ok(())
    };
    let limit = STOPPING + args.options.protection.shutdown_delay_duration;
    let stopped = signals.stop_within(limit, stopping).await;
    outcome.and(stopped)
}

/// The result of a component's task.
pub(crate) fn finish(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    match ended {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(error).context("a component failed"),
    }
}

/// The addresses of the Service `kube-dns`; none where names are somebody else's.
pub(crate) fn dns_addresses(services: ServiceRanges, wanted: bool) -> Vec<IpAddr> {
    let wanted = services.all().filter(|_| wanted);
    wanted.map(ServiceRange::dns).collect()
}

/// The Lease for which a component stands.
pub(crate) struct Candidate {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Of the lease, of the renewal, and between tries; `None`: the usual ones.
    pub(crate) durations: Option<[Duration; 3]>,
    /// The API server decides who leads.
    pub(crate) coordinated: bool,
}

/// One that stands for a Lease, which it does until this is dropped.
struct StandingCandidate {
    elector: LeaderElector,
    _candidacy: Option<AbortOnDropHandle<()>>,
}

impl Candidate {
    /// For the lease of this name in kube-system.
    pub(crate) fn usual(lease: &str, features: &Features) -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: lease.to_owned(),
            durations: None,
            coordinated: features.is_on(COORDINATED_LEADER_ELECTION),
        }
    }

    /// For the Lease that a configuration names, if there is to be an election.
    pub(crate) fn of(
        election: &LeaderElectionConfiguration,
        features: &Features,
    ) -> Result<Option<Self>> {
        if !election.leader_elect {
            return Ok(None);
        }
        let durations = [
            election.lease_duration,
            election.renew_deadline,
            election.retry_period,
        ];
        let mut known = [Duration::ZERO; 3];
        for (known, given) in known.iter_mut().zip(durations) {
            *known = given.try_into().context("leader election")?;
        }
        Ok(Some(Self {
            namespace: election.resource_namespace.clone(),
            name: election.resource_name.clone(),
            durations: Some(known),
            coordinated: features.is_on(COORDINATED_LEADER_ELECTION),
        }))
    }

    /// Stands for the lease until `cancel`.
    fn stand(&self, client: kube::Client, cancel: &CancellationToken) -> Result<StandingCandidate> {
        let host = paths::host_name()?;
        // Components of one process have candidates of their own, and who is started again is another one.
        let identity = match self.coordinated {
            true => format!("{host}_{}", uuid::Uuid::new_v4()),
            false => format!("{host}_{}", std::process::id()),
        };
        let (namespace, name) = (&self.namespace, &self.name);
        let mut elector = LeaderElector::new(client.clone(), namespace, name, &identity);
        if let Some([lease, renew, retry]) = self.durations {
            elector = elector.with_durations(lease, renew, retry);
        }
        if !self.coordinated {
            return Ok(StandingCandidate {
                elector,
                _candidacy: None,
            });
        }
        let version = format!("{MAJOR}.{MINOR}.0");
        let candidacy = Candidacy::new(client, namespace, name, &identity, &version);
        let keeping = tokio::spawn(candidacy.keep(cancel.child_token()));
        Ok(StandingCandidate {
            elector: elector.coordinated(),
            _candidacy: Some(AbortOnDropHandle::new(keeping)),
        })
    }
}

/// Runs a component of a whole cluster until `cancel`: alone, or where other clusters on the same objects have one, too
/// (`candidate`), as leader, term after term.
pub(crate) async fn in_terms<F>(
    client: kube::Client,
    candidate: Option<Candidate>,
    cancel: CancellationToken,
    mut work: impl FnMut(CancellationToken) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let Some(candidate) = candidate else {
        return work(cancel).await;
    };
    let standing = candidate.stand(client, &cancel)?;
    while !cancel.is_cancelled() {
        let mut outcome = Ok(());
        standing
            .elector
            .run(cancel.clone(), async |term| outcome = work(term).await)
            .await;
        outcome?;
    }
    Ok(())
}

/// A client for the API server of a kubeconfig; none if a signal came first.
pub(crate) async fn connect(
    signals: &mut Signals,
    kubeconfig: &Path,
) -> Result<Option<kube::Client>> {
    let connecting = davit_client::from_kubeconfig(kubeconfig);
    signals
        .unless_received(async { Ok(connecting.await?) })
        .await
}

/// Runs a component until a signal, as leader if it is a candidate. As in Kubernetes, who loses leadership ends with an
/// error, to be started again as a candidate.
pub(crate) async fn lead<F>(
    signals: &mut Signals,
    client: kube::Client,
    component: &str,
    candidate: Option<Candidate>,
    work: impl FnOnce(CancellationToken) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let cancel = CancellationToken::new();
    let run = async {
        let Some(candidate) = candidate else {
            return work(cancel.clone()).await;
        };
        let standing = candidate.stand(client, &cancel)?;
        let mut outcome = Ok(());
        standing
            .elector
            .run(cancel.clone(), async |term| {
                outcome = work(term).await;
            })
            .await;
        outcome
    };
    let mut run = std::pin::pin!(run);
    let ended = tokio::select! {
        () = signals.recv() => None,
        ended = &mut run => Some(ended),
    };
    if let Some(ended) = ended {
        // Without a signal there is no reason to end: leadership is lost, or a part has failed.
        ended?;
        bail!("{component} has ended by itself");
    }
    cancel.cancel();
    signals.stop_within(STOPPING, run).await
}

pub(crate) async fn node(mut args: Node) -> Result<()> {
    args.join.check()?;
    if args.join.are_given() {
        args.options.kubelet.ask_for_serving_certificate()?;
    }
    if let Some(lacks) = lacks_privileges(&args.options)? {
        bail!("{lacks}");
    }
    let mut signals = Signals::new()?;
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    paths::protect_data_dir(&data_dir)?;
    let _owned = owner::own(&data_dir, "node")?;
    args.options.node_name = Some(crate::node_name::keep(
        args.options.node_name.take(),
        &data_dir,
    )?);
    let name = node_name(&args.options)?;
    let cancel = CancellationToken::new();
    let joining = Identity::new(&args, &data_dir, &name);
    let Some(identity) = signals.unless_received(joining).await? else {
        return Ok(());
    };
    let ca = cluster_ca(&identity.kubeconfig)?;
    let client = identity.client.clone();
    let asking = async { Ok(pod_ranges::services_of(client.clone(), &data_dir).await) };
    let Some(services) = signals.unless_received(asking).await? else {
        return Ok(());
    };
    // ends with this function
    let mut tasks = JoinSet::new();
    tasks.spawn(identity.attend(cancel.clone()));
    tasks.spawn(tell_when_ready(client.clone(), name, cancel.clone()));
    let terminated = CancellationToken::new();
    let stop = Stop {
        cancel: cancel.clone(),
        terminated: terminated.clone(),
    };
    let start = NodeStart {
        client,
        gateway: None,
        options: &args.options,
        data_dir: &data_dir,
        client_ca: ca,
        listen: Ipv4Addr::UNSPECIFIED.into(),
        services,
        demo: false,
        stays: true,
    };
    let agent = run_node(start, |_| Ok(()), stop);
    let mut agent = std::pin::pin!(agent);
    tokio::select! {
        received = signals.receive() => {
            service_manager::stopping();
            if received == Received::Terminate {
                terminated.cancel();
            }
            cancel.cancel();
        }
        ended = &mut agent => return ended,
    }
    let limit = STOPPING + args.options.kubelet.shutdown()?.total();
    signals.stop_within(limit, agent).await
}

/// Says when the node is registered, and when it is ready.
async fn tell_when_ready(client: kube::Client, name: String, cancel: CancellationToken) {
    const LOOK: Duration = Duration::from_millis(500);
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
    let mut registered = false;
    let looking = async {
        loop {
            if let Ok(Some(node)) = nodes.get_opt(&name).await {
                if !registered {
                    registered = true;
                    println!("node {name} is registered");
                }
                let status = node.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                if conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.status == "True")
                {
                    println!("node {name} is ready");
                    service_manager::ready("the node is ready");
                    return service_manager::watched(async || true).await;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! { () = cancel.cancelled() => {} () = looking => {} }
}
