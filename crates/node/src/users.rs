//! Ranges of host IDs for pods whose users are not the host's (`hostUsers: false`, KEP-127).
//!
//! Each pod gets a range that no other pod of the node has. It is written to the pod's directory, where the upstream node
//! agent writes it, and is free again when the directory is gone: nothing else has to be kept.

use davit_oci::host_ids;
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

/// IDs of a range. The first range of the host is the host's own.
const LENGTH: u32 = 1 << 16;
/// Ranges below 2^31, which is all that some file systems and programs can count to.
const RANGES: u32 = (1 << 15) - 1;
/// Name of the file in the pod's directory.
const FILE: &str = "userns";
/// The file is some hundred bytes.
const MAX_FILE: u64 = 64 << 10;

/// One part of a mapping, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Part>,
    gid_mappings: Vec<Part>,
}

impl Mappings {
    fn new(host_id: u32) -> Self {
        let part = Part {
            host_id,
            container_id: 0,
            length: LENGTH,
        };
        Self {
            uid_mappings: vec![part.clone()],
            gid_mappings: vec![part],
        }
    }

    /// The first ID of the range, when the mapping is one that this module gave.
    fn range(&self) -> Option<u32> {
        let first = self.uid_mappings.first()?.host_id;
        let own = first >= LENGTH && first.is_multiple_of(LENGTH) && *self == Self::new(first);
        own.then_some(first)
    }

    fn read(pod: &Path) -> io::Result<Option<Self>> {
        let text = match davit_beneath::read_own(pod.join(FILE), MAX_FILE) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(io::Error::other)
    }

    /// On disk before the runtime hears of it: another pod must never get the same.
    fn write(&self, paths: &Paths, pod: &Path) -> io::Result<()> {
        paths.make_dir(pod)?;
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        Ok(davit_beneath::write_private(pod.join(FILE), &text)?)
    }
}

/// Gives out ranges.
pub(crate) struct UserRanges {
    paths: Paths,
    one_at_a_time: Mutex<()>,
    /// The number of the range that is looked at first.
    start: u32,
    /// What others here have.
    others: fn() -> Vec<RangeInclusive<u64>>,
}

impl UserRanges {
    /// For the pods below `paths`.
    pub(crate) fn new(paths: Paths) -> Self {
        let start = host_ids::first_of(&paths.pods(), RANGES);
        Self {
            paths,
            one_at_a_time: Mutex::default(),
            start,
            others: host_ids::of_others,
        }
    }

    /// How the pod's users map to the host's; `None` for those whose users are the host's. The same at each call.
    ///
    /// # Errors
    /// Files that cannot be read or written, no range left.
    pub(crate) fn of(&self, pod: &Pod) -> io::Result<Option<cri::UserNamespace>> {
        if pod.pod_spec().host_users != Some(false) {
            return Ok(None);
        }
        let _one = self.one_at_a_time.lock();
        let dir = self.paths.pod(pod.uid());
        let mappings = match Mappings::read(&dir)? {
            Some(mappings) if mappings.range().is_some() => mappings,
            Some(_) => return Err(io::Error::other("the pod's range of users is damaged")),
            None => {
                let mappings = Mappings::new(self.free()?);
                mappings.write(&self.paths, &dir)?;
                mappings
            }
        };
        let list = |parts: &[Part]| {
            let map = |part: &Part| cri::IdMapping {
                host_id: part.host_id,
                container_id: part.container_id,
                length: part.length,
            };
            parts.iter().map(map).collect()
        };
        Ok(Some(cri::UserNamespace {
            mode: cri::NamespaceMode::Pod as i32,
            uids: list(&mappings.uid_mappings),
            gids: list(&mappings.gid_mappings),
        }))
    }

    /// The next range that no pod has, and nobody else here, if there is one: others can have all. What cannot be read may
    /// have any, so nothing is given out then.
    fn free(&self) -> io::Result<u32> {
        let mut taken = BTreeSet::new();
        let entries = match std::fs::read_dir(self.paths.pods()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            if let Some(mappings) = Mappings::read(&entry?.path())? {
                let range = mappings.range();
                taken.insert(range.ok_or_else(|| {
                    io::Error::other("a range of users that is in use is damaged")
                })?);
            }
        }
        let all = (0..RANGES).map(|n| ((n + self.start) % RANGES + 1) * LENGTH);
        let free: Vec<u32> = all.filter(|first| !taken.contains(first)).collect();
        let unused = host_ids::unused(free.iter().copied(), LENGTH, &(self.others)());
        let chosen = unused.or(free.first().copied());
        chosen.ok_or(io::Error::other("no range of users is left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, host_users: bool) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {"hostUsers": host_users, "containers": []},
        }))
        .unwrap()
    }

    #[test]
    fn each_pod_has_a_range_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().to_owned(), dir.path().join("logs"));
        let alone = |paths: &Paths| UserRanges {
            start: 0,
            others: Vec::new,
            ..UserRanges::new(paths.clone())
        };
        let ranges = alone(&paths);
        let first = |uid: &str| {
            ranges
                .of(&pod(uid, false))
                .map(|u| u.unwrap().uids[0].host_id)
        };
        assert_eq!(ranges.of(&pod("host", true)).unwrap(), None);
        assert_eq!((first("a").unwrap(), first("b").unwrap()), (65536, 131_072));
        assert_eq!(first("a").unwrap(), 65536, "the same again");
        // Another agent finds them; what is gone is free.
        let ranges = alone(&paths);
        let first = |uid: &str| {
            ranges
                .of(&pod(uid, false))
                .map(|u| u.unwrap().uids[0].host_id)
        };
        assert_eq!(first("c").unwrap(), 196_608);
        std::fs::remove_dir_all(paths.pod("a")).unwrap();
        assert_eq!(first("d").unwrap(), 65536);
        // What others have is not given out: processes of another agent, an account whose range lies across two.
        let ranges = UserRanges {
            others: || vec![262_144..=327_679, 350_000..=415_535],
            ..alone(&paths)
        };
        let fifth = ranges.of(&pod("f", false)).unwrap().unwrap();
        assert_eq!(fifth.uids[0].host_id, 458_752);
        // Nor does who has all keep pods from starting.
        let ranges = UserRanges {
            others: || vec![0..=u64::MAX],
            ..alone(&paths)
        };
        let sixth = ranges.of(&pod("g", false)).unwrap().unwrap();
        assert_eq!(sixth.uids[0].host_id, 262_144);
        // A file that says something else stops all, instead of giving two pods the same.
        std::fs::write(
            paths.pod("b").join(FILE),
            "{\"uidMappings\":[],\"gidMappings\":[]}",
        )
        .unwrap();
        assert!(first("b").is_err() && first("e").is_err());
        assert_eq!(first("c").unwrap(), 196_608);
    }
}
