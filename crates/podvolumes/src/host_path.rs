//! hostPath volumes: what is on the node, where it is.

use super::error::{Cause, io_error};
use k8s_openapi::api::core::v1::HostPathVolumeSource;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;

/// Checks, and makes where the pod wants it, what is at a hostPath.
///
/// # Errors
/// Something else is there, or it cannot be made.
pub(super) fn set_up(source: &HostPathVolumeSource) -> Result<PathBuf, Cause> {
    if source.path.split('/').any(|part| part == "..") {
        let text = format!("invalid HostPath {:?}: must not contain '..'", source.path);
        return Err(Cause::Claim(text));
    }
    let path = PathBuf::from(&source.path);
    let failed = |expected| Cause::HostPathType {
        path: source.path.clone(),
        expected,
    };
    let kind = source.type_.as_deref().unwrap_or_default();
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(io_error("cannot make the hostPath directory"))?;
        }
        "FileOrCreate" if !path.exists() => {
            let mut new = std::fs::OpenOptions::new();
            // Only if nothing is there still: whatever has come meanwhile is neither emptied nor followed.
            match new.write(true).create_new(true).mode(0o644).open(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_error("cannot make the hostPath file")(e));
                }
                _ => {}
            }
        }
        _ => {}
    }
    let file_type = || std::fs::metadata(&path).map(|m| m.file_type()).ok();
    let (good, expected) = match kind {
        "Directory" | "DirectoryOrCreate" => (file_type().is_some_and(|t| t.is_dir()), "directory"),
        "File" | "FileOrCreate" => (file_type().is_some_and(|t| t.is_file()), "file"),
        "Socket" => (file_type().is_some_and(|t| t.is_socket()), "socket file"),
        "CharDevice" => (
            file_type().is_some_and(|t| t.is_char_device()),
            "character device",
        ),
        "BlockDevice" => (
            file_type().is_some_and(|t| t.is_block_device()),
            "block device",
        ),
        _ => (true, ""),
    };
    if good {
        Ok(path)
    } else {
        Err(failed(expected))
    }
}
