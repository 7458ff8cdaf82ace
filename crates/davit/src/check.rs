//! `davit check`: reads all of a data directory and says what is damaged, and how to go on.

use crate::paths::{self, NodePaths};
use crate::plain::printable;
use crate::{output, owner, table};
use anyhow::{Context, Result, bail};
use davit_containermanager::allocation;
use davit_oci::{Embedded, Images};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{KeyValue, ListOptions, Store};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// `davit check`
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The data directory [default: /var/lib/davit as root, else ~/.local/share/davit]
    data_dir: Option<PathBuf>,
    /// Where the node's /var/lib/kubelet is [default: where the node had it]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print a JSON document
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

/// The format for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One JSON document
    Json,
}

/// What was found in a part of the directory.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PartReport {
    part: &'static str,
    /// What there is, in a few words.
    holds: String,
    /// What is damaged, a sentence each.
    faults: Vec<String>,
    /// How to go on, where something is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

/// Objects that are read at once.
const PAGE: usize = 500;
/// Damaged objects that are named; the others are counted.
const NAMED: usize = 20;
/// What stored values begin with that the server encrypts.
const ENCRYPTED: &[u8] = b"k8s:enc:";

const OF_STORE: &str = "move DATA-DIR/store away and make a store of a backup: davit restore FILE --data-dir DATA-DIR \
     (its pki/ stays, so that everybody who has a kubeconfig goes on)";
const OF_OBJECTS: &str = "a server that is started refuses what it cannot read; delete such an object with its key, \
     or make a store of a backup: davit restore FILE --data-dir DATA-DIR";
const OF_KEYS: &str = "put back pki/ from a copy of the data directory (a backup does not hold it)";
const OF_LOG: &str = "move the file away: the next start begins a new one with what the kubelet's checkpoint and state \
     files beside it say";
const OF_IMAGES: &str = "pull or import the image again";
const OF_RECORDS: &str = "the next start leaves such a container alone; remove its directory below runtime/, \
     and davit makes another one for its pod";

/// Checks a data directory that no davit uses.
///
/// # Errors
/// There is none, it is in use, or something in it is damaged.
pub(crate) async fn run(args: Check) -> Result<()> {
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    // What others can change while it is read is not read: links, pipes.
    paths::refuse_others(&data_dir)?;
    if !paths::holds_cluster(&data_dir) {
        bail!("there is no cluster in {}", data_dir.display());
    }
    if let Some((command, _, _)) = owner::users(&data_dir)?.into_iter().next() {
        bail!(
            "`davit {command}` runs with {}; stop it first, or check a copy of the directory",
            data_dir.display()
        );
    }
    let kubelet = NodePaths::of_node_in(&data_dir, args.root.as_deref())?.kubelet();
    let mut parts = vec![store(&data_dir.join("store")).await];
    let rest = tokio::task::spawn_blocking(move || files(&data_dir, &kubelet));
    parts.extend(rest.await.context("the check of files")?);
    match args.output {
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(&parts)?),
        None => print!("{}", text(&parts)),
    }
    let damaged = parts.iter().filter(|part| !part.faults.is_empty()).count();
    if damaged > 0 {
        bail!(
            "{} of the data directory: damaged",
            output::count(damaged, "part")
        );
    }
    Ok(())
}

/// Everything that is no store. Blocks.
fn files(data_dir: &Path, kubelet: &Path) -> Vec<PartReport> {
    let runtime = paths::runtime_dir(data_dir);
    let mut parts = Vec::new();
    if data_dir.join("pki").is_dir() {
        parts.push(keys(&data_dir.join("pki")));
    }
    parts.extend(allocation_log(&kubelet.join("allocations.log")));
    if runtime.is_dir() {
        parts.push(images(&runtime));
        let (records, faults) = Embedded::examine(&runtime);
        let holds = output::count(records, "record");
        parts.push(PartReport::new("containers", holds, faults, OF_RECORDS));
    }
    parts
}

impl PartReport {
    fn new(part: &'static str, holds: String, faults: Vec<String>, way: &'static str) -> Self {
        Self {
            part,
            holds,
            advice: (!faults.is_empty()).then_some(way),
            faults,
        }
    }

    /// Of a part that cannot be read at all.
    fn unreadable(part: &'static str, error: &dyn std::error::Error, way: &'static str) -> Self {
        Self::new(part, "not known".to_owned(), vec![error.to_string()], way)
    }
}

/// Opens the store as a start does (a last write that was cut short by a crash is dropped) and reads every object.
async fn store(dir: &Path) -> PartReport {
    const PART: &str = "store";
    if !dir.join("complete").exists() {
        let holds = "none here (a node's directory, or objects in etcd)".to_owned();
        return PartReport::new(PART, holds, Vec::new(), OF_STORE);
    }
    let store = match EmbeddedStore::open(dir, EmbeddedOptions::default()).await {
        Ok(store) => store,
        Err(error) => return PartReport::unreadable(PART, &error, OF_STORE),
    };
    let read = read_all(&store).await;
    store.close().await;
    match read {
        Err(error) => PartReport::unreadable(PART, &error, OF_STORE),
        Ok(objects) => PartReport::new(PART, objects.to_string(), objects.faults, OF_OBJECTS),
    }
}

/// What the store holds.
#[derive(Debug, Default)]
struct Objects {
    count: usize,
    bytes: usize,
    /// Objects whose values only a server with their keys can read.
    encrypted: usize,
    revision: u64,
    faults: Vec<String>,
    damaged: usize,
}

impl std::fmt::Display for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            bytes, revision, ..
        } = self;
        let objects = output::count(self.count, "object");
        write!(
            f,
            "{objects} of {} KiB at revision {revision}",
            bytes.div_ceil(1024)
        )?;
        if self.encrypted > 0 {
            write!(f, ", {} encrypted and not looked into", self.encrypted)?;
        }
        if self.damaged > NAMED {
            write!(f, ", {} damaged", self.damaged)?;
        }
        Ok(())
    }
}

async fn read_all(store: &EmbeddedStore) -> Result<Objects, davit_store::Error> {
    let mut objects = Objects::default();
    let mut start = None;
    loop {
        let page = ListOptions {
            limit: Some(PAGE),
            start: start.take(),
            ..ListOptions::default()
        };
        let page = store.list("", page).await?;
        objects.revision = page.revision;
        for pair in &page.items {
            objects.take(pair);
        }
        match page.items.last() {
            // The first key after it.
            Some(last) if page.more => start = Some(format!("{}\0", last.key)),
            _ => return Ok(objects),
        }
    }
}

impl Objects {
    fn take(&mut self, pair: &KeyValue) {
        self.count += 1;
        self.bytes += pair.value.len();
        if pair.value.starts_with(ENCRYPTED) {
            self.encrypted += 1;
        } else if let Some(fault) = fault(pair) {
            self.damaged += 1;
            if self.damaged <= NAMED {
                self.faults.push(format!("{}: {fault}", pair.key));
            }
        }
    }
}

/// What is wrong with a stored object: it is JSON, and named as its key.
fn fault(pair: &KeyValue) -> Option<String> {
    let value: serde_json::Value = match serde_json::from_slice(&pair.value) {
        Ok(value) => value,
        Err(error) => return Some(format!("this is no JSON: {error}")),
    };
    let name = value["metadata"]["name"].as_str()?;
    let of_key = pair.key.rsplit('/').next().unwrap_or_default();
    (name != of_key).then(|| format!("it holds the object {name:?}"))
}

fn keys(dir: &Path) -> PartReport {
    match davit_pki::examine(dir, jiff::Timestamp::now()) {
        Err(error) => PartReport::unreadable("keys", &error, OF_KEYS),
        Ok(summary) => {
            let holds = format!("authorities: {}", summary.authorities);
            PartReport::new("keys", holds, summary.faults, OF_KEYS)
        }
    }
}

fn allocation_log(path: &Path) -> Option<PartReport> {
    let summary = match allocation::summarize(path) {
        Ok(summary) => summary?,
        Err(error) => return Some(PartReport::unreadable("allocations", &error, OF_LOG)),
    };
    let mut holds = format!("pods with devices, CPUs or memory: {}", summary.pods);
    if summary.torn > 0 {
        holds += "; the end is not whole: it was never acknowledged, the next start drops it";
    }
    Some(PartReport::new("allocations", holds, Vec::new(), OF_LOG))
}

fn images(runtime: &Path) -> PartReport {
    match Images::examine(runtime) {
        Err(error) => PartReport::unreadable("images", &error, OF_IMAGES),
        Ok((count, faults)) => {
            PartReport::new("images", output::count(count, "image"), faults, OF_IMAGES)
        }
    }
}

/// A table of the parts, then what is damaged.
fn text(parts: &[PartReport]) -> String {
    let state = |part: &PartReport| {
        if part.faults.is_empty() {
            "ok"
        } else {
            "damaged"
        }
    };
    let row = |part: &PartReport| {
        vec![
            part.part.to_owned(),
            state(part).to_owned(),
            part.holds.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = parts.iter().map(row).collect();
    let mut text = table::render(&["PART", "STATE", "HOLDS"], &rows);
    for part in parts.iter().filter(|part| !part.faults.is_empty()) {
        for fault in &part.faults {
            text += &format!("\n{}: {}", part.part, printable(fault));
        }
        if let Some(advice) = part.advice {
            text += &format!("\n  to go on: {advice}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of a directory is somebody else's, too.
    #[tokio::test]
    async fn a_directory_of_another_account_is_not_read() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: giving files away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        std::fs::create_dir_all(dir.path().join("locks")).unwrap();
        std::fs::create_dir(&pki).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        // Whoever opens it waits.
        rustix::fs::mkfifoat(rustix::fs::CWD, pki.join("ca.crt"), mode).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1234), None).unwrap();
        let asked = Check {
            data_dir: Some(dir.path().to_owned()),
            root: Some(dir.path().to_owned()),
            output: None,
        };
        let error = run(asked).await.unwrap_err().to_string();
        assert!(error.contains("belongs to user 1234"), "{error}");
    }

    /// An archive that root unpacks has root's files, whatever they are.
    #[tokio::test]
    async fn pipes_and_links_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let store = data.join("store");
        std::fs::create_dir_all(data.join("locks")).unwrap();
        let opened = EmbeddedStore::open(&store, EmbeddedOptions::default()).await;
        opened.unwrap().close().await;
        for part in ["pki", "runtime/images", "runtime/containers/c"] {
            std::fs::create_dir_all(data.join(part)).unwrap();
        }
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "as it was").unwrap();
        let asked = || Check {
            data_dir: Some(data.clone()),
            root: Some(dir.path().join("root")),
            output: None,
        };
        assert!(super::store(&store).await.faults.is_empty());
        for place in [
            "store/closed",
            "store/reserve",
            "store/db/0.jnl",
            "store/db/new",
            "pki/ca.crt",
            "pki/sa.key",
            "runtime/images/images.json",
            "runtime/containers/c/record.json",
        ] {
            let place = data.join(place);
            let kept = std::fs::read(&place).ok();
            for is_link in [false, true] {
                let _none = std::fs::remove_file(&place);
                let made = match is_link {
                    true => std::os::unix::fs::symlink(&victim, &place),
                    false => rustix::fs::mkfifoat(rustix::fs::CWD, &place, rustix::fs::Mode::RUSR)
                        .map_err(Into::into),
                };
                made.unwrap();
                let found = tokio::time::timeout(std::time::Duration::from_secs(30), run(asked()));
                let found = found
                    .await
                    .unwrap_or_else(|_| panic!("{} is opened", place.display()));
                assert!(found.is_err(), "{}", place.display());
                let refused = super::store(&store).await.faults;
                assert_eq!(
                    place.starts_with(&store),
                    !refused.is_empty(),
                    "{refused:?}"
                );
                assert_eq!(std::fs::read(&victim).unwrap(), b"as it was");
            }
            std::fs::remove_file(&place).unwrap();
            if let Some(kept) = kept {
                std::fs::write(&place, kept).unwrap();
            }
        }
    }

    #[test]
    fn faults_do_not_move_the_cursor() {
        let fault = "record of containers/\x1b[2J: no JSON".to_owned();
        let part = PartReport::new("containers", String::new(), vec![fault], OF_RECORDS);
        assert!(!text(&[part]).contains('\x1b'));
    }

    #[test]
    fn an_object_is_json_and_named_as_its_key() {
        let pair = |key: &str, value: &'static str| KeyValue {
            key: key.into(),
            value: value.into(),
            mod_revision: 2,
            create_revision: 2,
        };
        assert_eq!(
            fault(&pair("/pods/a/b", r#"{"metadata":{"name":"b"}}"#)),
            None
        );
        // Not all that is stored is an object.
        assert_eq!(fault(&pair("/x/lease", "{}")), None);
        let other = fault(&pair("/pods/a/b", r#"{"metadata":{"name":"c"}}"#));
        assert_eq!(other.as_deref(), Some("it holds the object \"c\""));
        let torn = fault(&pair("/pods/a/b", r#"{"metadata":"#));
        assert!(torn.unwrap().starts_with("this is no JSON"));
    }
}
