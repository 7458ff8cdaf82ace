//! CustomResourceDefinitions of apiextensions.k8s.io/v1beta1, in which kube-apiserver still stores them: what all versions have
//! in common stands beside the versions, and the webhook's configuration beside the strategy.

use serde_json::{Value, json};

use super::{each, rename, take};

/// What may stand beside the versions, for all of them.
const OF_ALL: [&str; 4] = [
    "validation",
    "subresources",
    "additionalPrinterColumns",
    "selectableFields",
];

pub(super) fn from_v1beta1(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec") else {
        return;
    };
    let common = take(spec, &OF_ALL);
    let version = take(spec, &["version"]).remove("version");
    let has_versions = spec
        .get("versions")
        .and_then(Value::as_array)
        .is_some_and(|versions| !versions.is_empty());
    if let (false, Some(name)) = (has_versions, version) {
        spec["versions"] = json!([{ "name": name, "served": true, "storage": true }]);
    }
    for version in each(spec, &["versions"]) {
        let Some(object) = version.as_object_mut() else {
            continue;
        };
        for (key, value) in &common {
            let key = if key == "validation" { "schema" } else { key };
            object.entry(key).or_insert_with(|| value.clone());
        }
        for column in each(version, &["additionalPrinterColumns"]) {
            rename(column, &[("JSONPath", "jsonPath")]);
        }
    }
    if let Some(conversion) = spec.get_mut("conversion") {
        rename(conversion, &[("webhookClientConfig", "clientConfig")]);
        let webhook = take(conversion, &["clientConfig", "conversionReviewVersions"]);
        if webhook.contains_key("clientConfig")
            && let Some(conversion) = conversion.as_object_mut()
        {
            conversion.insert("webhook".to_owned(), Value::Object(webhook));
        }
    }
}
