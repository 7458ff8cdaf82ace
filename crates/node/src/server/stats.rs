//! `/stats/summary`: use of processor and memory by container, as the runtime reports it.

use super::json;
use crate::context::Context;
use crate::runtime_state::keys;
use davit_proto::cri::v1 as cri;
use davit_streaming::Body;
use http::Response;
use jiff::Timestamp;
use serde_json::{Map, Value, json as object};
use std::collections::BTreeMap;

pub(super) async fn summary(ctx: &Context) -> Response<Body> {
    let stats = ctx
        .runtime
        .list_container_stats(None)
        .await
        .unwrap_or_default();
    let mut pods: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for one in stats {
        let Some(attributes) = &one.attributes else {
            continue;
        };
        let label = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
        let uid = label(keys::POD_UID);
        let reference = object!({"name": label(keys::POD_NAME), "namespace": label(keys::POD_NAMESPACE), "uid": uid});
        let entry = pods.entry(uid).or_insert_with(|| (reference, Vec::new()));
        entry.1.push(container(&label(keys::CONTAINER_NAME), &one));
    }
    let pods: Vec<Value> = pods
        .into_values()
        .map(|(reference, containers)| object!({"podRef": reference, "containers": containers}))
        .collect();
    let node =
        object!({"nodeName": ctx.options.node_name, "memory": node_memory(), "startTime": null});
    json(&object!({"node": node, "pods": pods}))
}

fn time(nanos: i64) -> Value {
    Timestamp::from_nanosecond(i128::from(nanos)).map_or(Value::Null, |t| {
        Value::String(t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    })
}

fn container(name: &str, stats: &cri::ContainerStats) -> Value {
    let mut out = Map::from_iter([("name".to_owned(), Value::String(name.to_owned()))]);
    let number = |n: &Option<cri::UInt64Value>| n.as_ref().map_or(Value::Null, |n| n.value.into());
    if let Some(cpu) = &stats.cpu {
        let value = object!({
            "time": time(cpu.timestamp),
            "usageNanoCores": number(&cpu.usage_nano_cores),
            "usageCoreNanoSeconds": number(&cpu.usage_core_nano_seconds),
        });
        out.insert("cpu".to_owned(), value);
    }
    if let Some(memory) = &stats.memory {
        let value = object!({
            "time": time(memory.timestamp),
            "availableBytes": number(&memory.available_bytes),
            "usageBytes": number(&memory.usage_bytes),
            "workingSetBytes": number(&memory.working_set_bytes),
            "rssBytes": number(&memory.rss_bytes),
            "pageFaults": number(&memory.page_faults),
            "majorPageFaults": number(&memory.major_page_faults),
        });
        out.insert("memory".to_owned(), value);
    }
    Value::Object(out)
}

fn node_memory() -> Value {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
            .map(|k| k * 1024)
    };
    let (total, available) = (
        bytes("MemTotal").unwrap_or(0),
        bytes("MemAvailable").unwrap_or(0),
    );
    object!({"time": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "availableBytes": available, "workingSetBytes": total.saturating_sub(available)})
}
