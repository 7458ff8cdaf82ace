//! Debian packages: an `ar` archive of two tars.

use super::{CONFIGURATION, Content, Tree, gzip, tar};
use anyhow::Result;
use std::fmt::Write as _;

/// Programs that the embedded runtime and the network call where they are there.
const CONTROL: &str = "\
Section: admin
Priority: optional
Maintainer: The davit authors <davit@davit.dev>
Depends: libc6, libgcc-s1
Recommends: iproute2
Description: Kubernetes-compatible cluster for devices in one binary
 API server, scheduler, controllers, node agent and an embedded container
 runtime, with the extension points through which hardware is added to
 Kubernetes. `systemctl enable --now davit` starts a cluster of one node.
";
/// What systemd has to hear of; nothing is started before somebody says so.
const AFTER: &str = "#!/bin/sh\nset -e\n[ ! -d /run/systemd/system ] || systemctl daemon-reload\n";

/// The package with these files.
pub(super) fn package(
    files: &Tree,
    version: &str,
    architecture: &str,
    date: u64,
) -> Result<Vec<u8>> {
    let sizes = files.values().map(|content| match content {
        Content::File { bytes, .. } => bytes.len().div_ceil(1024),
        Content::Link(_) | Content::Directory(_) => 1,
    });
    let mut control = String::new();
    let _infallible = writeln!(
        control,
        "Package: davit\nVersion: {version}\nArchitecture: {architecture}"
    );
    let _infallible = writeln!(control, "Installed-Size: {}", sizes.sum::<usize>());
    control.push_str(CONTROL);
    let scripts = Tree::from([
        ("control".to_owned(), Content::text(control)),
        (
            "conffiles".to_owned(),
            Content::text(format!("/{CONFIGURATION}\n")),
        ),
        ("postinst".to_owned(), Content::program(AFTER.into())),
        ("postrm".to_owned(), Content::program(AFTER.into())),
    ]);
    let mut package = b"!<arch>\n".to_vec();
    member(&mut package, "debian-binary", b"2.0\n", date);
    member(
        &mut package,
        "control.tar.gz",
        &gzip(&tar(&scripts, date)?)?,
        date,
    );
    member(
        &mut package,
        "data.tar.gz",
        &gzip(&tar(files, date)?)?,
        date,
    );
    Ok(package)
}

/// A file in an `ar` archive: a header of fixed width, and an even number of bytes.
fn member(package: &mut Vec<u8>, name: &str, bytes: &[u8], date: u64) {
    let header = format!(
        "{name:<16}{date:<12}{:<6}{:<6}{:<8}{:<10}`\n",
        0,
        0,
        "100644",
        bytes.len()
    );
    package.extend(header.as_bytes());
    package.extend(bytes);
    if bytes.len() % 2 == 1 {
        package.push(b'\n');
    }
}
