//! Simulated nodes: many real node agents in one process, each with a directory, devices and
//! plugins of its own, over a runtime that runs nothing.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use davit_netplan::{ENFORCES_POLICIES, PROXIES_SERVICES};
use davit_node::{NodeAgent, NodeOptions};
use davit_oci::Hollow;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::Say;
use crate::devices::{self, Inventory, Resource};
use crate::drivers;

/// Label of nodes that are simulated.
pub const SIMULATED_LABEL: &str = "davit.dev/simulated";
/// Where the servers of simulated nodes listen.
pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// What a simulated node has when nobody says what.
pub const DEFAULT_RESOURCE: &str = "hardware-vendor.example/foo";
const DEFAULT_DEVICES: usize = 8;
/// Room that the sockets of a node need behind its directory.
const SOCKET_ROOM: usize = 64;
/// Bytes that the path of a socket may have.
const LONGEST_PATH: usize = 107;

/// Which nodes to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many.
    pub count: usize,
    /// Their names begin so; a number from 0 follows.
    pub prefix: String,
    /// Directory of their directories.
    pub dir: PathBuf,
    /// What they have; resources may be limited to some of them by their names.
    pub inventory: Inventory,
}

impl Options {
    /// So many nodes below a directory, with eight devices each.
    pub fn new(count: usize, dir: impl Into<PathBuf>) -> Self {
        Self {
            count,
            prefix: "sim-".to_owned(),
            dir: dir.into(),
            inventory: default_inventory(),
        }
    }

    /// The names of the nodes.
    pub fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|n| format!("{}{n}", self.prefix))
    }
}

/// What a simulated node has when nobody says what.
pub fn default_inventory() -> Inventory {
    Inventory {
        resources: vec![Resource {
            name: DEFAULT_RESOURCE.to_owned(),
            count: DEFAULT_DEVICES,
            ..Resource::default()
        }],
        drivers: Vec::new(),
    }
}

/// Why nodes are not simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes' directory is not to be had.
    #[error("directory {dir} of the simulated nodes")]
    Directory {
        /// Its path.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The sockets of a node would have longer paths than the system allows.
    #[error("the name {0} of a node is too long for its sockets")]
    TooLong(String),
    /// An agent does not run.
    #[error("simulated node {node}")]
    Agent {
        /// Its name.
        node: String,
        /// Why.
        source: Box<davit_node::agent::Error>,
    },
    /// Its devices are not served.
    #[error("simulated node {node}")]
    Devices {
        /// Its name.
        node: String,
        /// Why.
        source: devices::Error,
    },
    /// Its drivers do not run.
    #[error("simulated node {node}")]
    Drivers {
        /// Its name.
        node: String,
        /// Why.
        source: drivers::Error,
    },
    /// A task has failed.
    #[error("a simulated node failed: {0}")]
    Failed(#[from] JoinError),
}

/// Runs the nodes until `cancel`. `client` gives each its way to the API server; `adjust` may
/// change its options.
///
/// # Errors
/// A node that cannot be run; the others end with it.
pub async fn run(
    options: &Options,
    client: impl Fn(&str) -> kube::Client,
    adjust: impl Fn(&mut NodeOptions),
    cancel: CancellationToken,
) -> Result<(), Error> {
    let cancel = cancel.child_token();
    let _stop = cancel.clone().drop_guard();
    let directory = NodesDirectory::new(options)?;
    let mut nodes = JoinSet::new();
    for name in options.names() {
        let dir = directory.path.join(&name);
        if !has_room(&dir) {
            return Err(Error::TooLong(name));
        }
        let mut node = NodeOptions::new(&name, dir.join("kubelet"), Arc::new(Hollow::default()));
        // What has no pods has no network either.
        for what in [PROXIES_SERVICES, ENFORCES_POLICIES] {
            node.annotations.insert(what.to_owned(), "false".to_owned());
        }
        node.log_dir = options.dir.join(&name).join("logs");
        node.address = ADDRESS;
        node.mounts = false;
        node.cgroups = None;
        node.labels
            .insert(SIMULATED_LABEL.to_owned(), "true".to_owned());
        adjust(&mut node);
        let plugins = options.inventory.for_node(Some(&name));
        nodes.spawn(one(
            name.clone(),
            client(&name),
            node,
            plugins,
            cancel.clone(),
        ));
    }
    let mut outcome = Ok(());
    while let Some(ended) = nodes.join_next().await {
        let ended = ended.map_err(Error::from).and_then(|ended| ended);
        if outcome.is_ok() && ended.is_err() {
            outcome = ended;
            cancel.cancel();
        }
    }
    outcome
}

/// Whether paths of sockets fit below the directory of a node.
fn has_room(dir: &Path) -> bool {
    dir.as_os_str().len() + SOCKET_ROOM <= LONGEST_PATH
}

/// The directory of the nodes' directories, by a path that leaves room for their sockets.
struct NodesDirectory {
    path: PathBuf,
    /// What the path names, if it does so by a descriptor. Such a path is for this process alone, which all plugins of
    /// simulated nodes are in.
    _open: Option<File>,
}

impl NodesDirectory {
    fn new(options: &Options) -> Result<Self, Error> {
        let dir = &options.dir;
        if options.names().all(|name| has_room(&dir.join(name))) {
            let path = dir.clone();
            return Ok(Self { path, _open: None });
        }
        let open = std::fs::create_dir_all(dir).and_then(|()| File::open(dir));
        let open = open.map_err(|source| Error::Directory {
            dir: dir.clone(),
            source,
        })?;
        Ok(Self {
            path: format!("/proc/self/fd/{}", open.as_raw_fd()).into(),
            _open: Some(open),
        })
    }
}

async fn one(
    name: String,
    client: kube::Client,
    options: NodeOptions,
    inventory: Inventory,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let kubelet = options.root_dir.clone();
    let place = drivers::DriverPaths {
        client: client.clone(),
        node: name.clone(),
        kubelet_dir: kubelet.clone(),
        cdi_dir: kubelet.join("cdi"),
    };
    let of = name.clone();
    let say: Say = Arc::new(move |line: &str| tracing::info!(node = of, "{line}"));
    let agent = NodeAgent::new(client, options);
    let agent = async {
        let ended = agent.run(cancel.clone()).await;
        ended.map_err(|e| Error::Agent {
            node: name.clone(),
            source: Box::new(e),
        })
    };
    let plugins = async {
        let ended = devices::serve(&inventory, &kubelet, &say, cancel.clone()).await;
        ended.map_err(|source| Error::Devices {
            node: name.clone(),
            source,
        })
    };
    let drivers = async {
        let ended = drivers::serve(&inventory.drivers, &place, &say, cancel.clone()).await;
        ended.map_err(|source| Error::Drivers {
            node: name.clone(),
            source,
        })
    };
    tokio::try_join!(agent, plugins, drivers).map(drop)
}
