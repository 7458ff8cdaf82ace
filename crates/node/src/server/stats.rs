//! `/stats/summary`: use of processor, memory and disks by node, pod, container and volume.

use super::usage::{self, ContainerUsage, NodeUsage, PodUsage};
use super::{json, text};
use crate::context::Context;
use davit_csi::VolumeStats;
use davit_podvolumes::{VolumeFigures, file_system};
use davit_proto::cri::v1 as cri;
use davit_streaming::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json as object};

pub(super) async fn summary(ctx: &Context) -> Response<Body> {
    let usage = match usage::collect(ctx).await {
        Ok(usage) => usage,
        Err(error) => {
            let message = format!("failed to list pod stats: {error}");
            return text(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
    };
    let pods = usage.pods.iter().map(|used| {
        let mut shown = pod(used);
        let volumes: Vec<Value> = ctx.volumes.figures(&used.uid).iter().map(volume).collect();
        if !volumes.is_empty() {
            shown["volume"] = volumes.into();
        }
        shown
    });
    let pods: Vec<Value> = pods.collect();
    let mut node = node(&usage.node);
    node.insert("nodeName".to_owned(), ctx.options.node_name.clone().into());
    let root = ctx.paths.root().to_owned();
    if let Ok(Ok(used)) = tokio::task::spawn_blocking(move || file_system(&root)).await {
        node.insert("fs".to_owned(), space(Timestamp::now(), &used));
    }
    json(&object!({"node": node, "pods": pods}))
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

fn node(node: &NodeUsage) -> Map<String, Value> {
    let at = time(node.time);
    let mut out = Map::new();
    if let Some(nanos) = node.cpu_nanos {
        let cpu = object!({"time": at, "usageCoreNanoSeconds": nanos});
        out.insert("cpu".to_owned(), cpu);
    }
    let memory = object!({
        "time": at,
        "availableBytes": node.memory_available,
        "usageBytes": node.memory_total.saturating_sub(node.memory_free),
        "workingSetBytes": node.working_set(),
    });
    out.insert("memory".to_owned(), memory);
    let swap = object!({
        "time": at,
        "swapAvailableBytes": node.swap_free,
        "swapUsageBytes": node.swap_total.saturating_sub(node.swap_free),
    });
    out.insert("swap".to_owned(), swap);
    out
}

fn pod(pod: &PodUsage) -> Value {
    let reference = object!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid});
    let measured = |name: &'static str, of: Option<(i64, u64)>| {
        of.map_or(Value::Null, |(t, n)| object!({"time": time(t), name: n}))
    };
    known([
        ("podRef", reference),
        ("startTime", pod.started().map_or(Value::Null, time)),
        (
            "containers",
            pod.containers
                .iter()
                .map(container)
                .collect::<Vec<_>>()
                .into(),
        ),
        ("cpu", measured("usageCoreNanoSeconds", pod.sum(usage::cpu))),
        (
            "memory",
            measured("workingSetBytes", pod.sum(usage::working_set)),
        ),
    ])
}

fn container(container: &ContainerUsage) -> Value {
    let number = |n: &Option<cri::UInt64Value>| n.as_ref().map_or(Value::Null, |n| n.value.into());
    let cpu = container.stats.cpu.as_ref().map_or(Value::Null, |cpu| {
        known([
            ("time", time(cpu.timestamp)),
            ("usageNanoCores", number(&cpu.usage_nano_cores)),
            ("usageCoreNanoSeconds", number(&cpu.usage_core_nano_seconds)),
        ])
    });
    let memory = container
        .stats
        .memory
        .as_ref()
        .map_or(Value::Null, |memory| {
            known([
                ("time", time(memory.timestamp)),
                ("availableBytes", number(&memory.available_bytes)),
                ("usageBytes", number(&memory.usage_bytes)),
                ("workingSetBytes", number(&memory.working_set_bytes)),
                ("rssBytes", number(&memory.rss_bytes)),
                ("pageFaults", number(&memory.page_faults)),
                ("majorPageFaults", number(&memory.major_page_faults)),
            ])
        });
    known([
        ("name", container.name.clone().into()),
        ("startTime", container.started.map_or(Value::Null, time)),
        ("cpu", cpu),
        ("memory", memory),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_sums_of_its_containers() {
        let usage = usage::tests::example();
        let shown = pod(&usage.pods[1]);
        assert_eq!(shown["cpu"]["usageCoreNanoSeconds"], 1_500_000_000);
        assert_eq!(shown["memory"]["workingSetBytes"], 30);
        assert_eq!(shown["startTime"], "1970-01-01T00:00:01Z");
        assert_eq!(shown["containers"][0]["name"], "main");
        assert!(shown["containers"][0]["memory"].get("rssBytes").is_none());
    }
}
