use super::*;
use crate::compute::Settings;
use davit_topology::Hardware;
use davit_topology::cpu::CpuOptions;
use davit_topology::memory::{MEMORY, MemoryAmounts};

fn settings() -> Settings {
    let kept = MemoryAmounts::from([(MEMORY.to_owned(), 1 << 20)]);
    Settings {
        hardware: Hardware::grid(2, 1, 2, 1, 1 << 30),
        cpu: Some(CpuOptions::default()),
        reserved_cpu_millis: 1000,
        memory: Some(BTreeMap::from([(0, kept.clone())])),
        node_reserved: kept,
        ..Settings::default()
    }
}

fn check(text: &str, settings: &Settings) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(CPU_FILE), text).unwrap();
    let compute = Compute::new(settings).unwrap();
    check_states(dir.path(), &compute).map_err(|e| e.cause)
}

#[test]
fn items_120_and_121_state_files_that_do_not_fit() {
    let s = settings();
    let good =
        r#"{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"u":{"c":"1"}},"checksum":1}"#;
    assert_eq!(check(good, &s), Ok(()));
    assert_eq!(
        check(
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#,
            &s
        )
        .unwrap_err(),
        "configured policy \"static\" differs from state checkpoint policy \"none\""
    );
    assert_eq!(
        check(
            r#"{"policyName":"static","defaultCpuSet":"0,2-5","entries":{"u":{"c":"1"}}}"#,
            &s
        )
        .unwrap_err(),
        "current set of available CPUs \"0-3\" doesn't match with CPUs in state \"0-5\""
    );
    assert_eq!(
        check(r#"{"policyName":"static","defaultCpuSet":"1-3"}"#, &s).unwrap_err(),
        "not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-3\""
    );
    assert_eq!(
        check(
            r#"{"policyName":"static","defaultCpuSet":"0-3","entries":{"u":{"c":"1"}}}"#,
            &s
        )
        .unwrap_err(),
        "pod: u, container: c cpuset: \"1\" overlaps with default cpuset \"0-3\""
    );
    assert_eq!(check("{", &s).unwrap_err(), "checkpoint is corrupted");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(CPU_FILE), "{").unwrap();
    let whole = check_states(dir.path(), &Compute::new(&s).unwrap()).unwrap_err();
    let path = dir.path().join(CPU_FILE);
    assert_eq!(
        whole.to_string(),
        format!(
            "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and delete the CPU manager checkpoint file {path:?} before restarting Kubelet"
        )
    );
}

#[test]
fn what_is_written_is_taken_over_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let compute = Compute::new(&settings()).unwrap();
    let mut table = Table::default();
    let hold = ComputeHold {
        pod: PodName {
            uid: "u".into(),
            namespace: String::new(),
            name: String::new(),
        },
        container: "c".into(),
        kind: ContainerKind::App,
        cpus: "1,3".parse().unwrap(),
        memory: vec![MemoryBlock {
            nodes: NumaMask::from_bits(3),
            kind: MEMORY.into(),
            size: 1 << 30,
        }],
        since: 1,
    };
    table.apply(&Change::Compute(hold.clone())).unwrap();
    let bytes = encode(&cpu_state(&compute, &table)).unwrap();
    write(&dir.path().join(CPU_FILE), &bytes).unwrap();
    let bytes = encode(&memory_file(&compute, &table)).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        json["machineState"]["1"]["cells"],
        serde_json::json!([0, 1])
    );
    assert_eq!(json["entries"]["u"]["c"][0]["type"], "memory");
    write(&dir.path().join(MEMORY_FILE), &bytes).unwrap();
    check_states(dir.path(), &compute).unwrap();
    let changes = import(dir.path(), &compute);
    let [Change::Compute(again)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!((&again.cpus, &again.memory), (&hold.cpus, &hold.memory));
    // More memory than before.
    let mut other = settings();
    other.hardware.numa_nodes[1].memory.0 <<= 1;
    let other = Compute::new(&other).unwrap();
    assert_eq!(
        check_states(dir.path(), &other).unwrap_err().cause,
        "[memorymanager] the expected machine state is different from the real one"
    );
}
