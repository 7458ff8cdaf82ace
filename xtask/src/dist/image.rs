//! The image of a static binary: an OCI layout in a tar, with nothing but the binary and the directories that it asks for.
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>)

use super::{Content, Tree, gzip, hex, tar};
use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What the image is called, before its tag.
const NAME: &str = "davit.dev/davit";
/// The binary's place, which is in `PATH`.
const PROGRAM: &str = "usr/bin/davit";
/// Directories that davit does not make itself, with their modes.
const DIRECTORIES: [(&str, u32); 2] = [("tmp", 0o1777), ("var/lib", 0o755)];

/// The archive of an image with this binary.
pub(super) fn archive(
    binary: &[u8],
    license: &[u8],
    version: &str,
    architecture: &str,
    date: u64,
) -> Result<Vec<u8>> {
    let mut files = Tree::from([
        (PROGRAM.to_owned(), Content::program(binary.to_vec())),
        (
            "usr/share/doc/davit/copyright".to_owned(),
            Content::text(license),
        ),
    ]);
    for (path, mode) in DIRECTORIES {
        files.insert(path.to_owned(), Content::Directory(mode));
    }
    let plain = tar(&files, date)?;
    let created = jiff::Timestamp::from_second(i64::try_from(date)?)?.to_string();
    let config = json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [format!("/{PROGRAM}")],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "ExposedPorts": { "6443/tcp": {} },
            "Labels": {
                "org.opencontainers.image.title": "davit",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&plain)] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let mut layout = Tree::new();
    let layer = blob(&mut layout, "layer.v1.tar+gzip", gzip(&plain)?);
    let config = blob(&mut layout, "config.v1+json", serde_json::to_vec(&config)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut named = blob(
        &mut layout,
        "manifest.v1+json",
        serde_json::to_vec(&manifest)?,
    );
    named["platform"] = json!({ "os": "linux", "architecture": architecture });
    // The first is what containerd goes by, the second what the specification says.
    named["annotations"] = json!({
        "io.containerd.image.name": format!("{NAME}:{version}"),
        "org.opencontainers.image.ref.name": version,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named],
    });
    layout.insert(
        "index.json".to_owned(),
        Content::text(serde_json::to_vec(&index)?),
    );
    layout.insert(
        "oci-layout".to_owned(),
        Content::text(r#"{"imageLayoutVersion":"1.0.0"}"#),
    );
    tar(&layout, date)
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// Puts a blob into the layout; its descriptor.
fn blob(layout: &mut Tree, kind: &str, bytes: Vec<u8>) -> Value {
    let digest = digest(&bytes);
    let descriptor = json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": digest,
        "size": bytes.len(),
    });
    let path = format!("blobs/{}", digest.replace(':', "/"));
    layout.insert(path, Content::text(bytes));
    descriptor
}

/// Whether a program needs others of its system to be loaded: an ELF file with an interpreter, which is what a static one lacks
/// (elf(5): the table of program headers, and the type of each).
fn is_dynamic(program: &[u8]) -> bool {
    has_interpreter(program).unwrap_or(false)
}

/// `None` for what is no whole 64-bit little-endian ELF file.
fn has_interpreter(program: &[u8]) -> Option<bool> {
    const ELF64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    const PT_INTERP: u32 = 3;
    if !program.starts_with(ELF64_LITTLE) {
        return None;
    }
    let at = |from: usize, length: usize| program.get(from..from.checked_add(length)?);
    let short = |from| {
        Some(usize::from(u16::from_le_bytes(
            at(from, 2)?.try_into().ok()?,
        )))
    };
    let table = usize::try_from(u64::from_le_bytes(at(32, 8)?.try_into().ok()?)).ok()?;
    let (size, count) = (short(54)?, short(56)?);
    for number in 0..count {
        let kind = at(table.checked_add(number.checked_mul(size)?)?, 4)?;
        if u32::from_le_bytes(kind.try_into().ok()?) == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

/// Why an image is not made of a program, if it is not.
pub(super) fn refused(program: &[u8], architecture: &str) -> Option<String> {
    is_dynamic(program).then(|| {
        format!(
            "no image: the binary is linked to libraries, which an image without anything else does not have; \
             --target {architecture}-unknown-linux-musl makes one that is not"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_an_interpreter_are_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_dynamic(&own), cfg!(not(target_feature = "crt-static")));
        let mut cut = own.clone();
        cut.truncate(60);
        for other in [b"#!/bin/sh\n".as_slice(), b"\x7fELF\x02\x01", &cut] {
            assert!(!is_dynamic(other));
        }
    }
}
