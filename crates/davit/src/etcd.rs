//! Which store the API server has: the embedded one, or etcd by kube-apiserver's flags.

mod overrides;

use crate::test_assets;
use anyhow::{Context, Result, bail};
use davit_apiserver::KubernetesForm;
use davit_etcd::{EndpointError, EndpointUrl, EtcdOptions, EtcdStore, TlsFiles};
use davit_kubestore::MediaType;
use davit_registry::{StoreOverride, Stores};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{ListOptions, Store};
use overrides::ServersOverride;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What keys in etcd begin with, as kube-apiserver's do.
const PREFIX: &str = "/registry";
/// What they began with before davit had kube-apiserver's keys, and what they were below it.
const FORMER_PREFIX: &str = "/davit";
const FORMER_KEYS: &str = "/registry/";

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In the data directory.
    Embedded,
    /// An etcd cluster, by its URLs.
    Etcd(Vec<EndpointUrl>),
}

impl FromStr for StoreKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "embedded" => Ok(Self::Embedded),
            Some(("etcd", urls)) => {
                let urls: Result<_, _> = urls.split(',').map(str::parse).collect();
                urls.map(Self::Etcd)
                    .map_err(|error: EndpointError| error.to_string())
            }
            _ => Err("expected `embedded` or `etcd=URL[,URL...]`".to_owned()),
        }
    }
}

/// The store and how etcd is reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreFlags {
    /// `embedded` or `etcd=URL[,URL...]`
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub(crate) store: StoreKind,
    /// Keep objects in this etcd (3.5.13 or newer); the same as `--store etcd=URL,...`
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    etcd_servers: Vec<EndpointUrl>,
    /// Keep the objects of a built-in kind in an etcd of their own: GROUP/RESOURCE#URL;URL,... (the core group is empty:
    /// /events#https://etcd-2:2379)
    #[arg(long, value_name = "OVERRIDE,...", value_delimiter = ',')]
    etcd_servers_overrides: Vec<ServersOverride>,
    /// What the keys in etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = PREFIX)]
    etcd_prefix: String,
    /// In which form built-in kinds are written to etcd, as kube-apiserver does: application/vnd.kubernetes.protobuf or
    /// application/json; both are read
    #[arg(long, value_name = "TYPE", default_value = davit_kubestore::PROTOBUF)]
    storage_media_type: MediaType,
    /// Authorities of etcd's certificates [default: those of the system]
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Certificate that is shown to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// How often history is compacted in etcd (0 = never)
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::protection::duration)]
    etcd_compaction_interval: Duration,
    /// Other API servers, started with this flag, too, and a copy of pki/, work on the same objects in etcd (docs/etcd.md)
    #[arg(long)]
    etcd_shared: bool,
    #[arg(skip)]
    no_sync: bool,
}

/// Where objects are kept.
pub(crate) enum StoreLocation {
    /// In this directory.
    Embedded(PathBuf),
    /// In etcd.
    Etcd(Box<EtcdOptions>),
}

impl StoreFlags {
    /// What is written need not outlive the machine: it does not wait for the disk.
    pub(crate) fn keep_in_memory(&mut self) {
        self.no_sync = true;
    }

    /// Whether other API servers work on the same objects.
    pub(crate) fn is_shared(&self) -> bool {
        self.etcd_shared
    }

    /// How objects are kept in etcd; `None` where they are in the data directory.
    ///
    /// # Errors
    /// The flags contradict one another.
    pub(crate) fn form(&self) -> Result<Option<KubernetesForm>> {
        let in_etcd = !self.servers()?.is_empty() && !test_assets::is_kube_apiserver();
        Ok(in_etcd.then(|| KubernetesForm {
            prefix: self.etcd_prefix.clone(),
            media: self.storage_media_type,
        }))
    }

    fn servers(&self) -> Result<Vec<EndpointUrl>> {
        match (&self.store, self.etcd_servers.as_slice()) {
            (StoreKind::Embedded, servers) => Ok(servers.to_vec()),
            (StoreKind::Etcd(servers), []) => Ok(servers.clone()),
            (StoreKind::Etcd(_), _) => {
                bail!("--store etcd=... and --etcd-servers are the same; give one of them")
            }
        }
    }

    /// Where the store is.
    ///
    /// # Errors
    /// The flags contradict one another.
    pub(crate) fn place(&self, data_dir: &Path) -> Result<StoreLocation> {
        let servers = self.servers()?;
        if servers.is_empty() {
            if self.etcd_cafile.is_some() || self.etcd_certfile.is_some() {
                bail!("--etcd-cafile and --etcd-certfile need --etcd-servers");
            }
            if self.etcd_shared {
                bail!(
                    "--etcd-shared needs --etcd-servers: a store in the data directory has one server"
                );
            }
            if !self.etcd_servers_overrides.is_empty() {
                bail!("--etcd-servers-overrides needs --etcd-servers");
            }
            return Ok(StoreLocation::Embedded(data_dir.join("store")));
        }
        let options = self.etcd(servers, data_dir)?;
        Ok(StoreLocation::Etcd(Box::new(options)))
    }

    /// One etcd, with what the flags say of all of them.
    fn etcd(&self, servers: Vec<EndpointUrl>, data_dir: &Path) -> Result<EtcdOptions> {
        Ok(EtcdOptions {
            tls: TlsFiles {
                ca: self.etcd_cafile.clone(),
                identity: self.etcd_certfile.clone().zip(self.etcd_keyfile.clone()),
            },
            prefix: self.etcd_prefix.clone(),
            compaction_interval: self.etcd_compaction_interval,
            shared: self.etcd_shared,
            ..EtcdOptions::new(servers, owner(data_dir)?)
        })
    }

    /// The only store.
    ///
    /// # Errors
    /// The flags contradict one another, or say that some kinds are elsewhere.
    pub(crate) fn only_place(&self, data_dir: &Path) -> Result<StoreLocation> {
        if !self.etcd_servers_overrides.is_empty() {
            bail!("this is done in one etcd, and --etcd-servers-overrides names others");
        }
        self.place(data_dir)
    }

    /// Opens the stores.
    ///
    /// # Errors
    /// One cannot be opened, or another process has it.
    pub(crate) async fn open(&self, data_dir: &Path) -> Result<Stores> {
        let main = self.open_main(data_dir).await?;
        let servers = self.servers()?;
        let mut opened = vec![(&servers, Arc::clone(&main))];
        let mut others = Vec::new();
        for other in &self.etcd_servers_overrides {
            let known = opened
                .iter()
                .find(|(servers, _)| **servers == other.servers);
            let store = match known {
                Some((_, store)) => Arc::clone(store),
                None => {
                    let options = self.etcd(other.servers.clone(), data_dir)?;
                    let store: Arc<dyn Store> = Arc::new(open_etcd(options).await?);
                    opened.push((&other.servers, Arc::clone(&store)));
                    store
                }
            };
            others.push(StoreOverride {
                group: other.group.clone(),
                plural: other.plural.clone(),
                store,
            });
        }
        Ok(Stores::new(main, others))
    }

    async fn open_main(&self, data_dir: &Path) -> Result<Arc<dyn Store>> {
        if test_assets::is_kube_apiserver()
            && let Some(place) = test_assets::store_of(&self.servers()?).await
        {
            let options = EmbeddedOptions {
                sync: place.fsync,
                ..EmbeddedOptions::default()
            };
            return embedded(&place.directory, options).await;
        }
        match self.place(data_dir)? {
            StoreLocation::Embedded(dir) => {
                let options = EmbeddedOptions {
                    sync: !self.no_sync,
                    ..EmbeddedOptions::default()
                };
                embedded(&dir, options).await
            }
            StoreLocation::Etcd(options) => {
                let store = open_etcd(*options).await?;
                self.refuse_former_keys(&store).await?;
                Ok(Arc::new(store))
            }
        }
    }

    /// Before it had kube-apiserver's keys davit wrote others, which no server of today reads.
    async fn refuse_former_keys(&self, store: &EtcdStore) -> Result<()> {
        let one = ListOptions {
            limit: Some(1),
            ..ListOptions::default()
        };
        let found = store.list(FORMER_KEYS, one.clone()).await?;
        let is_here = !found.items.is_empty();
        // An update of davit would begin anew without a word.
        let is_new = self.etcd_prefix == PREFIX && store.list("", one).await?.items.is_empty();
        let prefix = match (is_here, is_new) {
            (true, _) => self.etcd_prefix.trim_end_matches('/'),
            (false, true) if store.has_elsewhere(FORMER_PREFIX, FORMER_KEYS).await? => {
                FORMER_PREFIX
            }
            (false, _) => return Ok(()),
        };
        store.close().await;
        bail!(
            "below {prefix}{FORMER_KEYS} in etcd are objects of a davit from before it used kube-apiserver's keys: make a backup with \
             that davit, and restore it with this one (docs/etcd.md); for a new cluster, or where a restore has to go elsewhere, name \
             another --etcd-prefix"
        )
    }
}

async fn open_etcd(options: EtcdOptions) -> Result<EtcdStore> {
    let shown: Vec<String> = options.servers.iter().map(ToString::to_string).collect();
    let store = EtcdStore::open(options).await;
    store.with_context(|| format!("store in etcd ({})", shown.join(",")))
}

async fn embedded(dir: &Path, options: EmbeddedOptions) -> Result<Arc<dyn Store>> {
    let store = EmbeddedStore::open(dir, options).await;
    let of_reading = [
        "open the store",
        "read the store",
        "check the journal of the store",
    ];
    if let Err(error) = &store
        && (matches!(error, davit_store::Error::Corrupt { .. })
            || matches!(error, davit_store::Error::Io { action, .. } if of_reading.contains(action)))
    {
        let data_dir = dir.parent().unwrap_or(dir).display();
        bail!("{error} (`davit check {data_dir}` reads everything and says how to go on)");
    }
    let store = store.with_context(|| format!("store in {}", dir.display()))?;
    Ok(Arc::new(store))
}

/// How this server names itself as the owner of a store: the same after a restart, another on any other machine or
/// directory.
fn owner(data_dir: &Path) -> Result<String> {
    let name = nix::unistd::gethostname().context("host name")?;
    let dir = std::path::absolute(data_dir).context("data directory")?;
    Ok(format!("{}:{}", name.to_string_lossy(), dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: StoreFlags,
    }

    fn servers(line: &str) -> Result<usize, String> {
        let words = std::iter::once("davit").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let servers = line.flags.servers().map_err(|error| error.to_string())?;
        Ok(servers.len())
    }

    #[test]
    fn both_ways_name_etcd() {
        assert_eq!(servers(""), Ok(0));
        assert_eq!(servers("--store etcd=http://a,https://b:1"), Ok(2));
        assert_eq!(
            servers("--etcd-servers http://a --etcd-servers http://b"),
            Ok(2)
        );
        for wrong in [
            "--store etcd=http://a --etcd-servers http://b",
            "--store etcd=a:1",
            "--etcd-servers a",
            "--etcd-certfile x",
            "--store redis",
        ] {
            assert!(servers(wrong).is_err(), "{wrong}");
        }
    }
}
