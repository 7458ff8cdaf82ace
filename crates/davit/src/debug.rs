//! `davit debug bundle`: what a report of a fault needs, in one file, without secrets.

mod redact;

use crate::cluster_flag::Cluster;
use crate::paths;
use crate::plain::printable;
use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Request;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Flags of `davit debug`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Debug {
    #[command(subcommand)]
    action: DebugAction,
}

#[derive(Debug, Clone, Subcommand)]
enum DebugAction {
    /// Collect the state of a cluster for a report: devices, claims, pods, nodes, events, health and metrics. Secrets and
    /// ConfigMaps are not read; values of environment variables and commands' arguments are left out
    Bundle(Bundle),
}

#[derive(Debug, Clone, clap::Args)]
struct Bundle {
    /// The file [default: davit-bundle-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
}

/// What the API server is asked for that is no list, with the name of the file.
const PAGES: [(&str, &str); 6] = [
    ("/version", "version.json"),
    ("/readyz?verbose", "readyz.txt"),
    ("/livez?verbose", "livez.txt"),
    ("/metrics", "metrics.txt"),
    ("/apis", "apis.json"),
    ("/openapi/v3", "openapi-v3.json"),
];
/// What each node's server is asked for.
const OF_NODES: [(&str, &str); 4] = [
    ("configz", "configz.json"),
    ("stats/summary", "stats-summary.json"),
    ("metrics", "metrics.txt"),
    ("devices", "devices.json"),
];
/// Which objects are collected. Secrets and ConfigMaps are not among them, nor anything else that holds what users wrote for
/// their programs.
const LISTS: [&str; 26] = [
    "api/v1/nodes",
    "api/v1/namespaces",
    "api/v1/pods",
    "api/v1/events",
    "api/v1/services",
    "api/v1/persistentvolumes",
    "api/v1/persistentvolumeclaims",
    "api/v1/resourcequotas",
    "apis/apps/v1/deployments",
    "apis/apps/v1/daemonsets",
    "apis/apps/v1/statefulsets",
    "apis/discovery.k8s.io/v1/endpointslices",
    "apis/coordination.k8s.io/v1/leases",
    "apis/storage.k8s.io/v1/storageclasses",
    "apis/storage.k8s.io/v1/csinodes",
    "apis/storage.k8s.io/v1/csidrivers",
    "apis/storage.k8s.io/v1/volumeattachments",
    "apis/resource.k8s.io/v1/deviceclasses",
    "apis/resource.k8s.io/v1/resourceslices",
    "apis/resource.k8s.io/v1/resourceclaims",
    "apis/resource.k8s.io/v1/resourceclaimtemplates",
    "apis/scheduling.k8s.io/v1/priorityclasses",
    "apis/apiregistration.k8s.io/v1/apiservices",
    "apis/certificates.k8s.io/v1/certificatesigningrequests",
    "apis/networking.k8s.io/v1/networkpolicies",
    "apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
];
/// How long one answer may take: a cluster that is not well is what bundles are for.
const DEADLINE: Duration = Duration::from_secs(15);
/// Longer answers are cut.
const MAX_ANSWER: usize = 64 << 20;

/// Runs `davit debug`.
pub(crate) async fn run(args: Debug) -> Result<()> {
    let DebugAction::Bundle(args) = args.action;
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let now = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string();
    let file = args
        .output
        .unwrap_or_else(|| PathBuf::from(format!("davit-bundle-{now}.tar.gz")));
    let mut archive = Archive::create(&file, &format!("davit-bundle-{now}"))?;
    let mut asked = Asked {
        client,
        faults: Vec::new(),
    };
    for (path, name) in PAGES {
        if let Some(text) = asked.text(path).await {
            archive.add(name, text.as_bytes())?;
        }
    }
    let mut nodes = Vec::new();
    for path in LISTS {
        let Some(mut list) = asked.list(path).await else {
            continue;
        };
        redact::list(&mut list);
        if path == "api/v1/nodes" {
            let items = list["items"].as_array().into_iter().flatten();
            let names = items.filter_map(|node| node["metadata"]["name"].as_str());
            nodes.extend(names.map(str::to_owned));
        }
        archive.add(
            &format!("objects/{path}.json"),
            &serde_json::to_vec_pretty(&list)?,
        )?;
    }
    for node in &nodes {
        for (path, name) in OF_NODES {
            let proxied = format!("/api/v1/nodes/{node}/proxy/{path}");
            if let Some(text) = asked.text(&proxied).await {
                archive.add(&format!("nodes/{node}/{name}"), text.as_bytes())?;
            }
        }
    }
    let about = json!({
        "davit": env!("CARGO_PKG_VERSION"),
        "time": now,
        "notAnswered": asked.faults,
    });
    archive.add("bundle.json", &serde_json::to_vec_pretty(&about)?)?;
    archive.finish()?;
    for fault in &asked.faults {
        eprintln!("left out: {}", printable(fault));
    }
    println!(
        "{} holds no Secrets and no ConfigMaps; look through it before you give it away",
        file.display()
    );
    Ok(())
}

/// An API server that may not be well.
struct Asked {
    client: kube::Client,
    /// What it did not answer.
    faults: Vec<String>,
}

impl Asked {
    async fn text(&mut self, path: &str) -> Option<String> {
        match self.answer(path).await {
            Ok(mut text) => {
                let most = text.floor_char_boundary(MAX_ANSWER);
                text.truncate(most);
                Some(text)
            }
            Err(error) => {
                self.faults.push(format!("{path}: {error:#}"));
                None
            }
        }
    }

    async fn list(&mut self, path: &str) -> Option<Value> {
        let text = self.text(&format!("/{path}")).await?;
        let parsed = serde_json::from_str(&text);
        match parsed {
            Ok(list) => Some(list),
            Err(error) => {
                self.faults.push(format!("/{path}: {error}"));
                None
            }
        }
    }

    async fn answer(&self, path: &str) -> Result<String> {
        let request = Request::get(path).body(Vec::new())?;
        match tokio::time::timeout(DEADLINE, self.client.request_text(request)).await {
            // What it said, without the client's own dump of it.
            Ok(answer) => answer.map_err(|error| match error {
                kube::Error::Api(status) => anyhow!(status.message),
                error => error.into(),
            }),
            Err(_) => bail!("not answered within {} s", DEADLINE.as_secs()),
        }
    }
}

struct Archive {
    file: PathBuf,
    /// The directory in the archive.
    dir: String,
    tar: tar::Builder<GzEncoder<File>>,
}

impl Archive {
    /// A new file that only its owner may read. One that is there is somebody's, and stays.
    fn create(file: &Path, dir: &str) -> Result<Self> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let opened = options.open(file);
        let opened = opened.with_context(|| format!("cannot make {}", file.display()))?;
        Ok(Self {
            file: file.to_owned(),
            dir: dir.to_owned(),
            tar: tar::Builder::new(GzEncoder::new(opened, Compression::default())),
        })
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        let path = format!("{}/{name}", self.dir);
        self.tar
            .append_data(&mut header, path, bytes)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }

    fn finish(self) -> Result<()> {
        let written = || format!("cannot write {}", self.file.display());
        let compressed = self.tar.into_inner().with_context(written)?;
        let file = compressed.finish().with_context(written)?;
        file.sync_all().with_context(written)
    }
}
