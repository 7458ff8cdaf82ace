//! `/metrics/cadvisor`: containers, pods and the machine under cAdvisor's names and labels, as the kubelet serves them
//! (<https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md>).
//!
//! Containers are what the runtime says of them; what it does not say (throttling, caches) is read from their cgroups
//! where the agent keeps those above them. Pods are their cgroups, and their sandboxes for what goes over their network.

use super::exposition::serve_text;
use super::text;
use super::usage::{self, ContainerUsage, NodeUsage, PodUsage, Usage};
use crate::context::Context;
use crate::runtime_state::keys;
use davit_cadvisor::{
    CountedGroup, Disk, DiskActivity, Effort, Host, MemoryInUse, Pressures, Processes, Spec,
};
use davit_oci::cgroup::{self, Breakdown, DeviceTraffic};
use davit_oci::runtime::SandboxTraffic;
use davit_pods::pod::PodExt;
use davit_pods::resources::{CpuQuotas, container_limit, container_request, cpu_shares};
use davit_podvolumes::file_system;
use davit_streaming::Body;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::sync::Arc;

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
        davit_cadvisor::encode(&host(&ctx, &usage.node), &subjects(&ctx, &usage, &traffic))
    });
    match encoded.await {
        Ok(encoded) => serve_text(encoded),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn known(number: usize) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn host(ctx: &Context, node: &NodeUsage) -> Host {
    let info = &ctx.machine.info;
    Host {
        ids: [&info.boot_id, &info.machine_id, &info.system_uuid].map(Clone::clone),
        cores: ctx.machine.cpus as u64,
        physical_cores: known(ctx.machine.cores),
        sockets: known(ctx.machine.sockets),
        memory: u64::try_from(ctx.machine.memory).unwrap_or(0),
        swap: node.swap_total,
        kernel: info.kernel_version.clone(),
        os: info.os_image.clone(),
    }
}

fn subjects(ctx: &Context, usage: &Usage, traffic: &[SandboxTraffic]) -> Vec<CountedGroup> {
    let mut all = vec![CountedGroup {
        disk: file_system(ctx.paths.root()).ok().map(|disk| Disk {
            used: disk.used_bytes.unsigned_abs(),
            limit: u64::try_from(disk.capacity_bytes).ok(),
            inodes: u64::try_from(disk.inodes).ok(),
            inodes_free: u64::try_from(disk.inodes_free).ok(),
        }),
        disks: DiskActivity::of_machine(),
        pressure: Pressures::of_machine(),
        ..root(&usage.node)
    }];
    let mut effort = Effort::of_one_page();
    for used in &usage.pods {
        // One that is gone has no cgroup that anybody knows.
        let Some(pod) = ctx.pods.get(&used.uid) else {
            continue;
        };
        let path = ctx.pod_cgroup(&pod);
        let of_pod = CountedGroup {
            id: path.clone(),
            namespace: used.namespace.clone(),
            pod: used.name.clone(),
            time: usage.node.time,
            ..CountedGroup::default()
        };
        let containers = used.containers.iter();
        all.extend(containers.map(|c| container(ctx, &of_pod, &pod, c, &mut effort)));
        let sandbox = traffic
            .iter()
            .find(|t| t.labels.get(keys::POD_UID) == Some(&used.uid));
        if let Some(sandbox) = sandbox {
            all.push(CountedGroup {
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
fn root(node: &NodeUsage) -> CountedGroup {
    CountedGroup {
        id: "/".to_owned(),
        time: node.time,
        cpu: node.cpu_nanos,
        memory: Some(MemoryInUse {
            usage: node.memory_total.saturating_sub(node.memory_free),
            working_set: node.working_set(),
            rss: node.anonymous,
            faults: node.faults,
            major_faults: node.major_faults,
        }),
        ..CountedGroup::default()
    }
}

/// By the names that devices have below `/dev`; one that has none any more is left out.
fn by_name(traffic: Vec<DeviceTraffic>) -> Vec<(String, DeviceTraffic)> {
    let named = traffic.into_iter();
    let named = named.filter_map(|one| Some((one.device_name()?, one)));
    named.collect()
}

fn container(
    ctx: &Context,
    pod: &CountedGroup,
    object: &Pod,
    used: &ContainerUsage,
    effort: &mut Effort,
) -> CountedGroup {
    let attributes = used.stats.attributes.as_ref();
    let name = attributes.map(|a| a.id.clone()).unwrap_or_default();
    let id = format!("{}/{name}", pod.id);
    let group = ctx.cgroups.as_ref().map(|groups| groups.at(&id));
    let now = group.as_ref().map(cgroup::Cgroup::usage);
    let number = |n: &Option<davit_proto::cri::v1::UInt64Value>| n.as_ref().map(|n| n.value);
    let memory = used.stats.memory.as_ref();
    let spec = object.container(&used.name);
    CountedGroup {
        id,
        name,
        image: used.image.clone(),
        container: used.name.clone(),
        time: usage::cpu(&used.stats).map_or(pod.time, |(time, _)| time),
        started: used.started,
        cpu: usage::cpu(&used.stats).map(|(_, nanos)| nanos),
        memory: memory.and_then(|m| {
            Some(MemoryInUse {
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
        parts: Breakdown {
            // The runtime knows it also where the kernel does not account it.
            swap: usage::swap(&used.stats).map(|(_, bytes)| bytes),
            ..group
                .as_ref()
                .map(cgroup::Cgroup::breakdown)
                .unwrap_or_default()
        },
        tasks: now.map(|now| now.processes),
        oom_kills: group.as_ref().map(cgroup::Cgroup::oom_kills),
        spec: spec.map(|(_, container)| limits(&container, now, ctx.options.host.quotas)),
        disk_traffic: group
            .as_ref()
            .map(|group| by_name(group.disk_traffic()))
            .unwrap_or_default(),
        pressure: group.as_ref().map(Pressures::of).unwrap_or_default(),
        processes: group
            .as_ref()
            .and_then(|group| Processes::of(group, effort)),
        ..pod.clone()
    }
}

/// The kernel rounds limits of memory down to pages, and they are changed in place: what it has counts where it tells.
fn limits(container: &Container, now: Option<cgroup::Usage>, quotas: CpuQuotas) -> Spec {
    let kernels = now.map(|now| now.memory_limit.and_then(|limit| i64::try_from(limit).ok()));
    Spec {
        shares: cpu_shares(container_request(container, "cpu").unwrap_or(0)),
        quota: quotas.of(container_limit(container, "cpu").unwrap_or(0)),
        period: quotas.period,
        memory: kernels
            .unwrap_or_else(|| container_limit(container, "memory"))
            .unwrap_or(0),
    }
}

/// A pod as a whole: its cgroup, or the sums of its containers where the agent does not keep that.
fn whole_pod(ctx: &Context, pod: CountedGroup, used: &PodUsage) -> CountedGroup {
    let started = used.started();
    let Some(groups) = &ctx.cgroups else {
        return CountedGroup {
            started,
            cpu: used.sum(usage::cpu).map(|(_, nanos)| nanos),
            ..pod
        };
    };
    let group = groups.at(&pod.id);
    let now = group.usage();
    CountedGroup {
        started,
        cpu: Some(now.cpu_nanos),
        memory: Some(MemoryInUse {
            usage: now.memory_usage,
            working_set: now.memory_working_set,
            rss: Some(now.memory_rss),
            faults: Some(now.page_faults),
            major_faults: Some(now.major_page_faults),
        }),
        parts: group.breakdown(),
        tasks: Some(now.processes),
        disk_traffic: by_name(group.disk_traffic()),
        pressure: Pressures::of(&group),
        ..pod
    }
}
