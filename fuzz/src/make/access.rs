//! Inputs for what decides who somebody is and what is asked.

use base64::Engine as _;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};

use crate::Numbers;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const ED25519: [u8; 3] = [0x2b, 0x65, 0x70];

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
            out.extend([0x82, bytes[0], bytes[1]]);
        }
    }
    out.extend(content);
    out
}

/// A key that is the same everywhere, so that inputs are.
pub(crate) fn key() -> Option<KeyPair> {
    let algorithm = tlv(SEQUENCE, &tlv(OID, &ED25519));
    let secret = tlv(OCTET_STRING, &tlv(OCTET_STRING, &[7; 32]));
    let pkcs8 = tlv(SEQUENCE, &[tlv(2, &[0]), algorithm, secret].concat());
    KeyPair::try_from(pkcs8.as_slice()).ok()
}

/// A signed request: subjects that two readers could read differently, and names of every kind.
pub(crate) fn certificate_request(n: &mut Numbers) -> Vec<u8> {
    let Some(key) = key() else { return Vec::new() };
    let public = tlv(
        SEQUENCE,
        &[
            tlv(SEQUENCE, &tlv(OID, &ED25519)),
            tlv(BIT_STRING, &[&[0][..], key.der_bytes()].concat()),
        ]
        .concat(),
    );
    let wanted = if n.once_in(2) {
        extensions(n)
    } else {
        Vec::new()
    };
    let info = [tlv(2, &[0]), subject(n), public, tlv(0xa0, &wanted)].concat();
    let info = tlv(SEQUENCE, &info);
    let signature = key.sign(&info).unwrap_or_default();
    let algorithm = tlv(SEQUENCE, &tlv(OID, &ED25519));
    let signature = tlv(BIT_STRING, &[&[0][..], &signature].concat());
    let request = tlv(SEQUENCE, &[info, algorithm, signature].concat());
    let text = base64::engine::general_purpose::STANDARD.encode(request);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|at| &text[at..(at + 64).min(text.len())])
        .collect();
    let labels = [
        "CERTIFICATE REQUEST",
        "CERTIFICATE REQUEST",
        "CERTIFICATE REQUEST",
        "CERTIFICATE",
    ];
    let label = *n.one(&labels);
    let block = format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    );
    // Signer, usages, and at times a second block for another reader.
    let mut out = vec![n.byte(), *n.one(&[0b101, 0b111, 0b1001, 0b1011, 0b11111])];
    out.extend(block.as_bytes());
    if n.once_in(20) {
        out.extend(block.as_bytes());
    }
    out
}

fn subject(n: &mut Numbers) -> Vec<u8> {
    const KINDS: [&[u8]; 5] = [
        &[0x55, 4, 3],
        &[0x55, 4, 3],
        &[0x55, 4, 10],
        &[0x55, 4, 10],
        &[0x55, 4, 6],
    ];
    const TEXTS: [&str; 10] = [
        "system:node:n",
        "system:node:n",
        "system:nodes",
        "system:nodes",
        "system:masters",
        "system:node:",
        "system:kube-controller-manager",
        "",
        "a\u{0}b",
        "\u{e9}",
    ];
    const TAGS: [u8; 6] = [0x0c, 0x0c, 0x0c, 0x13, 0x1e, 0x14];
    if n.once_in(3) {
        // One that is taken.
        let set = |kind: &[u8], text: &str| {
            let pair = [tlv(OID, kind), tlv(0x0c, text.as_bytes())].concat();
            tlv(SET, &tlv(SEQUENCE, &pair))
        };
        let plain = [
            set(KINDS[2], "system:nodes"),
            set(KINDS[0], "system:node:n"),
        ]
        .concat();
        return tlv(SEQUENCE, &plain);
    }
    let mut sets = Vec::new();
    for _ in 0..n.below(5) {
        let mut pairs = Vec::new();
        for _ in 0..1 + usize::from(n.once_in(4)) {
            let text = n.one(&TEXTS).as_bytes();
            let value = tlv(*n.one(&TAGS), text);
            let kind: &[u8] = n.one::<&[u8]>(&KINDS);
            pairs.extend(tlv(SEQUENCE, &[tlv(OID, kind), value].concat()));
        }
        sets.extend(tlv(SET, &pairs));
    }
    tlv(SEQUENCE, &sets)
}

/// Alternative names, once or twice, with other extensions that are not asked for lightly.
fn extensions(n: &mut Numbers) -> Vec<u8> {
    const REQUEST: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
    let mut all = Vec::new();
    for _ in 0..1 + n.below(2) {
        let (oid, value) = match n.below(4) {
            // An authority.
            0 => ([0x55, 0x1d, 0x13], tlv(SEQUENCE, &tlv(1, &[0xff]))),
            _ => {
                let mut names = Vec::new();
                for _ in 0..n.below(4) {
                    let tag = *n.one(&[0x82, 0x87, 0x81, 0x86, 0x88, 0xa0]);
                    names.extend(tlv(
                        tag,
                        n.one(&["n", "\u{1}\u{2}\u{3}\u{4}", "a@b", "spiffe://x"])
                            .as_bytes(),
                    ));
                }
                ([0x55, 0x1d, 0x11], tlv(SEQUENCE, &names))
            }
        };
        let extension = [tlv(OID, &oid), tlv(OCTET_STRING, &value)].concat();
        all.extend(tlv(SEQUENCE, &extension));
    }
    let attribute = [tlv(OID, &REQUEST), tlv(SET, &tlv(SEQUENCE, &all))].concat();
    tlv(SEQUENCE, &attribute)
}
