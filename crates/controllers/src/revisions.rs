//! The history of a pod template as ControllerRevisions, which `kubectl rollout history` and `undo` read.

use crate::pod_control::Owner;
use davit_reconcile::{Context, Error, exists_is_none, gone_is_none};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use std::collections::BTreeMap;

/// Label that tells the pods of one revision from those of another.
pub(crate) const HASH: &str = "controller-revision-hash";

/// The revisions of one workload, oldest first, with the present one last.
pub(crate) struct History {
    revisions: Vec<ControllerRevision>,
    current: ControllerRevision,
}

impl History {
    /// Reads the history and makes the revision of the present template the newest. A new one has the annotations that its
    /// owner has now, among them the cause of the change that `kubectl rollout history` shows.
    pub(crate) async fn sync(
        client: &kube::Client,
        owner: &Owner,
        annotations: Option<&BTreeMap<String, String>>,
        template: &PodTemplateSpec,
    ) -> Result<Self, Error> {
        let api: kube::Api<ControllerRevision> =
            kube::Api::namespaced(client.clone(), &owner.namespace);
        let about = || {
            format!(
                "{} {}/{}",
                owner.reference.kind, owner.namespace, owner.reference.name
            )
        };
        let listed = api
            .list(&ListParams::default().labels_from(&owner.selector))
            .await;
        let listed = listed.context(|| format!("list revisions of {}", about()))?;
        let mut revisions: Vec<ControllerRevision> = listed
            .items
            .into_iter()
            .filter(|r| owner.controls(&r.metadata))
            .collect();
        revisions.sort_by_key(|r| r.revision);
        let data = patch_of(template);
        let newest = revisions.last().map_or(0, |r| r.revision);
        let same = revisions
            .iter()
            .position(|r| r.data.as_ref().is_some_and(|d| d.0 == data));
        let current = match same.map(|at| revisions.remove(at)) {
            Some(current) if current.revision == newest => current,
            Some(mut earlier) => {
                // Rolled back to an earlier template: its revision becomes the newest.
                earlier.revision = newest.saturating_add(1);
                let name = earlier.metadata.name.clone().unwrap_or_default();
                api.replace(&name, &PostParams::default(), &earlier)
                    .await
                    .context(|| format!("renumber revision {name}"))?
            }
            None => {
                let mut wanted = new_revision(owner, template, data, newest.saturating_add(1));
                wanted.metadata.annotations = annotations.cloned();
                let name = wanted.metadata.name.clone().unwrap_or_default();
                exists_is_none(api.create(&PostParams::default(), &wanted).await)
                    .context(|| format!("create revision {name}"))?
                    .ok_or_else(|| {
                        Error::Invalid(format!("revision {name} exists but is not of {}", about()))
                    })?
            }
        };
        Ok(Self { revisions, current })
    }

    /// The value of [`HASH`] for pods of the present template.
    pub(crate) fn hash(&self) -> String {
        hash_of(&self.current)
    }

    /// The name of the revision of the present template.
    pub(crate) fn name(&self) -> String {
        self.current.metadata.name.clone().unwrap_or_default()
    }

    /// The template that a revision of the history holds.
    pub(crate) fn template(&self, name: &str) -> Option<PodTemplateSpec> {
        let all = self.revisions.iter().chain([&self.current]);
        let mut found = all.filter(|r| r.metadata.name.as_deref() == Some(name));
        let data = found.next()?.data.as_ref()?;
        serde_json::from_value(data.0.pointer("/spec/template")?.clone()).ok()
    }

    /// Removes the oldest revisions beyond `limit` that no pod uses any more.
    pub(crate) async fn truncate(
        &self,
        client: &kube::Client,
        limit: i32,
        in_use: &[String],
    ) -> Result<(), Error> {
        let unused: Vec<&ControllerRevision> = self
            .revisions
            .iter()
            .filter(|r| !in_use.contains(&hash_of(r)))
            .collect();
        let limit = usize::try_from(limit).unwrap_or(0);
        for revision in unused.iter().take(unused.len().saturating_sub(limit)) {
            let meta = &revision.metadata;
            let (namespace, name) = (
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            );
            let api: kube::Api<ControllerRevision> =
                kube::Api::namespaced(client.clone(), &namespace);
            gone_is_none(api.delete(&name, &DeleteParams::default()).await)
                .context(|| format!("remove revision {name}"))?;
        }
        Ok(())
    }
}

fn hash_of(revision: &ControllerRevision) -> String {
    revision
        .metadata
        .labels
        .as_ref()
        .and_then(|l| l.get(HASH))
        .cloned()
        .unwrap_or_default()
}

/// The strategic merge patch that restores a template, which is what `kubectl rollout undo` applies.
fn patch_of(template: &PodTemplateSpec) -> serde_json::Value {
    let mut template = serde_json::json!(template);
    if let Some(template) = template.as_object_mut() {
        template.insert("$patch".to_owned(), "replace".into());
    }
    serde_json::json!({ "spec": { "template": template } })
}

fn new_revision(
    owner: &Owner,
    template: &PodTemplateSpec,
    data: serde_json::Value,
    number: i64,
) -> ControllerRevision {
    let hash = crate::deployment::template_hash(template, 0);
    let mut labels = template
        .metadata
        .as_ref()
        .and_then(|m| m.labels.clone())
        .unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.reference.name)),
            namespace: Some(owner.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![owner.reference.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(k8s_openapi::apimachinery::pkg::runtime::RawExtension(data)),
        revision: number,
    }
}
