//! Files of the PKI directory: written whole or not at all, keys readable by the owner only.

use std::path::Path;

use crate::PkiError;

/// Bytes of a file of keys or certificates at most.
const LARGEST: u64 = 4 << 20;

pub(crate) fn create_dir(dir: &Path) -> Result<(), PkiError> {
    davit_beneath::private_dir(dir, 0o700).map_err(|error| failed("creating", dir, error.into()))
}

pub(crate) fn read_optional(path: &Path) -> Result<Option<String>, PkiError> {
    // The directory may be a copy that somebody else has shaped: whoever opens a pipe waits for ever.
    let invalid = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
    let read = davit_beneath::read_given(path, LARGEST).map_err(std::io::Error::from);
    match read.and_then(|bytes| String::from_utf8(bytes).map_err(invalid)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("reading", path, source)),
    }
}

pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    write(path, text, 0o600)
}

pub(crate) fn write_public(path: &Path, text: &str) -> Result<(), PkiError> {
    write(path, text, 0o644)
}

/// Power loss leaves the old or the new content.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let written = davit_beneath::write_durably(path, text.as_bytes(), mode);
    written.map_err(|error| failed("writing", path, error.into()))
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> PkiError {
    PkiError::File {
        action,
        path: path.to_path_buf(),
        source,
    }
}
