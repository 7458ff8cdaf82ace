//! What is kept on disk of a pod's network: written before anything is made, gone after everything is undone.

use davit_netplan::Family;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A pod's place in the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) sandbox: String,
    /// `namespace/name`, for people.
    pub(crate) pod: String,
    /// The first one.
    pub(crate) address: IpAddr,
    /// That of the other family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) second_address: Option<IpAddr>,
    /// The device here.
    pub(crate) link: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<HostPort>,
    /// The device that stands in for the link, where what the pod sends is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stand_in: Option<String>,
}

impl Record {
    /// Its devices here.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.link)
            .chain(&self.stand_in)
            .map(String::as_str)
    }

    /// The pod's addresses, the first one first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        std::iter::once(self.address).chain(self.second_address)
    }

    /// The one of this family.
    pub(crate) fn address_of(&self, family: Family) -> Option<IpAddr> {
        self.addresses()
            .find(|address| Family::of(*address) == family)
    }
}

/// A port of the node behind which a pod is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostPort {
    /// The number of the protocol.
    pub(crate) protocol: u8,
    pub(crate) port: u16,
    pub(crate) to: u16,
    /// One address of the node only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<IpAddr>,
}

/// The records of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Sandbox IDs are the runtime's own: letters and digits.
    fn file(&self, sandbox: &str) -> io::Result<PathBuf> {
        if sandbox.is_empty() || !sandbox.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(io::Error::other(format!("sandbox ID {sandbox:?}")));
        }
        Ok(self.dir.join(format!("{sandbox}.json")))
    }

    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let file = self.file(&record.sandbox)?;
        Ok(davit_beneath::write_private(
            file,
            &serde_json::to_vec(record)?,
        )?)
    }

    pub(crate) fn read(&self, sandbox: &str) -> io::Result<Option<Record>> {
        read(&self.file(sandbox)?)
    }

    pub(crate) fn remove(&self, sandbox: &str) -> io::Result<()> {
        match fs::remove_file(self.file(sandbox)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All of them. One that cannot be read is reported and left out.
    pub(crate) fn all(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            // one that was being written when the power went
            let is_half = name.as_encoded_bytes().starts_with(b".");
            if is_half || path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(record) => records.extend(record),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "record of a pod's network");
                }
            }
        }
        Ok(records)
    }
}

fn read(file: &Path) -> io::Result<Option<Record>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
