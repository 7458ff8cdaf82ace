//! The files below the directory of logs.
//!
//! Containers with a hostPath there can make links; unlike in the kubelet none is followed that leads out of the directory.

use davit_beneath::{Links, Root};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Entries of a directory that are listed at most.
const ENTRIES: usize = 10_000;

/// What there is at a path.
pub enum LogPath {
    /// A regular file, opened.
    File(std::fs::File),
    /// Names, those of directories with a slash.
    Directory(Vec<String>),
}

/// Opens what is at a path below `root`, blocking.
///
/// # Errors
/// When there is nothing, something else than a file or a directory, a link that leads out, or more than 10 000 entries.
pub fn open(root: &Path, path: &Path) -> io::Result<LogPath> {
    let root = Root::open(root, Links::Inside)?;
    match root.open_file(path) {
        Ok(file) => return Ok(LogPath::File(file)),
        Err(error) if error.is_not_found() => return Err(error.into()),
        // perhaps a directory
        Err(_) => {}
    }
    let entries = root.list(path, ENTRIES)?;
    let mut names: Vec<String> = entries
        .into_iter()
        .map(|entry| {
            let slash = if entry.kind.is_dir() { "/" } else { "" };
            format!("{}{slash}", entry.name.to_string_lossy())
        })
        .collect();
    names.sort();
    Ok(LogPath::Directory(names))
}

/// A page of links, as Go's file server writes it.
pub fn page(names: &[String]) -> String {
    let mut html = String::from("<!doctype html>\n<pre>\n");
    for name in names {
        let link = percent_encoding::utf8_percent_encode(name, LINK);
        // Writing into a String cannot fail.
        let _ = writeln!(html, "<a href=\"./{link}\">{}</a>", escaped(name));
    }
    html.push_str("</pre>\n");
    html
}

/// What is encoded in a link.
const LINK: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

fn escaped(name: &str) -> String {
    let name = name.replace('&', "&amp;").replace('<', "&lt;");
    name.replace('>', "&gt;").replace('"', "&#34;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("log");
        std::fs::create_dir_all(logs.join("pods/a")).unwrap();
        std::fs::write(logs.join("syslog"), "x").unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        symlink("../secret", logs.join("up")).unwrap();
        symlink(dir.path().join("secret"), logs.join("absolute")).unwrap();
        symlink("syslog", logs.join("inside")).unwrap();
        let file = |path: &str| matches!(open(&logs, Path::new(path)), Ok(LogPath::File(_)));
        assert!(file("syslog") && file("inside"));
        for path in ["up", "absolute", "../secret", "pods/../../secret", "none"] {
            assert!(open(&logs, Path::new(path)).is_err(), "{path}");
        }
        let Ok(LogPath::Directory(listed)) = open(&logs, Path::new("")) else {
            panic!("no directory");
        };
        assert_eq!(listed, ["absolute", "inside", "pods/", "syslog", "up"]);
    }

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(escaped("<b>&\""), "&lt;b&gt;&amp;&#34;");
    }
}
