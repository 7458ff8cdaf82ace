//! The simulated devices.

use std::collections::BTreeSet;
use std::path::Path;

use davit_sdk::dra::{Device, DeviceExt as _, Pool, counters, device};
use davit_sdk::k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity,
};
use davit_sdk::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::Options;

/// Quarters a partitioned GPU is cut into.
const SLOTS: u32 = 4;
const MODELS: [&str; 2] = ["LATEST-GPU-MODEL", "OLDER-GPU-MODEL"];

/// Whether several claims may hold a device of this name at once.
pub(crate) fn is_shareable(device: &str) -> bool {
    device.starts_with("shared-")
}

/// All devices of the node:
///
/// * `gpu-N`: whole GPUs, spread over the NUMA nodes.
/// * With partitions, halves `gpu-N-half-M` and quarters `gpu-N-quarter-M` of each: they and the
///   whole GPU consume the counters of one set, so that only so much is given away as there is.
/// * `shared-N`: GPUs whose memory is given out in amounts, to any number of claims.
pub(crate) fn pool(options: &Options) -> Pool {
    let mut pool = Pool::default();
    for n in 0..options.gpus {
        let name = format!("gpu-{n}");
        let mut whole = described(options, n, &name, "gpu").capacity("memory", &gi(options.memory));
        if options.attach {
            whole.binds_to_node = Some(true);
            whole.binding_conditions = Some(vec!["gpu.davit.dev/attached".to_owned()]);
            whole.binding_failure_conditions = Some(vec!["gpu.davit.dev/attach-failed".to_owned()]);
        }
        if !options.partitions || n.saturating_add(options.uncut) >= options.gpus {
            pool.devices.push(whole);
            continue;
        }
        let set = format!("{name}-parts");
        let slots = SLOTS.to_string();
        let amounts = [("memory", &*gi(options.memory)), ("slots", &slots)];
        pool.counters.push(counters(&set, amounts));
        pool.devices.push(whole.consumes(&set, amounts));
        for (kind, share) in [("half", SLOTS / 2), ("quarter", 1)] {
            for part in 0..SLOTS / share {
                let memory = gi(options.memory * share / SLOTS);
                let slots = share.to_string();
                let device = described(options, n, &format!("{name}-{kind}-{part}"), kind)
                    .text("parent", &name)
                    .capacity("memory", &memory)
                    .consumes(&set, [("memory", &*memory), ("slots", &slots)]);
                pool.devices.push(device);
            }
        }
    }
    for n in 0..options.shared {
        let name = format!("shared-{n}");
        let mut device = described(options, options.gpus + n, &name, "shared").shareable();
        device
            .capacity
            .get_or_insert_default()
            .insert("memory".to_owned(), in_amounts(&gi(options.memory)));
        pool.devices.push(device);
    }
    let tainted = options.dev_dir.as_deref().map(listed("tainted"));
    for device in &mut pool.devices {
        if tainted.as_ref().is_some_and(|t| t.contains(&device.name)) {
            *device = device
                .clone()
                .taint("gpu.davit.dev/maintenance", "", "NoSchedule");
        }
    }
    pool
}

fn gi(amount: u32) -> String {
    format!("{amount}Gi")
}

/// Memory in whole gibibytes; whoever does not say how much gets one.
fn in_amounts(memory: &str) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.to_owned());
    DeviceCapacity {
        value: quantity(memory),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity("1Gi")),
            valid_range: Some(CapacityRequestPolicyRange {
                min: quantity("1Gi"),
                max: None,
                step: Some(quantity("1Gi")),
            }),
            valid_values: None,
        }),
    }
}

fn described(options: &Options, n: u32, name: &str, kind: &str) -> Device {
    let numa = n.checked_rem(options.numa_nodes).unwrap_or_default();
    let model = MODELS[usize::try_from(n).unwrap_or_default() % MODELS.len()];
    device(name)
        .int("index", i64::from(n))
        .text("uuid", uuid(&options.node_name, name))
        .text("model", model)
        .text("type", kind)
        .version("driverVersion", "1.0.0")
        .int("resource.kubernetes.io/numaNode", i64::from(numa))
        .text(
            "resource.kubernetes.io/pcieRoot",
            format!("pci{numa:04x}:00"),
        )
}

/// Stable over restarts, different on each node.
pub(crate) fn uuid(node: &str, device: &str) -> String {
    // FNV-1a, twice with different beginnings.
    let hash = |start: u64| {
        let bytes = node.bytes().chain([0]).chain(device.bytes());
        bytes.fold(start, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        })
    };
    let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4));
    format!(
        "gpu-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    )
}

/// The devices named in a file of a folder, one a line.
pub(crate) fn listed(file: &str) -> impl Fn(&Path) -> BTreeSet<String> {
    move |dir| {
        let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let names = text.lines().map(str::trim).filter(|l| !l.is_empty());
        names.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        options: Options,
    }

    fn options(args: &[&str]) -> Options {
        let all = ["x", "--node-name", "n"].iter().chain(args);
        Args::parse_from(all).options
    }

    #[test]
    fn there_is_what_the_options_say() {
        let pool = pool(&options(&["--gpus", "2", "--partitions", "--shared", "1"]));
        let names: Vec<&str> = pool.devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names.len(), 2 * 7 + 1);
        assert_eq!(names[..3], ["gpu-0", "gpu-0-half-0", "gpu-0-half-1"]);
        assert!(is_shareable(names[14]));
        let sets: BTreeSet<&str> = pool.counters.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(sets, BTreeSet::from(["gpu-0-parts", "gpu-1-parts"]));
        let uuids: BTreeSet<_> = pool
            .devices
            .iter()
            .map(|d| d.attributes.as_ref().unwrap()["uuid"].string.clone())
            .collect();
        assert_eq!(uuids.len(), 15);
    }

    #[test]
    fn a_file_taints_devices() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tainted"), "gpu-1\n").unwrap();
        let pool = pool(&options(&["--dev-dir", dir.path().to_str().unwrap()]));
        let tainted = pool.devices.iter().filter(|d| d.taints.is_some());
        assert_eq!(tainted.map(|d| &d.name).collect::<Vec<_>>(), ["gpu-1"]);
    }
}
