//! `/stats/summary`: use of processor, memory, network and disks by node, pod, container and volume
//! (<https://kubernetes.io/docs/reference/instrumentation/node-metrics/>).

mod consumption;
mod system;

use super::usage::{self, ContainerUsage, PodUsage, Usage};
use super::{json, text};
use crate::context::Context;
use consumption::{Consumption, number};
use davit_cadvisor::Pressures;
use davit_csi::VolumeStats;
use davit_oci::runtime::{Error, InterfaceTraffic, SandboxTraffic};
use davit_podvolumes::{VolumeFigures, file_system};
use davit_proto::cri::v1 as cri;
use davit_streaming::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use serde_json::{Value, json as object};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long logs are measured, all together; what takes longer is left out, and known the next time.
const MEASURING: Duration = Duration::from_secs(1);

/// The interface whose numbers stand for all, as the kubelet has it.
const DEFAULT_INTERFACE: &str = "eth0";

/// What the runtime was asked.
struct Answers {
    usage: Usage,
    traffic: Vec<SandboxTraffic>,
    disks: cri::ImageFsInfoResponse,
}

async fn ask(ctx: &Context) -> Result<Answers, Error> {
    Ok(Answers {
        usage: usage::collect(ctx).await?,
        traffic: ctx.runtime.pod_traffic().await?,
        // Some runtimes have no answer for a while; the rest is told all the same.
        disks: ctx.runtime.image_fs_info().await.unwrap_or_default(),
    })
}

pub(super) async fn summary(ctx: &Arc<Context>) -> Response<Body> {
    let answers = match ask(ctx).await {
        Ok(answers) => answers,
        Err(error) => {
            let message = format!("failed to list pod stats: {error}");
            return text(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
    };
    let ctx = ctx.clone();
    // cgroups and file systems are read with blocking calls
    match tokio::task::spawn_blocking(move || shown(&ctx, &answers)).await {
        Ok(shown) => json(&shown),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn shown(ctx: &Context, answers: &Answers) -> Value {
    let nodefs = file_system(ctx.paths.root()).ok();
    let until = Instant::now() + MEASURING;
    let pods = answers.usage.pods.iter().map(|used| {
        let look = Look {
            ctx,
            used,
            object: ctx.pods.get(&used.uid),
            traffic: answers.traffic.as_slice(),
            until,
        };
        look.shown(nodefs.as_ref())
    });
    object!({"pods": pods.collect::<Vec<_>>(), "node": node(ctx, answers, nodefs.as_ref())})
}

fn node(ctx: &Context, answers: &Answers, nodefs: Option<&VolumeStats>) -> Value {
    let node = &answers.usage.node;
    let system = system::containers(ctx, node.time, node.booted);
    let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let interfaces: Vec<_> = InterfaceTraffic::of_table(&interfaces)
        .into_iter()
        .filter(|interface| !interface.is_of_a_pod())
        .collect();
    let head = [
        ("nodeName", ctx.options.node_name.clone().into()),
        ("startTime", node.booted.map_or(Value::Null, time)),
        ("systemContainers", system.into()),
        ("network", network(node.time, &interfaces)),
        (
            "fs",
            nodefs.map_or(Value::Null, |fs| space(Timestamp::now(), fs)),
        ),
        ("runtime", disks(&answers.disks)),
        ("rlimit", processes(node.time)),
    ];
    let used = Consumption::of_machine(node);
    known(head.into_iter().chain(used.fields()))
}

/// Where the runtime has its images and what containers write.
fn disks(disks: &cri::ImageFsInfoResponse) -> Value {
    let first = |all: &[cri::FilesystemUsage]| all.first().map_or(Value::Null, disk);
    known([
        ("imageFs", first(&disks.image_filesystems)),
        ("containerFs", first(&disks.container_filesystems)),
    ])
}

/// What the runtime counts of its own on a file system.
fn disk(used: &cri::FilesystemUsage) -> Value {
    let count = |n: &Option<cri::UInt64Value>| n.as_ref().map(|n| n.value);
    let place = used.fs_id.as_ref().map(|id| Path::new(&id.mountpoint));
    let used = Space {
        time: used.timestamp,
        bytes: count(&used.used_bytes),
        inodes: count(&used.inodes_used),
    };
    used.of(place.and_then(|place| file_system(place).ok()).as_ref())
}

/// The machine's processes and threads, and how many there may be.
fn processes(at: i64) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let most = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let most = most
        .iter()
        .filter_map(|path| read(path).trim().parse().ok());
    let load = read("/proc/loadavg");
    let now = load.split_whitespace().nth(3);
    let now = now.and_then(|now| now.split_once('/')?.1.parse().ok());
    known([
        ("time", time(at)),
        ("maxpid", number(most.min())),
        ("curproc", number(now)),
    ])
}

/// One pod, with all that is known of it.
struct Look<'a> {
    ctx: &'a Context,
    used: &'a PodUsage,
    object: Option<Arc<Pod>>,
    traffic: &'a [SandboxTraffic],
    until: Instant,
}

impl Look<'_> {
    fn shown(&self, nodefs: Option<&VolumeStats>) -> Value {
        let used = self.used;
        let reference = object!({"name": used.name, "namespace": used.namespace, "uid": used.uid});
        let figures = self.ctx.volumes.figures(&used.uid);
        let volumes: Vec<Value> = figures.iter().map(volume).collect();
        let containers = used.containers.iter().map(|c| self.container(c));
        let containers: Vec<ContainerShown> = containers.collect();
        let processes = containers.iter().map(|c| c.processes).sum::<Option<u64>>();
        let processes = processes.map_or(Value::Null, |n| object!({"process_count": n}));
        let ephemeral = self.on_disk(&containers, &figures);
        let whole = self.whole();
        let containers: Vec<Value> = containers.into_iter().map(|c| c.value).collect();
        let head = [
            ("podRef", reference),
            ("startTime", used.started().map_or(Value::Null, time)),
            ("containers", containers.into()),
            ("network", self.network(whole.time)),
            (
                "volume",
                if volumes.is_empty() {
                    Value::Null
                } else {
                    volumes.into()
                },
            ),
            ("ephemeral-storage", ephemeral.of(nodefs)),
            ("process_stats", processes),
        ];
        known(head.into_iter().chain(whole.fields()))
    }

    /// The pod's cgroup, or the sums of its containers where the agent does not keep that.
    fn whole(&self) -> Consumption {
        let rates = self.used.containers.iter().map(rate);
        let cpu_rate = rates.sum::<Option<u64>>();
        if let (Some(groups), Some(pod)) = (&self.ctx.cgroups, &self.object) {
            let group = groups.at(&self.ctx.pod_cgroup(pod));
            let now = Consumption::of_group(&group, usage::now());
            return Consumption {
                cpu_rate,
                // The runtime knows it also where the kernel does not account it.
                swap: now
                    .swap
                    .or(self.used.sum(usage::swap).map(|(_, bytes)| bytes)),
                ..now
            };
        }
        sums(self.used, cpu_rate)
    }

    fn network(&self, at: i64) -> Value {
        use crate::runtime_state::keys::POD_UID;
        let of_pod = |t: &&SandboxTraffic| t.labels.get(POD_UID) == Some(&self.used.uid);
        let found = self.traffic.iter().find(of_pod);
        found.map_or(Value::Null, |found| network(at, &found.interfaces))
    }

    fn container(&self, used: &ContainerUsage) -> ContainerShown {
        let attributes = used.stats.attributes.as_ref();
        let group = self.ctx.cgroups.as_ref().zip(self.object.as_ref());
        let group = group.zip(attributes).map(|((groups, pod), attributes)| {
            groups.at(&format!("{}/{}", self.ctx.pod_cgroup(pod), attributes.id))
        });
        let pressures = group.as_ref().map(Pressures::of).unwrap_or_default();
        let used_now = Consumption::of_container(used, pressures);
        let paths = &self.ctx.paths;
        let logs = paths.pod_log_dir(&self.used.namespace, &self.used.name, &self.used.uid);
        let logs = logs.join(&used.name);
        let measured = davit_beneath::disk_use(&logs, self.until).filter(|seen| !seen.in_part);
        let on_disk = Space {
            time: usage::now(),
            bytes: measured.map(|seen| seen.bytes),
            inodes: measured.map(|seen| seen.inodes),
        };
        let layer = used.stats.writable_layer.as_ref();
        let head = [
            ("name", used.name.clone().into()),
            ("startTime", used.started.map_or(Value::Null, time)),
            ("rootfs", layer.map_or(Value::Null, disk)),
            ("logs", on_disk.of(file_system(&logs).ok().as_ref())),
        ];
        ContainerShown {
            value: known(head.into_iter().chain(used_now.fields())),
            written: layer
                .and_then(|layer| Some((layer.used_bytes?.value, layer.inodes_used?.value))),
            logged: on_disk.bytes.zip(on_disk.inodes),
            processes: group.map(|group| group.pids().len() as u64),
        }
    }

    /// Layers, logs, and volumes that end with the pod.
    fn on_disk(
        &self,
        containers: &[ContainerShown],
        figures: &BTreeMap<String, VolumeFigures>,
    ) -> Space {
        let own = containers.iter().flat_map(|c| [c.written, c.logged]);
        let volumes = self.object.iter().flat_map(|pod| {
            let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
            volumes.filter(|volume| ends_with_its_pod(volume))
        });
        let volumes = volumes.filter_map(|volume| {
            let numbers = &figures.get(&volume.name)?.numbers;
            let bytes = u64::try_from(numbers.used_bytes).ok()?;
            Some((bytes, u64::try_from(numbers.inodes_used).ok()?))
        });
        let both = own.chain(volumes.map(Some));
        let both = both
            .reduce(|a, b| Some((a?.0 + b?.0, a?.1 + b?.1)))
            .flatten();
        Space {
            time: usage::now(),
            bytes: both.map(|both| both.0),
            inodes: both.map(|both| both.1),
        }
    }
}

/// Whether it is on the node's disk as long as the pod is there.
fn ends_with_its_pod(volume: &Volume) -> bool {
    let on_disk = volume
        .empty_dir
        .as_ref()
        .is_some_and(|dir| dir.medium.as_deref().unwrap_or_default().is_empty());
    on_disk || volume.config_map.is_some() || volume.downward_api.is_some()
}

/// A container, and what its pod sums up.
struct ContainerShown {
    value: Value,
    /// Bytes and inodes of its layer.
    written: Option<(u64, u64)>,
    /// Bytes and inodes of its logs.
    logged: Option<(u64, u64)>,
    processes: Option<u64>,
}

/// What is known of somebody's own on a file system.
#[derive(Debug, Clone, Copy)]
struct Space {
    time: i64,
    bytes: Option<u64>,
    inodes: Option<u64>,
}

impl Space {
    fn of(self, disk: Option<&VolumeStats>) -> Value {
        let of_disk = |n: fn(&VolumeStats) -> i64| disk.map_or(Value::Null, |disk| n(disk).into());
        known([
            ("time", time(self.time)),
            ("availableBytes", of_disk(|disk| disk.available_bytes)),
            ("capacityBytes", of_disk(|disk| disk.capacity_bytes)),
            ("usedBytes", number(self.bytes)),
            ("inodesFree", of_disk(|disk| disk.inodes_free)),
            ("inodes", of_disk(|disk| disk.inodes)),
            ("inodesUsed", number(self.inodes)),
        ])
    }
}

/// The default interface, and all.
fn network(at: i64, interfaces: &[InterfaceTraffic]) -> Value {
    let one = |interface: &InterfaceTraffic| {
        object!({
            "name": interface.name,
            "rxBytes": interface.received_bytes,
            "rxErrors": interface.receive_errors,
            "txBytes": interface.sent_bytes,
            "txErrors": interface.send_errors,
        })
    };
    let default = interfaces.iter().find(|i| i.name == DEFAULT_INTERFACE);
    let mut shown = default.map_or_else(|| object!({"name": ""}), one);
    shown["time"] = time(at);
    shown["interfaces"] = interfaces.iter().map(one).collect();
    shown
}

fn rate(container: &ContainerUsage) -> Option<u64> {
    let cpu = container.stats.cpu.as_ref()?;
    Some(cpu.usage_nano_cores.as_ref()?.value)
}

fn sums(pod: &PodUsage, cpu_rate: Option<u64>) -> Consumption {
    let (cpu, memory) = (pod.sum(usage::cpu), pod.sum(usage::working_set));
    let swap = pod.sum(usage::swap);
    let times = [cpu, memory, swap]
        .into_iter()
        .flatten()
        .map(|(time, _)| time);
    let number = |of: Option<(i64, u64)>| of.map(|(_, number)| number);
    Consumption {
        time: times.max().unwrap_or_default(),
        cpu: number(cpu),
        cpu_rate,
        working_set: number(memory),
        swap: number(swap),
        ..Consumption::default()
    }
}

fn volume((name, figures): (&String, &VolumeFigures)) -> Value {
    let mut shown = space(figures.time, &figures.numbers);
    shown["name"] = name.clone().into();
    if let Some(claim) = &figures.claim {
        shown["pvcRef"] =
            object!({"name": claim.persistentvolumeclaim, "namespace": claim.namespace});
    }
    shown
}

/// The numbers of a file system.
fn space(at: Timestamp, used: &VolumeStats) -> Value {
    object!({
        "time": at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "availableBytes": used.available_bytes,
        "capacityBytes": used.capacity_bytes,
        "usedBytes": used.used_bytes,
        "inodesFree": used.inodes_free,
        "inodes": used.inodes,
        "inodesUsed": used.inodes_used,
    })
}

fn time(nanos: i64) -> Value {
    Timestamp::from_nanosecond(i128::from(nanos)).map_or(Value::Null, |t| {
        Value::String(t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    })
}

/// An object without what is not known.
fn known(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let fields = fields.into_iter().filter(|(_, v)| !v.is_null());
    Value::Object(fields.map(|(k, v)| (k.to_owned(), v)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_sums_of_its_containers() {
        let usage = usage::tests::example();
        let shown = known(sums(&usage.pods[1], None).fields());
        assert_eq!(shown["cpu"]["usageCoreNanoSeconds"], 1_500_000_000);
        assert_eq!(shown["memory"]["workingSetBytes"], 30);
        assert!(shown["memory"].get("rssBytes").is_none());
        assert!(shown["cpu"].get("usageNanoCores").is_none());
    }

    #[test]
    fn the_default_interface_stands_for_all() {
        let of = |name: &str, received_bytes| InterfaceTraffic {
            name: name.to_owned(),
            received_bytes,
            ..InterfaceTraffic::default()
        };
        let shown = network(0, &[of("net1", 1), of("eth0", 2)]);
        assert_eq!(
            (&shown["name"], &shown["rxBytes"]),
            (&"eth0".into(), &2.into())
        );
        assert_eq!(shown["interfaces"][0]["name"], "net1");
        let shown = network(0, &[of("wlan0", 1)]);
        assert_eq!(shown["name"], "");
        assert!(shown.get("rxBytes").is_none());
    }

    #[test]
    fn space_is_what_is_ones_own_on_a_file_system() {
        let disk = VolumeStats {
            available_bytes: 5,
            capacity_bytes: 9,
            used_bytes: 4,
            inodes: 3,
            inodes_free: 2,
            inodes_used: 1,
            condition: None,
        };
        let own = Space {
            time: 0,
            bytes: Some(1),
            inodes: None,
        };
        let shown = own.of(Some(&disk));
        assert_eq!(
            (&shown["usedBytes"], &shown["capacityBytes"]),
            (&1.into(), &9.into())
        );
        assert!(shown.get("inodesUsed").is_none());
        assert!(own.of(None).get("capacityBytes").is_none());
    }
}
