//! Container Device Interface: vendors' files say what a container needs to use a device.
//!
//! A device has a name `vendor.com/class=name`. [`Registry::resolve`] looks for it in the
//! specification directories and gathers the edits, [`edits::apply`] puts them into an OCI
//! configuration. The directories are looked through at each use; only files that have changed
//! are read again, so a file that a driver wrote a moment ago counts. Rules of priority and
//! conflict as in the reference library
//! (<https://github.com/cncf-tags/container-device-interface>).

pub(crate) mod edits;
mod spec;

use rustix::fs::{Mode, OFlags};
use spec::{Edits, MAX_EDITS, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The directories of the specification, the one that wins last.
pub const DEFAULT_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Prefix of container annotations that name devices, separated by commas.
pub(crate) const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;
/// Largest sum of files that are kept, in bytes; drivers write one for each claim.
const MAX_KEPT: u64 = 8 * MAX_FILE;
/// Edits of each sort that the devices of one container have together.
const MAX_OF_ALL: usize = 2 * MAX_EDITS;
/// Names and causes that are told of what is not found.
const MAX_TOLD: usize = 16;
/// Characters of each of them.
const MAX_CHARACTERS: usize = 200;

/// Devices that cannot be injected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unresolvable CDI devices {}{}", names.join(", "), causes.iter().map(|c| format!("; {c}")).collect::<String>())]
pub(crate) struct Unresolvable {
    /// The names nobody describes, or several files do.
    names: Vec<String>,
    /// Files that cannot be used, and conflicts.
    causes: Vec<String>,
}

/// What identifies the content of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[derive(Debug, Clone)]
struct File {
    stamp: Stamp,
    spec: Result<Arc<Spec>, String>,
}

/// The files of the specification directories.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The later one wins.
    dirs: Vec<PathBuf>,
    files: Mutex<BTreeMap<PathBuf, File>>,
    /// Bytes of all of them.
    max_kept: u64,
}

impl Registry {
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Self {
        Self {
            dirs,
            files: Mutex::default(),
            max_kept: MAX_KEPT,
        }
    }

    /// The edits for these devices, in their order; those of a whole file come once, before the
    /// first of its devices. Reads files: blocks.
    pub(crate) fn resolve(&self, names: &[String]) -> Result<Edits, Unresolvable> {
        let files = self.refresh();
        let mut edits = Edits::default();
        let (mut missing, mut causes) = (Vec::new(), Vec::new());
        let (mut given, mut begun) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            if !given.insert(name) {
                continue;
            }
            match self.find(&files, name) {
                Ok(Some((path, spec, device))) => {
                    if begun.insert(path) {
                        edits.append(&spec.container_edits);
                    }
                    edits.append(&spec.devices[device].container_edits);
                }
                Ok(None) => missing.push(name.clone()),
                Err(conflict) => {
                    missing.push(name.clone());
                    causes.push(conflict);
                }
            }
        }
        if missing.is_empty() && edits.most() > MAX_OF_ALL {
            missing = given.into_iter().cloned().collect();
            causes.push(format!("more than {MAX_OF_ALL} edits of a sort"));
        }
        if missing.is_empty() {
            return Ok(edits);
        }
        let broken = |(path, file): (&PathBuf, &File)| {
            let why = file.spec.as_ref().err()?;
            Some(format!("{}: {why}", path.display()))
        };
        causes.extend(files.iter().filter_map(broken));
        Err(Unresolvable {
            names: told(missing),
            causes: told(causes),
        })
    }

    /// The file that describes a device, and its place in it.
    fn find<'a>(
        &self,
        files: &'a BTreeMap<PathBuf, File>,
        name: &str,
    ) -> Result<Option<(&'a PathBuf, &'a Spec, usize)>, String> {
        let Some((kind, device)) = name.split_once('=') else {
            return Ok(None);
        };
        let mut found: Vec<(usize, &PathBuf, &Spec, usize)> = Vec::new();
        for (path, file) in files {
            let Ok(spec) = &file.spec else { continue };
            if spec.kind != kind {
                continue;
            }
            if let Some(index) = spec.devices.iter().position(|d| d.name == device) {
                let priority = self.dirs.iter().rposition(|d| path.parent() == Some(d));
                found.push((priority.unwrap_or(0), path, spec, index));
            }
        }
        let Some(best) = found.iter().map(|f| f.0).max() else {
            return Ok(None);
        };
        found.retain(|f| f.0 == best);
        match found[..] {
            [(_, path, spec, device)] => Ok(Some((path, spec, device))),
            _ => {
                let paths: Vec<String> = found.iter().map(|f| f.1.display().to_string()).collect();
                Err(format!(
                    "conflicting device {name:?} (specs {})",
                    paths.join(", ")
                ))
            }
        }
    }

    /// Brings what is known of the files up to date.
    fn refresh(&self) -> BTreeMap<PathBuf, File> {
        let mut known = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut now, mut changed) = (BTreeMap::new(), Vec::new());
        for (path, stamp) in self.dirs.iter().flat_map(|dir| found(dir)) {
            match known.remove(&path) {
                Some(file) if file.stamp == stamp => drop(now.insert(path, file)),
                _ => changed.push((path, stamp)),
            }
        }
        // Those that are known stay, however many somebody writes.
        let sizes = now.values().map(|file: &File| file.stamp.size);
        let mut kept = sizes.fold(0, u64::saturating_add);
        let mut left_out = 0_usize;
        for (path, stamp) in changed {
            let sum = kept.saturating_add(stamp.size);
            if sum > self.max_kept {
                left_out += 1;
                continue;
            }
            kept = sum;
            let spec = read(&path).map(Arc::new);
            now.insert(path, File { stamp, spec });
        }
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "no room for all CDI files: there are too many, or too large ones"
            );
        }
        known.clone_from(&now);
        now
    }
}

/// The files of a directory that may be specifications.
fn found(dir: &Path) -> impl Iterator<Item = (PathBuf, Stamp)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let wanted = path.extension().is_some_and(|e| e == "json" || e == "yaml");
        let metadata = std::fs::metadata(&path).ok()?;
        (wanted && metadata.is_file()).then(|| (path, Stamp::of(&metadata)))
    })
}

/// What somebody reads of a list that others have made as long as they like.
fn told(mut list: Vec<String>) -> Vec<String> {
    let more = list.len().saturating_sub(MAX_TOLD);
    list.truncate(MAX_TOLD);
    for one in &mut list {
        if let Some((end, _)) = one.char_indices().nth(MAX_CHARACTERS) {
            one.truncate(end);
            one.push('…');
        }
    }
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    list
}

fn read(path: &Path) -> Result<Spec, String> {
    let text = content(path).map_err(|e| e.to_string())?;
    let json = path.extension().is_some_and(|e| e == "json");
    Spec::parse(&text, json)
}

/// The text of a file. What was looked at before may be something else by now: one without an end, or one that is waited
/// for.
fn content(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("larger than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// Device names that annotations of a container give.
pub(crate) fn annotated<'a>(
    annotations: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<String> {
    let values = annotations.filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
    values
        .flat_map(|(_, value)| value.split(','))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests;
