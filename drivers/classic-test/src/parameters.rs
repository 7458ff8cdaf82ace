//! Parameters of classes and claims: the data of ConfigMaps, or the specs of other objects.

use std::collections::BTreeMap;

use davit_sdk::classic::{Client, Failure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DynamicObject;
use kube::discovery::Scope;
use serde_json::Value;

/// Names and values.
pub(crate) type Parameters = BTreeMap<String, String>;

/// An object with parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference<'a> {
    /// Whose parameters they are: `class` or `claim`.
    pub(crate) of: &'static str,
    pub(crate) api_group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// Reads the parameters. With `custom` from any kind of object, else from ConfigMaps only.
pub(crate) async fn read(
    client: &Client,
    reference: Reference<'_>,
    custom: bool,
) -> Result<Parameters, Failure> {
    let Reference {
        of,
        api_group,
        kind,
        namespace,
        name,
    } = reference;
    if api_group.is_empty() && kind == "ConfigMap" {
        if namespace.is_empty() {
            let text = format!("{of} parameters: the reference to a ConfigMap needs a namespace");
            return Err(Failure::new(text));
        }
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = api.get(name).await;
        let map = map.map_err(|e| Failure::because("get config map", e))?;
        return Ok(map.data.unwrap_or_default());
    }
    if !custom {
        return Err(Failure::new(format!(
            "{of} parameters are only supported in APIVersion v1, Kind ConfigMap, got: {api_group} {kind}"
        )));
    }
    let group = kube::discovery::group(client, api_group).await;
    let group = group.map_err(|e| Failure::because("discover the kind of the parameters", e))?;
    let mut resources = group.recommended_resources().into_iter();
    let Some((resource, capabilities)) = resources.find(|(r, _)| r.kind == kind) else {
        let text = format!("{of} parameters: there is no kind {kind} in {api_group}");
        return Err(Failure::new(text));
    };
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let object = api.get(name).await;
    let object = object.map_err(|e| Failure::because("get parameters", e))?;
    Ok(members(&object.data["spec"]))
}

/// The members of an object as texts.
fn members(spec: &Value) -> Parameters {
    let members = spec.as_object().into_iter().flatten();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    members.map(|(k, v)| (k.clone(), text(v))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_of_specs_are_texts() {
        let parameters = members(&json!({"color": "black", "lives": 9}));
        assert_eq!(parameters["color"], "black");
        assert_eq!(parameters["lives"], "9");
        assert!(members(&Value::Null).is_empty());
    }
}
