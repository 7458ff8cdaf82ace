//! Pod networks by CNI plugins, called as containerd calls them.
//!
//! The configuration is the first file of the directory, read anew for each pod. What an ADD was given and what came of
//! it is kept on disk, in the form libcni keeps it: a DEL gets the configuration of its ADD, whatever the directory says
//! by then, and a davit that was killed finds what is left of pods that never came to be ([`Network::collect`]).
//! The pod's loopback device is up before any plugin runs; the loopback plugin is welcome in a list but not needed.
//! Specified by the CNI specification, versions 0.1.0 to 1.1.0.

mod cache;
mod capabilities;
mod config;
mod plugin;
mod result;

use crate::network::{Error, Network, PodNetwork};
use async_trait::async_trait;
use cache::{Attachment, Cache};
use config::{List, Version};
use futures::StreamExt;
use plugin::Call;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pod's interface.
pub const INTERFACE: &str = "eth0";
/// How long plugins may think about how they are: the node's status waits for it.
const STATUS: Duration = Duration::from_secs(10);
/// Plugins that undo what is left of other pods, at a time.
const PARALLEL: usize = 8;

/// Where configuration, plugins and state are.
#[derive(Debug, Clone)]
pub struct CniOptions {
    /// Directory of network configurations; its first file in the order of names counts.
    pub conf_dir: PathBuf,
    /// Directories of plugins, the first that has a plugin wins.
    pub bin_dirs: Vec<PathBuf>,
    /// Where attachments are remembered.
    pub cache_dir: PathBuf,
    /// Pods may choose their addresses by an annotation, where a plugin has the capability `ips`.
    pub wished_addresses: bool,
}

/// Connects pods by CNI plugins.
#[derive(Debug, Clone)]
pub struct Cni {
    conf_dir: PathBuf,
    bin_dirs: Vec<PathBuf>,
    cache: Cache,
    wished_addresses: bool,
    status_limit: Duration,
}

/// What a failed plugin call adds to its message.
fn failed(plugin: &Map<String, Value>, verb: &str, error: impl std::fmt::Display) -> Error {
    let text = |key: &str| plugin.get(key).and_then(Value::as_str).unwrap_or_default();
    let name = match text("name") {
        "" => String::new(),
        name => format!(" name={name:?}"),
    };
    Error(format!(
        "plugin type={:?}{name} failed ({verb}): {error}",
        text("type")
    ))
}

/// The configuration that a plugin reads: its own part of the list, and what the runtime adds.
fn input(
    list: &List,
    plugin: &Map<String, Value>,
    capabilities: &Map<String, Value>,
    previous: Option<&Value>,
) -> Map<String, Value> {
    let mut out = plugin.clone();
    out.insert("name".to_owned(), json!(list.name));
    out.insert("cniVersion".to_owned(), json!(list.version_text));
    if let Some(previous) = previous {
        out.insert("prevResult".to_owned(), previous.clone());
    }
    let wanted = plugin.get("capabilities").and_then(Value::as_object);
    let given: Map<String, Value> = wanted
        .into_iter()
        .flatten()
        .filter(|(_, on)| on.as_bool() == Some(true))
        .filter_map(|(name, _)| Some((name.clone(), capabilities.get(name)?.clone())))
        .collect();
    if !given.is_empty() {
        out.insert("runtimeConfig".to_owned(), Value::Object(given));
    }
    out
}

/// The arguments of Kubernetes' runtimes.
fn arguments(pod: &PodNetwork) -> Vec<(String, String)> {
    [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", &pod.sandbox_id),
        ("K8S_POD_UID", &pod.uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .to_vec()
}

/// The namespace's file for plugins: empty when it stands for no namespace any more, as after a reboot, because plugins
/// get on with a missing namespace but not with a file that is none.
fn living_netns(netns: &Path) -> PathBuf {
    const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
    match rustix::fs::statfs(netns) {
        Ok(stat) if stat.f_type == NSFS_MAGIC => netns.to_owned(),
        _ => PathBuf::new(),
    }
}

impl Cni {
    /// Plugins, configuration and state by `options`. Nothing is read yet.
    #[must_use]
    pub fn new(options: CniOptions) -> Self {
        Self {
            conf_dir: options.conf_dir,
            bin_dirs: options.bin_dirs,
            cache: Cache::new(options.cache_dir),
            wished_addresses: options.wished_addresses,
            status_limit: STATUS,
        }
    }

    fn call<'a>(&'a self, command: &'static str, of: Option<&'a Attachment>) -> Call<'a> {
        Call {
            command,
            bin_dirs: &self.bin_dirs,
            attachment: of,
        }
    }

    async fn list(&self) -> Result<List, config::Error> {
        let dir = self.conf_dir.clone();
        match tokio::task::spawn_blocking(move || config::load(&dir)).await {
            Ok(list) => list,
            Err(error) => Err(config::Error::Invalid(error.to_string())),
        }
    }

    /// ADD of each plugin in order, each with the result of the one before.
    async fn add(&self, list: &List, attachment: &Attachment) -> Result<Value, Error> {
        let mut result = None;
        for plugin in &list.plugins {
            let input = input(list, plugin, &attachment.capabilities, result.as_ref());
            let answer = self.call("ADD", Some(attachment)).run(&input).await;
            let mut answer = answer.map_err(|e| failed(plugin, "add", e))?;
            result::complete(&mut answer, &list.version_text);
            result = Some(answer);
        }
        result.ok_or_else(|| Error("no plugins in list".to_owned()))
    }

    /// DEL of each plugin in reverse, with the result of the ADD.
    async fn delete(&self, list: &List, attachment: &Attachment) -> Result<(), Error> {
        let previous = attachment
            .result
            .as_ref()
            .filter(|_| list.version >= Version::V0_4_0);
        for plugin in list.plugins.iter().rev() {
            let input = input(list, plugin, &attachment.capabilities, previous);
            let done = self.call("DEL", Some(attachment)).run(&input).await;
            done.map_err(|e| failed(plugin, "delete", e))?;
        }
        Ok(())
    }

    /// Undoes an attachment by the configuration it was made with, and forgets it.
    async fn undo(&self, mut attachment: Attachment) -> Result<(), Error> {
        attachment.netns = living_netns(&attachment.netns);
        let list = config::parse_list(&attachment.config, None)
            .map_err(|e| Error(format!("remembered configuration: {e}")))?;
        self.delete(&list, &attachment).await?;
        let forgotten = self.cache.forget(&attachment);
        forgotten.map_err(|e| Error(format!("forget the attachment: {e}")))
    }

    /// CHECK of each plugin in order: whether the pod is still connected as its ADD left it. Nothing in davit calls this
    /// by itself, because plugins in the field raise false alarms (portmap 1.1 does for pods without an IPv6 address).
    ///
    /// # Errors
    /// What the first plugin that is not content says; pods that are not connected; versions before 0.4.0.
    pub async fn check(&self, pod: &PodNetwork) -> Result<(), Error> {
        let found = self.cache.find(&pod.sandbox_id);
        let found = found.map_err(|e| Error(format!("remembered attachments: {e}")))?;
        let attachment = found.into_iter().find(|a| a.result.is_some());
        let attachment =
            attachment.ok_or_else(|| Error("the pod is not connected to a network".to_owned()))?;
        let list = config::parse_list(&attachment.config, None).map_err(Error)?;
        if list.version < Version::V0_4_0 {
            return Err(Error(format!(
                "configuration version {:?} does not support CHECK",
                list.version_text
            )));
        }
        if list.disable_check {
            return Ok(());
        }
        for plugin in &list.plugins {
            let input = input(
                &list,
                plugin,
                &attachment.capabilities,
                attachment.result.as_ref(),
            );
            let done = self.call("CHECK", Some(&attachment)).run(&input).await;
            done.map_err(|e| failed(plugin, "check", e))?;
        }
        Ok(())
    }

    /// GC of each plugin, for configurations that know it.
    async fn collect_by_plugins(
        &self,
        list: &List,
        living: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let valid: Vec<Value> = living
            .iter()
            .map(|id| json!({"containerID": id, "ifname": INTERFACE}))
            .collect();
        for plugin in &list.plugins {
            let mut input = input(list, plugin, &Map::new(), None);
            input.insert("cni.dev/valid-attachments".to_owned(), json!(valid));
            // An earlier text of the specification had this name.
            input.insert("cni.dev/attachments".to_owned(), json!(valid));
            let done = self.call("GC", None).run(&input).await;
            done.map_err(|e| failed(plugin, "gc", e))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Network for Cni {
    async fn ready(&self) -> Result<(), Error> {
        let error = |e: &dyn std::fmt::Display| Error(format!("Network plugin returns error: {e}"));
        let list = self.list().await.map_err(|e| error(&e))?;
        if list.version < Version::V1_1_0 {
            return Ok(());
        }
        let asking = async {
            for plugin in &list.plugins {
                let input = input(&list, plugin, &Map::new(), None);
                let done = self.call("STATUS", None).run(&input).await;
                done.map_err(|e| error(&failed(plugin, "status", e)))?;
            }
            Ok(())
        };
        let asked = tokio::time::timeout(self.status_limit, asking).await;
        asked.unwrap_or_else(|_| Err(error(&"plugins do not answer STATUS")))
    }

    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        let list = self.list().await.map_err(|e| Error(e.to_string()))?;
        let capabilities = capabilities::of_pod(pod, self.wished_addresses)
            .map_err(|e| Error(format!("get cni namespace options: {e}")))?;
        let mut attachment = Attachment {
            container_id: pod.sandbox_id.clone(),
            network: list.name.clone(),
            interface: INTERFACE.to_owned(),
            netns: pod.netns.clone(),
            arguments: arguments(pod),
            capabilities,
            config: list.source.clone(),
            result: None,
        };
        let keep = |attachment: &Attachment| {
            let kept = self.cache.keep(attachment);
            kept.map_err(|e| Error(format!("remember the attachment: {e}")))
        };
        // Before the first effect: plugins that were cut short leave addresses behind.
        keep(&attachment)?;
        let result = self.add(&list, &attachment).await?;
        let addresses = result::addresses(&result, INTERFACE)
            .map_err(|e| Error(format!("invalid result: {e}")))?;
        attachment.result = Some(result);
        keep(&attachment)?;
        if addresses.is_empty() {
            let id = &pod.sandbox_id;
            return Err(Error(format!(
                "failed to find network info for sandbox {id:?}"
            )));
        }
        Ok(addresses)
    }

    async fn detach(&self, pod: &PodNetwork) -> Result<(), Error> {
        let found = self.cache.find(&pod.sandbox_id);
        let found = found.map_err(|e| Error(format!("remembered attachments: {e}")))?;
        for attachment in found {
            self.undo(attachment).await?;
        }
        Ok(())
    }

    async fn collect(&self, living: &BTreeSet<String>) -> Result<(), Error> {
        let all = self.cache.all();
        let all = all.map_err(|e| Error(format!("remembered attachments: {e}")))?;
        let list = self.list().await;
        let keeps = list.as_ref().is_ok_and(|list| list.disable_gc);
        let dead = all
            .into_iter()
            .filter(|a| !keeps && !living.contains(&a.container_id));
        let undone = futures::stream::iter(dead.map(|attachment| async move {
            let id = attachment.container_id.clone();
            (id, self.undo(attachment).await)
        }));
        let mut undone = undone.buffer_unordered(PARALLEL);
        let mut last = Ok(());
        while let Some((sandbox, outcome)) = undone.next().await {
            match outcome {
                Ok(()) => tracing::info!(sandbox, "disconnected what was left of a sandbox"),
                Err(error) => last = Err(Error(format!("sandbox {sandbox:?}: {error}"))),
            }
        }
        if let Ok(list) = list
            && list.version >= Version::V1_1_0
            && !list.disable_gc
        {
            self.collect_by_plugins(&list, living).await?;
        }
        last
    }
}

#[cfg(test)]
mod tests;
