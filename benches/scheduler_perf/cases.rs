//! The cases of scheduler_perf: files `performance-config.yaml`, each case a sequence of operations with workloads that give
//! their parameters.
//!
//! What is not understood is an error of the workload that has it, never passed over.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) feature_gates: BTreeMap<String, bool>,
    pub(crate) scheduler_config_path: Option<String>,
    pub(crate) default_pod_template_path: Option<String>,
    workload_template: Vec<Value>,
    pub(crate) workloads: Vec<Workload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Workload {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) feature_gates: BTreeMap<String, bool>,
    #[serde(default)]
    pub(crate) labels: Vec<String>,
    #[serde(default)]
    params: BTreeMap<String, Value>,
}

/// A file of cases, with the folder that its templates are named from.
pub(crate) struct CaseFile {
    pub(crate) dir: PathBuf,
    pub(crate) cases: Vec<Case>,
}

/// All cases below the folder of scheduler_perf.
pub(crate) fn read_all(root: &Path) -> Result<Vec<CaseFile>> {
    let mut files = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = std::fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.ends_with("performance-config.yaml") {
                let text = std::fs::read_to_string(&path)?;
                let cases = serde_saphyr::from_str(&text);
                let cases = cases.with_context(|| path.display().to_string())?;
                let dir = dir.clone();
                files.push(CaseFile { dir, cases });
            }
        }
    }
    files.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(files)
}

/// One step, with its parameters filled in.
#[derive(Debug, Deserialize)]
#[serde(tag = "opcode", rename_all = "camelCase")]
pub(crate) enum Operation {
    CreateNodes(CreateNodes),
    CreateNamespaces(CreateNamespaces),
    CreatePods(CreatePods),
    CreatePodSets(CreatePodSets),
    CreateAny(CreateAny),
    CreateResourceDriver(CreateResourceDriver),
    AllocResourceClaims(AllocResourceClaims),
    DeletePods(DeletePods),
    Churn(Churn),
    Barrier(Barrier),
    StartCollectingMetrics(StartCollectingMetrics),
    StopCollectingMetrics(StopCollectingMetrics),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNodes {
    pub(crate) count: usize,
    pub(crate) node_template_path: Option<String>,
    pub(crate) label_node_prepare_strategy: Option<NodeLabel>,
    pub(crate) unique_node_label_strategy: Option<UniqueNodeLabel>,
}

/// The nodes have the values in turn.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NodeLabel {
    pub(crate) label_key: String,
    pub(crate) label_values: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UniqueNodeLabel {
    pub(crate) label_key: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNamespaces {
    pub(crate) prefix: String,
    pub(crate) count: usize,
    pub(crate) namespace_template_path: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreatePods {
    pub(crate) count: usize,
    /// Each pod that has a node is deleted and another one made, for so long.
    #[serde(default)]
    pub(crate) steady_state: bool,
    pub(crate) duration: Option<String>,
    #[serde(default)]
    pub(crate) collect_metrics: bool,
    #[serde(default)]
    pub(crate) skip_wait_to_completion: bool,
    pub(crate) namespace: Option<String>,
    pub(crate) pod_template_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreatePodSets {
    pub(crate) count: usize,
    pub(crate) namespace_prefix: String,
    pub(crate) create_pods_op: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateAny {
    #[serde(default = "one")]
    pub(crate) count: usize,
    pub(crate) namespace: Option<String>,
    pub(crate) template_path: String,
}

fn one() -> usize {
    1
}

/// Slices of so many devices on nodes that match.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateResourceDriver {
    pub(crate) driver_name: String,
    pub(crate) nodes: String,
    pub(crate) max_claims_per_node: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AllocResourceClaims {
    pub(crate) namespace: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DeletePods {
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) skip_wait_to_completion: bool,
    #[serde(default)]
    pub(crate) delete_pods_per_second: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Churn {
    pub(crate) mode: ChurnMode,
    #[serde(default)]
    pub(crate) number: usize,
    #[serde(default = "half_a_second")]
    pub(crate) interval_milliseconds: u64,
    pub(crate) namespace: Option<String>,
    pub(crate) template_paths: Vec<String>,
}

fn half_a_second() -> u64 {
    500
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ChurnMode {
    /// Up to a number, then nothing more.
    Create,
    /// Up to a number, then these are deleted and made again.
    Recreate,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Barrier {
    #[serde(default)]
    pub(crate) namespaces: Vec<String>,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) stage_requirement: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Stage {
    #[default]
    Scheduled,
    Attempted,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StartCollectingMetrics {
    #[expect(dead_code, reason = "there is one row a workload")]
    pub(crate) name: Option<String>,
    pub(crate) namespaces: Vec<String>,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StopCollectingMetrics {}

impl Case {
    /// The steps of a workload.
    pub(crate) fn operations(&self, workload: &Workload) -> Result<Vec<Operation>> {
        let steps = self.workload_template.iter();
        steps.map(|step| operation(step, workload)).collect()
    }

    /// The gates of a workload.
    pub(crate) fn gates(&self, workload: &Workload) -> BTreeMap<String, bool> {
        let mut gates = self.feature_gates.clone();
        gates.extend(workload.feature_gates.clone());
        gates
    }
}

/// A step whose `…Param` fields have become the fields that they stand for.
pub(crate) fn operation(step: &Value, workload: &Workload) -> Result<Operation> {
    let step = with_parameters(step, workload)?;
    let what = step["opcode"].clone();
    serde_json::from_value(step).with_context(|| format!("operation {what}"))
}

fn with_parameters(step: &Value, workload: &Workload) -> Result<Value> {
    let Value::Object(fields) = step else {
        bail!("operation {step} is no object");
    };
    let mut filled = serde_json::Map::new();
    for (key, value) in fields {
        let parameter = key.strip_suffix("Param");
        let name = value.as_str().and_then(|name| name.strip_prefix('$'));
        let (key, value) = match (parameter, name) {
            (Some(key), Some(name)) => {
                let value = workload.params.get(name);
                (
                    key,
                    value.with_context(|| format!("parameter {name} is not given"))?,
                )
            }
            _ => (key.as_str(), value),
        };
        filled.insert(key.to_owned(), value.clone());
    }
    Ok(Value::Object(filled))
}

impl CreatePodSets {
    pub(crate) fn pods(&self, workload: &Workload) -> Result<CreatePods> {
        match operation(&self.create_pods_op, workload)? {
            Operation::CreatePods(pods) => Ok(pods),
            other => bail!("{other:?} in createPodSets"),
        }
    }
}

impl CreatePods {
    pub(crate) fn duration(&self) -> Result<Duration> {
        let text = self
            .duration
            .as_deref()
            .context("a steady state without duration")?;
        let nanos = davit_api::time::parse_duration(text).context("duration")?;
        Ok(Duration::from_nanos(nanos.try_into().context("duration")?))
    }
}
