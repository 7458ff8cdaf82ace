//! Names that are made of others by a hash, so that the same things always have the same name.

use sha2::{Digest, Sha256};

/// The handle of an in-line volume.
pub fn inline_handle(pod_uid: &str, volume_name: &str) -> String {
    format!("csi-{}", sha256_hex(&[pod_uid, volume_name]))
}

/// The name of the VolumeAttachment of a volume and a node.
pub fn attachment_name(volume_handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&[volume_handle, driver, node]))
}

/// The hash of the texts one after the other, in lower-case hexadecimal.
pub(crate) fn sha256_hex(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text);
    }
    let digits = hash.finalize();
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names() {
        // Of `printf abc | sha256sum`.
        let abc = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(inline_handle("ab", "c"), abc);
        assert_eq!(attachment_name("a", "b", "c"), abc);
    }
}
