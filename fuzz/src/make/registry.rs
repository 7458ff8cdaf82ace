//! Inputs for what registries of images answer.

use std::io::Write as _;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{bytes, damaged};
use crate::Numbers;

/// A page as the target reads it.
fn page(out: &mut Vec<u8>, class: u8, status: u8, header: u8, body: &[u8]) {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    out.extend([class, status, header]);
    out.extend(length.to_be_bytes());
    out.extend(&body[..usize::from(length)]);
}

fn descriptor(kind: &str, content: &[u8]) -> Value {
    let digest = format!("sha256:{:x}", Sha256::digest(content));
    json!({"mediaType": kind, "digest": digest, "size": content.len()})
}

/// A registry with an image: index, manifest, configuration and layers; questions for credentials and redirects; one of
/// the documents damaged.
pub(crate) fn registry(n: &mut Numbers) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let (mut layers, mut blobs, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..n.below(4) {
        let layer = super::wire::layer(n);
        ids.push(format!("sha256:{:x}", Sha256::digest(&layer)));
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let _written = zipped.write_all(&layer);
        let (kind, blob) = match n.below(3) {
            0 => ("application/vnd.oci.image.layer.v1.tar", layer),
            _ => (
                "application/vnd.oci.image.layer.v1.tar+gzip",
                zipped.finish().unwrap_or_default(),
            ),
        };
        layers.push(descriptor(kind, &blob));
        blobs.push(blob);
    }
    let user = *n.one(&["", "0", "a:b", "4294967296"]);
    let mut config = json!({"architecture": architecture, "os": "linux", "config": {"User": user, "Cmd": ["/x"]},
        "rootfs": {"type": "layers", "diff_ids": ids}});
    if n.once_in(5) {
        config = damaged(n, config);
    }
    let config = bytes(&config);
    let mut manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config), "layers": layers});
    if n.once_in(5) {
        manifest = damaged(n, manifest);
    }
    let manifest = bytes(&manifest);
    let mut out = Vec::new();
    let asks = n.once_in(2);
    for _ in 0..n.below(2) + usize::from(asks) {
        let class = if n.once_in(3) { n.byte() } else { 0 };
        page(&mut out, class, 2, n.byte() % 12, b"realm=\"x\", service=s");
    }
    if n.once_in(4) {
        page(&mut out, n.byte(), 3, 5 + n.byte() % 4, b"");
    }
    let mut token = json!({"token": "t", "access_token": "u"});
    if n.once_in(4) {
        token = damaged(n, token);
    }
    page(&mut out, 3, 0, 0, &bytes(&token));
    if n.once_in(3) {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        let mut index = json!({"schemaVersion": 2, "manifests": [entry]});
        if n.once_in(4) {
            index = damaged(n, index);
        }
        page(&mut out, 0, 0, 0, &bytes(&index));
    }
    let odd = if n.once_in(10) { n.byte() } else { 0 };
    page(&mut out, 0, odd, odd, &manifest);
    page(&mut out, 1, 0, 0, &manifest);
    for blob in [config].iter().chain(&blobs) {
        page(&mut out, 2, 0, 0, blob);
    }
    out
}
