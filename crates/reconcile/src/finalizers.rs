//! Finalizers by which controllers hold objects that are in use.

use crate::controller::{Context, Error, gone_is_none};
use kube::api::{Patch, PatchParams};
use serde::de::DeserializeOwned;

/// Puts the finalizer on an object that stays, takes it off one that may go (`deleting`).
///
/// # Errors
/// When the API server does not take the change.
pub async fn settle<K>(
    api: &kube::Api<K>,
    object: &K,
    finalizer: &str,
    deleting: bool,
) -> Result<(), Error>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let meta = object.meta();
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let held = finalizers.iter().any(|f| f == finalizer);
    match (held, deleting) {
        (true, true) => finalizers.retain(|f| f != finalizer),
        (false, false) => finalizers.push(finalizer.to_owned()),
        _ => return Ok(()),
    }
    let name = meta.name.clone().unwrap_or_default();
    let patch = serde_json::json!({ "metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    } });
    gone_is_none(
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
    .context(|| format!("change the finalizers of {name}"))?;
    Ok(())
}
