//! What is right about slices, answers and CDI files: without a driver, a server or a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use davit_proto::dra::v1;
use serde_json::Value;

/// A device that a driver has published.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Device {
    pub(super) pool: String,
    pub(super) name: String,
    /// Sets of counters it consumes.
    pub(super) sets: BTreeSet<String>,
    /// Whether several claims may have it.
    pub(super) shareable: bool,
    /// Amounts that a share of it takes.
    pub(super) capacity: BTreeMap<String, Value>,
}

fn text<'a>(of: &'a Value, at: &str) -> &'a str {
    of.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

/// The slices of each pool that count: those of its newest generation.
pub(super) fn newest(slices: &[Value]) -> BTreeMap<String, Vec<&Value>> {
    let mut pools: BTreeMap<String, (i64, Vec<&Value>)> = BTreeMap::new();
    for slice in slices {
        let generation = slice.pointer("/spec/pool/generation");
        let generation = generation.and_then(Value::as_i64).unwrap_or_default();
        let pool = pools
            .entry(text(slice, "/spec/pool/name").to_owned())
            .or_insert((generation, Vec::new()));
        if generation > pool.0 {
            *pool = (generation, Vec::new());
        }
        if generation == pool.0 {
            pool.1.push(slice);
        }
    }
    pools.into_iter().map(|(name, (_, s))| (name, s)).collect()
}

/// Whether every pool has all its slices, old ones are gone, and devices have names of their own.
pub(super) fn check_pools(slices: &[Value]) -> Result<String, String> {
    let pools = newest(slices);
    if pools.is_empty() {
        return Err("there are no slices".to_owned());
    }
    let mut devices = 0;
    for (pool, newest) in &pools {
        for slice in newest {
            let wanted = slice.pointer("/spec/pool/resourceSliceCount");
            let wanted = wanted.and_then(Value::as_u64).unwrap_or_default();
            if wanted != newest.len() as u64 {
                let name = text(slice, "/metadata/name");
                return Err(format!(
                    "pool {pool} has {} slices of its newest generation, slice {name} says {wanted}",
                    newest.len()
                ));
            }
        }
        let mut names = BTreeSet::new();
        for device in newest.iter().flat_map(|slice| list(slice, "/spec/devices")) {
            devices += 1;
            if !names.insert(text(device, "/name")) {
                return Err(format!(
                    "pool {pool} has two devices {}",
                    text(device, "/name")
                ));
            }
        }
    }
    let current: usize = pools.values().map(Vec::len).sum();
    if current < slices.len() {
        return Err(format!(
            "{} slices of older generations are left",
            slices.len() - current
        ));
    }
    Ok(format!(
        "{devices} devices in {} pools, {current} slices",
        pools.len()
    ))
}

fn list<'a>(of: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> {
    let list = of.pointer(at).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Whether each slice can be used on the node.
pub(super) fn check_nodes(slices: &[Value], node: &str) -> Result<String, String> {
    let mut local = 0;
    for slice in slices {
        match text(slice, "/spec/nodeName") {
            "" => {}
            named if named == node => local += 1,
            other => {
                return Err(format!(
                    "slice {} is for the node {other}, the driver runs on {node}",
                    text(slice, "/metadata/name")
                ));
            }
        }
    }
    Ok(format!("{local} of {} name the node", slices.len()))
}

/// The devices that can be allocated without further ado, those that nobody shares first.
pub(super) fn devices(slices: &[Value]) -> Vec<Device> {
    let mut found = Vec::new();
    for (pool, slices) in newest(slices) {
        for device in slices.iter().flat_map(|slice| list(slice, "/spec/devices")) {
            let repels =
                |taint: &Value| matches!(text(taint, "/effect"), "NoSchedule" | "NoExecute");
            let waits = device.get("bindingConditions").is_some();
            if waits || list(device, "/taints").any(repels) {
                continue;
            }
            let capacity = device.get("capacity").and_then(Value::as_object);
            let amount = |capacity: &Value| {
                let policy = capacity.pointer("/requestPolicy/default");
                policy.or(capacity.get("value")).cloned()
            };
            found.push(Device {
                pool: pool.clone(),
                name: text(device, "/name").to_owned(),
                sets: list(device, "/consumesCounters")
                    .map(|c| text(c, "/counterSet").to_owned())
                    .collect(),
                shareable: device["allowMultipleAllocations"] == true,
                capacity: capacity
                    .into_iter()
                    .flatten()
                    .filter_map(|(name, capacity)| Some((name.clone(), amount(capacity)?)))
                    .collect(),
            });
        }
    }
    found.sort_by_key(|device| device.shareable);
    found
}

/// As many devices as asked that can be had at the same time.
pub(super) fn together(devices: &[Device], most: usize) -> Vec<&Device> {
    let mut taken: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut chosen = Vec::new();
    for device in devices {
        let sets: Vec<_> = device
            .sets
            .iter()
            .map(|set| (device.pool.as_str(), set.as_str()))
            .collect();
        if chosen.len() < most && sets.iter().all(|set| !taken.contains(set)) {
            taken.extend(sets);
            chosen.push(device);
        }
    }
    chosen
}

/// Whether the answer for a claim names its device and nothing else, with names of CDI devices.
pub(super) fn check_answer(
    devices: &[v1::Device],
    device: &Device,
    request: &str,
) -> Result<String, String> {
    let mut names = Vec::new();
    for told in devices {
        if told.pool_name != device.pool || told.device_name != device.name {
            return Err(format!(
                "{}/{} is told, {}/{} is allocated",
                told.pool_name, told.device_name, device.pool, device.name
            ));
        }
        if let Some(name) = told.request_names.iter().find(|name| *name != request) {
            return Err(format!("the claim has no request {name:?}"));
        }
        names.extend(told.cdi_device_ids.iter().map(String::as_str));
    }
    if devices.is_empty() {
        return Err(format!(
            "nothing is told of {}/{}",
            device.pool, device.name
        ));
    }
    if let Some(bad) = names.iter().find(|name| split_cdi(name).is_none()) {
        return Err(format!(
            "{bad:?} is no name of a CDI device (vendor/class=name)"
        ));
    }
    Ok(match names.len() {
        0 => "no CDI devices".to_owned(),
        _ => names.join(", "),
    })
}

/// Kind and name of a CDI device.
fn split_cdi(name: &str) -> Option<(&str, &str)> {
    let (kind, device) = name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    (!vendor.is_empty() && !class.is_empty() && !device.is_empty()).then_some((kind, device))
}

/// The CDI files of a directory: what they are for, or what is wrong with them.
pub(super) struct CdiFiles {
    /// Kind and name of each device, with the file's name.
    devices: BTreeMap<(String, String), String>,
    faults: Vec<String>,
}

impl CdiFiles {
    /// Reads a directory as a runtime does.
    pub(super) fn read(dir: &Path) -> Self {
        let mut files = Self {
            devices: BTreeMap::new(),
            faults: Vec::new(),
        };
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_spec = [".json", ".yaml"].iter().any(|end| name.ends_with(end));
            if !is_spec || name.starts_with('.') {
                continue;
            }
            let parsed = match std::fs::read_to_string(entry.path()) {
                Ok(text) => files.add(&name, &text),
                Err(error) => Err(error.to_string()),
            };
            if let Err(fault) = parsed {
                files.faults.push(format!("{name}: {fault}"));
            }
        }
        files
    }

    fn add(&mut self, file: &str, content: &str) -> Result<(), String> {
        // YAML is a superset of what JSON files have.
        let spec: Value = serde_saphyr::from_str(content).map_err(|e| e.to_string())?;
        if text(&spec, "/cdiVersion").is_empty() {
            return Err("there is no cdiVersion".to_owned());
        }
        let kind = text(&spec, "/kind");
        if split_cdi(&format!("{kind}=x")).is_none() {
            return Err(format!("kind {kind:?} is not vendor/class"));
        }
        let devices = spec.get("devices").and_then(Value::as_array);
        for device in devices.ok_or("there are no devices")? {
            let name = text(device, "/name");
            if name.is_empty() {
                return Err("a device has no name".to_owned());
            }
            if !device["containerEdits"].is_object() {
                return Err(format!("device {name} has no containerEdits"));
            }
            let key = (kind.to_owned(), name.to_owned());
            if let Some(other) = self.devices.insert(key, file.to_owned()) {
                return Err(format!("device {name} is in {other}, too"));
            }
        }
        Ok(())
    }

    /// Whether the devices of an answer are there, and the files can be read.
    pub(super) fn check(&self, answer: &[v1::Device]) -> Result<String, String> {
        if let Some(fault) = self.faults.first() {
            return Err(fault.clone());
        }
        let names: Vec<&String> = answer.iter().flat_map(|d| &d.cdi_device_ids).collect();
        let mut files = BTreeSet::new();
        for name in &names {
            let key = split_cdi(name).map(|(kind, name)| (kind.to_owned(), name.to_owned()));
            match key.and_then(|key| self.devices.get(&key)) {
                Some(file) => files.insert(file.as_str()),
                None => return Err(format!("no CDI file has {name}")),
            };
        }
        Ok(match files.len() {
            0 => "no CDI device was named".to_owned(),
            _ => files.into_iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// The file or device that is named after a claim.
    pub(super) fn of_claim(&self, uid: &str) -> Option<String> {
        let named = |(key, file): (&(String, String), &String)| {
            let is_its = file.contains(uid) || key.1.contains(uid);
            is_its.then(|| format!("{}={} in {file}", key.0, key.1))
        };
        self.devices.iter().find_map(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(pool: &str, generation: i64, count: i64, devices: &[&str]) -> Value {
        let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": format!("{pool}-{generation}")}, "spec": {"nodeName": "n", "devices": devices,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}})
    }

    #[test]
    fn pools_are_whole_or_told() {
        let fault = |slices: &[Value]| check_pools(slices).unwrap_err();
        assert_eq!(fault(&[]), "there are no slices");
        assert!(fault(&[slice("p", 1, 2, &["a"])]).contains("says 2"));
        let twice = [slice("p", 1, 2, &["a"]), slice("p", 1, 2, &["a"])];
        assert_eq!(fault(&twice), "pool p has two devices a");
        let old = [slice("p", 1, 1, &["a"]), slice("p", 2, 1, &["a"])];
        assert_eq!(fault(&old), "1 slices of older generations are left");
        let fine = [slice("p", 2, 1, &["a", "b"]), slice("q", 1, 1, &["a"])];
        assert_eq!(
            check_pools(&fine).unwrap(),
            "3 devices in 2 pools, 2 slices"
        );
        assert_eq!(check_nodes(&fine, "n").unwrap(), "2 of 2 name the node");
        assert!(check_nodes(&fine, "m").is_err());
    }

    #[test]
    fn devices_that_can_be_had_together() {
        let slices = [
            json!({"spec": {"pool": {"name": "p", "generation": 1}, "devices": [
                {"name": "shared", "allowMultipleAllocations": true,
                 "capacity": {"m": {"value": "4Gi", "requestPolicy": {"default": "1Gi"}}}},
                {"name": "whole", "consumesCounters": [{"counterSet": "c"}]},
                {"name": "half", "consumesCounters": [{"counterSet": "c"}]},
                {"name": "hot", "taints": [{"key": "k", "effect": "NoSchedule"}]},
                {"name": "told", "taints": [{"key": "k", "effect": "None"}]},
            ]}}),
        ];
        let found = devices(&slices);
        let names =
            |list: &[&Device]| -> Vec<String> { list.iter().map(|d| d.name.clone()).collect() };
        assert_eq!(
            names(&found.iter().collect::<Vec<_>>()),
            ["whole", "half", "told", "shared"]
        );
        assert_eq!(names(&together(&found, 9)), ["whole", "told", "shared"]);
        assert_eq!(found[3].capacity["m"], "1Gi");
    }

    #[test]
    fn answers_name_what_is_allocated() {
        let device = &devices(&[slice("p", 1, 1, &["a"])])[0];
        let told = |name: &str, request: &str, cdi: &str| v1::Device {
            pool_name: "p".to_owned(),
            device_name: name.to_owned(),
            request_names: vec![request.to_owned()],
            cdi_device_ids: vec![cdi.to_owned()],
            share_id: None,
        };
        let check = |answer: &[v1::Device]| check_answer(answer, device, "r");
        assert_eq!(check(&[told("a", "r", "v/c=a")]).unwrap(), "v/c=a");
        assert!(check(&[]).unwrap_err().contains("nothing is told"));
        assert!(
            check(&[told("b", "r", "v/c=a")])
                .unwrap_err()
                .contains("p/a is allocated")
        );
        assert!(
            check(&[told("a", "s", "v/c=a")])
                .unwrap_err()
                .contains("no request")
        );
        assert!(
            check(&[told("a", "r", "a")])
                .unwrap_err()
                .contains("no name of a CDI")
        );
    }

    #[test]
    fn cdi_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("x.txt", "no");
        write(
            "uid-1.json",
            r#"{"cdiVersion": "0.6.0", "kind": "v/c", "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}]}"#,
        );
        let files = CdiFiles::read(dir.path());
        let answer = |name: &str| {
            [v1::Device {
                cdi_device_ids: vec![name.to_owned()],
                ..v1::Device::default()
            }]
        };
        assert_eq!(files.check(&answer("v/c=a")).unwrap(), "uid-1.json");
        assert_eq!(
            files.check(&answer("v/c=b")).unwrap_err(),
            "no CDI file has v/c=b"
        );
        assert_eq!(files.of_claim("uid-1").unwrap(), "v/c=a in uid-1.json");
        assert!(files.of_claim("uid-2").is_none());
        write("bad.yaml", "kind: v/c\ndevices: []\n");
        let files = CdiFiles::read(dir.path());
        let fault = files.check(&answer("v/c=a")).unwrap_err();
        assert_eq!(fault, "bad.yaml: there is no cdiVersion");
    }
}
