//! Inputs for what comes over sockets.

use davit_store::KeyValue;
use davit_store::backup::BackupEncoder;
use std::io::Write as _;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::Numbers;

/// Frames of a SPDY/3.1 client: heads, header blocks of one compression state, lengths that lie.
pub(crate) fn spdy(n: &mut Numbers) -> Vec<u8> {
    let mut blocks = flate2::Compress::new(flate2::Compression::fast(), true);
    let mut out = Vec::new();
    for _ in 0..1 + n.below(6) {
        let id = u32::try_from(n.below(6)).unwrap_or(1);
        let (kind, payload) = match n.below(8) {
            0 | 1 => (
                1,
                [&id.to_be_bytes()[..], &[0; 6], &headers(n, &mut blocks)].concat(),
            ),
            2 => (
                2,
                [&id.to_be_bytes()[..], &headers(n, &mut blocks)].concat(),
            ),
            3 => (3, [id.to_be_bytes(), 5_u32.to_be_bytes()].concat()),
            4 => (6, id.to_be_bytes().to_vec()),
            5 => (7, [id.to_be_bytes(), [0; 4]].concat()),
            6 => (u16::from(n.byte()), vec![0; n.below(40)]),
            _ => {
                let payload = vec![b'x'; n.below(200)];
                frame(n, &mut out, id, &payload);
                continue;
            }
        };
        let head = 0x8003_0000 | u32::from(kind);
        frame(n, &mut out, head, &payload);
    }
    out
}

/// Questions for names inside and outside of a zone: labels that lie, pointers, counts, sections, EDNS.
pub(crate) fn dns(n: &mut Numbers) -> Vec<u8> {
    const LABELS: [&str; 11] = [
        "web",
        "default",
        "svc",
        "cluster",
        "local",
        "_http",
        "_tcp",
        "10-244-0-2",
        "pod",
        "in-addr",
        "arpa",
    ];
    const KINDS: [u8; 9] = [1, 5, 12, 16, 28, 33, 41, 252, 255];
    // by datagram or by connection
    let mut out = vec![n.byte() % 2];
    out.extend([n.byte(), n.byte()]);
    let flags = if n.once_in(6) { n.byte() } else { 1 };
    out.extend([flags, if n.once_in(8) { n.byte() } else { 0 }]);
    let counts = [1, 0, 0, u8::from(n.once_in(3))];
    for count in counts {
        let count = if n.once_in(15) { n.byte() } else { count };
        out.extend([0, count]);
    }
    for _ in 0..1 + n.below(6) {
        let label = n.one(&LABELS).as_bytes();
        let length = u8::try_from(label.len()).unwrap_or(0);
        out.push(if n.once_in(20) { n.byte() } else { length });
        out.extend(label);
    }
    out.push(if n.once_in(15) { 0xc0 } else { 0 });
    out.extend([
        0,
        *n.one(&KINDS),
        0,
        if n.once_in(10) { n.byte() } else { 1 },
    ]);
    if counts[3] == 1 {
        out.extend([0, 0, 41, 4, 208, 0, n.byte() % 2, 0, 0, 0, 0]);
    }
    if n.once_in(10) {
        out.truncate(n.below(out.len()));
    }
    out
}

fn frame(n: &mut Numbers, out: &mut Vec<u8>, head: u32, payload: &[u8]) {
    let mut length = u32::try_from(payload.len()).unwrap_or(0);
    if n.once_in(12) {
        length = u32::try_from(n.below(1 << 24)).unwrap_or(0);
    }
    let flags = u32::from(n.once_in(3));
    out.extend(head.to_be_bytes());
    out.extend(((flags << 24) | length).to_be_bytes());
    out.extend(payload);
}

fn headers(n: &mut Numbers, blocks: &mut flate2::Compress) -> Vec<u8> {
    let mut text = Vec::new();
    let mut string = |bytes: &[u8], lies: bool| {
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        text.extend(if lies { u32::MAX } else { length }.to_be_bytes());
        text.extend(bytes);
    };
    let count = n.below(4);
    string(&[], false);
    for _ in 0..count {
        let name = *n.one(&["streamtype", "port", "requestid", "", "a"]);
        let value = *n.one(&["error", "data", "stdin", "80", "65536", "-1", "\0\0"]);
        string(name.as_bytes(), n.once_in(20));
        string(value.as_bytes(), n.once_in(20));
    }
    // The count comes first.
    let claimed = if n.once_in(10) { usize::MAX } else { count };
    text[..4].copy_from_slice(&u32::try_from(claimed).unwrap_or(u32::MAX).to_be_bytes());
    let mut out = Vec::with_capacity(text.len() + 64);
    let _status = blocks.compress_vec(&text, &mut out, flate2::FlushCompress::Sync);
    out
}

/// Protobuf of a list of devices, or of an allocation, field by field.
pub(crate) fn plugin(n: &mut Numbers) -> Vec<u8> {
    let mut out = vec![n.byte()];
    for _ in 0..n.below(6) {
        let inner = fields(n, 2);
        field(&mut out, u8::try_from(1 + n.below(6)).unwrap_or(1), &inner);
    }
    out
}

fn field(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    out.push((number << 3) | 2);
    out.push(u8::try_from(content.len()).unwrap_or(0));
    out.extend(&content[..content.len().min(255)]);
}

fn fields(n: &mut Numbers, depth: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..n.below(4) {
        let number = u8::try_from(1 + n.below(4)).unwrap_or(1);
        match n.below(if depth == 0 { 2 } else { 3 }) {
            0 => field(
                &mut out,
                number,
                n.one(&["Healthy", "d-0", "/dev/null", "../x", "rwm", "é"])
                    .as_bytes(),
            ),
            1 => out.extend([number << 3, n.byte() & 0x7f]),
            _ => {
                let inner = fields(n, depth - 1);
                if inner.len() < 128 {
                    field(&mut out, number, &inner);
                }
            }
        }
    }
    out
}

/// An archive as `docker save` makes it, with layers that want to get out.
pub(crate) fn image(n: &mut Numbers) -> Vec<u8> {
    let layers: Vec<Vec<u8>> = (0..1 + n.below(2)).map(|_| layer(n)).collect();
    let digest = |bytes: &[u8]| {
        let hex: String = Sha256::digest(bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        format!("sha256:{hex}")
    };
    let ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let config = json!({
        "os": "linux",
        "config": {"User": n.one(&["", "0", "4294967296", "a:b"]), "Env": ["A=b", "=", "A"]},
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    let names: Vec<String> = (0..layers.len())
        .map(|i| format!("{i}/layer.tar"))
        .collect();
    let list = json!([{
        "Config": n.one(&["config.json", "../sentinel", "/etc/passwd"]),
        "RepoTags": n.one(&[&["a:1"][..], &[], &["../x:1"], &["localhost:0/a@sha256:0"]]),
        "Layers": names,
    }]);
    let mut out = tar::Builder::new(Vec::new());
    entry(
        &mut out,
        "config.json",
        tar::EntryType::Regular,
        "",
        config.to_string().as_bytes(),
        0o644,
    );
    entry(
        &mut out,
        "manifest.json",
        tar::EntryType::Regular,
        "",
        list.to_string().as_bytes(),
        0o644,
    );
    for (name, layer) in names.iter().zip(&layers) {
        entry(&mut out, name, tar::EntryType::Regular, "", layer, 0o644);
    }
    if n.once_in(4) {
        let extra = layer(n);
        let _written = out.get_mut().write_all(&extra);
    }
    out.into_inner().unwrap_or_default()
}

/// Entries with names, links and modes that lead out when they are believed.
pub(super) fn layer(n: &mut Numbers) -> Vec<u8> {
    const NAMES: [&str; 16] = [
        "a",
        "a/b",
        "a/b/c",
        "d",
        "d/a",
        ".",
        "./a",
        "/davit-fuzz",
        "../sentinel",
        "a/../../sentinel",
        "a/.wh.b",
        ".wh.a",
        "d/.wh..wh..opq",
        "../.wh.sentinel",
        ".wh...",
        "a/../../../../sentinel",
    ];
    const TARGETS: [&str; 8] = [
        "a",
        "..",
        "../..",
        "../../../sentinel",
        "/",
        "/proc/self/root",
        "../../../../sentinel",
        "",
    ];
    use tar::EntryType as Kind;
    const KINDS: [Kind; 8] = [
        Kind::Regular,
        Kind::Regular,
        Kind::Directory,
        Kind::Symlink,
        Kind::Symlink,
        Kind::Link,
        Kind::Fifo,
        Kind::Char,
    ];
    const MODES: [u32; 5] = [0o644, 0o755, 0o4755, 0o7777, 0];
    let mut out = tar::Builder::new(Vec::new());
    for _ in 0..n.below(8) {
        let (name, kind) = (*n.one(&NAMES), *n.one(&KINDS));
        let (target, mode) = (*n.one(&TARGETS), *n.one(&MODES));
        let content = if kind == Kind::Regular {
            &b"x"[..]
        } else {
            b""
        };
        entry(&mut out, name, kind, target, content, mode);
    }
    out.into_inner().unwrap_or_default()
}

/// Written as it is: a builder would refuse some names.
fn entry(
    out: &mut tar::Builder<Vec<u8>>,
    name: &str,
    kind: tar::EntryType,
    target: &str,
    content: &[u8],
    mode: u32,
) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(u64::from(mode & 1));
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let _appended = out.append(&header, content);
}

/// A backup of a few pairs, often damaged in one place.
pub(crate) fn backup(n: &mut Numbers) -> Vec<u8> {
    let revision = n.next_u64();
    let (mut encoder, first) = BackupEncoder::begin(revision);
    let mut out = first.to_vec();
    for _ in 0..n.below(6) {
        let mod_revision = n.next_u64() % revision.max(1);
        let pair = KeyValue {
            key: n
                .one(&["", "/a", "/registry/core/pods/default/a", "é"])
                .to_string()
                .into(),
            value: vec![n.byte(); n.below(300)].into(),
            mod_revision,
            create_revision: mod_revision / 2,
        };
        out.extend_from_slice(&encoder.pairs(&[pair]));
    }
    out.extend_from_slice(&encoder.end());
    match n.below(4) {
        0 => {}
        1 => out.truncate(n.below(out.len())),
        2 => out.push(n.byte()),
        _ => {
            let at = n.below(out.len());
            out[at] = n.byte();
        }
    }
    out
}
