//! Mount points inside volumes of files. Such a volume is read-only in containers, so that the runtime cannot make a
//! directory there for what else a container mounts below it; the node makes it beforehand, as the kubelet does.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use davit_beneath::{Links, Root};

/// The paths in a volume that containers mount something on, without those inside one another. Of each container's mounts the
/// volume's name and the path in the container are given.
#[must_use]
pub fn points(containers: &[Vec<(&str, &str)>], volume: &str) -> BTreeSet<PathBuf> {
    let mut points = BTreeSet::new();
    for mounts in containers {
        let all: BTreeSet<PathBuf> = mounts.iter().map(|(_, path)| cleaned(path)).collect();
        for (_, outer) in mounts.iter().filter(|(name, _)| *name == volume) {
            let outer = cleaned(outer);
            let mut last: Option<&Path> = None;
            for point in &all {
                let Ok(inner) = point.strip_prefix(&outer) else {
                    continue;
                };
                let covered = last.is_some_and(|last| inner.starts_with(last));
                if !covered && inner != Path::new("") {
                    points.insert(inner.to_owned());
                    last = Some(inner);
                }
            }
        }
    }
    points
}

/// Makes directories for them where nothing is, below a directory that a container with the right to mount may write.
///
/// # Errors
/// I/O errors.
pub fn make(dir: &Path, points: &BTreeSet<PathBuf>) -> io::Result<()> {
    let root = Root::open(dir, Links::Refused)?;
    for point in points {
        if root.entry_itself(point).is_err() {
            root.mkdir_all(point, 0o755)?;
        }
    }
    Ok(())
}

/// The path below the container's root, without `.` and `..`.
fn cleaned(path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => drop(out.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containers_mount_inside_a_volume_gets_a_directory_there() {
        let init = vec![("config", "/first"), ("a", "/first/init")];
        let main = vec![
            ("config", "/etc/config/"),
            ("a", "/etc/config/x/./y"),
            ("b", "/etc/config/x/y/z"),
            ("b", "/etc/config/../config/w"),
            ("b", "/etc/configured/v"),
        ];
        let containers = [init, main];
        let expected = ["init", "w", "x/y"].map(PathBuf::from);
        let found = points(&containers, "config");
        assert_eq!(found, BTreeSet::from(expected));
        let inner = BTreeSet::from([PathBuf::from("z")]);
        assert_eq!(points(&containers, "a"), inner);
        assert_eq!(points(&containers, "b"), BTreeSet::new());

        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("w"), "").unwrap();
        for _ in 0..2 {
            make(dir.path(), &found).unwrap();
        }
        assert!(dir.path().join("x/y").is_dir());
        assert!(dir.path().join("w").is_file());
    }
}
