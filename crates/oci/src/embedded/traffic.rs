//! What went over the network interfaces of pods, as the kernel counts it in their namespaces.

use super::{Embedded, container::Phase, lock};
use crate::runtime::{InterfaceTraffic, SandboxTraffic};
use davit_beneath::Procfs;
use std::collections::HashMap;

/// The longest table of interfaces that is read.
const TABLE_MAX: u64 = 1 << 20;

impl Embedded {
    /// The counters of all pods with a network namespace of their own in which something runs.
    pub(super) fn traffic(&self) -> Vec<SandboxTraffic> {
        let containers: Vec<_> = lock(&self.inner.containers).values().cloned().collect();
        let mut inside: HashMap<String, i32> = HashMap::new();
        for container in containers {
            if let Phase::Running(state) = container.phase() {
                inside.insert(container.record().sandbox_id, state.pid);
            }
        }
        let sandboxes: Vec<_> = lock(&self.inner.sandboxes).values().cloned().collect();
        let own = sandboxes.iter().map(|sandbox| sandbox.record());
        let own = own.filter(|record| record.namespaces.net.is_some());
        own.filter_map(|record| {
            let path = format!("{}/net/dev", inside.get(&record.id)?);
            let table = Procfs::of_host().and_then(|proc| proc.read(path, TABLE_MAX));
            let table = String::from_utf8(table.ok()?).ok()?;
            Some(SandboxTraffic {
                sandbox_id: record.id,
                labels: record.config.0.labels,
                interfaces: InterfaceTraffic::of_table(&table),
            })
        })
        .collect()
    }
}

impl InterfaceTraffic {
    /// Whether this is the host's end of a link to a pod (`dvt` are our own), or a bridge of a container engine, as cAdvisor tells
    /// them by their names.
    #[must_use]
    pub fn is_of_a_pod(&self) -> bool {
        ["veth", "docker", "nerdctl", "dvt"]
            .iter()
            .any(|prefix| self.name.starts_with(prefix))
    }

    /// Reads `/proc/PID/net/dev`, without the loopback: two lines of headings, then a name and sixteen counters an
    /// interface.
    #[must_use]
    pub fn of_table(table: &str) -> Vec<Self> {
        let one = |line: &str| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> = numbers
                .split_whitespace()
                .map_while(|n| n.parse().ok())
                .collect();
            let at = |index: usize| numbers.get(index).copied();
            Some(InterfaceTraffic {
                name: name.trim().to_owned(),
                received_bytes: at(0)?,
                received_packets: at(1),
                receive_errors: at(2)?,
                receive_drops: at(3),
                sent_bytes: at(8)?,
                sent_packets: at(9),
                send_errors: at(10)?,
                send_drops: at(11),
            })
        };
        let all = table.lines().skip(2).filter_map(one);
        // as cAdvisor, which leaves out what stays inside
        all.filter(|interface| interface.name != "lo").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_by_interface() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 1296         16    1    2    0     0          0         0     1086      14    3    4    0     0       0          0
";
        let found = InterfaceTraffic::of_table(table);
        assert_eq!(found.len(), 1);
        let wanted = InterfaceTraffic {
            name: "eth0".to_owned(),
            received_bytes: 1296,
            received_packets: Some(16),
            receive_errors: 1,
            receive_drops: Some(2),
            sent_bytes: 1086,
            sent_packets: Some(14),
            send_errors: 3,
            send_drops: Some(4),
        };
        assert_eq!(found[0], wanted);
        for odd in ["", "a\nb\neth0: 1 2\n"] {
            assert!(InterfaceTraffic::of_table(odd).is_empty());
        }
    }
}
