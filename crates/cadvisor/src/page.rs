//! The page of all series. Pure.

use crate::exposition::{Sample, bytes, family, quoted};
use crate::series::{GAUGE, SERIES};
use crate::{CountedGroup, Host, labels};
use std::collections::BTreeMap;

/// The page: all series of a machine and of what runs on it.
#[must_use]
pub fn encode(host: &Host, subjects: &[CountedGroup]) -> String {
    let mut out = String::new();
    machine(&mut out, host);
    for (name, kind, help, values) in SERIES {
        let samples = subjects.iter().flat_map(|subject| {
            let own = labels(subject);
            values(subject).into_iter().map(move |(extra, value)| {
                let mut labels = own.clone();
                labels.extend(extra.iter().map(|(key, value)| (*key, value.as_str())));
                if name == "memory_failures_total" {
                    labels.insert("scope", "container");
                }
                (braces(&labels), value, Some(subject.time))
            })
        });
        let samples: Vec<Sample> = samples.collect();
        family(&mut out, &format!("container_{name}"), kind, help, samples);
    }
    out
}

fn braces(labels: &BTreeMap<&str, &str>) -> String {
    let pairs = labels
        .iter()
        .map(|(key, value)| format!("{key}={}", quoted(value)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

fn machine(out: &mut String, host: &Host) {
    let plain = |value: f64| vec![(String::new(), value, None)];
    let [boot, machine, system] = &host.ids;
    let ids = BTreeMap::from([
        ("boot_id", boot.as_str()),
        ("machine_id", machine),
        ("system_uuid", system),
    ]);
    let of_machine = |value: u64| vec![(braces(&ids), bytes(value), None)];
    let version = BTreeMap::from([
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.kernel.as_str()),
        ("osVersion", &host.os),
    ]);
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    let samples = vec![(braces(&version), 1.0, None)];
    family(out, "cadvisor_version_info", GAUGE, help, samples);
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    family(out, "container_scrape_error", GAUGE, help, plain(0.0));
    let help = "Number of logical CPU cores.";
    family(
        out,
        "machine_cpu_cores",
        GAUGE,
        help,
        of_machine(host.cores),
    );
    let of_cpus = [
        (
            "machine_cpu_physical_cores",
            "Number of physical CPU cores.",
            host.physical_cores,
        ),
        (
            "machine_cpu_sockets",
            "Number of CPU sockets.",
            host.sockets,
        ),
    ];
    for (name, help, number) in of_cpus {
        let samples = number.map(of_machine).unwrap_or_default();
        family(out, name, GAUGE, help, samples);
    }
    let help = "Amount of memory installed on the machine.";
    family(
        out,
        "machine_memory_bytes",
        GAUGE,
        help,
        of_machine(host.memory),
    );
    let help = "Amount of swap memory available on the machine.";
    family(
        out,
        "machine_swap_bytes",
        GAUGE,
        help,
        of_machine(host.swap),
    );
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    family(out, "machine_scrape_error", GAUGE, help, plain(0.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Most, Open, Processes};
    use crate::{MemoryInUse, Pressures, Spec};
    use davit_oci::cgroup::{DeviceTraffic, Pressure};
    use davit_oci::runtime::InterfaceTraffic;

    fn lines(subjects: &[CountedGroup]) -> String {
        let host = Host {
            ids: ["b", "m", "s"].map(str::to_owned),
            cores: 4,
            memory: 1024,
            ..Host::default()
        };
        encode(&host, subjects)
    }

    fn subject() -> CountedGroup {
        CountedGroup {
            id: "/kubepods/podu/c1".to_owned(),
            name: "c1".to_owned(),
            image: "i".to_owned(),
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            container: "main".to_owned(),
            time: 7_000_000_000,
            cpu: Some(1_500_000_000),
            ..CountedGroup::default()
        }
    }

    #[test]
    fn names_labels_and_types_are_cadvisors() {
        let mut one = subject();
        one.memory = Some(MemoryInUse {
            usage: 10,
            working_set: 8,
            rss: Some(4),
            faults: Some(3),
            major_faults: Some(1),
        });
        one.started = Some(2_500_000_000);
        one.interfaces = vec![InterfaceTraffic {
            name: "eth0".to_owned(),
            received_bytes: 5,
            ..InterfaceTraffic::default()
        }];
        let text = lines(&[one]);
        let rest = r#"id="/kubepods/podu/c1",image="i",name="c1",namespace="n",pod="p"} "#;
        let rest_of_network = r#"image="i",interface="eth0",name="c1",namespace="n",pod="p"} "#;
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter".to_owned(),
            format!(
                "container_cpu_usage_seconds_total{{container=\"main\",cpu=\"total\",{rest}1.5 7000"
            ),
            format!("container_memory_working_set_bytes{{container=\"main\",{rest}8 7000"),
            format!("container_memory_rss{{container=\"main\",{rest}4 7000"),
            format!("container_start_time_seconds{{container=\"main\",{rest}2.5 7000"),
            format!(
                "container_network_receive_bytes_total{{container=\"main\",id=\"/kubepods/podu/c1\",{rest_of_network}5 7000"
            ),
            r#"machine_cpu_cores{boot_id="b",machine_id="m",system_uuid="s"} 4"#.to_owned(),
            r#"machine_memory_bytes{boot_id="b",machine_id="m",system_uuid="s"} 1024"#.to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        let faults = text.lines().find(|l| l.contains("pgmajfault")).unwrap();
        assert!(faults.contains(r#"scope="container""#), "{faults}");
        assert!(
            !text.contains("packets_total"),
            "the runtime does not count them"
        );
    }

    #[test]
    fn only_containers_with_a_quota_are_throttled() {
        let of = |quota| {
            let mut one = subject();
            one.parts.throttled_periods = Some(2);
            one.spec = Some(Spec {
                quota,
                period: 100_000,
                shares: 2,
                memory: 0,
            });
            lines(&[one])
        };
        assert!(of(20_000).contains("container_cpu_cfs_throttled_periods_total"));
        assert!(of(20_000).contains("container_spec_cpu_quota"));
        assert!(!of(0).contains("cfs_throttled") && !of(0).contains("cpu_quota"));
        assert!(of(0).contains("container_spec_memory_limit_bytes"));
    }

    #[test]
    fn processes_pressure_and_disks() {
        let mut one = subject();
        one.processes = Some(Processes {
            count: 2,
            open: Some(Open {
                descriptors: 7,
                sockets: 3,
            }),
            most_open: Some(Most::Unlimited),
        });
        let pressure = "some avg10=0 avg60=0 avg300=0 total=2500000\nfull avg10=0 avg60=0 avg300=0 total=500000";
        one.pressure = Pressures {
            io: Pressure::parse(pressure),
            ..Pressures::default()
        };
        let traffic = DeviceTraffic {
            device: (254, 1),
            read_bytes: 10,
            written_bytes: 20,
            reads: 1,
            writes: 2,
        };
        one.disk_traffic = vec![("/dev/vda1".to_owned(), traffic)];
        one.parts.tasks_max = Some(0);
        let text = lines(&[one]);
        let value = |name: &str, label: &str| {
            let mut lines = text.lines();
            let line = lines.find(|l| l.starts_with(&format!("{name}{{")) && l.contains(label));
            line.and_then(|l| l.rsplit(' ').nth(1))
                .unwrap_or("none")
                .to_owned()
        };
        for (name, label, wanted) in [
            ("container_processes", "", "2"),
            ("container_file_descriptors", "", "7"),
            ("container_sockets", "", "3"),
            ("container_ulimits_soft", r#"ulimit="max_open_files""#, "-1"),
            ("container_threads_max", "", "0"),
            ("container_pressure_io_waiting_seconds_total", "", "2.5"),
            ("container_pressure_io_stalled_seconds_total", "", "0.5"),
            ("container_pressure_cpu_waiting_seconds_total", "", "none"),
            (
                "container_fs_reads_bytes_total",
                r#"device="/dev/vda1""#,
                "10",
            ),
            ("container_fs_writes_total", r#"device="/dev/vda1""#, "2"),
            (
                "container_blkio_device_usage_total",
                r#"operation="Write""#,
                "20",
            ),
            ("container_blkio_device_usage_total", r#"minor="1""#, "10"),
        ] {
            assert_eq!(value(name, label), wanted, "{name} in {text}");
        }
    }
}
