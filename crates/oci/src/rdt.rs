//! Intel Resource Director Technology: containers in groups of the resctrl file system, as `linux.intelRdt` of the OCI
//! configuration says.
//!
//! The monitor joins a group before it makes the container, so that every process it forks is in it, those of later
//! exec calls included.

use davit_beneath::mountinfo::{MountEntry, mount_table};
use oci_spec::runtime::LinuxIntelRdt;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A container that cannot join its group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("intelRdt: resctrl is not mounted on this machine")]
    NotMounted,
    #[error("intelRdt: {0:?} is no name of a class of service")]
    Name(String),
    #[error("intelRdt: class of service {0:?} does not exist, and no schemata are given")]
    NoClass(String),
    #[error("intelRdt: class of service {class:?} has other schemata: {line:?} is wanted")]
    Differs { class: String, line: String },
    #[error("intelRdt: {what}: {error}{}", if status.is_empty() { String::new() } else { format!(" ({status})") })]
    Failed {
        what: String,
        error: io::Error,
        /// What the kernel says of its last refusal.
        status: String,
    },
}

/// What has to go when the container has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Directories, the inner ones first.
    own: Vec<PathBuf>,
}

impl Joined {
    /// Removes the container's own groups; their processes, if any are left, fall back to the group above.
    pub(crate) fn leave(&self) {
        for group in &self.own {
            // A reboot or an administrator may have been faster.
            let _gone = fs::remove_dir(group);
        }
    }
}

/// Where resctrl is mounted.
fn mounted(table: Vec<MountEntry>) -> Option<PathBuf> {
    let found = table.into_iter().find(|row| row.fs_type == "resctrl");
    found.map(|row| row.point)
}

/// Puts a process, the caller as a rule, into the group that the configuration names.
pub(crate) fn join(rdt: &LinuxIntelRdt, container: &str, pid: u32) -> Result<Joined, Error> {
    let table = mount_table().map_err(|error| Error::Failed {
        what: "find resctrl".to_owned(),
        error,
        status: String::new(),
    })?;
    join_at(mounted(table).as_deref(), rdt, container, pid)
}

fn schemata(rdt: &LinuxIntelRdt) -> Vec<String> {
    let complete = rdt.schemata().iter().flatten().cloned();
    let complete: Vec<String> = complete.collect();
    if !complete.is_empty() {
        return complete;
    }
    // The old fields, of which one may be in the other.
    let old = [rdt.l3_cache_schema(), rdt.mem_bw_schema()];
    let lines = old.into_iter().flatten().flat_map(|schema| schema.lines());
    lines.map(str::to_owned).collect()
}

fn join_at(
    base: Option<&Path>,
    rdt: &LinuxIntelRdt,
    container: &str,
    pid: u32,
) -> Result<Joined, Error> {
    let (lines, watched) = (schemata(rdt), rdt.enable_monitoring().unwrap_or_default());
    let class = rdt.clos_id().as_deref().filter(|class| !class.is_empty());
    if class.is_none() && lines.is_empty() && !watched {
        return Ok(Joined::default());
    }
    let base = base.ok_or(Error::NotMounted)?;
    let mut joined = Joined::default();
    let entered = enter(base, class, &lines, watched, container, pid, &mut joined);
    match entered {
        Ok(()) => Ok(joined),
        Err(error) => {
            joined.leave();
            Err(error)
        }
    }
}

fn enter(
    base: &Path,
    class: Option<&str>,
    lines: &[String],
    watched: bool,
    container: &str,
    pid: u32,
    joined: &mut Joined,
) -> Result<(), Error> {
    let failed = |what: String| {
        move |error| {
            let status = fs::read_to_string(base.join("info/last_cmd_status"));
            let status = status.unwrap_or_default().trim().to_owned();
            let status = if status == "ok" {
                String::new()
            } else {
                status
            };
            Error::Failed {
                what,
                error,
                status,
            }
        }
    };
    let group = match class {
        // The group of all that are in no other.
        Some("/") => base.to_owned(),
        None if lines.is_empty() => base.to_owned(),
        Some(class) if class.contains(['/', '\n']) || class.starts_with('.') => {
            return Err(Error::Name(class.to_owned()));
        }
        class => base.join(class.unwrap_or(container)),
    };
    let exists = group.is_dir();
    if !exists && lines.is_empty() {
        return Err(Error::NoClass(class.unwrap_or_default().to_owned()));
    }
    if !exists {
        let made = fs::create_dir(&group);
        made.map_err(failed(format!("make group {}", group.display())))?;
        if class.is_none() {
            joined.own.push(group.clone());
        }
    }
    let file = group.join("schemata");
    if exists && class.is_some() && !lines.is_empty() {
        let present = fs::read_to_string(&file).map_err(failed("read schemata".to_owned()))?;
        if let Some(line) = differing(&present, lines) {
            let class = class.unwrap_or_default().to_owned();
            return Err(Error::Differs { class, line });
        }
    } else {
        for line in lines {
            let written = fs::write(&file, format!("{line}\n"));
            if let Err(error) = written {
                if !exists && class.is_some() {
                    // A class without its schemata is nobody's.
                    let _gone = fs::remove_dir(&group);
                }
                return Err(failed(format!("write schemata {line:?}"))(error));
            }
        }
    }
    let written = fs::write(group.join("tasks"), pid.to_string());
    written.map_err(failed(format!("join group {}", group.display())))?;
    if watched {
        let own = group.join("mon_groups").join(container);
        let made = fs::create_dir(&own);
        made.map_err(failed(format!("make monitoring group {}", own.display())))?;
        joined.own.insert(0, own.clone());
        let written = fs::write(own.join("tasks"), pid.to_string());
        written.map_err(failed(format!("join monitoring group {}", own.display())))?;
    }
    Ok(())
}

/// Resource and number of the cache, with what is set for it; masks without leading zeros.
fn parts(line: &str) -> BTreeMap<(String, String), String> {
    let Some((resource, caches)) = line.split_once(':') else {
        return BTreeMap::new();
    };
    let cache = |part: &str| {
        let (number, value) = part.split_once('=')?;
        let value = value.trim().to_ascii_lowercase();
        let short = value.trim_start_matches('0');
        let value = if short.is_empty() { "0" } else { short };
        let key = (resource.trim().to_owned(), number.trim().to_owned());
        Some((key, value.to_owned()))
    };
    caches.split(';').filter_map(cache).collect()
}

/// The first wanted line that a group does not have.
fn differing(present: &str, wanted: &[String]) -> Option<String> {
    let present: BTreeMap<_, _> = present.lines().flat_map(parts).collect();
    let has = |line: &&String| {
        let parts = parts(line);
        !parts.is_empty()
            && parts
                .iter()
                .all(|(key, value)| present.get(key) == Some(value))
    };
    wanted.iter().find(|line| !has(line)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rdt(value: serde_json::Value) -> LinuxIntelRdt {
        serde_json::from_value(value).unwrap()
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_mount_is_found() {
        let row = |point: &str, fs_type: &str| MountEntry {
            id: 1,
            peers: None,
            point: point.into(),
            fs_type: fs_type.to_owned(),
            options: Vec::new(),
        };
        let resctrl = row("/sys/fs/resctrl", "resctrl");
        assert_eq!(
            mounted(vec![row("/proc", "proc"), resctrl]),
            Some(PathBuf::from("/sys/fs/resctrl"))
        );
        assert_eq!(mounted(vec![row("/proc", "proc")]), None);
        let wanted = rdt(json!({"closID": "gold"}));
        let error = join_at(None, &wanted, "c1", 7).unwrap_err();
        assert_eq!(
            error.to_string(),
            "intelRdt: resctrl is not mounted on this machine"
        );
        // Nothing is asked for: nothing is needed.
        assert_eq!(
            join_at(None, &rdt(json!({})), "c1", 7).unwrap(),
            Joined::default()
        );
    }

    #[test]
    fn a_group_of_its_own_goes_with_the_container() {
        let base = tempfile::tempdir().unwrap();
        let wanted = rdt(json!({"schemata": ["L3:0=f0;1=f"]}));
        let joined = join_at(Some(base.path()), &wanted, "c1", 7).unwrap();
        let group = base.path().join("c1");
        assert_eq!(read(&group.join("schemata")), "L3:0=f0;1=f\n");
        assert_eq!(read(&group.join("tasks")), "7");
        assert_eq!(joined.own, [group]);
    }

    #[test]
    fn a_class_has_to_be_there_or_to_be_described() {
        let base = tempfile::tempdir().unwrap();
        let at = Some(base.path());
        let bare = rdt(json!({"closID": "gold"}));
        let error = join_at(at, &bare, "c1", 7).unwrap_err();
        assert!(matches!(error, Error::NoClass(class) if class == "gold"));
        let old = json!({"closID": "gold", "l3CacheSchema": "L3:0=0ff", "memBwSchema": "MB:0=50"});
        let joined = join_at(at, &rdt(old), "c1", 7).unwrap();
        assert_eq!(joined, Joined::default(), "classes stay");
        let group = base.path().join("gold");
        fs::write(group.join("schemata"), "    L3:0=ff;1=3\n    MB:0= 50\n").unwrap();
        let same = json!({"closID": "gold", "schemata": ["L3:0=0FF", "MB:0=50"]});
        join_at(at, &rdt(same), "c2", 8).unwrap();
        assert_eq!(read(&group.join("tasks")), "8");
        let other = json!({"closID": "gold", "schemata": ["L3:1=1"]});
        let error = join_at(at, &rdt(other), "c3", 9).unwrap_err();
        assert!(matches!(error, Error::Differs { line, .. } if line == "L3:1=1"));
        for bad in ["../x", "a/b", ".", "a\nb"] {
            let error = join_at(at, &rdt(json!({"closID": bad})), "c4", 9).unwrap_err();
            assert!(matches!(error, Error::Name(_)), "{bad}: {error}");
        }
    }

    #[test]
    fn monitoring_groups() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("gold/mon_groups")).unwrap();
        fs::create_dir_all(base.path().join("mon_groups")).unwrap();
        let wanted = rdt(json!({"closID": "gold", "enableMonitoring": true}));
        let joined = join_at(Some(base.path()), &wanted, "c1", 7).unwrap();
        let own = base.path().join("gold/mon_groups/c1");
        assert_eq!(read(&own.join("tasks")), "7");
        assert_eq!(joined.own, [own]);
        // In the group of all others.
        let wanted = rdt(json!({"enableMonitoring": true}));
        let joined = join_at(Some(base.path()), &wanted, "c1", 7).unwrap();
        assert_eq!(joined.own, [base.path().join("mon_groups/c1")]);
        // What was begun is undone, and the kernel's word is passed on.
        fs::create_dir(base.path().join("info")).unwrap();
        fs::write(
            base.path().join("info/last_cmd_status"),
            "too many groups\n",
        )
        .unwrap();
        let error = join_at(Some(base.path()), &wanted, "c1", 7).unwrap_err();
        assert!(error.to_string().ends_with("(too many groups)"), "{error}");
    }
}
