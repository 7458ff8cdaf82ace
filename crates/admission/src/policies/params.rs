//! The parameters of a binding.

use std::sync::Arc;

use davit_api::status::Status;
use davit_registry::convert;
use serde_json::Value;

use super::policy::{Binding, Policy};
use crate::Attributes;

/// What the policy runs with: once for each entry, none for a policy without parameters.
///
/// The inner error is a fault of the configuration, on which the failure policy decides.
pub(super) async fn params(
    policy: &Policy,
    binding: &Binding,
    attributes: &Attributes<'_>,
) -> Result<Result<Vec<Option<Value>>, String>, Status> {
    let (Some((api_version, kind)), Some(reference)) = (&policy.param_kind, &binding.param) else {
        return Ok(Ok(vec![None]));
    };
    let server = attributes.server;
    let snapshot = server.registry().snapshot();
    let resource = snapshot
        .all()
        .find(|resource| resource.api_version() == *api_version && resource.row.kind == kind);
    let Some(resource) = resource else {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        return Ok(Err(format!(
            "failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'"
        )));
    };
    let namespace = match (resource.row.namespaced, reference.namespace.as_str()) {
        (false, "") => "",
        (false, _) => {
            let why = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
            return Ok(Err(why.to_owned()));
        }
        (true, "") if attributes.namespace.is_empty() => {
            let why = "cannot use namespaced paramRef in policy binding that matches \
                       cluster-scoped resources";
            return Ok(Err(why.to_owned()));
        }
        (true, "") => attributes.namespace,
        (true, given) => given,
    };
    let (group, plural) = (resource.row.group, resource.row.plural);
    let found = if reference.name.is_empty() {
        let Some(selector) = &reference.selector else {
            return Ok(Err("paramRef.selector is not valid".to_owned()));
        };
        let within = resource.row.namespaced.then_some(namespace);
        let mut all = server.objects(group, plural, within).await?;
        let none = serde_json::Map::new();
        all.retain(|object| selector.matches(davit_api::meta::labels(object).unwrap_or(&none)));
        all
    } else {
        let found = server
            .object(group, plural, namespace, &reference.name)
            .await?;
        found.into_iter().map(Arc::unwrap_or_clone).collect()
    };
    if found.is_empty() && !reference.allows_missing {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Ok(Err(why.to_owned()));
    }
    let mut params = Vec::with_capacity(found.len());
    for object in found {
        params.push(Some(convert::from_storage(resource, object)?));
    }
    Ok(Ok(params))
}
