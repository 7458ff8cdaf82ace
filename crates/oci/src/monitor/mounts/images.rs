//! Images as volumes (KEP-4639): the layers of an image, one over the other, with nothing to write to.

use super::{Prepared, Result, failed};
use crate::monitor::userns;
use davit_beneath::{Links, Root, mount as fds};
use rustix::mount::{MountFlags, mount};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::PathBuf;

/// An image that is mounted as a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMount {
    /// Where the configuration mounts it, by a mount of type `image`.
    pub destination: PathBuf,
    /// Directory that holds the layers; `lower` is relative to it.
    pub layers: PathBuf,
    /// Layers, the topmost first.
    pub lower: Vec<String>,
    /// What of the image is shown: a path below its root, empty for the root. Links are followed inside the image.
    pub sub_path: String,
    /// Directory with the empty directories `root`, `empty` and `mapped`, where the image is put together.
    pub scratch: PathBuf,
}

/// Mounts the images where only this mount namespace sees them, and gives them to the mounts of type `image`. With the
/// files' IDs as `users` maps them, if it is given.
pub(in crate::monitor) fn mount_images(
    images: &[ImageMount],
    mounts: &mut [Prepared<'_>],
    users: Option<&File>,
) -> Result<()> {
    for image in images {
        let wanted = |prepared: &&mut Prepared<'_>| {
            prepared.spec.typ().as_deref() == Some("image")
                && *prepared.spec.destination() == image.destination
        };
        // Another mount may have taken its place.
        let Some(prepared) = mounts.iter_mut().find(wanted) else {
            continue;
        };
        let path = prepared.spec.destination().display();
        let shown = |e: davit_beneath::Error| format!("mount {path}: image: {e}");
        let root = image.mount(users)?;
        let root = Root::open(&root, Links::Confined).map_err(shown)?;
        let part = root.entry(&image.sub_path).map_err(|e| {
            if e.is_not_found() {
                format!(
                    "mount {path}: the image has no sub-path {:?}",
                    image.sub_path
                )
            } else {
                shown(e)
            }
        })?;
        prepared.source = Some(fds::clone_tree(part, false).map_err(shown)?);
    }
    Ok(())
}

impl ImageMount {
    /// Where it is mounted.
    fn mount(&self, users: Option<&File>) -> Result<PathBuf> {
        let mapped = self.scratch.join("mapped");
        let (layers, lower) = match users {
            Some(users) => {
                let lower = self.lower.iter().map(|name| self.layers.join(name));
                (&mapped, userns::map_layers(lower, users, &mapped)?)
            }
            None => (&self.layers, self.lower.clone()),
        };
        // Relative names keep the option string within the kernel's one page.
        std::env::set_current_dir(layers)
            .map_err(|e| format!("layers {}: {e}", layers.display()))?;
        // Without a layer to write to, the kernel wants two others.
        let empty = self.scratch.join("empty");
        let options = format!("lowerdir={}:{}", lower.join(":"), empty.display());
        let options = std::ffi::CString::new(options).map_err(|e| format!("image layers: {e}"))?;
        let root = self.scratch.join("root");
        mount(
            "overlay",
            &root,
            "overlay",
            MountFlags::RDONLY,
            options.as_c_str(),
        )
        .map_err(failed("mount overlay of an image"))?;
        Ok(root)
    }
}
