//! Whether an image has a path, without mounting it.

use davit_beneath::{Links, Result, Root};
use rustix::fs::FileType;
use std::path::{Component, Path, PathBuf};

/// What the layers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It is there.
    There,
    /// No layer has it, or one hides it.
    Absent,
    /// A link is on the way, which has to be followed in the whole image; whoever mounts it sees.
    BehindLink,
}

/// Looks for a path in the layers of an image, the topmost first.
pub(super) fn find(layers_dir: &Path, layers: &[String], path: &Path) -> Result<Found> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Ok(Found::BehindLink);
    }
    let path: PathBuf = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    for layer in layers {
        let root = Root::open(layers_dir.join(layer), Links::Refused)?;
        if let Some(found) = in_layer(&root, &path)? {
            return Ok(found);
        }
    }
    Ok(Found::Absent)
}

/// What one layer says; nothing where those below decide.
fn in_layer(layer: &Root, path: &Path) -> Result<Option<Found>> {
    let mut opaque = false;
    let mut so_far = PathBuf::new();
    for part in path {
        so_far.push(part);
        let inode = match layer.entry_itself(&so_far) {
            Err(error) if error.is_not_found() => return Ok(opaque.then_some(Found::Absent)),
            other => other?,
        };
        let is_last = so_far == path;
        match inode.kind()? {
            FileType::Directory => opaque |= inode.is_opaque(),
            FileType::Symlink => return Ok(Some(Found::BehindLink)),
            // What the layers below have of this name is gone.
            _ if inode.is_char_device(0, 0) => return Ok(Some(Found::Absent)),
            _ if is_last => {}
            _ => return Ok(Some(Found::Absent)),
        }
    }
    Ok(Some(Found::There))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_topmost_layer_that_knows_decides() {
        let dir = tempfile::tempdir().unwrap();
        for made in [
            "low/a/b",
            "low/gone/x",
            "low/covered/old",
            "high/a",
            "high/covered/new",
        ] {
            fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        fs::write(dir.path().join("low/a/file"), "").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("high/link")).unwrap();
        let high = Root::open(dir.path().join("high"), Links::Refused).unwrap();
        let mode = davit_beneath::Permissions::mode(0);
        high.mknod(
            "gone",
            FileType::CharacterDevice,
            rustix::fs::makedev(0, 0),
            &mode,
        )
        .unwrap();
        high.entry("covered").unwrap().set_opaque().unwrap();
        let layers = ["high", "low"].map(str::to_owned);
        let of = |path: &str| find(dir.path(), &layers, Path::new(path)).unwrap();
        for there in ["a", "a/b", "a/file", "./a//b/", "covered/new", ""] {
            assert_eq!(of(there), Found::There, "{there}");
        }
        for absent in [
            "none",
            "a/none",
            "a/file/x",
            "gone",
            "gone/x",
            "covered/old",
        ] {
            assert_eq!(of(absent), Found::Absent, "{absent}");
        }
        assert_eq!(of("link/b"), Found::BehindLink);
        assert_eq!(of("link"), Found::BehindLink);
        assert_eq!(of("a/../none"), Found::BehindLink);
        assert!(find(dir.path(), &["lost".to_owned()], Path::new("a")).is_err());
    }
}
