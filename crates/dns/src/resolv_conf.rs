//! The nameservers of a resolv.conf(5).

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where systemd-resolved writes the servers it asks itself.
pub const SYSTEMD_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// The most bytes that are read; the file of a machine has a few hundred.
const MAX_BYTES: u64 = 64 * 1024;

/// The most servers that are used; the C library uses three.
const MAX_SERVERS: usize = 16;

/// The address systemd-resolved listens on, which would ask us again.
const STUB: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53));

/// The port of DNS.
const PORT: u16 = 53;

/// Why a file gives no servers.
#[derive(Debug, thiserror::Error)]
pub enum ResolvConfError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no regular file, or longer than any of its kind.
    #[error("{path} is no regular file of at most {MAX_BYTES} bytes")]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

/// The nameservers of a text; what is no address is passed over, as the C library does.
#[must_use]
pub fn nameservers(text: &str) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        if let Some(address) = address {
            let server = SocketAddr::new(address, PORT);
            if !servers.contains(&server) && servers.len() < MAX_SERVERS {
                servers.push(server);
            }
        }
    }
    servers
}

/// The nameservers of a file, and those behind systemd-resolved when it names only its stub
/// (spec network.md 6.4 rule 6).
///
/// # Errors
/// When a file cannot be read.
pub fn read(path: &Path) -> Result<Vec<SocketAddr>, ResolvConfError> {
    read_with(path, Path::new(SYSTEMD_RESOLV_CONF))
}

/// As [`read`], with the path of systemd-resolved's file.
///
/// # Errors
/// As [`read`].
pub fn read_with(path: &Path, systemd: &Path) -> Result<Vec<SocketAddr>, ResolvConfError> {
    let servers = nameservers(&text_of(path)?);
    if is_stub(&servers) {
        return Ok(nameservers(&text_of(systemd)?));
    }
    Ok(servers)
}

/// Whether the only server is the stub of systemd-resolved.
#[must_use]
pub fn is_stub(servers: &[SocketAddr]) -> bool {
    matches!(servers, [only] if only.ip() == STUB)
}

fn text_of(path: &Path) -> Result<String, ResolvConfError> {
    let unreadable = |source| ResolvConfError::Unreadable {
        path: path.to_owned(),
        source,
    };
    // Before it is opened: opening a pipe would wait for who writes it.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(ResolvConfError::NotText {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ResolvConfError::NotText {
            path: path.to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_c_library_reads() {
        let text = "# made by hand\nsearch example.com\nnameserver 10.0.0.1 # first\n\tnameserver fd00::1\n\
                    ;nameserver 10.0.0.2\nnameserver\nnameserver host\nnameserver 10.0.0.1\nnameservers 10.0.0.3\n";
        let servers = nameservers(text);
        assert_eq!(
            servers,
            [
                "10.0.0.1:53".parse().unwrap(),
                "[fd00::1]:53".parse().unwrap()
            ]
        );
        let many: String = (0..100)
            .map(|last| format!("nameserver 10.0.0.{last}\n"))
            .collect();
        assert_eq!(nameservers(&many).len(), MAX_SERVERS);
    }

    #[test]
    fn the_stub_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (main, systemd) = (
            directory.path().join("main"),
            directory.path().join("systemd"),
        );
        std::fs::write(&systemd, "nameserver 10.0.0.9").unwrap();
        std::fs::write(&main, "nameserver 127.0.0.53\noptions edns0").unwrap();
        assert_eq!(
            read_with(&main, &systemd).unwrap(),
            ["10.0.0.9:53".parse().unwrap()]
        );
        std::fs::write(&main, "nameserver 127.0.0.53\nnameserver 10.0.0.1").unwrap();
        assert_eq!(read_with(&main, &systemd).unwrap().len(), 2);
    }

    #[test]
    fn files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        assert!(matches!(
            read(&path),
            Err(ResolvConfError::Unreadable { .. })
        ));
        std::fs::write(&path, vec![b'#'; 100_000]).unwrap();
        assert!(matches!(read(&path), Err(ResolvConfError::NotText { .. })));
        assert!(matches!(
            read(directory.path()),
            Err(ResolvConfError::NotText { .. })
        ));
    }
}
