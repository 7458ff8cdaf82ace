//! `cargo xtask layers`: a crate may depend only on crates of lower layers, or on those above it in its own layer.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::process::Command;

/// The table of the design: layers from the bottom up, crates of a layer in the order in which they may use each other.
const LAYERS: &[(&str, &[&str])] = &[
    ("words", &["davit-api", "davit-proto", "davit-task"]),
    (
        "cores",
        &[
            "davit-schema",
            "davit-cel",
            "davit-topology",
            "davit-allocator",
            "davit-podrequests",
            "davit-schedulerconfig",
            "davit-netplan",
            "davit-autoscaling",
            "davit-volume",
            "davit-podinfo",
            "davit-validationrules",
            "davit-strategy",
            "davit-console",
        ],
    ),
    (
        "mechanisms",
        &[
            "davit-beneath",
            "davit-store",
            "davit-watchcache",
            "davit-encryption",
            "davit-etcd",
            "davit-kubestore",
            "davit-client",
            "davit-coordination",
            "davit-certificates",
            "davit-webhook",
            "davit-access",
            "davit-registry",
            "davit-admission",
            "davit-audit",
            "davit-flowcontrol",
            "davit-pki",
            "davit-listen",
            "davit-serving",
            "davit-streaming",
            "davit-net",
            "davit-dns",
            "davit-csi",
            "davit-flexvolume",
            "davit-disk",
            "davit-pods",
            "davit-podvolumes",
            "davit-containermanager",
            "davit-oci",
            "davit-podimages",
            "davit-cadvisor",
            "davit-nodelogs",
            "davit-machine",
            "davit-reconcile",
            "davit-devicecontrollers",
            "davit-volumecontrollers",
            "davit-volumecache",
        ],
    ),
    (
        "components",
        &[
            "davit-apiserver",
            "davit-scheduler",
            "davit-controllers",
            "davit-node",
            "davit-network",
        ],
    ),
    ("for others", &["davit-sdk", "davit-lab", "davit-testing"]),
    (
        "drivers",
        &[
            "example-device",
            "example-gpu",
            "host-devices",
            "classic-test",
        ],
    ),
    ("binary", &["davit"]),
];

/// Components meet only through the API.
const COMPONENTS: &str = "components";

/// What the SDK may use: it is to be published alone.
const SDK_MAY_USE: &[&str] = &["davit-api", "davit-proto"];

/// Folders whose packages may use anything: they are tools and tests.
const TOOLS: &[&str] = &["xtask", "davit-fuzz", "davit-simulation"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

/// Checks the workspace; the error lists every edge that goes the wrong way.
pub(crate) fn run() -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cargo metadata answer")?;
    let edges = metadata.packages.iter().flat_map(|package| {
        let ours = package
            .dependencies
            .iter()
            .filter(|d| d.path.is_some() && d.kind.as_deref() != Some("dev"));
        ours.map(|d| (package.name.as_str(), d.name.as_str()))
    });
    let wrong: Vec<String> = edges.filter_map(|(from, to)| objection(from, to)).collect();
    if wrong.is_empty() {
        println!("layers: {} packages in order", metadata.packages.len());
        return Ok(());
    }
    bail!("dependencies against the layers:\n  {}", wrong.join("\n  "))
}

/// Why `from` may not depend on `to`, if it may not.
fn objection(from: &str, to: &str) -> Option<String> {
    if TOOLS.contains(&from) {
        return None;
    }
    let (Some(user), Some(used)) = (place(from), place(to)) else {
        return Some(format!("{from} -> {to}: not in the table of layers"));
    };
    if from == "davit-sdk" && !SDK_MAY_USE.contains(&to) {
        return Some(format!(
            "{from} -> {to}: the SDK uses {} only",
            SDK_MAY_USE.join(" and ")
        ));
    }
    let both_components = user.0 == used.0 && LAYERS[user.0].0 == COMPONENTS;
    if both_components {
        return Some(format!(
            "{from} -> {to}: components meet only through the API"
        ));
    }
    (used >= user).then(|| {
        format!(
            "{from} ({}) -> {to} ({})",
            LAYERS[user.0].0, LAYERS[used.0].0
        )
    })
}

fn place(name: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, (_, crates))| {
        crates
            .iter()
            .position(|c| *c == name)
            .map(|position| (layer, position))
    })
}

#[cfg(test)]
mod tests {
    use super::objection;

    #[test]
    fn edges_down_are_fine_and_edges_up_or_across_are_not() {
        assert_eq!(objection("davit-node", "davit-topology"), None);
        assert_eq!(objection("davit-oci", "davit-proto"), None);
        assert_eq!(objection("xtask", "davit"), None);
        assert!(objection("davit-api", "davit-proto").is_some());
        assert!(objection("davit-node", "davit-scheduler").is_some());
        assert!(objection("davit-sdk", "davit-client").is_some());
        assert!(objection("davit-store", "davit-apiserver").is_some());
    }
}
