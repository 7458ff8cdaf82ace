//! `/metrics/cadvisor`: containers, pods and the machine under cAdvisor's names and labels, as the kubelet serves them
//! (<https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md>).
//!
//! Containers are what the runtime says of them; what it does not say (throttling, caches) is read from their cgroups
//! where the agent keeps those above them. Pods are their cgroups, and their sandboxes for what goes over their network.

mod series;

use super::exposition::serve_text;
use super::text;
use super::usage::{self, ContainerUsage, NodeUsage, PodUsage, Usage};
use crate::context::Context;
use crate::runtime_state::keys;
use davit_oci::cgroup::{self, Breakdown};
use davit_oci::runtime::{InterfaceTraffic, SandboxTraffic};
use davit_pods::pod::PodExt;
use davit_pods::resources::{
    QUOTA_PERIOD, container_limit, container_request, cpu_quota, cpu_shares,
};
use davit_podvolumes::file_system;
use davit_streaming::Body;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something with numbers of its own: a container, a pod, its sandbox, the machine.
#[derive(Debug, Clone, Default)]
struct Subject {
    /// Path of its cgroup.
    id: String,
    /// What the runtime calls it.
    name: String,
    image: String,
    namespace: String,
    pod: String,
    container: String,
    /// When it was looked at, in nanoseconds since the epoch.
    time: i64,
    /// When it was made, in nanoseconds since the epoch.
    started: Option<i64>,
    /// Core-nanoseconds.
    cpu: Option<u64>,
    memory: Option<Memory>,
    parts: Breakdown,
    disk: Option<Disk>,
    tasks: Option<u64>,
    oom_kills: Option<u64>,
    spec: Option<Spec>,
    interfaces: Vec<InterfaceTraffic>,
}

/// Bytes, and faults.
#[derive(Debug, Clone, Copy)]
struct Memory {
    usage: u64,
    working_set: u64,
    rss: Option<u64>,
    faults: Option<u64>,
    major_faults: Option<u64>,
}

/// What a container is limited to; 0 is no limit.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    shares: i64,
    /// Microseconds in [`QUOTA_PERIOD`].
    quota: i64,
    /// Bytes.
    memory: i64,
}

/// What is on a disk; limits are those of its file system.
#[derive(Debug, Clone, Copy)]
struct Disk {
    /// Bytes.
    used: u64,
    /// Bytes.
    limit: Option<u64>,
    inodes: Option<u64>,
    inodes_free: Option<u64>,
}

/// The machine itself.
#[derive(Debug, Default)]
struct Host {
    /// In the order of the format: boot, machine, system.
    ids: [String; 3],
    cores: u64,
    /// Bytes.
    memory: u64,
    /// Bytes.
    swap: u64,
    kernel: String,
    os: String,
}

pub(super) async fn serve(ctx: &Arc<Context>) -> Response<Body> {
    let collected = async {
        let usage = usage::collect(ctx).await?;
        Ok::<_, davit_oci::runtime::Error>((usage, ctx.runtime.pod_traffic().await?))
    };
    let (usage, traffic) = match collected.await {
        Ok(collected) => collected,
        Err(error) => {
            let message = format!("cannot read the use of resources from the runtime: {error}\n");
            return text(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
    };
    let ctx = ctx.clone();
    // cgroups and the file system are read with blocking calls
    let encoded = tokio::task::spawn_blocking(move || {
        series::encode(&host(&ctx, &usage.node), &subjects(&ctx, &usage, &traffic))
    });
    match encoded.await {
        Ok(encoded) => serve_text(encoded),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn host(ctx: &Context, node: &NodeUsage) -> Host {
    let info = &ctx.machine.info;
    Host {
        ids: [&info.boot_id, &info.machine_id, &info.system_uuid].map(Clone::clone),
        cores: ctx.machine.cpus as u64,
        memory: u64::try_from(ctx.machine.memory).unwrap_or(0),
        swap: node.swap_total,
        kernel: info.kernel_version.clone(),
        os: info.os_image.clone(),
    }
}

fn subjects(ctx: &Context, usage: &Usage, traffic: &[SandboxTraffic]) -> Vec<Subject> {
    let mut all = vec![Subject {
        disk: file_system(ctx.paths.root()).ok().map(|disk| Disk {
            used: disk.used_bytes.unsigned_abs(),
            limit: u64::try_from(disk.capacity_bytes).ok(),
            inodes: u64::try_from(disk.inodes).ok(),
            inodes_free: u64::try_from(disk.inodes_free).ok(),
        }),
        ..root(&usage.node)
    }];
    for used in &usage.pods {
        // One that is gone has no cgroup that anybody knows.
        let Some(pod) = ctx.pods.get(&used.uid) else {
            continue;
        };
        let path = ctx.pod_cgroup(&pod);
        let of_pod = Subject {
            id: path.clone(),
            namespace: used.namespace.clone(),
            pod: used.name.clone(),
            time: usage.node.time,
            ..Subject::default()
        };
        let containers = used.containers.iter();
        all.extend(containers.map(|c| container(ctx, &of_pod, &pod, c)));
        let sandbox = traffic
            .iter()
            .find(|t| t.labels.get(keys::POD_UID) == Some(&used.uid));
        if let Some(sandbox) = sandbox {
            all.push(Subject {
                id: format!("{path}/{}", sandbox.sandbox_id),
                name: sandbox.sandbox_id.clone(),
                interfaces: sandbox.interfaces.clone(),
                ..of_pod.clone()
            });
        }
        all.push(whole_pod(ctx, of_pod, used));
    }
    all
}

/// The whole machine is the root of all cgroups.
fn root(node: &NodeUsage) -> Subject {
    Subject {
        id: "/".to_owned(),
        time: node.time,
        cpu: node.cpu_nanos,
        memory: Some(Memory {
            usage: node.memory_total.saturating_sub(node.memory_free),
            working_set: node.working_set(),
            rss: None,
            faults: None,
            major_faults: None,
        }),
        ..Subject::default()
    }
}

fn container(ctx: &Context, pod: &Subject, object: &Pod, used: &ContainerUsage) -> Subject {
    let attributes = used.stats.attributes.as_ref();
    let name = attributes.map(|a| a.id.clone()).unwrap_or_default();
    let id = format!("{}/{name}", pod.id);
    let group = ctx.cgroups.as_ref().map(|groups| groups.at(&id));
    let number = |n: &Option<davit_proto::cri::v1::UInt64Value>| n.as_ref().map(|n| n.value);
    let memory = used.stats.memory.as_ref();
    let spec = object.container(&used.name);
    Subject {
        id,
        name,
        image: used.image.clone(),
        container: used.name.clone(),
        time: usage::cpu(&used.stats).map_or(pod.time, |(time, _)| time),
        started: used.started,
        cpu: usage::cpu(&used.stats).map(|(_, nanos)| nanos),
        memory: memory.and_then(|m| {
            Some(Memory {
                working_set: number(&m.working_set_bytes)?,
                usage: number(&m.usage_bytes).or(number(&m.working_set_bytes))?,
                rss: number(&m.rss_bytes),
                faults: number(&m.page_faults),
                major_faults: number(&m.major_page_faults),
            })
        }),
        disk: used
            .stats
            .writable_layer
            .as_ref()
            .and_then(|layer| number(&layer.used_bytes))
            .map(|used| Disk {
                used,
                limit: None,
                inodes: None,
                inodes_free: None,
            }),
        parts: group
            .as_ref()
            .map(cgroup::Cgroup::breakdown)
            .unwrap_or_default(),
        tasks: group.as_ref().map(|group| group.usage().processes),
        oom_kills: group.as_ref().map(cgroup::Cgroup::oom_kills),
        spec: spec.map(|(_, container)| limits(&container)),
        ..pod.clone()
    }
}

fn limits(container: &Container) -> Spec {
    Spec {
        shares: cpu_shares(container_request(container, "cpu").unwrap_or(0)),
        quota: cpu_quota(container_limit(container, "cpu").unwrap_or(0)),
        memory: container_limit(container, "memory").unwrap_or(0),
    }
}

/// A pod as a whole: its cgroup, or the sums of its containers where the agent does not keep that.
fn whole_pod(ctx: &Context, pod: Subject, used: &PodUsage) -> Subject {
    let started = used.started();
    let Some(groups) = &ctx.cgroups else {
        return Subject {
            started,
            cpu: used.sum(usage::cpu).map(|(_, nanos)| nanos),
            ..pod
        };
    };
    let group = groups.at(&pod.id);
    let now = group.usage();
    Subject {
        started,
        cpu: Some(now.cpu_nanos),
        memory: Some(Memory {
            usage: now.memory_usage,
            working_set: now.memory_working_set,
            rss: Some(now.memory_rss),
            faults: Some(now.page_faults),
            major_faults: Some(now.major_page_faults),
        }),
        parts: group.breakdown(),
        tasks: Some(now.processes),
        ..pod
    }
}

/// The labels that every series has, in the order of their names.
fn labels(subject: &Subject) -> BTreeMap<&'static str, &str> {
    BTreeMap::from([
        ("container", subject.container.as_str()),
        ("id", &subject.id),
        ("image", &subject.image),
        ("name", &subject.name),
        ("namespace", &subject.namespace),
        ("pod", &subject.pod),
    ])
}
