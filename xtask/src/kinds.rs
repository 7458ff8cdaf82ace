//! `cargo xtask kinds --from FILE`: turns a document of interface facts about the built-in kinds
//! into `crates/api/src/kinds.json`, the compact table that `davit-api` embeds.
//!
//! The output holds one resource or type per line so that a change of the interface is a readable
//! diff, and no string in it needs an escape so that the reader can borrow every one of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Facts {
    resources: Vec<Value>,
    kinds: Vec<FactKind>,
    types: BTreeMap<String, FactType>,
}

#[derive(Deserialize)]
struct FactKind {
    group: String,
    version: String,
    kind: String,
    #[serde(rename = "type")]
    type_name: String,
    namespaced: bool,
    introduced: Option<String>,
    deprecated: Option<String>,
    removed: Option<String>,
}

#[derive(Deserialize)]
struct FactType {
    kind: String,
    of: Option<String>,
    #[serde(default)]
    values: Vec<String>,
    #[serde(default, rename = "enum")]
    closed: bool,
    #[serde(default)]
    union: bool,
    #[serde(default)]
    fields: Vec<Map<String, Value>>,
}

/// Types that hold any JSON or one of two shapes and therefore have no fields of their own.
const OPAQUE: [(&str, &str); 5] = [
    ("apiextensions/v1.JSON", "any"),
    ("meta/v1.FieldsV1", "object"),
    ("apiextensions/v1.JSONSchemaPropsOrBool", "schemaOrBool"),
    ("apiextensions/v1.JSONSchemaPropsOrArray", "schemaOrArray"),
    (
        "apiextensions/v1.JSONSchemaPropsOrStringArray",
        "schemaOrStrings",
    ),
];

/// Values that the facts miss because upstream writes those constants as conversions of another type's.
const MISSING_VALUES: [(&str, &[&str]); 1] = [("discovery/v1.AddressType", &["IPv4", "IPv6"])];

/// Fields that upstream's JSON always shows, be they empty, though they need not be given: those without `omitempty`.
/// The facts tell only what must be given. Times are no part of it: see [`is_null_when_unset`].
const WRITTEN: [(&str, &[&str]); 47] = [
    ("admission/v1.AdmissionRequest", &["uid", "operation"]),
    ("admission/v1.AdmissionResponse", &["uid", "allowed"]),
    (
        "apiextensions/v1.CustomResourceDefinitionStatus",
        &["conditions", "storedVersions"],
    ),
    ("apps/v1.StatefulSetOrdinals", &["start"]),
    ("apps/v1.StatefulSetSpec", &["serviceName"]),
    ("apps/v1.StatefulSetStatus", &["availableReplicas"]),
    (
        "authentication/v1.TokenRequestSpec",
        &["audiences", "expirationSeconds", "boundObjectRef"],
    ),
    ("authentication/v1.TokenRequestStatus", &["token"]),
    (
        "autoscaling/v2.HorizontalPodAutoscalerStatus",
        &["currentMetrics"],
    ),
    (
        "batch/v1.PodFailurePolicyOnPodConditionsPattern",
        &["status"],
    ),
    (
        "certificates/v1beta1.CertificateSigningRequestCondition",
        &["status"],
    ),
    (
        "certificates/v1beta1.PodCertificateRequestSpec",
        &["pkixPublicKey", "proofOfPossession"],
    ),
    (
        "core/v1.AzureFilePersistentVolumeSource",
        &["secretNamespace"],
    ),
    ("core/v1.ContainerImage", &["names"]),
    (
        "core/v1.Event",
        &["reportingComponent", "reportingInstance"],
    ),
    ("core/v1.GRPCAction", &["service"]),
    ("core/v1.NodeRuntimeHandler", &["name"]),
    ("core/v1.ProjectedVolumeSource", &["sources"]),
    ("core/v1.TypedLocalObjectReference", &["apiGroup"]),
    ("core/v1.TypedObjectReference", &["apiGroup"]),
    ("discovery/v1.EndpointSlice", &["endpoints", "ports"]),
    ("flowcontrol/v1.FlowSchemaSpec", &["matchingPrecedence"]),
    (
        "flowcontrol/v1.LimitedPriorityLevelConfiguration",
        &["nominalConcurrencyShares"],
    ),
    (
        "flowcontrol/v1.QueuingConfiguration",
        &["queues", "handSize", "queueLengthLimit"],
    ),
    ("flowcontrol/v1.ResourcePolicyRule", &["namespaces"]),
    ("imagepolicy/v1alpha1.ImageReviewStatus", &["allowed"]),
    ("networking/v1.IngressClassParametersReference", &["scope"]),
    (
        "policy/v1.PodDisruptionBudgetStatus",
        &[
            "disruptionsAllowed",
            "currentHealthy",
            "desiredHealthy",
            "expectedPods",
        ],
    ),
    ("rbac/v1.ClusterRole", &["rules"]),
    ("rbac/v1.Role", &["rules"]),
    ("rbac/v1.RoleRef", &["apiGroup"]),
    ("resource/v1.AllocatedDeviceStatus", &["conditions"]),
    ("resource/v1.CapacityRequestPolicy", &["default"]),
    ("resource/v1.DeviceClaim", &["requests"]),
    ("resource/v1beta1.AllocatedDeviceStatus", &["conditions"]),
    ("resource/v1beta1.CapacityRequestPolicy", &["default"]),
    ("resource/v1beta1.DeviceClaim", &["requests"]),
    ("resource/v1beta1.DeviceRequest", &["deviceClassName"]),
    ("resource/v1beta2.AllocatedDeviceStatus", &["conditions"]),
    ("resource/v1beta2.CapacityRequestPolicy", &["default"]),
    ("resource/v1beta2.DeviceClaim", &["requests"]),
    ("scheduling/v1.PriorityClass", &["value"]),
    ("scheduling/v1alpha2.PodGroupSpec", &["podGroupTemplateRef"]),
    (
        "scheduling/v1alpha2.PodGroupTemplate",
        &["schedulingConstraints"],
    ),
    (
        "scheduling/v1alpha2.PodGroupTemplateReference",
        &["workload"],
    ),
    ("storage/v1.CSINodeDriver", &["topologyKeys"]),
    ("storage/v1beta1.CSINodeDriver", &["topologyKeys"]),
];

/// Lists of which upstream tells an empty one from none.
const EMPTY_COUNTS: [(&str, &[&str]); 1] = [("autoscaling/v2.HPAScalingRules", &["policies"])];

/// Lists, maps and pointers that must be given and that upstream's JSON leaves out all the same when they are not.
const OMITTED: [(&str, &[&str]); 16] = [
    (
        "admissionregistration/v1.ValidatingAdmissionPolicyBindingSpec",
        &["validationActions"],
    ),
    (
        "admissionregistration/v1alpha1.ValidatingAdmissionPolicyBindingSpec",
        &["validationActions"],
    ),
    (
        "admissionregistration/v1beta1.ValidatingAdmissionPolicyBindingSpec",
        &["validationActions"],
    ),
    (
        "apiserverinternal/v1alpha1.ServerStorageVersion",
        &["decodableVersions"],
    ),
    ("networking/v1.IPAddressSpec", &["parentRef"]),
    ("networking/v1beta1.IPAddressSpec", &["parentRef"]),
    ("resource/v1.CapacityRequestPolicyRange", &["min"]),
    ("resource/v1.CounterSet", &["counters"]),
    ("resource/v1.DeviceCounterConsumption", &["counters"]),
    (
        "resource/v1alpha3.ResourcePoolStatusRequestStatus",
        &["poolCount"],
    ),
    ("resource/v1beta1.CapacityRequestPolicyRange", &["min"]),
    ("resource/v1beta1.CounterSet", &["counters"]),
    ("resource/v1beta1.DeviceCounterConsumption", &["counters"]),
    ("resource/v1beta2.CapacityRequestPolicyRange", &["min"]),
    ("resource/v1beta2.CounterSet", &["counters"]),
    ("resource/v1beta2.DeviceCounterConsumption", &["counters"]),
];

/// When a kind is deprecated and when it ends, where upstream's generator derives it from the release that introduced it.
const LIFECYCLE: [(&str, &str, &str); 24] = [
    (
        "admissionregistration/v1alpha1.MutatingAdmissionPolicy",
        "1.35",
        "1.38",
    ),
    (
        "admissionregistration/v1alpha1.MutatingAdmissionPolicyBinding",
        "1.35",
        "1.38",
    ),
    (
        "admissionregistration/v1beta1.MutatingAdmissionPolicy",
        "1.37",
        "1.40",
    ),
    (
        "admissionregistration/v1beta1.MutatingAdmissionPolicyBinding",
        "1.37",
        "1.40",
    ),
    ("certificates/v1alpha1.ClusterTrustBundle", "1.34", "1.37"),
    ("certificates/v1beta1.ClusterTrustBundle", "1.37", "1.40"),
    ("certificates/v1beta1.PodCertificateRequest", "1.38", "1.41"),
    ("coordination/v1alpha2.LeaseCandidate", "1.35", "1.38"),
    ("coordination/v1beta1.LeaseCandidate", "1.36", "1.39"),
    ("networking/v1beta1.IPAddress", "1.34", "1.37"),
    ("networking/v1beta1.ServiceCIDR", "1.34", "1.37"),
    ("resource/v1alpha3.DeviceTaintRule", "1.36", "1.39"),
    (
        "resource/v1alpha3.ResourcePoolStatusRequest",
        "1.39",
        "1.42",
    ),
    ("resource/v1beta1.DeviceClass", "1.35", "1.38"),
    ("resource/v1beta1.ResourceClaim", "1.35", "1.38"),
    ("resource/v1beta1.ResourceClaimTemplate", "1.35", "1.38"),
    ("resource/v1beta1.ResourceSlice", "1.35", "1.38"),
    ("resource/v1beta2.DeviceClass", "1.36", "1.39"),
    ("resource/v1beta2.DeviceTaintRule", "1.39", "1.42"),
    ("resource/v1beta2.ResourceClaim", "1.36", "1.39"),
    ("resource/v1beta2.ResourceClaimTemplate", "1.36", "1.39"),
    ("resource/v1beta2.ResourceSlice", "1.36", "1.39"),
    ("storage/v1beta1.VolumeAttributesClass", "1.34", "1.37"),
    (
        "storagemigration/v1beta1.StorageVersionMigration",
        "1.38",
        "1.41",
    ),
];

/// What upstream names as used instead.
const REPLACEMENT: [(&str, &str); 3] = [
    (
        "admissionregistration/v1beta1.MutatingAdmissionPolicy",
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy",
    ),
    (
        "admissionregistration/v1beta1.MutatingAdmissionPolicyBinding",
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding",
    ),
    (
        "storage/v1beta1.VolumeAttributesClass",
        "storage.k8s.io/v1 VolumeAttributesClass",
    ),
];

/// What the subresources take that connect, of which the facts have the kind that they are part of.
const CONNECTIONS: [(&str, &str, &str); 6] = [
    ("Node", "proxy", "NodeProxyOptions"),
    ("Pod", "attach", "PodAttachOptions"),
    ("Pod", "exec", "PodExecOptions"),
    ("Pod", "portforward", "PodPortForwardOptions"),
    ("Pod", "proxy", "PodProxyOptions"),
    ("Service", "proxy", "ServiceProxyOptions"),
];

/// Reads the facts and writes the table.
pub(crate) fn run(from: &Path, to: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(from).with_context(|| format!("reading {}", from.display()))?;
    let mut facts: Facts =
        serde_json::from_str(&text).context("facts are not in the known form")?;
    for (name, values) in MISSING_VALUES {
        let fact = facts
            .types
            .get_mut(name)
            .with_context(|| format!("no type {name}"))?;
        let missing = values
            .iter()
            .filter(|v| !fact.values.iter().any(|known| known == *v));
        let missing: Vec<String> = missing.map(|v| (*v).to_owned()).collect();
        fact.values.extend(missing);
    }
    add_classic_claims(&mut facts)?;
    add_resource_metrics(&mut facts)?;
    let table = render(&facts)?;
    std::fs::write(to, table).with_context(|| format!("writing {}", to.display()))
}

/// Until 1.30 pods nested the reference to a claim under `source`; such pods are still accepted.
fn add_classic_claims(facts: &mut Facts) -> Result<()> {
    let entry = facts
        .types
        .get_mut("core/v1.PodResourceClaim")
        .context("no type core/v1.PodResourceClaim")?;
    let member = |name: &str, proto: u32, of: &str| -> Map<String, Value> {
        let mut member = Map::new();
        member.insert("name".into(), json!(name));
        member.insert("nullable".into(), json!(true));
        member.insert("proto".into(), json!(proto));
        member.insert("type".into(), json!(of));
        member
    };
    entry
        .fields
        .push(member("source", 2, "core/v1.ClaimSource"));
    let source = FactType {
        kind: entry.kind.clone(),
        of: None,
        values: Vec::new(),
        closed: false,
        union: false,
        fields: vec![
            member("resourceClaimName", 1, "string"),
            member("resourceClaimTemplateName", 2, "string"),
        ],
    };
    facts.types.insert("core/v1.ClaimSource".to_owned(), source);
    Ok(())
}

/// `metrics.k8s.io/v1beta1` (k8s.io/metrics), which is no part of kube-apiserver and therefore not among the facts.
fn add_resource_metrics(facts: &mut Facts) -> Result<()> {
    const PACKAGE: &str = "metrics/v1beta1";
    let kinds = [
        ("nodes", "NodeMetrics", false),
        ("pods", "PodMetrics", true),
    ];
    for (plural, kind, namespaced) in kinds {
        let type_name = format!("{PACKAGE}.{kind}");
        let last = match kind {
            "NodeMetrics" => {
                json!({"name": "usage", "type": "core/v1.ResourceList", "proto": 4, "required": true})
            }
            _ => {
                json!({"name": "containers", "type": "[]metrics/v1beta1.ContainerMetrics", "proto": 4, "required": true,
                "listType": "atomic"})
            }
        };
        add_type(
            facts,
            &type_name,
            json!([
                {"type": "meta/v1.TypeMeta", "inline": true},
                {"name": "metadata", "type": "meta/v1.ObjectMeta", "proto": 1},
                {"name": "timestamp", "type": "time", "proto": 2, "required": true},
                {"name": "window", "type": "duration", "proto": 3, "required": true},
                last,
            ]),
        )?;
        add_type(
            facts,
            &format!("{type_name}List"),
            json!([
                {"type": "meta/v1.TypeMeta", "inline": true},
                {"name": "metadata", "type": "meta/v1.ListMeta", "proto": 1},
                {"name": "items", "type": format!("[]{type_name}"), "proto": 2, "required": true},
            ]),
        )?;
        facts.kinds.push(FactKind {
            group: "metrics.k8s.io".to_owned(),
            version: "v1beta1".to_owned(),
            kind: kind.to_owned(),
            type_name,
            namespaced,
            introduced: None,
            deprecated: None,
            removed: None,
        });
        facts.resources.push(
            json!({"group": "metrics.k8s.io", "version": "v1beta1", "plural": plural, "kind": kind,
            "namespaced": namespaced, "verbs": ["get", "list"]}),
        );
    }
    add_type(
        facts,
        &format!("{PACKAGE}.ContainerMetrics"),
        json!([
            {"name": "name", "type": "string", "proto": 1, "required": true},
            {"name": "usage", "type": "core/v1.ResourceList", "proto": 2, "required": true},
        ]),
    )?;
    let key = |row: &Value| {
        ["group", "version", "plural"].map(|key| row[key].as_str().map(str::to_owned))
    };
    facts.resources.sort_by_key(key);
    Ok(())
}

/// Adds a type with these fields.
fn add_type(facts: &mut Facts, name: &str, fields: Value) -> Result<()> {
    let added = FactType {
        kind: "struct".to_owned(),
        of: None,
        values: Vec::new(),
        closed: false,
        union: false,
        fields: serde_json::from_value(fields)?,
    };
    facts.types.insert(name.to_owned(), added);
    Ok(())
}

fn render(facts: &Facts) -> Result<String> {
    let mut out = String::from("{\"resources\":[\n");
    let rows: Vec<String> = facts
        .resources
        .iter()
        .map(|r| resource(r, facts).map(|v| v.to_string()))
        .collect::<Result<_>>()?;
    out.push_str(&rows.join(",\n"));
    out.push_str("\n],\"kinds\":[\n");
    let kinds: Vec<String> = facts
        .kinds
        .iter()
        .map(|k| {
            let mut row = Map::new();
            row.insert("group".into(), json!(k.group));
            row.insert("version".into(), json!(k.version));
            row.insert("kind".into(), json!(k.kind));
            row.insert("type".into(), json!(k.type_name));
            if k.namespaced {
                row.insert("namespaced".into(), json!(true));
            }
            Value::Object(row).to_string()
        })
        .collect();
    out.push_str(&kinds.join(",\n"));
    out.push_str("\n],\"types\":{\n");
    let mut types = Vec::new();
    for (name, fact) in &facts.types {
        if let Some(def) = type_def(name, fact, facts)? {
            let mut line = String::new();
            write!(line, "\"{name}\":{def}")?;
            types.push(line);
        }
    }
    out.push_str(&types.join(",\n"));
    out.push_str("\n}}\n");
    if out.contains('\\') {
        bail!("the table would need a string escape, which its reader cannot borrow");
    }
    Ok(out)
}

fn split_gvk(text: &str) -> Result<(&str, &str, &str)> {
    let (gv, kind) = text
        .rsplit_once('.')
        .with_context(|| format!("no kind in {text}"))?;
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    Ok((group, version, kind))
}

fn resource(fact: &Value, facts: &Facts) -> Result<Value> {
    let mut row = fact.as_object().context("resource is no object")?.clone();
    let text = |k: &str| {
        fact[k]
            .as_str()
            .with_context(|| format!("resource without {k}"))
    };
    let (group, version, kind) = (text("group")?, text("version")?, text("kind")?);
    let top = facts
        .kinds
        .iter()
        .find(|k| k.group == group && k.version == version && k.kind == kind)
        .with_context(|| format!("kind {group}/{version} {kind} is not described"))?;
    row.insert("type".into(), json!(top.type_name));
    let derived = LIFECYCLE.iter().find(|(name, ..)| *name == top.type_name);
    let replacement = REPLACEMENT.iter().find(|(name, _)| *name == top.type_name);
    for (key, value) in [
        ("introduced", top.introduced.as_deref()),
        (
            "deprecated",
            derived.map(|row| row.1).or(top.deprecated.as_deref()),
        ),
        (
            "removed",
            derived.map(|row| row.2).or(top.removed.as_deref()),
        ),
        ("replacement", replacement.map(|row| row.1)),
    ] {
        if let Some(value) = value {
            row.insert(key.into(), json!(value));
        }
    }
    if let Some(Value::Object(subs)) = row.remove("subresources") {
        let mut list = Vec::new();
        for (name, sub) in subs {
            let gvk = sub["kind"].as_str().context("subresource without kind")?;
            let (group, version, of) = split_gvk(gvk)?;
            let mut options = CONNECTIONS.iter();
            let options = options.find(|(owner, taken, _)| *owner == kind && *taken == name);
            let kind = options.map_or(of, |(_, _, options)| *options);
            list.push(json!({"name": name, "group": group, "version": version, "kind": kind, "verbs": sub["verbs"]}));
        }
        row.insert("subresources".into(), Value::Array(list));
    }
    Ok(Value::Object(row))
}

fn type_def(name: &str, fact: &FactType, facts: &Facts) -> Result<Option<Value>> {
    if let Some((_, shape)) = OPAQUE.iter().find(|(n, _)| *n == name) {
        return Ok(Some(json!({ "opaque": shape })));
    }
    if fact.kind == "alias" {
        let of = fact.of.as_deref().context("alias of nothing")?;
        // Go interfaces and internal types never appear on the wire.
        if of == "any" || of.contains(".io/") && of.contains("pkg/") {
            return Ok(None);
        }
        let of = if of == "int" { "int64" } else { of };
        let mut def = Map::new();
        def.insert("alias".into(), json!(of));
        if !fact.values.is_empty() {
            def.insert("values".into(), json!(fact.values));
        }
        if fact.closed {
            def.insert("closed".into(), json!(true));
        }
        return Ok(Some(Value::Object(def)));
    }
    let mut fields = Vec::new();
    for f in &fact.fields {
        fields.push(field(name, f, facts)?);
    }
    let mut def = Map::new();
    def.insert("fields".into(), Value::Array(fields));
    if fact.union {
        def.insert("union".into(), json!(true));
    }
    Ok(Some(Value::Object(def)))
}

fn field(owner: &str, fact: &Map<String, Value>, facts: &Facts) -> Result<Value> {
    let mut out = Map::new();
    for (key, value) in fact {
        match key.as_str() {
            "default" => {
                let text = value.as_str().context("default is no text")?;
                out.insert("default".into(), default_value(owner, text, fact, facts)?);
            }
            "validation" => {
                if let Some(rules) = validation(value)? {
                    out.insert("validation".into(), rules);
                }
            }
            "patchStrategy" => {
                let list: Vec<&str> = value.as_str().unwrap_or("").split(',').collect();
                out.insert("patchStrategy".into(), json!(list));
            }
            "name" | "type" | "proto" | "nullable" | "inline" | "required" | "listType"
            | "listMapKeys" | "mapType" | "structType" | "patchMergeKey" => {
                out.insert(key.clone(), value.clone());
            }
            other => bail!("{owner}: unknown field property {other}"),
        }
    }
    let name = fact.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_among = |table: &[(&str, &[&str])]| {
        let row = table.iter().find(|(of, _)| *of == owner);
        row.is_some_and(|(_, names)| names.contains(&name))
    };
    if is_among(&WRITTEN) || is_null_when_unset(fact, facts) && !is_among(&OMITTED) {
        out.insert("written".into(), json!(true));
    }
    if is_among(&EMPTY_COUNTS) {
        out.insert("nullable".into(), json!(true));
    }
    Ok(Value::Object(out))
}

/// Whether upstream writes null for a field that nobody gave: times, which Go's `omitempty` does not leave out (only
/// `metadata.creationTimestamp` has more than that), and lists, maps, bytes and pointers that must be given; the items of a list of objects always are.
fn is_null_when_unset(fact: &Map<String, Value>, facts: &Facts) -> bool {
    let is_true = |key: &str| fact.get(key) == Some(&json!(true));
    let is_required = is_true("required");
    if is_true("nullable") {
        return is_required;
    }
    let mut ty = fact["type"].as_str().unwrap_or_default();
    while let Some(of) = facts.types.get(ty).and_then(|alias| alias.of.as_deref()) {
        ty = of;
    }
    if fact.get("name") == Some(&json!("items")) {
        return false;
    }
    match ty {
        "time" | "microtime" => fact.get("name") != Some(&json!("creationTimestamp")),
        ty => is_required && (ty == "bytes" || ty.starts_with("[]") || ty.starts_with("map[")),
    }
}

/// A default is JSON text or `ref(Constant)`, whose constant is the type name without the
/// package's common prefix followed by the value.
fn default_value(
    owner: &str,
    text: &str,
    fact: &Map<String, Value>,
    facts: &Facts,
) -> Result<Value> {
    let Some(constant) = text.strip_prefix("ref(").and_then(|t| t.strip_suffix(')')) else {
        return serde_json::from_str(text).with_context(|| format!("{owner}: default {text}"));
    };
    let alias = fact["type"].as_str().unwrap_or_default();
    let values = &facts
        .types
        .get(alias)
        .with_context(|| format!("{owner}: default of unknown type {alias}"))?
        .values;
    let value = values
        .iter()
        .filter(|v| constant.contains(v.as_str()))
        .max_by_key(|v| v.len())
        .with_context(|| format!("{owner}: constant {constant} is none of {values:?}"))?;
    Ok(json!(value))
}

/// Declared limits, without those that stand behind feature gates that are off.
fn validation(rules: &Value) -> Result<Option<Value>> {
    let mut out = Map::new();
    let mut keys = Vec::new();
    for rule in rules.as_array().context("validation is no list")? {
        let rule = rule.as_str().context("validation rule is no text")?;
        let rule = match rule
            .strip_prefix("ifDisabled(")
            .and_then(|r| r.split_once(")=+"))
        {
            Some((_, rest)) => rest,
            None => rule,
        };
        let (name, value) = rule.split_once('=').unwrap_or((rule, ""));
        let value = value.trim_matches('"');
        match name {
            "minimum" | "maximum" | "maxItems" | "maxLength" | "maxBytes" => {
                let n: i64 = value.parse().with_context(|| format!("limit {rule}"))?;
                out.insert(name.into(), json!(n));
            }
            "format" | "oneOf" | "unique" => {
                out.insert(name.into(), json!(value));
            }
            "eachKey" => {
                if let Some(format) = value.strip_prefix("+format=") {
                    out.insert("eachKeyFormat".into(), json!(format));
                }
            }
            "update" if value == "NoModify" => {
                out.insert("noModify".into(), json!(true));
            }
            "immutable" | "unionMember" | "unionDiscriminator" => {
                out.insert(name.into(), json!(true));
            }
            "listMapKey" => keys.push(value.to_owned()),
            "featureGate" => {
                let gates: Vec<&str> = value.split(',').collect();
                out.insert("featureGates".into(), json!(gates));
            }
            // Said elsewhere in the table, or conditional on other fields and checked by code.
            _ => {}
        }
    }
    if out.contains_key("unique") && !keys.is_empty() {
        out.insert("uniqueKeys".into(), json!(keys));
    }
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}
