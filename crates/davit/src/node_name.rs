//! What the node of a data directory is called: as it always was. Its pods, its volumes and its certificate are of a node of
//! that name, and DHCP, or somebody in a hurry, gives hosts other ones.

use crate::paths::{self, NODE_NAME};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Bytes of the file.
const LIMIT: u64 = 512;

/// The name that is asked for, or the one that the data directory's node had, or the host's; from now on it is the one of the
/// data directory.
///
/// # Errors
/// No name, or one that no node may have; the file cannot be read or written.
pub(crate) fn keep(asked: Option<String>, data_dir: &Path) -> Result<String> {
    kept(asked, data_dir, paths::host_name)
}

fn kept(
    asked: Option<String>,
    data_dir: &Path,
    host: impl FnOnce() -> Result<String>,
) -> Result<String> {
    let in_dir = || format!("{NODE_NAME} in {}", data_dir.display());
    let file = data_dir.join(NODE_NAME);
    let known = match davit_beneath::read_own(&file, LIMIT) {
        Ok(text) => Some(String::from_utf8_lossy(&text).trim().to_owned()),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error).with_context(in_dir),
    };
    let name = match (asked, &known) {
        (Some(asked), _) => asked,
        (None, Some(known)) => {
            if let Ok(host) = host()
                && host != *known
            {
                tracing::warn!(
                    node = known,
                    host,
                    "the host has another name than before, its node keeps the one it has (--node-name gives it another)"
                );
            }
            known.clone()
        }
        (None, None) => host()?,
    };
    if let Some(fault) = davit_api::names::check_dns1123_subdomain(&name).first() {
        bail!(
            "no node may be called {name:?}: {fault}; give it another name with --node-name NAME"
        );
    }
    if known.as_ref() != Some(&name) {
        davit_beneath::write_private(&file, name.as_bytes()).with_context(in_dir)?;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_name_until_it_is_given_another() {
        let dir = tempfile::tempdir().unwrap();
        let called = |asked: Option<&str>, host: &'static str| {
            kept(asked.map(str::to_owned), dir.path(), || Ok(host.to_owned()))
        };
        assert!(called(None, "_").is_err(), "no node may be called that");
        assert_eq!(called(None, "first").unwrap(), "first");
        assert_eq!(
            called(None, "second").unwrap(),
            "first",
            "the host's is another"
        );
        assert_eq!(called(Some("third"), "second").unwrap(), "third");
        assert_eq!(called(None, "second").unwrap(), "third");
        let nameless = kept(None, dir.path(), || bail!("this host has no name"));
        assert_eq!(nameless.unwrap(), "third");
    }
}
