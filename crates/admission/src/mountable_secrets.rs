//! Service accounts whose annotation says so limit their pods to the Secrets that they list, wherever a pod can name one
//! (CVE-2023-2728, CVE-2024-3177).

use std::collections::BTreeSet;

use serde_json::Value;

const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// What Go takes for true.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];

/// Whether the account limits its pods.
pub(super) fn is_enforced(account: &Value) -> bool {
    let said = account["metadata"]["annotations"][ENFORCE].as_str();
    said.is_some_and(|said| TRUE.contains(&said))
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn names(list: &Value) -> BTreeSet<&str> {
    let names = items(list).iter().map(|entry| &entry["name"]);
    names.filter_map(Value::as_str).collect()
}

/// Refuses a pod that names a Secret which its account does not list.
pub(super) fn check(account: &Value, spec: &Value) -> Result<(), String> {
    let name = account["metadata"]["name"].as_str().unwrap_or_default();
    let (listed, pulled) = (
        names(&account["secrets"]),
        names(&account["imagePullSecrets"]),
    );
    let because = format!("is not allowed because service account {name} does not reference that");
    for volume in items(&spec["volumes"]) {
        let projected = items(&volume["projected"]["sources"]).iter();
        let projected = projected.map(|source| &source["secret"]["name"]);
        for secret in std::iter::once(&volume["secret"]["secretName"]).chain(projected) {
            if let Some(secret) = secret.as_str().filter(|secret| !listed.contains(secret)) {
                return Err(format!(
                    "volume with secret.secretName=\"{secret}\" {because} secret"
                ));
            }
        }
    }
    for (index, secret) in items(&spec["imagePullSecrets"]).iter().enumerate() {
        let secret = secret["name"].as_str().unwrap_or_default();
        if !pulled.contains(secret) {
            return Err(format!(
                "imagePullSecrets[{index}].name=\"{secret}\" {because} imagePullSecret"
            ));
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        check_containers(&spec[list], &listed, &because)?;
    }
    Ok(())
}

/// The same for containers that are added to a pod that runs.
pub(super) fn check_ephemeral(account: &Value, spec: &Value) -> Result<(), String> {
    let name = account["metadata"]["name"].as_str().unwrap_or_default();
    let because = format!("is not allowed because service account {name} does not reference that");
    check_containers(
        &spec["ephemeralContainers"],
        &names(&account["secrets"]),
        &because,
    )
}

fn check_containers(list: &Value, listed: &BTreeSet<&str>, because: &str) -> Result<(), String> {
    let refused = |secret: &Value| {
        let secret = secret.as_str()?;
        (!listed.contains(secret)).then(|| secret.to_owned())
    };
    for container in items(list) {
        let name = container["name"].as_str().unwrap_or_default();
        for env in items(&container["env"]) {
            if let Some(secret) = refused(&env["valueFrom"]["secretKeyRef"]["name"]) {
                let variable = env["name"].as_str().unwrap_or_default();
                return Err(format!(
                    "container {name} with envVar {variable} referencing secret.secretName=\"{secret}\" {because} secret"
                ));
            }
        }
        for from in items(&container["envFrom"]) {
            if let Some(secret) = refused(&from["secretRef"]["name"]) {
                return Err(format!(
                    "container {name} with envFrom referencing secret.secretName=\"{secret}\" {because} secret"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place_where_a_pod_can_name_a_secret_is_looked_at() {
        let account = json!({
            "metadata": {"name": "a", "annotations": {ENFORCE: "true"}},
            "secrets": [{"name": "mine"}],
            "imagePullSecrets": [{"name": "pull"}],
        });
        assert!(is_enforced(&account) && !is_enforced(&json!({})));
        let spec = |secret: &str, place: &str| match place {
            "volume" => json!({"volumes": [{"name": "v", "secret": {"secretName": secret}}]}),
            "projected" => {
                json!({"volumes": [{"projected": {"sources": [{"secret": {"name": secret}}]}}]})
            }
            "pull" => json!({"imagePullSecrets": [{"name": secret}]}),
            list => json!({(list): [
                {"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret}}}]},
                {"name": "d", "envFrom": [{"secretRef": {"name": secret}}]},
            ]}),
        };
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        for place in ["volume", "projected", "pull"].into_iter().chain(lists) {
            let own = if place == "pull" { "pull" } else { "mine" };
            assert_eq!(check(&account, &spec(own, place)), Ok(()), "{place}");
            let refused = check(&account, &spec("other", place)).unwrap_err();
            assert!(
                refused.contains("\"other\" is not allowed because service account a"),
                "{refused}"
            );
        }
        let added = spec("other", "ephemeralContainers");
        assert!(check_ephemeral(&account, &added).is_err());
        // What ran before is not judged again.
        assert_eq!(
            check_ephemeral(&account, &spec("other", "containers")),
            Ok(())
        );
        let from =
            json!({"containers": [{"name": "d", "envFrom": [{"secretRef": {"name": "other"}}]}]});
        assert!(check(&account, &from).unwrap_err().contains("with envFrom"));
    }
}
