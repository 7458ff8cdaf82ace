//! Attachments on disk: what each pod was connected with, in the form of libcni's cache.

use crate::monitor::write_durably;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::path::PathBuf;

const KIND: &str = "cniCacheV1";

/// A pod's connection to a network, finished or not.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attachment {
    pub(super) container_id: String,
    pub(super) network: String,
    pub(super) interface: String,
    pub(super) netns: PathBuf,
    pub(super) arguments: Vec<(String, String)>,
    /// What was offered as `runtimeConfig`.
    pub(super) capabilities: Map<String, Value>,
    /// The list of plugins as text.
    pub(super) config: String,
    /// What the last plugin answered; `None` when the ADD did not come that far.
    pub(super) result: Option<Value>,
}

/// libcni's form of it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    container_id: String,
    /// Base64.
    config: String,
    if_name: String,
    network_name: String,
    netns: PathBuf,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    capability_args: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl From<&Attachment> for Record {
    fn from(of: &Attachment) -> Self {
        Self {
            kind: KIND.to_owned(),
            container_id: of.container_id.clone(),
            config: STANDARD.encode(&of.config),
            if_name: of.interface.clone(),
            network_name: of.network.clone(),
            netns: of.netns.clone(),
            cni_args: of.arguments.clone(),
            capability_args: of.capabilities.clone(),
            result: of.result.clone(),
        }
    }
}

impl TryFrom<Record> for Attachment {
    type Error = io::Error;

    fn try_from(record: Record) -> io::Result<Self> {
        if record.kind != KIND {
            return Err(io::Error::other(format!("unknown kind {:?}", record.kind)));
        }
        let config = STANDARD.decode(&record.config).map_err(io::Error::other)?;
        Ok(Self {
            container_id: record.container_id,
            network: record.network_name,
            interface: record.if_name,
            netns: record.netns,
            arguments: record.cni_args,
            capabilities: record.capability_args,
            config: String::from_utf8(config).map_err(io::Error::other)?,
            result: record.result,
        })
    }
}

/// A directory of attachments. Files are small and written once or twice a pod, so calls do not leave the thread.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn file(&self, of: &Attachment) -> PathBuf {
        let name = format!("{}-{}-{}", of.network, of.container_id, of.interface);
        self.dir.join(name)
    }

    /// Writes an attachment; it is there after a crash.
    pub(super) fn keep(&self, attachment: &Attachment) -> io::Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        let record = serde_json::to_vec(&Record::from(attachment)).map_err(io::Error::other)?;
        write_durably(&self.file(attachment), &record)
    }

    /// Removes an attachment.
    pub(super) fn forget(&self, attachment: &Attachment) -> io::Result<()> {
        match std::fs::remove_file(self.file(attachment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn read(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Attachment>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A write that was cut short leaves its temporary file.
            if !wanted(&name) || name.ends_with(".tmp") {
                continue;
            }
            let read = std::fs::read(entry.path())
                .and_then(|bytes| serde_json::from_slice::<Record>(&bytes).map_err(Into::into))
                .and_then(Attachment::try_from);
            match read {
                Ok(attachment) => found.push(attachment),
                Err(error) => {
                    tracing::warn!(file = name, %error, "remembered CNI attachment cannot be read");
                }
            }
        }
        Ok(found)
    }

    /// The attachments of a pod.
    pub(super) fn find(&self, container_id: &str) -> io::Result<Vec<Attachment>> {
        let middle = format!("-{container_id}-");
        let found = self.read(|name| name.contains(&middle))?;
        Ok(found
            .into_iter()
            .filter(|a| a.container_id == container_id)
            .collect())
    }

    /// All attachments.
    pub(super) fn all(&self) -> io::Result<Vec<Attachment>> {
        self.read(|_| true)
    }
}
