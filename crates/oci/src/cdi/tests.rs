//! The rules that runtimes and drivers rely on, without a container.

use super::*;
use serde_json::{Value, json};
use std::fs;

const KIND: &str = "vendor.com/gpu";

fn file(dir: &Path, name: &str, devices: &[(&str, &str)]) {
    let devices: Vec<Value> = devices
        .iter()
        .map(|(name, env)| json!({"name": name, "containerEdits": {"env": [env]}}))
        .collect();
    let spec = json!({"cdiVersion": "0.6.0", "kind": KIND, "devices": devices,
        "containerEdits": {"env": [format!("FILE_{}=1", name.split('.').next().unwrap().to_uppercase())]}});
    fs::write(dir.join(name), spec.to_string()).unwrap();
}

fn registry() -> (tempfile::TempDir, Registry, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let (low, high) = (root.path().join("etc"), root.path().join("run"));
    fs::create_dir_all(&low).unwrap();
    fs::create_dir_all(&high).unwrap();
    let registry = Registry::new(vec![low.clone(), high.clone()]);
    (root, registry, low, high)
}

fn names(devices: &[&str]) -> Vec<String> {
    devices.iter().map(|d| format!("{KIND}={d}")).collect()
}

#[test]
fn edits_of_a_file_come_once_and_the_later_directory_wins() {
    let (_root, registry, low, high) = registry();
    file(&low, "a.json", &[("0", "A=low"), ("1", "B=low")]);
    file(&high, "b.json", &[("0", "A=high")]);
    let edits = registry.resolve(&names(&["0", "1", "0"])).unwrap();
    assert_eq!(edits.env, ["FILE_B=1", "A=high", "FILE_A=1", "B=low"]);
    // What is written later is seen, without anybody telling.
    fs::remove_file(high.join("b.json")).unwrap();
    file(&low, "c.json", &[("2", "C=new")]);
    let edits = registry.resolve(&names(&["0", "2"])).unwrap();
    assert_eq!(edits.env, ["FILE_A=1", "A=low", "FILE_C=1", "C=new"]);
}

#[test]
fn what_cannot_be_resolved_is_named_with_its_cause() {
    let (_root, registry, low, _) = registry();
    file(&low, "a.json", &[("0", "A=1"), ("1", "A=1")]);
    file(&low, "b.json", &[("0", "A=2")]);
    fs::write(low.join("broken.json"), "{").unwrap();
    fs::write(low.join("ignored.txt"), "{").unwrap();
    let error = registry.resolve(&names(&["0", "1", "9"])).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("unresolvable CDI devices vendor.com/gpu=0, vendor.com/gpu=9; "),
        "{text}"
    );
    assert!(
        text.contains("conflicting device \"vendor.com/gpu=0\""),
        "{text}"
    );
    assert!(text.contains("broken.json: "), "{text}");
    assert!(!text.contains("ignored"), "{text}");
    // A broken file does not harm the devices of others.
    registry.resolve(&names(&["1"])).unwrap();
    assert!(registry.resolve(&["1".to_owned()]).is_err());
}

#[test]
fn files_that_break_the_rules_are_refused() {
    let base = json!({"cdiVersion": "0.6.0", "kind": KIND,
        "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]});
    assert!(Spec::parse(&base.to_string(), true).is_ok());
    let change = |path: &str, value: Value| {
        let mut spec = base.clone();
        *spec.pointer_mut(path).unwrap() = value;
        Spec::parse(&spec.to_string(), true)
    };
    assert!(change("/cdiVersion", json!("0.2.0")).is_err());
    assert!(change("/cdiVersion", json!("1.1.0")).is_ok());
    assert!(change("/kind", json!("gpu")).is_err());
    assert!(change("/kind", json!("1vendor/gpu")).is_err());
    assert!(change("/devices", json!([])).is_err());
    assert!(change("/devices/0/name", json!("-x")).is_err());
    assert!(change("/devices/0/containerEdits", json!({})).is_err());
    assert!(change("/devices/0/containerEdits", json!({"env": ["A"]})).is_err());
    assert!(change("/devices/0/containerEdits", json!({"unknown": 1})).is_err());
    let node = json!({"deviceNodes": [{"path": "/dev/x", "type": "z"}]});
    assert!(change("/devices/0/containerEdits", node).is_err());
    let hook = json!({"hooks": [{"hookName": "never", "path": "/x"}]});
    assert!(change("/devices/0/containerEdits", hook).is_err());
    let yaml = "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    env: [A=1]\n";
    assert!(Spec::parse(yaml, false).is_ok());
}

/// Edits are put in one after another, each looking for what it replaces.
#[test]
fn nobody_needs_as_much_as_a_file_has_room_for() {
    let with = |edits: Value| {
        let spec = json!({"cdiVersion": "0.7.0", "kind": KIND,
            "devices": [{"name": "0", "containerEdits": edits}]});
        Spec::parse(&spec.to_string(), true)
    };
    let many = |one: Value, number: usize| Value::from(vec![one; number]);
    for (field, one) in [
        ("env", json!("A=1")),
        ("deviceNodes", json!({"path": "/dev/x"})),
        ("hooks", json!({"hookName": "poststop", "path": "/x"})),
        ("mounts", json!({"hostPath": "/x", "containerPath": "/x"})),
        ("additionalGids", json!(7)),
    ] {
        with(json!({field: many(one.clone(), MAX_EDITS)})).unwrap();
        let refused = with(json!({field: many(one, MAX_EDITS + 1)})).unwrap_err();
        assert!(refused.contains("too many edits"), "{refused}");
    }
    let long = "/x".repeat(4096);
    for edits in [
        json!({"deviceNodes": [{"path": long}]}),
        json!({"mounts": [{"hostPath": long, "containerPath": "/x"}]}),
        json!({"hooks": [{"hookName": "poststop", "path": long}]}),
    ] {
        assert!(with(edits).unwrap_err().contains("a path has more"));
    }
    // They are not read, of which each would take many times its length: nobody gets as far as their names.
    let devices = many(json!({"name": ""}), 200_000);
    let spec = json!({"cdiVersion": "0.7.0", "kind": KIND, "devices": devices}).to_string();
    for json in [true, false] {
        let refused = Spec::parse(&spec, json).unwrap_err();
        assert!(!refused.contains("invalid device name"), "{refused}");
    }
}

/// What is in files of others is told to whoever's device is not found, so that he sees why.
#[test]
fn what_is_told_of_broken_files_has_an_end() {
    let (_kept, registry, first, _) = registry();
    for number in 0..64 {
        let spec = json!({"cdiVersion": "0.6.0", "kind": KIND, "devices": [
            {"name": "0", "containerEdits": {"env": ["é".repeat(1 << 16)]}}]});
        fs::write(first.join(format!("{number}.json")), spec.to_string()).unwrap();
    }
    let wanted: Vec<String> = (0..10_000).map(|n| format!("{KIND}={n}")).collect();
    let text = registry.resolve(&wanted).unwrap_err().to_string();
    assert!(
        text.contains("0.json: ") && text.len() < 16 << 10,
        "{}",
        text.len()
    );
}

/// A driver that writes files without end had the node agent keep all of them.
#[test]
fn what_is_kept_of_files_has_an_end() {
    let (_kept, mut registry, first, second) = registry();
    registry.max_kept = 4096;
    file(&second, "known.json", &[("known", "A=1")]);
    registry.resolve(&names(&["known"])).unwrap();
    for number in 0..64 {
        let (name, value) = (format!("{number}.json"), format!("A={}", "x".repeat(200)));
        file(&first, &name, &[(&format!("d{number}"), &value)]);
    }
    let found = |n: usize| registry.resolve(&names(&[&format!("d{n}")]));
    let found = (0..64).filter(|n| found(*n).is_ok()).count();
    assert!((1..32).contains(&found), "{found}");
    registry.resolve(&names(&["known"])).unwrap();
}

#[test]
fn edits_are_applied() {
    let edits: Edits = serde_json::from_value(json!({
        "env": ["A=new", "B=2"],
        "deviceNodes": [{"path": "/dev/zero-too", "hostPath": "/dev/zero", "permissions": "rw"}],
        "mounts": [
            {"hostPath": "/lib/x", "containerPath": "/usr/lib/deep/x", "options": ["ro", "nosuid", "bind"]},
            {"hostPath": "/lib", "containerPath": "/usr"}],
        "hooks": [{"hookName": "prestart", "path": "/bin/true"},
            {"hookName": "createContainer", "path": "/bin/true", "args": ["true", "x"], "timeout": 3}],
        "additionalGids": [0, 7, 7],
    }))
    .unwrap();
    let mut spec = json!({
        "process": {"env": ["A=old", "AB=1"], "user": {"uid": 1000, "gid": 0, "additionalGids": []}},
        "mounts": [{"destination": "/proc"}, {"destination": "/usr"}],
        "linux": {"devices": []},
    });
    let mut rules = Vec::new();
    edits::apply(&edits, &mut spec, &mut rules).unwrap();
    assert_eq!(spec["process"]["env"], json!(["A=new", "AB=1", "B=2"]));
    let device = &spec["linux"]["devices"][0];
    assert_eq!(
        (&device["path"], &device["major"], &device["minor"]),
        (&json!("/dev/zero-too"), &json!(1), &json!(5))
    );
    assert_eq!(
        (&device["uid"], &device["gid"]),
        (&json!(1000), &Value::Null)
    );
    assert_eq!(rules.len(), 1);
    let order: Vec<&str> = spec["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["destination"].as_str().unwrap())
        .collect();
    assert_eq!(order, ["/proc", "/usr", "/usr/lib/deep/x"]);
    assert_eq!(spec["mounts"][1]["type"], "bind");
    assert_eq!(spec["hooks"]["createRuntime"][0]["path"], "/bin/true");
    assert_eq!(spec["hooks"]["createContainer"][0]["timeout"], 3);
    assert_eq!(spec["process"]["user"]["additionalGids"], json!([7]));
    let _: oci_spec::runtime::Hooks = serde_json::from_value(spec["hooks"].clone()).unwrap();

    let missing: Edits =
        serde_json::from_value(json!({"deviceNodes": [{"path": "/dev/no-such"}]})).unwrap();
    assert!(edits::apply(&missing, &mut spec, &mut rules).is_err());
}

#[test]
fn what_a_file_uses_needs_its_version() {
    let parse = |version: &str, edits: Value| {
        let spec = json!({"cdiVersion": version, "kind": KIND,
            "devices": [{"name": "a", "containerEdits": edits}]});
        Spec::parse(&spec.to_string(), true).map(drop)
    };
    let net = json!({"netDevices": [{"hostInterfaceName": "ens1", "name": "fast0"}]});
    let cases = [
        (json!({"env": ["A=1"]}), "0.3.0", None),
        (
            json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]}),
            "0.4.0",
            Some("0.3.0"),
        ),
        (
            json!({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}),
            "0.5.0",
            Some("0.4.0"),
        ),
        (json!({"additionalGids": [7]}), "0.7.0", Some("0.6.0")),
        (
            json!({"intelRdt": {"closID": "gold"}}),
            "0.7.0",
            Some("0.6.0"),
        ),
        (
            json!({"intelRdt": {"enableCMT": true}}),
            "0.7.0",
            Some("0.6.0"),
        ),
        (
            json!({"intelRdt": {"enableMonitoring": true}}),
            "1.1.0",
            Some("1.0.0"),
        ),
        (
            json!({"intelRdt": {"schemata": ["L3:0=f"]}}),
            "1.1.0",
            Some("0.7.0"),
        ),
        (net.clone(), "1.1.0", Some("1.0.0")),
    ];
    for (edits, good, bad) in cases {
        parse(good, edits.clone()).unwrap();
        if let Some(bad) = bad {
            let error = parse(bad, edits).unwrap_err();
            assert_eq!(error, format!("the spec version must be at least v{good}"));
        }
    }
    let file = |version: &str, kind: &str, name: &str, annotations: Value| {
        let spec = json!({"cdiVersion": version, "kind": kind, "annotations": annotations,
            "devices": [{"name": name, "containerEdits": {"env": ["A=1"]}}]});
        Spec::parse(&spec.to_string(), true).is_ok()
    };
    assert!(file("0.5.0", KIND, "0", json!({})) && !file("0.4.0", KIND, "0", json!({})));
    let dotted = "vendor.com/gpu.small";
    assert!(file("0.6.0", dotted, "a", json!({})) && !file("0.5.0", dotted, "a", json!({})));
    let noted = json!({"a": "b"});
    assert!(file("0.6.0", KIND, "a", noted.clone()) && !file("0.5.0", KIND, "a", noted));
    let name = json!({"netDevices": [{"hostInterfaceName": "ens1", "name": "a/b"}]});
    assert!(parse("1.1.0", name).unwrap_err().contains("\"a/b\""));
    let class = json!({"intelRdt": {"closID": ".."}});
    assert!(parse("1.1.0", class).unwrap_err().contains("\"..\""));
}

#[test]
fn network_devices_and_cache_classes_become_the_runtimes() {
    let edits = |value: Value| -> Edits { serde_json::from_value(value).unwrap() };
    let base = json!({"linux": {"namespaces": [{"type": "network", "path": "/x"}]}});
    let apply = |wanted: Value| {
        let mut spec = base.clone();
        edits::apply(&edits(wanted), &mut spec, &mut Vec::new()).map(|()| spec)
    };
    let device = |host: &str, name: &str| json!({"hostInterfaceName": host, "name": name});
    let spec = apply(json!({
        "netDevices": [device("ens1", "fast0"), device("ens2", "fast1"), device("ens1", "fast0")],
        "intelRdt": {"closID": "gold", "l3CacheSchema": "L3:0=f", "enableMBM": true},
    }))
    .unwrap();
    let linux: oci_spec::runtime::Linux = serde_json::from_value(spec["linux"].clone()).unwrap();
    let devices = linux.net_devices().as_ref().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices["ens2"].name().as_deref(), Some("fast1"));
    let rdt = linux.intel_rdt().as_ref().unwrap();
    assert_eq!(rdt.clos_id().as_deref(), Some("gold"));
    assert_eq!(*rdt.enable_monitoring(), Some(true));
    for (first, second, why) in [
        (
            device("ens1", "a"),
            device("ens2", "a"),
            "two CDI network devices are to be called \"a\": \"ens1\" and \"ens2\"",
        ),
        (
            device("ens1", "a"),
            device("ens1", "b"),
            "CDI network device \"ens1\" is to be called \"a\" and \"b\"",
        ),
    ] {
        let error = apply(json!({"netDevices": [first, second]})).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
    let mut host = json!({"linux": {"namespaces": [{"type": "pid"}]}});
    let wanted = edits(json!({"netDevices": [device("ens1", "a")]}));
    let error = edits::apply(&wanted, &mut host, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("network of its own"), "{error}");
}

#[test]
fn what_is_no_file_is_not_read() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo.json"),
        rustix::fs::FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    fs::write(at("text"), "{}").unwrap();
    symlink(at("text"), at("link.json")).unwrap();
    let large = fs::File::create(at("large.json")).unwrap();
    large.set_len(MAX_FILE + 1).unwrap();
    // a FIFO would be waited for, without an end
    let refused = content(&at("fifo.json")).unwrap_err();
    assert_eq!(refused.to_string(), "not a regular file");
    assert!(content(&at("large.json")).is_err());
    assert_eq!(
        content(&at("link.json")).unwrap(),
        "{}",
        "links are for administrators"
    );
}
