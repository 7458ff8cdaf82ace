//! Profiles of AppArmor that a static pod's annotations name (KEP-24): of other pods the API server makes fields of them. The
//! kubelet runs such a static pod without the profile.

use davit_api::app_armor::{ANNOTATION, named};
use k8s_openapi::api::core::v1::{Container, Pod};

/// Gives containers the profiles that annotations name, where they have none of their own.
///
/// # Errors
/// An annotation about no container, or a profile that is none.
pub(super) fn from_annotations(pod: &mut Pod) -> Result<(), String> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let wanted: Vec<(String, String)> = annotations
        .filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION)?.to_owned(), value.clone())))
        .collect();
    let Some(spec) = &mut pod.spec else {
        return Ok(());
    };
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.app_armor_profile.clone());
    for (name, value) in wanted {
        let profile = named(&value);
        if profile.is_none() && !value.is_empty() {
            return Err(format!(
                "{ANNOTATION}{name}: {value:?} is no AppArmor profile"
            ));
        }
        let init = spec.init_containers.iter_mut().flatten();
        let mut containers = init.chain(&mut spec.containers);
        let container: &mut Container = containers
            .find(|container| container.name == name)
            .ok_or_else(|| format!("{ANNOTATION}{name}: no such container"))?;
        let own = &mut container
            .security_context
            .get_or_insert_default()
            .app_armor_profile;
        match own {
            None if profile != of_pod => *own = profile,
            Some(field) if profile.as_ref().is_some_and(|profile| profile != field) => {
                return Err(format!(
                    "{ANNOTATION}{name}: does not agree with appArmorProfile"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotations: &serde_json::Value, of_c: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": [
                { "name": "c", "securityContext": { "appArmorProfile": of_c } }, { "name": "d" },
            ] },
        }))
        .unwrap()
    }

    #[test]
    fn annotations_of_static_pods_name_profiles() {
        let key = |name: &str| format!("{ANNOTATION}{name}");
        let mut good = pod(
            &json!({ key("c"): "localhost/strict", key("d"): "runtime/default" }),
            &json!(null),
        );
        from_annotations(&mut good).unwrap();
        let profiles: Vec<_> = good
            .spec
            .unwrap()
            .containers
            .into_iter()
            .map(|c| {
                let profile = c.security_context.unwrap().app_armor_profile.unwrap();
                (profile.type_, profile.localhost_profile)
            })
            .collect();
        let strict = ("Localhost".to_owned(), Some("strict".to_owned()));
        assert_eq!(profiles, [strict, ("RuntimeDefault".to_owned(), None)]);
        for (annotations, field) in [
            (json!({ key("e"): "runtime/default" }), json!(null)),
            (json!({ key("c"): "localhost/" }), json!(null)),
            (json!({ key("c"): "strict" }), json!(null)),
            (
                json!({ key("c"): "localhost/strict" }),
                json!({ "type": "Unconfined" }),
            ),
        ] {
            assert!(from_annotations(&mut pod(&annotations, &field)).is_err());
        }
    }
}
