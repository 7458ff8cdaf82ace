//! Playing the node agent to a device plugin.

mod calls;
mod lives;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::unix;

use super::agent::{self, Agent, Client, Manner, Registered, Way};
use super::report::{Expectation, Recorder, Report};
use super::streams::{self, Lists};
use super::subject::{KubeletDirectory, Life, Subject};

const fn check(id: &'static str, expected: &'static str) -> Expectation {
    Expectation { id, expected }
}

/// The checks of device plugins.
pub const PLUGIN_CHECKS: &[Expectation] = &[
    check("start", "the program starts and stays"),
    check(
        "register",
        "it registers with the node agent, by Register or by a socket in plugins_registry",
    ),
    check("register-version", "it names the version v1beta1"),
    check(
        "register-name",
        "the resource has the name of an extended resource",
    ),
    check(
        "register-endpoint",
        "its socket lies where the agent looks for it, under a path of at most 107 bytes",
    ),
    check(
        "register-serving",
        "it serves before it registers: the agent dials back while Register is open",
    ),
    check(
        "registry-notify",
        "it takes the result of its registration (NotifyRegistrationStatus)",
    ),
    check(
        "options",
        "GetDevicePluginOptions is answered, and agrees with what Register said",
    ),
    check("list", "ListAndWatch sends a list of devices at once"),
    check("list-ids", "IDs are unique and have 1 to 63 characters"),
    check("list-health", "health is Healthy or Unhealthy"),
    check("list-numa", "NUMA nodes are numbers from 0, or absent"),
    check(
        "list-steady",
        "the stream stays open and sends nothing while nothing changes",
    ),
    check(
        "list-reopen",
        "a new stream starts with the complete list again",
    ),
    check("allocate", "Allocate is answered for every healthy device"),
    check(
        "allocate-answer",
        "what containers get can be used: paths, permissions, CDI names",
    ),
    check(
        "allocate-all",
        "Allocate is answered for all healthy devices at once",
    ),
    check(
        "allocate-again",
        "a device that is allocated again gets the same answer",
    ),
    check(
        "allocate-unknown",
        "an unknown device is refused and does no harm",
    ),
    check(
        "allocate-parallel",
        "calls at the same time are all answered",
    ),
    check(
        "preferred",
        "GetPreferredAllocation chooses as many devices as asked, from those available",
    ),
    check(
        "preferred-must-include",
        "devices that are taken already are among those preferred",
    ),
    check(
        "pre-start",
        "PreStartContainer is answered within its 30 seconds",
    ),
    check(
        "health-change",
        "a device that breaks, and one that is mended, is reported at once",
    ),
    check(
        "agent-restart",
        "it registers again after the agent has restarted and removed all sockets",
    ),
    check(
        "agent-restart-list",
        "after that the devices have the same IDs",
    ),
    check("slow-dial", "it waits while the agent is slow to dial back"),
    check(
        "register-refused",
        "when it is refused it tries again or ends, instead of being silent",
    ),
    check(
        "duplicate",
        "a second instance registers, and serves on when the first has ended",
    ),
    check("terminate", "it ends within ten seconds of SIGTERM"),
    check("terminate-socket", "no socket of it is left behind"),
];

/// How plugins are checked; [`PluginOptions::default`] gives the usual patience.
#[derive(Debug, Clone)]
pub struct PluginOptions {
    /// How long is waited for a registration and for calls.
    pub patience: Duration,
    /// How long the stream is watched for lists that should not come.
    pub steady: Duration,
    /// How long the agent that is slow takes to dial back.
    pub slow_dial: Duration,
    /// The resource to look at when a program serves several; the first that registers otherwise.
    pub resource: Option<String>,
    /// Shell command that breaks a device, so that its report can be seen.
    pub break_command: Option<String>,
    /// Shell command that mends it.
    pub mend_command: Option<String>,
}

impl Default for PluginOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(20),
            steady: Duration::from_secs(3),
            slow_dial: Duration::from_secs(2),
            resource: None,
            break_command: None,
            mend_command: None,
        }
    }
}

/// What is checked.
pub enum Target {
    /// A plugin that runs already, by its socket: what concerns registration is skipped.
    Socket(PathBuf),
    /// A program that is started, with the directory that stands for `/var/lib/kubelet`.
    Program(Box<dyn Subject>, KubeletDirectory),
}

/// Checks a device plugin.
///
/// # Errors
/// The agent's own sockets cannot be made; what the plugin does wrong is in the report.
pub async fn device_plugin(target: Target, options: &PluginOptions) -> Result<Report, unix::Error> {
    let mut run = Run {
        options,
        report: Recorder::new(PLUGIN_CHECKS),
        resources: BTreeSet::new(),
    };
    let subject = match &target {
        Target::Socket(socket) => {
            run.socket(socket.clone()).await;
            socket.display().to_string()
        }
        Target::Program(subject, place) => {
            run.program(&**subject, place).await?;
            subject.name()
        }
    };
    let resources = run.resources.into_iter().collect();
    Ok(run.report.report("device-plugin", subject, resources))
}

struct Run<'a> {
    options: &'a PluginOptions,
    report: Recorder,
    /// Everything that registered.
    resources: BTreeSet<String>,
}

/// A plugin that was met.
struct Met {
    client: Client,
    options: pb::DevicePluginOptions,
    resource: String,
    socket: PathBuf,
    way: Way,
    /// The last list.
    devices: Vec<pb::Device>,
}

const NOT_STARTED: &str = "the plugin was not started by this check";

impl Run<'_> {
    async fn socket(&mut self, socket: PathBuf) {
        for check in PLUGIN_CHECKS {
            let by_program = ["start", "slow-dial", "duplicate"];
            let groups = ["register", "registry", "agent", "terminate"];
            let of_program = by_program.contains(&check.id)
                || groups.iter().any(|group| check.id.starts_with(group));
            if of_program {
                self.report.skip(check.id, NOT_STARTED);
            }
        }
        let (dialled, options) = agent::meet(&socket).await;
        let (client, options) = match (dialled, options) {
            (Ok(client), Ok(options)) => (client, options),
            (Err(e), _) | (_, Err(e)) => {
                self.report.fail("options", e);
                return;
            }
        };
        self.report.pass("options", describe(&options));
        let met = Met {
            client,
            options,
            resource: String::new(),
            socket,
            way: Way::Register,
            devices: Vec::new(),
        };
        self.serve(met).await;
    }

    async fn program(
        &mut self,
        subject: &dyn Subject,
        place: &KubeletDirectory,
    ) -> Result<(), unix::Error> {
        let mut agent = Agent::start(place, &Manner::default())?;
        let mut life = match subject.start(place).await {
            Ok(life) => life,
            Err(e) => {
                self.report.fail("start", e);
                return Ok(());
            }
        };
        let Some(registered) = self.registration(&mut agent, life.as_mut()).await else {
            agent.stop().await;
            return Ok(());
        };
        let met = self.registered(registered);
        let met = match met {
            Some(met) => self.serve(met).await,
            None => None,
        };
        if let Some(ended) = life.ended() {
            self.report.fail(
                "start",
                format!("it ended during the checks: {}", ended.how),
            );
        } else {
            self.report.pass("start", "it stayed");
        }
        if let Some(met) = met {
            self.lives(subject, place, agent, life, met).await?;
        } else {
            agent.stop().await;
        }
        Ok(())
    }

    /// Waits for the registration that is looked at.
    async fn registration(&mut self, agent: &mut Agent, life: &mut dyn Life) -> Option<Registered> {
        let patience = self.options.patience;
        let wanted = self.next(agent, life, patience).await;
        if wanted.is_none() {
            let others: Vec<&str> = self.resources.iter().map(String::as_str).collect();
            let seen = match life.ended() {
                Some(ended) => {
                    self.report
                        .fail("start", format!("it ended: {}", ended.how));
                    "it ended before".to_owned()
                }
                None if others.is_empty() => {
                    self.report.pass("start", "it stayed");
                    format!("nothing in {} s", patience.as_secs())
                }
                None => format!("only {} in {} s", others.join(", "), patience.as_secs()),
            };
            self.report.fail("register", seen);
        }
        wanted
    }

    /// The next registration of the resource that is looked at.
    async fn next(
        &mut self,
        agent: &mut Agent,
        life: &mut dyn Life,
        patience: Duration,
    ) -> Option<Registered> {
        let deadline = tokio::time::Instant::now() + patience;
        while tokio::time::Instant::now() < deadline {
            // Short waits, so that a program that has ended is not waited for.
            if let Some(registered) = agent.next(Duration::from_millis(200)).await {
                let wanted = self.options.resource.clone();
                if !registered.resource.is_empty() {
                    self.resources.insert(registered.resource.clone());
                }
                if wanted.is_none_or(|name| name == registered.resource) {
                    return Some(registered);
                }
            } else if life.ended().is_some() {
                return None;
            }
        }
        None
    }

    /// Looks at a registration; `None` when there is nothing to go on with.
    fn registered(&mut self, registered: Registered) -> Option<Met> {
        let report = &mut self.report;
        let way = registered.way;
        report.pass(
            "register",
            match way {
                Way::Register => format!("{} by Register", registered.resource),
                Way::Registry => format!("{} by plugins_registry", registered.resource),
            },
        );
        let versions = registered.version.join(", ");
        let fine = registered.version.iter().any(|v| v == pb::VERSION);
        report.verdict(
            "register-version",
            if fine {
                Ok(versions)
            } else {
                Err(format!("{versions:?}"))
            },
        );
        let name = davit_containermanager::devices::check_resource_name(&registered.resource);
        let resource = registered.resource.clone();
        report.verdict(
            "register-name",
            name.map(|()| resource).map_err(|e| e.to_string()),
        );
        report.verdict("register-endpoint", endpoint(&registered));
        match &registered.notified {
            Some(Ok(())) => report.pass("registry-notify", "taken"),
            Some(Err(e)) => report.fail("registry-notify", e),
            None => report.skip("registry-notify", "it came by Register"),
        }
        let client = match registered.dialled {
            Ok(client) => client,
            Err(e) => {
                report.fail("register-serving", e);
                return None;
            }
        };
        report.pass("register-serving", "it answered");
        let options = match registered.options {
            Ok(options) => options,
            Err(e) => {
                report.fail("options", e);
                return None;
            }
        };
        report.pass("options", describe(&options));
        Some(Met {
            client,
            options,
            resource: registered.resource,
            socket: registered.socket,
            way,
            devices: Vec::new(),
        })
    }

    /// Everything that needs only the plugin's own socket; `None` when it has no devices to go on
    /// with.
    async fn serve(&mut self, mut met: Met) -> Option<Met> {
        let patience = self.options.patience;
        let first = async {
            let mut lists = Lists::open(met.client.clone(), patience).await?;
            let first = lists.next(patience).await?;
            Ok::<_, String>((lists, first))
        };
        let (mut lists, first) = match first.await {
            Ok(first) => first,
            Err(e) => {
                self.report.fail("list", e);
                return None;
            }
        };
        self.report.pass("list", format!("{} devices", first.len()));
        self.report.verdict("list-ids", streams::check_ids(&first));
        self.report
            .verdict("list-health", streams::check_health(&first));
        self.report
            .verdict("list-numa", streams::check_numa(&first));
        met.devices = self.steady(&mut lists, first).await?;
        self.calls(&met).await;
        self.health(&mut lists).await;
        drop(lists);
        self.reopen(&mut met).await;
        Some(met)
    }

    async fn steady(
        &mut self,
        lists: &mut Lists,
        first: Vec<pb::Device>,
    ) -> Option<Vec<pb::Device>> {
        let time = self.options.steady;
        let watched = lists.watch(time).await;
        if let Some(why) = watched.ended {
            self.report.fail("list-steady", why);
            return None;
        }
        // Some send the list every few seconds; that costs an agent little.
        let many = watched.lists as f64 > time.as_secs_f64().max(1.0) * 2.0;
        let seen = format!("{} lists in {}", watched.lists, crate::span::Span(time));
        self.report
            .verdict("list-steady", if many { Err(seen) } else { Ok(seen) });
        Some(watched.last.unwrap_or(first))
    }

    async fn reopen(&mut self, met: &mut Met) {
        let patience = self.options.patience;
        let again = async {
            let mut lists = Lists::open(met.client.clone(), patience).await?;
            lists.next(patience).await
        };
        let seen = match again.await {
            Ok(list) if streams::ids(&list) == streams::ids(&met.devices) => {
                met.devices = list;
                Ok("the same devices".to_owned())
            }
            Ok(list) => Err(format!(
                "{} instead of {}",
                streams::sample(&list),
                streams::sample(&met.devices)
            )),
            Err(e) => Err(e),
        };
        self.report.verdict("list-reopen", seen);
    }

    /// Has a device broken and mended, where there are commands for it.
    async fn health(&mut self, lists: &mut Lists) {
        let Some(breaks) = &self.options.break_command else {
            self.report.skip(
                "health-change",
                "no command that breaks a device (--break, --mend)",
            );
            return;
        };
        let patience = self.options.patience;
        let seen = async {
            shell(breaks, patience).await?;
            let sick = |list: &[pb::Device]| list.iter().any(|d| d.health != pb::HEALTHY);
            let broken = lists.until(patience, sick).await;
            let broken = broken.map_err(|e| format!("no device became unhealthy: {e}"))?;
            let told = format!(
                "{} of {} healthy",
                streams::healthy(&broken).len(),
                broken.len()
            );
            let Some(mends) = &self.options.mend_command else {
                return Ok(told);
            };
            shell(mends, patience).await?;
            let mended = lists.until(patience, |list| !sick(list)).await;
            mended.map_err(|e| format!("no device became healthy again: {e}"))?;
            Ok(told + ", then all")
        };
        let seen = seen.await;
        self.report.verdict("health-change", seen);
    }
}

/// Runs a command of the user's.
async fn shell(command: &str, limit: Duration) -> Result<(), String> {
    let mut child = tokio::process::Command::new("sh");
    child.args(["-c", command]).kill_on_drop(true);
    child.stdout(std::process::Stdio::null());
    match tokio::time::timeout(limit, child.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{command:?}: {status}")),
        Ok(Err(e)) => Err(format!("{command:?}: {e}")),
        Err(_) => Err(format!("{command:?} did not end in {} s", limit.as_secs())),
    }
}

fn describe(options: &pb::DevicePluginOptions) -> String {
    let mut wants = Vec::new();
    if options.get_preferred_allocation_available {
        wants.push("has preferences");
    }
    if options.pre_start_required {
        wants.push("wants PreStartContainer");
    }
    if wants.is_empty() {
        "no options".to_owned()
    } else {
        wants.join(", ")
    }
}

fn endpoint(registered: &Registered) -> Result<String, String> {
    let path = registered.socket.display().to_string();
    if path.len() > 107 {
        return Err(format!("{path} has {} bytes", path.len()));
    }
    match registered.way {
        Way::Register if registered.endpoint.is_empty() || registered.endpoint.contains('/') => {
            Err(format!(
                "{:?} is not the name of a file",
                registered.endpoint
            ))
        }
        Way::Registry if !registered.socket.is_absolute() => Err(format!("{path} is not absolute")),
        _ if !registered.socket.exists() => Err(format!("{path} is not there")),
        _ => Ok(path),
    }
}
