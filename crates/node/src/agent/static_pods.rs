//! Static pods: manifests in a directory, run without the API server and mirrored into it.

use super::removed_manifests::RemovedManifests;
use super::static_app_armor;
use crate::context::Context;
use davit_api::names::{check_dns1123_label, check_dns1123_subdomain};
use davit_api::references;
use davit_client::Informer;
use davit_pods::pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE, PodExt};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(10);
const SEEN: &str = "kubernetes.io/config.seen";
/// Manifests larger than this are refused.
const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// More of them than a node could run.
const MAX_MANIFESTS: usize = 4096;

/// The pod of a manifest.
struct StaticPod {
    hash: String,
    pod: Arc<Pod>,
    /// It has been handed to a worker.
    started: bool,
}

/// The pods of a directory. Of those with one name and namespace one runs at a time, as in the kubelet: a manifest that
/// changes is another pod, which begins when the one before has ended, and the API shows that one until then.
pub(super) struct StaticPods {
    ctx: Arc<Context>,
    dir: Option<PathBuf>,
    pods: BTreeMap<PathBuf, StaticPod>,
    /// Pods that are gone from the directory and may still run.
    ending: Vec<Arc<Pod>>,
    complained: BTreeMap<PathBuf, String>,
    removed: RemovedManifests,
}

/// Why a manifest is not a pod.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    #[error("larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("not a Pod: {0}")]
    Parse(String),
    #[error("the pod has no name")]
    Unnamed,
    #[error("{field}: {name:?}: {why}")]
    Name {
        field: &'static str,
        name: String,
        why: String,
    },
    #[error("static pods may not reference {0}")]
    Needs(&'static str),
}

impl StaticPods {
    pub(super) fn new(ctx: Arc<Context>) -> Self {
        let dir = ctx.options.static_pod_dir.clone();
        Self {
            ctx,
            dir,
            pods: BTreeMap::new(),
            ending: Vec::new(),
            complained: BTreeMap::new(),
            removed: RemovedManifests::default(),
        }
    }

    /// Reads the directory. Returns the pods that have been started and are gone.
    pub(super) async fn read(&mut self) -> Vec<Arc<Pod>> {
        let Some(dir) = self.dir.clone() else {
            return Vec::new();
        };
        let node = self.ctx.options.node_name.clone();
        // Before the directory is read: what goes meanwhile is known the next time.
        let removed = self.removed.take(&dir);
        let read = tokio::task::spawn_blocking(move || read_dir(&dir, &node));
        let Ok(read) = tokio::time::timeout(DEADLINE, read).await else {
            tracing::warn!("the directory of static pods cannot be read in time");
            return Vec::new();
        };
        let found = match read {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot read the directory of static pods");
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        let mut gone = Vec::new();
        let mut seen = Vec::new();
        for (path, result) in found {
            seen.push(path.clone());
            match result {
                Ok((hash, pod)) => {
                    self.complained.remove(&path);
                    let known = self.pods.get(&path);
                    let stayed = !removed.contains(&path);
                    if stayed && known.is_some_and(|known| known.hash == hash) {
                        continue;
                    }
                    let new = StaticPod {
                        hash,
                        pod,
                        started: false,
                    };
                    // Another content is another pod, and so is the same one in a file that was taken away meanwhile.
                    gone.extend(self.pods.insert(path, new));
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.complained.insert(path.clone(), text.clone()).as_ref() != Some(&text) {
                        tracing::warn!(path = %path.display(), error = %text, "static pod manifest ignored");
                    }
                }
            }
        }
        let left = self.pods.extract_if(.., |path, _| !seen.contains(path));
        gone.extend(left.map(|(_, old)| old));
        let started = gone.into_iter().filter(|old| old.started);
        let gone: Vec<_> = started.map(|old| old.pod).collect();
        self.ending.extend(gone.iter().cloned());
        gone
    }

    /// The pods that can begin now: nothing of their name runs, as `runs` says by UID.
    pub(super) fn due(&mut self, runs: impl Fn(&str) -> bool) -> Vec<Arc<Pod>> {
        self.ending.retain(|pod| runs(pod.uid()));
        let started = self.pods.values().filter(|known| known.started);
        let running = started.map(|known| &known.pod).chain(&self.ending);
        let mut taken: HashSet<_> = running.map(|pod| full_name(pod)).collect();
        let mut due = Vec::new();
        for waiting in self.pods.values_mut().filter(|known| !known.started) {
            if taken.insert(full_name(&waiting.pod)) {
                waiting.started = true;
                due.push(waiting.pod.clone());
            }
        }
        due
    }

    /// Makes the API show each static pod, and removes mirrors of pods that are gone.
    pub(super) async fn sync_mirrors(&mut self, informer: &Informer<Pod>) {
        for StaticPod { hash, pod, .. } in self.pods.values().filter(|known| known.started) {
            let mirror = informer.get(Some(pod.ns()), pod.pod_name());
            let result = match mirror {
                Some(m) if m.annotation(CONFIG_MIRROR) == Some(hash) && !m.is_deleting() => {
                    self.ctx.status.set_mirror(pod.uid(), &m);
                    continue;
                }
                Some(m) if m.is_mirror() => self.delete(&m).await,
                Some(_) => continue,
                None => self.create(hash, pod).await,
            };
            if let Err(error) = result {
                tracing::debug!(pod = %pod.format(), %error, "cannot mirror the static pod");
            }
        }
        for mirror in informer.list().into_iter().filter(|p| p.is_mirror()) {
            let known = self.pods.values().map(|known| &known.pod);
            let mut known = known.chain(&self.ending);
            let known = known.any(|pod| full_name(pod) == full_name(&mirror));
            if !known && let Err(error) = self.delete(&mirror).await {
                tracing::debug!(pod = %mirror.format(), %error, "cannot delete the mirror of a static pod that is gone");
            }
        }
    }

    async fn create(&self, hash: &str, pod: &Pod) -> Result<(), kube::Error> {
        let mut mirror = pod.clone();
        mirror.metadata.uid = None;
        mirror.status = None;
        mirror
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(CONFIG_MIRROR.to_owned(), hash.to_owned());
        if let Some(uid) = self.ctx.node_object().and_then(|n| n.metadata.uid.clone()) {
            let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": self.ctx.options.node_name, "uid": uid, "controller": true}]);
            mirror.metadata.owner_references = serde_json::from_value(owner).ok();
        }
        let api: Api<Pod> = Api::namespaced(self.ctx.client.clone(), pod.ns());
        within(api.create(&PostParams::default(), &mirror))
            .await
            .map(|_| ())
    }

    async fn delete(&self, mirror: &Pod) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.ctx.client.clone(), mirror.ns());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: mirror.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        within(api.delete(mirror.pod_name(), &params))
            .await
            .map(|_| ())
    }
}

fn full_name(pod: &Pod) -> (String, String) {
    (pod.ns().to_owned(), pod.pod_name().to_owned())
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result,
        Err(_) => Err(kube::Error::Service(
            "no answer from the API server in time".into(),
        )),
    }
}

type PodFiles = Vec<(PathBuf, Result<(String, Arc<Pod>), Error>)>;

fn read_dir(dir: &Path, node: &str) -> std::io::Result<PodFiles> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_none_or(|n| n.to_string_lossy().starts_with('.'));
        let wanted = path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if !hidden && wanted && path.is_file() {
            if out.len() >= MAX_MANIFESTS {
                tracing::warn!(dir = %dir.display(), "more than {MAX_MANIFESTS} static pods; some are left out");
                break;
            }
            let pod = read_pod(&path, node);
            out.push((path, pod));
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(out)
}

fn read_pod(path: &Path, node: &str) -> Result<(String, Arc<Pod>), Error> {
    let bytes = davit_beneath::read_given(path, MAX_BYTES).map_err(|error| match error {
        davit_beneath::Error::TooLarge { .. } => Error::TooLarge,
        other => Error::Io(other.into()),
    })?;
    let text = String::from_utf8(bytes).map_err(|e| Error::Parse(e.to_string()))?;
    let pod = parse(&text)?;
    complete(pod, path, &text, node)
}

fn parse(text: &str) -> Result<Pod, Error> {
    let value: Value = serde_saphyr::from_str(text).map_err(|e| Error::Parse(e.to_string()))?;
    if value.get("kind").and_then(|k| k.as_str()) != Some("Pod") {
        return Err(Error::Parse("kind is not Pod".to_owned()));
    }
    if let Some(kind) = references::kind_that_a_pod_needs(&value["spec"]) {
        return Err(Error::Needs(kind));
    }
    let mut pod: Pod = serde_json::from_value(value).map_err(|e| Error::Parse(e.to_string()))?;
    check_names(&pod)?;
    static_app_armor::from_annotations(&mut pod).map_err(Error::Parse)?;
    Ok(pod)
}

/// Files and directories of the node are called by these names, which no API server has judged.
fn check_names(pod: &Pod) -> Result<(), Error> {
    type Check = fn(&str) -> Vec<String>;
    let (label, subdomain): (Check, Check) = (check_dns1123_label, check_dns1123_subdomain);
    let meta = &pod.metadata;
    let spec = pod.spec.iter();
    let containers = spec.clone().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers).map(|c| c.name.as_str())
    });
    let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten().map(|v| v.name.as_str()));
    let name = meta.name.as_deref().filter(|n| !n.is_empty());
    let name = name.ok_or(Error::Unnamed)?;
    let named = [("metadata.name", name, subdomain)].into_iter();
    named
        .chain(
            meta.namespace
                .iter()
                .map(|n| ("metadata.namespace", n.as_str(), label)),
        )
        .chain(containers.map(|n| ("spec.containers.name", n, label)))
        .chain(volumes.map(|n| ("spec.volumes.name", n, label)))
        .try_for_each(
            |(field, name, check)| match check(name).into_iter().next() {
                Some(why) => Err(Error::Name {
                    field,
                    name: name.to_owned(),
                    why,
                }),
                None => Ok(()),
            },
        )
}

/// Gives a manifest what the API server would: identity, node, defaults that matter here.
fn complete(
    mut pod: Pod,
    path: &Path,
    text: &str,
    node: &str,
) -> Result<(String, Arc<Pod>), Error> {
    let name = pod
        .metadata
        .name
        .clone()
        .filter(|n| !n.is_empty())
        .ok_or(Error::Unnamed)?;
    let digest = Sha256::digest(format!("{node}\0{}\0{text}", path.display()).as_bytes());
    let hash = digest[..16]
        .iter()
        .fold(String::new(), |t, b| t + &format!("{b:02x}"));
    let meta = &mut pod.metadata;
    meta.name = Some(format!("{name}-{}", node.to_lowercase()));
    meta.namespace.get_or_insert_with(|| "default".to_owned());
    meta.uid = Some(hash.clone());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(CONFIG_HASH.to_owned(), hash.clone());
    annotations.insert(CONFIG_SOURCE.to_owned(), "file".to_owned());
    annotations.insert(SEEN.to_owned(), jiff::Timestamp::now().to_string());
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.to_owned());
        spec.tolerations
            .get_or_insert_default()
            .push(k8s_openapi::api::core::v1::Toleration {
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..Default::default()
            });
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        ..PodStatus::default()
    });
    Ok((hash, Arc::new(pod)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_get_an_identity_of_their_content() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("web.yaml");
        std::fs::write(&path, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: i\n").unwrap();
        std::fs::write(tmp.path().join("bad.yaml"), "kind: Service").unwrap();
        std::fs::write(tmp.path().join("notes.txt"), "x").unwrap();
        let found = read_dir(tmp.path(), "Node1").unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[0].1.is_err());
        let (hash, pod) = found[1].1.as_ref().unwrap();
        assert_eq!(
            (pod.pod_name(), pod.ns(), pod.uid()),
            ("web-node1", "default", hash.as_str())
        );
        assert!(pod.is_static());
    }

    #[test]
    fn a_manifest_names_no_place_outside_and_needs_no_api_server() {
        let of = |name: &str, namespace: &str, container: &str, volume: Value| {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": namespace },
                "spec": { "containers": [{ "name": container, "image": "i" }], "volumes": [volume] },
            });
            parse(&pod.to_string())
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        let empty = json!({ "name": "v", "emptyDir": {} });
        assert_eq!(of("a", "b", "c", empty.clone()), Ok(()));
        for (name, namespace, container, volume) in [
            ("../x", "b", "c", "v"),
            ("a", "../../etc", "c", "v"),
            ("a", "b", "..", "v"),
            ("a", "b", "c", "../v"),
        ] {
            let volume = json!({ "name": volume, "emptyDir": {} });
            let refused = of(name, namespace, container, volume);
            assert!(
                refused.is_err_and(|e| e.contains("must consist of")),
                "{name} {namespace} {container}"
            );
        }
        let secret = json!({ "name": "v", "secret": { "secretName": "s" } });
        let refused = of("a", "b", "c", secret);
        assert_eq!(
            refused,
            Err("static pods may not reference secrets".to_owned())
        );
    }
}
