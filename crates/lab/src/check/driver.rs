//! Playing the node agent, the scheduler and the cluster's users to a driver of dynamic resource allocation.

mod answers;
mod calls;
mod cluster;
mod lives;
mod parameters;
mod plugin;

use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use serde_json::Value;

use self::answers::Device;
use self::cluster::Cluster;
pub use self::parameters::{Invalid, Parameters, ParametersError, Valid};
use self::plugin::{Driver, PluginSocket, Registry};
use super::report::{Expectation, Recorder, Report};
use super::subject::{KubeletDirectory, Life, Process, Subject as _};

const fn check(id: &'static str, expected: &'static str) -> Expectation {
    Expectation { id, expected }
}

/// The checks of drivers.
pub const DRIVER_CHECKS: &[Expectation] = &[
    check("start", "the program starts and stays"),
    check(
        "register",
        "it makes a socket in plugins_registry whose GetInfo names the type DRAPlugin",
    ),
    check(
        "register-name",
        "the driver's name is a DNS subdomain of at most 63 characters",
    ),
    check(
        "register-version",
        "it names v1.DRAPlugin or v1beta1.DRAPlugin among its versions",
    ),
    check(
        "register-endpoint",
        "its endpoint is an absolute path of at most 107 bytes",
    ),
    check(
        "register-serving",
        "its endpoint is served when GetInfo is answered",
    ),
    check(
        "registry-notify",
        "it takes the result of its registration (NotifyRegistrationStatus)",
    ),
    check(
        "slices",
        "its pools are published whole: all slices of one generation, names of devices once",
    ),
    check(
        "slices-node",
        "its slices name the node it runs on, or none",
    ),
    check(
        "slices-steady",
        "slices are not written while nothing changes",
    ),
    check(
        "slices-repaired",
        "a slice that somebody deletes comes back, within 100 seconds",
    ),
    check(
        "prepare",
        "NodePrepareResources is answered for every device, one claim a call",
    ),
    check(
        "prepare-answer",
        "the answer names the allocated device, its request, and CDI devices by their full names",
    ),
    check(
        "cdi-files",
        "the CDI devices are in files of the CDI directory, which can be read",
    ),
    check(
        "prepare-again",
        "a claim that is prepared again gets the same answer",
    ),
    check(
        "prepare-several",
        "several claims in one call have an entry each",
    ),
    check("parallel", "calls at the same time are all answered"),
    check(
        "prepare-unknown",
        "a claim that does not exist is refused, in its entry or with the call, and others can be prepared",
    ),
    check(
        "prepare-unallocated",
        "a claim without an allocation is refused, in its entry or with the call",
    ),
    check(
        "prepare-replaced",
        "a claim with another UID than the one asked for is refused, in its entry or with the call",
    ),
    check(
        "unprepare",
        "NodeUnprepareResources is answered for every prepared claim",
    ),
    check(
        "unprepare-cdi",
        "CDI files of the claim are gone after that",
    ),
    check(
        "unprepare-again",
        "a claim that is undone again is no error",
    ),
    check(
        "unprepare-unknown",
        "a claim that was never prepared is no error",
    ),
    check(
        "unprepare-gone",
        "a claim is undone although it was deleted meanwhile",
    ),
    check(
        "parameters-foreign",
        "parameters of a claim that are meant for another driver are not looked at",
    ),
    check(
        "parameters-valid",
        "claims with valid parameters, of their own or of their class, are prepared and undone",
    ),
    check(
        "parameters-invalid",
        "claims with invalid parameters are refused with an error that names them, and leave nothing behind",
    ),
    check(
        "health",
        "the health service, where there is one, tells of published devices at once",
    ),
    check(
        "agent-restart",
        "an agent that has restarted can ask its socket again, and call it",
    ),
    check(
        "registry-removed",
        "it serves on, or ends, when somebody removes its socket from plugins_registry",
    ),
    check(
        "restart",
        "after kill -9 and a new start it registers again",
    ),
    check(
        "restart-prepare",
        "after that a prepared claim gets the same answer, and is undone",
    ),
    check(
        "restart-slices",
        "after that its slices are whole and the devices have the same names",
    ),
    check(
        "update",
        "a second instance registers beside the first, and serves on when the first has ended",
    ),
    check("update-slices", "meanwhile the slices stay as they are"),
    check("terminate", "it ends within ten seconds of SIGTERM"),
    check(
        "terminate-socket",
        "no socket of it is left in plugins_registry",
    ),
];

/// How drivers are checked; [`DriverOptions::default`] gives the usual patience.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// How long is waited for registrations, slices and calls.
    pub patience: Duration,
    /// How long slices are watched for writes that should not come.
    pub steady: Duration,
    /// How long a deleted slice may be away.
    pub repair: Duration,
    /// How many devices are prepared at most.
    pub devices: usize,
    /// Opaque parameters to try.
    pub parameters: Parameters,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(20),
            steady: Duration::from_secs(3),
            // helpers written in Go remember a slice for a minute, and wait half of one before they look
            repair: Duration::from_secs(100),
            devices: 8,
            parameters: Parameters::default(),
        }
    }
}

/// The cluster the driver publishes to.
pub struct Api {
    /// A client that may do everything.
    pub client: Client,
    /// What the driver is given: `{kubeconfig}`, `KUBECONFIG`.
    pub kubeconfig: PathBuf,
    /// The node's name: `{node}`, `NODE_NAME`.
    pub node: String,
}

/// Checks a driver. `{instance}` and `INSTANCE_UID` are another text for each process that is started; a command
/// without the former is not tried with two instances.
///
/// # Errors
/// The cluster cannot be used; what the driver does wrong is in the report.
pub async fn dra_driver(
    process: &Process,
    place: &KubeletDirectory,
    api: Api,
    options: &DriverOptions,
) -> Result<Report, String> {
    let cluster = Cluster::new(api.client, &api.node);
    cluster.add_node().await?;
    let mut process = process.clone();
    let kubeconfig = api.kubeconfig.display().to_string();
    process
        .names
        .push(("{kubeconfig}", "KUBECONFIG", kubeconfig));
    process
        .names
        .push(("{node}", "NODE_NAME", api.node.clone()));
    let mut run = Run {
        options,
        process,
        place,
        node: api.node,
        cluster,
        registry: Registry::default(),
        odd: Vec::new(),
        report: Recorder::new(DRIVER_CHECKS),
        instances: 0,
    };
    let name = run.program().await;
    let subject = run.process.name();
    let report = run.report;
    Ok(report.report("dra-driver", subject, name.into_iter().collect()))
}

struct Run<'a> {
    options: &'a DriverOptions,
    process: Process,
    place: &'a KubeletDirectory,
    node: String,
    cluster: Cluster,
    registry: Registry,
    /// What was wrong with sockets that were found.
    odd: Vec<String>,
    report: Recorder,
    instances: usize,
}

/// A driver that was met.
struct Met {
    driver: Driver,
    found: PluginSocket,
    slices: Vec<Value>,
    devices: Vec<Device>,
}

impl Run<'_> {
    /// Starts the next process.
    async fn start(&mut self) -> Result<Box<dyn Life>, String> {
        self.instances += 1;
        let mut process = self.process.clone();
        let uid = format!("lab-{}", self.instances);
        process.names.push(("{instance}", "INSTANCE_UID", uid));
        process.start(self.place).await
    }

    /// All checks; the driver's name.
    async fn program(&mut self) -> Option<String> {
        let mut life = match self.start().await {
            Ok(life) => life,
            Err(e) => {
                self.report.fail("start", e);
                return None;
            }
        };
        let patience = self.options.patience;
        let Some(found) = self.next(life.as_mut(), patience).await else {
            let seen = self.absent(life.as_mut());
            self.report.fail("register", seen);
            return None;
        };
        let name = found.name.clone();
        if let Some(met) = self.met(found).await {
            self.calls(&met).await;
            match life.ended() {
                Some(ended) => {
                    let seen = format!("it ended during the checks: {}", ended.how);
                    self.report.fail("start", seen);
                }
                None => {
                    self.report.pass("start", "it stayed");
                    self.lives(life, met).await;
                }
            }
        }
        Some(name)
    }

    async fn next(&mut self, life: &mut dyn Life, limit: Duration) -> Option<PluginSocket> {
        let (registry, odd) = (&mut self.registry, &mut self.odd);
        registry.next(self.place, life, limit, odd).await
    }

    /// Why nothing registered.
    fn absent(&self, life: &mut dyn Life) -> String {
        match (life.ended(), self.odd.last()) {
            (Some(ended), _) => format!("it ended: {}", ended.how),
            (None, Some(odd)) => odd.clone(),
            (None, None) => format!(
                "no socket in plugins_registry in {} s",
                self.options.patience.as_secs()
            ),
        }
    }

    /// Looks at registration and slices; `None` when there is nothing to go on with.
    async fn met(&mut self, found: PluginSocket) -> Option<Met> {
        let report = &mut self.report;
        report.pass("register", found.socket.display().to_string());
        report.verdict("register-name", driver_name(&found.name));
        report.verdict("register-version", versions(&found.versions));
        report.verdict("register-endpoint", endpoint(&found));
        let told = found.notified.clone();
        report.verdict("registry-notify", told.map(|()| "taken".to_owned()));
        let channel = match &found.channel {
            Ok(channel) => channel.clone(),
            Err(e) => {
                report.fail("register-serving", e);
                return None;
            }
        };
        report.pass("register-serving", "it is served");
        let patience = self.options.patience;
        let driver = Driver::new(channel, &found.versions, patience);
        let published = self
            .cluster
            .await_slices(&found.name, patience, answers::check_pools);
        let slices = match published.await {
            Ok((seen, slices)) => {
                report.pass("slices", seen);
                slices
            }
            Err(why) => {
                report.fail("slices", why);
                return None;
            }
        };
        report.verdict("slices-node", answers::check_nodes(&slices, &self.node));
        let devices = answers::devices(&slices);
        Some(Met {
            driver,
            found,
            slices,
            devices,
        })
    }
}

fn driver_name(name: &str) -> Result<String, String> {
    const LONGEST: usize = 63;
    let word = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if name.len() > LONGEST {
        return Err(format!("{name} has {} characters", name.len()));
    }
    if !name.split('.').all(word) {
        return Err(format!("{name:?} is no DNS subdomain"));
    }
    Ok(name.to_owned())
}

fn versions(versions: &[String]) -> Result<String, String> {
    use davit_proto::dra::{v1, v1beta1};
    let shown = versions.join(", ");
    let known = |v: &String| v == v1::SERVICE || v == v1beta1::SERVICE;
    if versions.iter().any(known) {
        return Ok(shown);
    }
    // drivers of 1.31 and before told their own version instead
    Err(format!("only {shown:?}"))
}

fn endpoint(found: &PluginSocket) -> Result<String, String> {
    const LONGEST: usize = 107;
    let (path, shown) = (&found.endpoint, found.endpoint.display());
    if !path.is_absolute() {
        return Err(format!("{shown} is not absolute"));
    }
    match path.as_os_str().len() {
        n if n > LONGEST => Err(format!("{shown} has {n} bytes")),
        _ => Ok(shown.to_string()),
    }
}
