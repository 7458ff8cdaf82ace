//! Taints of nodes and the tolerations of pods, as scheduler, controllers and nodes judge them alike
//! (<https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>).

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether the toleration covers the taint, as `ToleratesTaint` of Kubernetes has it: what a toleration leaves empty fits all,
/// but its value, which is compared unless the operator is `Exists`.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let fits = |wanted: Option<&str>, is: &str| {
        let wanted = wanted.unwrap_or_default();
        wanted.is_empty() || wanted == is
    };
    let value = || {
        toleration.value.as_deref().unwrap_or_default()
            == taint.value.as_deref().unwrap_or_default()
    };
    fits(toleration.effect.as_deref(), &taint.effect)
        && fits(toleration.key.as_deref(), &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => value(),
            "Exists" => true,
            _ => false,
        }
}

/// The first taint with one of the effects that no toleration covers.
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'a Taint> {
    let concerns = |taint: &&Taint| effects.contains(&taint.effect.as_str());
    taints
        .iter()
        .filter(concerns)
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_left_empty_fits_all() {
        let taint: Taint = serde_json::from_value(json!({
            "key": "gpu", "value": "a", "effect": "NoSchedule"}))
        .unwrap();
        for (toleration, covered) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "value": "a"}), true),
            (json!({"key": "gpu", "operator": "", "value": "a"}), true),
            (
                json!({"key": "gpu", "operator": "Equal", "value": "b"}),
                false,
            ),
            (json!({"key": "gpu", "operator": "Equal"}), false),
            (json!({"key": "cpu", "operator": "Exists"}), false),
            (
                json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
                false,
            ),
            (
                json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
                true,
            ),
            (
                json!({"key": "gpu", "operator": "Like", "value": "a"}),
                false,
            ),
            // the API server lets none of these in; this is how the original reads them
            (json!({"operator": "Equal", "value": "a"}), true),
            (json!({}), false),
        ] {
            let given = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&given, &taint), covered, "{toleration}");
        }
        assert_eq!(
            untolerated(std::slice::from_ref(&taint), &[], &["NoSchedule"]),
            Some(&taint)
        );
        assert_eq!(untolerated(&[taint], &[], &["NoExecute"]), None);
    }
}
