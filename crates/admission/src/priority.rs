//! Priority class names of pods and pod groups become numbers; only one class is the default.

use std::sync::Arc;

use davit_api::features::GROUP_PREEMPTION;
use davit_api::status::Status;
use serde_json::{Value, json};

use super::{Attributes, Mutating, Operation, Validating, forbidden};

const GROUP: &str = "scheduling.k8s.io";
const PLURAL: &str = "priorityclasses";

/// Name, value and description of the classes every cluster has.
pub const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

pub(super) struct Priority;

impl Mutating for Priority {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else {
            return Ok(());
        };
        if is_new_group(attributes) {
            return set_group_priority(attributes, object).await;
        }
        if !attributes.is("", "pods") {
            return Ok(());
        }
        let pod = object;
        match attributes.operation {
            Operation::Create => set_priority(attributes, pod).await,
            Operation::Update => {
                keep_priority(pod, attributes.old);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// An update that leaves the computed fields out means the ones the pod has.
fn keep_priority(pod: &mut Value, old: Option<&Value>) {
    let Some(old) = old.and_then(|old| old.get("spec")) else {
        return;
    };
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["priority", "preemptionPolicy"] {
        if let Some(held) = old.get(field)
            && spec.get(field).is_none_or(Value::is_null)
        {
            spec.insert(field.to_owned(), held.clone());
        }
    }
}

/// Whether a pod group is being made that has a priority of its own (KEP-5710).
fn is_new_group(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, "podgroups")
        && attributes.operation == Operation::Create
        && attributes.server.features().is_on(GROUP_PREEMPTION)
}

/// The class that a pod or a group names, or the default, and its value: 0 without any.
async fn class_of(
    attributes: &Attributes<'_>,
    object: &Value,
) -> Result<(Option<Arc<Value>>, i64), Status> {
    let asked = object.pointer("/spec/priorityClassName");
    let asked = asked.and_then(Value::as_str).unwrap_or_default();
    let class = if asked.is_empty() {
        default_class(attributes).await?.map(Arc::new)
    } else {
        let class = attributes.server.object(GROUP, PLURAL, "", asked).await?;
        let Some(class) = class else {
            let why = format!("no PriorityClass with name {asked} was found");
            return Err(forbidden(attributes, Some(object), why));
        };
        Some(class)
    };
    let value = class.as_ref().and_then(|class| class["value"].as_i64());
    Ok((class, value.unwrap_or(0)))
}

/// Enters the name of the class and its value.
fn enter(object: &mut Value, class: Option<Arc<Value>>, value: i64) {
    let name = class.and_then(|class| class.pointer("/metadata/name").cloned());
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        if let Some(name) = name {
            spec.insert("priorityClassName".to_owned(), name);
        }
        spec.insert("priority".to_owned(), json!(value));
    }
}

async fn set_group_priority(attributes: &Attributes<'_>, group: &mut Value) -> Result<(), Status> {
    let (class, value) = class_of(attributes, group).await?;
    if let Some(sent) = group.pointer("/spec/priority").and_then(Value::as_i64)
        && sent != value
    {
        let why = format!(
            "priority set in the pod group ({sent}) must match the priority computed ({value}) based on the priority \
             class set in the spec"
        );
        return Err(forbidden(attributes, Some(group), why));
    }
    enter(group, class, value);
    Ok(())
}

async fn set_priority(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), Status> {
    let (class, value) = class_of(attributes, pod).await?;
    let policy = class
        .as_ref()
        .and_then(|class| class["preemptionPolicy"].as_str())
        .unwrap_or("PreemptLowerPriority")
        .to_owned();
    if let Some(sent) = pod.pointer("/spec/priority").and_then(Value::as_i64)
        && sent != value
    {
        let why = format!(
            "the integer value of priority ({sent}) must not be provided in pod spec; priority \
             admission controller computed {value} from the given PriorityClass name"
        );
        return Err(forbidden(attributes, Some(pod), why));
    }
    if let Some(sent) = pod
        .pointer("/spec/preemptionPolicy")
        .and_then(Value::as_str)
        && sent != policy
    {
        let why = format!(
            "the string value of PreemptionPolicy ({sent}) must not be provided in pod spec; \
             priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(forbidden(attributes, Some(pod), why));
    }
    enter(pod, class, value);
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("preemptionPolicy".to_owned(), json!(policy));
    }
    Ok(())
}

/// The global default; of several (made before one another was visible) the lowest.
async fn default_class(attributes: &Attributes<'_>) -> Result<Option<Value>, Status> {
    let classes = attributes.server.objects(GROUP, PLURAL, None).await?;
    Ok(classes
        .into_iter()
        .filter(|class| class["globalDefault"].as_bool() == Some(true))
        .min_by_key(|class| class["value"].as_i64().unwrap_or(0)))
}

pub(super) struct OneDefaultClass;

impl Validating for OneDefaultClass {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(class) = object.filter(|_| attributes.is(GROUP, PLURAL)) else {
            return Ok(());
        };
        if class["globalDefault"].as_bool() != Some(true) {
            return Ok(());
        }
        if let Some(held) = default_class(attributes).await? {
            let held = held
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let own = class
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if held != own {
                let why = format!(
                    "PriorityClass {held} is already marked as default. Only one default can exist"
                );
                return Err(forbidden(attributes, Some(class), why));
            }
        }
        Ok(())
    }
}
