//! `/logs/`: the files below the directory of logs (`/var/log`), as the kubelet's `enableSystemLogHandler` serves them.
//!
//! Containers with a hostPath there can make links; unlike in the kubelet none is followed that leads out of the directory.

use super::{set_type, text};
use crate::context::Context;
use bytes::{Bytes, BytesMut};
use davit_beneath::{Links, Root};
use davit_streaming::Body;
use futures::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

const CHUNK: usize = 64 * 1024;
/// Entries of a directory that are listed at most.
const ENTRIES: usize = 10_000;
/// How long opening may take.
const OPENING: Duration = Duration::from_secs(10);

/// What there is at a path.
enum LogPath {
    File(std::fs::File),
    /// Names, those of directories with a slash.
    Directory(Vec<String>),
}

/// Answers for a path of the request, percent-encoded, that begins with `/logs`.
pub(super) async fn serve(ctx: &Context, path: &str) -> Response<Body> {
    let below = path.strip_prefix("/logs").unwrap_or(path);
    let decoded = percent_encoding::percent_decode_str(below).decode_utf8_lossy();
    let relative = PathBuf::from(decoded.trim_start_matches('/'));
    let root = ctx.paths.log_root().parent().map(Path::to_owned);
    let root = root.unwrap_or_else(|| PathBuf::from("/"));
    let opening = tokio::task::spawn_blocking(move || open(&root, &relative));
    let found = match tokio::time::timeout(OPENING, opening).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    match found {
        Ok(LogPath::File(file)) => contents(File::from_std(file)),
        Ok(LogPath::Directory(_)) if !below.ends_with('/') => redirect(&format!("{path}/")),
        Ok(LogPath::Directory(names)) => page(&names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            text(StatusCode::GATEWAY_TIMEOUT, "the disk does not answer\n")
        }
        // a link that leads out, a socket, a directory that is too large
        Err(error) => text(StatusCode::FORBIDDEN, format!("{error}\n")),
    }
}

fn open(root: &Path, path: &Path) -> io::Result<LogPath> {
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

fn contents(file: File) -> Response<Body> {
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut piece).await?;
        let frame = Frame::data(Bytes::from(piece));
        Ok::<_, io::Error>((read > 0).then_some((frame, file)))
    });
    let mut response = text(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(pieces).boxed_unsync();
    response
}

fn redirect(to: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// A page of links, as Go's file server writes it.
fn page(names: &[String]) -> Response<Body> {
    let mut html = String::from("<!doctype html>\n<pre>\n");
    for name in names {
        let link = percent_encoding::utf8_percent_encode(name, LINK);
        // Writing into a String cannot fail.
        let _ = writeln!(html, "<a href=\"./{link}\">{}</a>", escaped(name));
    }
    html.push_str("</pre>\n");
    let mut response = text(StatusCode::OK, html);
    set_type(&mut response, "text/html; charset=utf-8");
    response
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
