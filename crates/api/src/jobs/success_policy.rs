//! Whether enough indexes have succeeded by a job's success policy (KEP-3998).

use super::indexes::CompletionIndexes;
use k8s_openapi::api::batch::v1::SuccessPolicy;

/// Which rule is met, in the words of the job's condition.
pub fn met(policy: &SuccessPolicy, completions: i32, done: &CompletionIndexes) -> Option<String> {
    if done.is_empty() {
        return None;
    }
    let met = policy.rules.iter().position(|rule| {
        let enough = |count: i32| rule.succeeded_count.is_some_and(|least| count >= least);
        match &rule.succeeded_indexes {
            None => enough(done.total()),
            Some(listed) => {
                let wanted = CompletionIndexes::parse(listed, completions);
                let shared = wanted.shared(done);
                !wanted.is_empty() && (shared == wanted.total() || enough(shared))
            }
        }
    });
    met.map(|rule| format!("Matched rules at index {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(rules: serde_json::Value, done: &str) -> Option<String> {
        let policy = serde_json::from_value(json!({ "rules": rules })).unwrap();
        met(&policy, 10, &CompletionIndexes::parse(done, 10))
    }

    #[test]
    fn rules_ask_for_indexes_for_a_number_or_for_a_number_of_them() {
        let first = Some("Matched rules at index 0".to_owned());
        let indexes = json!([{"succeededIndexes": "0,2-3"}]);
        assert_eq!(rule(indexes.clone(), "0,2"), None);
        assert_eq!(rule(indexes, "0-3"), first);
        let number = json!([{"succeededCount": 2}]);
        assert_eq!(rule(number.clone(), "7"), None);
        assert_eq!(rule(number, "7,9"), first);
        let leaders = json!([{"succeededIndexes": "0-4", "succeededCount": 2}]);
        assert_eq!(rule(leaders.clone(), "4-9"), None);
        assert_eq!(rule(leaders, "1,4"), first);
        let second = json!([{"succeededIndexes": "9"}, {"succeededCount": 1}]);
        assert_eq!(
            rule(second, "3"),
            Some("Matched rules at index 1".to_owned())
        );
        assert_eq!(rule(json!([{"succeededCount": 0}]), ""), None);
    }
}
