//! The name by which a server is known among those of its cluster.

use std::path::Path;

use davit_pki::host_name;
use sha2::{Digest, Sha256};

/// What servers of this kind are called.
pub(crate) const NAME: &str = "kube-apiserver";

/// The name of a server's lease: the same after a restart, another one for any other host or data directory.
pub(super) fn name(data_dir: Option<&Path>) -> String {
    let host = host_name().unwrap_or_default();
    let dir = data_dir
        .map(|dir| dir.display().to_string())
        .unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [&*host, NAME, &dir] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    format!("apiserver-{}", base32(&hash.finalize()[..16]))
}

/// RFC 4648, in lower case and without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bits = bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1));
    let bits: Vec<u8> = bits.collect();
    let five = |bits: &[u8]| {
        let number = (0..5).fold(0, |number, at| {
            number << 1 | bits.get(at).copied().unwrap_or(0)
        });
        char::from(ALPHABET[usize::from(number)])
    };
    bits.chunks(5).map(five).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        // RFC 4648, section 10
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(b"f"), "my");
        let here = name(Some(Path::new("/data")));
        assert_eq!(here.len(), "apiserver-".len() + 26);
        assert_eq!(here, name(Some(Path::new("/data"))));
        assert_ne!(here, name(None));
    }
}
