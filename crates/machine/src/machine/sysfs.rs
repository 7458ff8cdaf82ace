//! Hardware as the kernel shows it below `/sys`.

use davit_topology::CpuSet;
use davit_topology::hardware::{Bytes, CpuGroup, Hardware, HardwareNode, Hugepages};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the machine below `sys` (`/sys`). `memory` is the machine's memory, for kernels without
/// NUMA nodes; they are one node. Offline CPUs are left out.
pub fn read(sys: &Path, memory: u64) -> Hardware {
    let cpus = sys.join("devices/system/cpu");
    let online: CpuSet = list(&cpus.join("online")).unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..u32::try_from(count).unwrap_or(1)).collect()
    });
    let mut nodes = nodes(&sys.join("devices/system/node"));
    if nodes.is_empty() {
        let node = HardwareNode {
            memory: Bytes(memory),
            hugepages: hugepages(&sys.join("kernel/mm/hugepages")),
            ..HardwareNode::default()
        };
        nodes.push((node, online.clone()));
    }
    let node_of = |cpu: u32| {
        let found = nodes.iter().find(|(_, cpus)| cpus.contains(cpu));
        found.or_else(|| nodes.first()).map_or(0, |(n, _)| n.id)
    };
    let mut cores: BTreeMap<u32, CpuGroup> = BTreeMap::new();
    for cpu in online.iter() {
        let dir = cpus.join(format!("cpu{cpu}"));
        let siblings = list(&dir.join("topology/core_cpus_list"))
            .or_else(|| list(&dir.join("topology/thread_siblings_list")))
            .unwrap_or_default()
            .intersection(&online);
        let group = cores
            .entry(siblings.first().unwrap_or(cpu))
            .or_insert_with(|| CpuGroup {
                cpus: CpuSet::new(),
                node: node_of(cpu),
                socket: number(&dir.join("topology/physical_package_id")).unwrap_or(0),
                cache: cache(&dir.join("cache")),
                threads: 0,
            });
        group.cpus.insert(cpu);
        group.threads += 1;
    }
    let mut groups: Vec<CpuGroup> = cores.into_values().collect();
    // Either every cache has a name, or none counts.
    if groups.iter().any(|g| g.cache.is_none()) {
        groups.iter_mut().for_each(|g| g.cache = None);
    }
    Hardware {
        numa_nodes: nodes.into_iter().map(|(n, _)| n).collect(),
        cpus: groups,
    }
}

fn nodes(dir: &Path) -> Vec<(HardwareNode, CpuSet)> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<(HardwareNode, CpuSet)> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            let id: u32 = name.strip_prefix("node")?.parse().ok()?;
            let text = |file: &str| std::fs::read_to_string(e.path().join(file)).ok();
            let distances = text("distance").unwrap_or_default();
            let node = HardwareNode {
                id,
                memory: Bytes(text("meminfo").map_or(0, |t| total(&t))),
                hugepages: hugepages(&e.path().join("hugepages")),
                distances: distances
                    .split_whitespace()
                    .filter_map(|d| d.parse().ok())
                    .collect(),
            };
            Some((node, list(&e.path().join("cpulist")).unwrap_or_default()))
        })
        .collect();
    found.sort_by_key(|(n, _)| n.id);
    let count = found.len();
    for (node, _) in &mut found {
        if node.distances.len() != count {
            node.distances.clear();
        }
    }
    found
}

/// `Node 0 MemTotal:       16374512 kB`
fn total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|l| l.contains("MemTotal:"));
    let number = line.and_then(|l| l.split("MemTotal:").nth(1)?.split_whitespace().next());
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn hugepages(dir: &Path) -> Vec<Hugepages> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<Hugepages> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some(Hugepages {
                size: Bytes(kib.parse::<u64>().ok()? * 1024),
                count: u64::from(number(&e.path().join("nr_hugepages"))?),
            })
        })
        .collect();
    found.sort_by_key(|h| h.size);
    found
}

/// The number of the last-level cache, where it is of level 3.
fn cache(dir: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(dir).ok()?;
    let third = entries
        .flatten()
        .find(|e| number(&e.path().join("level")) == Some(3))?;
    let shared = || list(&third.path().join("shared_cpu_list"))?.first();
    number(&third.path().join("id")).or_else(shared)
}

fn list(file: &Path) -> Option<CpuSet> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn number(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn this_machine_is_one() {
        let here = read(Path::new("/sys"), 1 << 30);
        here.validate().unwrap();
        let bare = read(Path::new("/nonexistent"), 1 << 30);
        bare.validate().unwrap();
        assert_eq!(bare.memory(), 1 << 30);
    }

    /// Two sockets with two threads a core, a third node that is a GPU's memory, CPU 3 offline.
    #[test]
    fn sockets_threads_caches_and_nodes_without_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| put(dir.path(), file, text);
        put("devices/system/cpu/online", "0-2,4-7\n");
        for cpu in [0, 1, 2, 4, 5, 6, 7] {
            let at = format!("devices/system/cpu/cpu{cpu}");
            let (low, high) = (cpu % 4, cpu % 4 + 4);
            put(
                &format!("{at}/topology/core_cpus_list"),
                &format!("{low},{high}\n"),
            );
            put(
                &format!("{at}/topology/physical_package_id"),
                &format!("{}\n", low / 2),
            );
            put(&format!("{at}/cache/index0/level"), "1\n");
            put(&format!("{at}/cache/index3/level"), "3\n");
            put(
                &format!("{at}/cache/index3/id"),
                &format!("{}\n", low / 2 + 5),
            );
        }
        for (node, cpus, distance) in [
            (0, "0-1,4-5", "10 21 40"),
            (1, "2-3,6-7", "21 10 40"),
            (2, "", "40 40 10"),
        ] {
            let at = format!("devices/system/node/node{node}");
            put(&format!("{at}/cpulist"), &format!("{cpus}\n"));
            put(&format!("{at}/distance"), &format!("{distance}\n"));
            put(
                &format!("{at}/meminfo"),
                &format!("Node {node} MemTotal:       1048576 kB\nNode {node} MemFree: 1 kB\n"),
            );
            put(
                &format!("{at}/hugepages/hugepages-2048kB/nr_hugepages"),
                "4\n",
            );
        }
        let found = read(dir.path(), 0);
        found.validate().unwrap();
        assert_eq!(found.all_cpus().to_string(), "0-2,4-7");
        assert_eq!(found.memory(), 3 << 30);
        assert_eq!(found.hugepages()[&(2 << 20)], (3 * 8) << 20);
        let t = davit_topology::cpu::CpuTopology::new(&found);
        assert_eq!(t.with_siblings(&"6".parse().unwrap()).to_string(), "2,6");
        assert_eq!(t.node_count(), 2);
        assert_eq!(t.cache_count(&"0-2".parse().unwrap()), 2);
        assert_eq!(found.machine().nodes().count(), 3);
    }
}
