//! Pods stay five minutes on a node that stops answering, unless they say otherwise.

use davit_api::status::Status;
use serde_json::{Value, json};

use super::{Attributes, Mutating, Operation};

const KEYS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
const SECONDS: i64 = 300;

pub(super) struct DefaultTolerationSeconds;

impl Mutating for DefaultTolerationSeconds {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
        let Some(pod) = object.filter(|_| writes && attributes.is("", "pods")) else {
            return Ok(());
        };
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(());
        };
        let held = spec
            .get("tolerations")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let mut tolerations = held.clone();
        for key in KEYS {
            if !held.iter().any(|toleration| tolerates(toleration, key)) {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": SECONDS,
                }));
            }
        }
        if tolerations.len() != held.len() {
            spec.insert("tolerations".to_owned(), Value::Array(tolerations));
        }
        Ok(())
    }
}

fn tolerates(toleration: &Value, key: &str) -> bool {
    let text = |name: &str| toleration[name].as_str().unwrap_or_default();
    (text("key") == key || text("key").is_empty())
        && (text("effect") == "NoExecute" || text("effect").is_empty())
}
