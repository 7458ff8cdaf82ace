//! Which ranges of addresses are used on this machine, and by whom: several clusters may be on it.
//!
//! A claim is a file named after the range, in a directory that does not outlive the machine's start, with the data
//! directory of who claims it. It holds as long as that directory exists.

use davit_net::route::Netlink;
use davit_netplan::{Network, number};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where claims are: those of clusters, and those of nodes, whose ranges are parts of a cluster's.
const CLUSTERS: &str = "/run/davit/pod-ranges/clusters";
const NODES: &str = "/run/davit/pod-ranges/nodes";

/// How long others may hold the claims: what they do with them takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often is looked whether they still do.
const LOOK: Duration = Duration::from_millis(20);

/// Ranges that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// Another cluster of this machine has it.
    #[error(
        "the range {range} of pods overlaps {theirs} of the cluster in {owner}; --cluster-cidr names another"
    )]
    Claimed {
        /// What was asked for.
        range: Network,
        /// What the other has.
        theirs: Network,
        /// The other's data directory.
        owner: String,
    },
    /// The machine is in it.
    #[error(
        "the range {range} of pods overlaps the network of {with}, which this machine reaches; --cluster-cidr names another"
    )]
    Routed {
        /// What was asked for.
        range: Network,
        /// An address or a route of the machine.
        with: Network,
    },
    /// None of those tried is free.
    #[error("no range for pods is free from {first} on; --cluster-cidr names one")]
    None {
        /// The first that was tried.
        first: Network,
    },
    /// The claims cannot be read or written.
    #[error("claims of ranges in {dir}: {error}")]
    Claims {
        /// Where they are.
        dir: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
    /// The kernel does not say which networks it reaches.
    #[error("routes of this machine: {0}")]
    Routes(io::Error),
}

/// The claims of this machine.
#[derive(Debug, Clone)]
pub struct Claims {
    dir: PathBuf,
    patience: Duration,
}

impl Claims {
    /// Those of whole clusters.
    #[must_use]
    pub fn of_clusters() -> Self {
        Self::within(CLUSTERS)
    }

    /// Those of nodes.
    #[must_use]
    pub fn of_nodes() -> Self {
        Self::within(NODES)
    }

    fn within(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            patience: PATIENCE,
        }
    }

    fn failed(&self, error: io::Error) -> RangeError {
        RangeError::Claims {
            dir: self.dir.clone(),
            error,
        }
    }

    /// One process at a time.
    fn lock(&self) -> Result<Flock<File>, RangeError> {
        self.lock_file(".lock")
    }

    /// Until it is dropped, nobody else removes what others have left: two that start at once would find each other's
    /// tables and links gone halfway. Blocks.
    ///
    /// # Errors
    /// When the claims cannot be written.
    pub(crate) fn lock_removal(&self) -> Result<Flock<File>, RangeError> {
        self.lock_file(".removal")
    }

    /// Who can open a file can lock it, so other accounts do not get to it.
    fn lock_file(&self, name: &str) -> Result<Flock<File>, RangeError> {
        davit_beneath::private_dir(&self.dir, 0o700).map_err(|e| self.failed(e.into()))?;
        let mut file = File::create(self.dir.join(name)).map_err(|e| self.failed(e))?;
        let until = Instant::now() + self.patience;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(locked),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < until => {
                    file = back;
                    std::thread::sleep(LOOK);
                }
                Err((_, error)) => return Err(self.failed(error.into())),
            }
        }
    }

    fn file(&self, range: Network) -> PathBuf {
        self.dir.join(range.to_string().replace('/', "_"))
    }

    /// Ranges of others that still are there.
    fn others(&self, owner: &Path) -> Result<Vec<(Network, String)>, RangeError> {
        let all = self.all()?.into_iter();
        let others = all.filter(|(_, theirs, _)| {
            let theirs = Path::new(theirs);
            theirs != owner && theirs.is_dir()
        });
        Ok(others.map(|(range, theirs, _)| (range, theirs)).collect())
    }

    /// Owners, but this one, whose directories have gone.
    ///
    /// # Errors
    /// When the claims cannot be read.
    pub(crate) fn abandoned(&self, owner: &Path) -> Result<BTreeSet<PathBuf>, RangeError> {
        let _lock = self.lock()?;
        let owners = self.all()?.into_iter();
        let owners = owners.map(|(_, owner, _)| PathBuf::from(owner));
        Ok(owners.filter(|o| o != owner && !o.is_dir()).collect())
    }

    /// Claims a range for the cluster or node with this data directory. Blocks.
    ///
    /// # Errors
    /// [`RangeError::Claimed`] when another has a part of it.
    pub fn claim(&self, owner: &Path, range: Network) -> Result<(), RangeError> {
        let _lock = self.lock()?;
        self.enter(owner, range)
    }

    fn enter(&self, owner: &Path, range: Network) -> Result<(), RangeError> {
        let others = self.others(owner)?;
        if let Some((theirs, owner)) = others.into_iter().find(|(r, _)| r.overlaps(range)) {
            return Err(RangeError::Claimed {
                range,
                theirs,
                owner,
            });
        }
        let text = owner.to_string_lossy();
        // Whole or not at all: on a full disk, too, it is still known whose tables and addresses these are.
        davit_beneath::write_durably(self.file(range), text.as_bytes(), 0o644)
            .map_err(|e| self.failed(e.into()))
    }

    /// What this owner has claimed. Blocks.
    ///
    /// # Errors
    /// When the claims cannot be read.
    pub fn held(&self, owner: &Path) -> Result<Vec<Network>, RangeError> {
        let _lock = self.lock()?;
        let own = self.all()?.into_iter();
        let own = own.filter(|(_, theirs, _)| Path::new(theirs) == owner);
        Ok(own.map(|(range, _, _)| range).collect())
    }

    /// Gives it back. Blocks.
    ///
    /// # Errors
    /// When the claims cannot be read or removed.
    pub fn release(&self, owner: &Path) -> Result<(), RangeError> {
        let _lock = self.lock()?;
        for (_, theirs, path) in self.all()? {
            if Path::new(&theirs) == owner {
                fs::remove_file(path).map_err(|e| self.failed(e))?;
            }
        }
        Ok(())
    }

    /// Range, owner and file of every claim.
    fn all(&self) -> Result<Vec<(Network, String, PathBuf)>, RangeError> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|e| self.failed(e))? {
            let path = entry.map_err(|e| self.failed(e))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let range = name.and_then(|name| name.replace('_', "/").parse().ok());
            if let (Some(range), Ok(owner)) = (range, fs::read_to_string(&path)) {
                all.push((range, owner, path));
            }
        }
        Ok(all)
    }

    /// Claims the first range that is free, beginning with `first`, among those of its size in the private network
    /// `within`, round and round. Blocks.
    ///
    /// # Errors
    /// When none is free.
    pub fn choose(
        &self,
        owner: &Path,
        first: Network,
        within: Network,
        but: &[Network],
    ) -> Result<Network, RangeError> {
        let _lock = self.lock()?;
        let mut used = reached().map_err(RangeError::Routes)?;
        used.extend(but);
        let parts = 1_u32 << first.bits().saturating_sub(within.bits()).min(16);
        let more = first.family().bits().saturating_sub(first.bits());
        let offset = number(first.first()).saturating_sub(number(within.first()));
        let offset = offset.checked_shr(u32::from(more)).unwrap_or(0);
        let start = u32::try_from(offset).unwrap_or_default();
        let order = (start..parts).chain(0..start);
        for range in order.filter_map(|index| within.part(first.bits(), index)) {
            if used.iter().any(|network| network.overlaps(range)) {
                continue;
            }
            match self.enter(owner, range) {
                Err(RangeError::Claimed { .. }) => {}
                other => return other.map(|()| range),
            }
        }
        Err(RangeError::None { first })
    }
}

/// The networks that this machine has addresses in, or routes to; a default route is none.
fn reached() -> io::Result<Vec<Network>> {
    let mut netlink = Netlink::open()?;
    let addresses = netlink.all_addresses()?;
    let routes = netlink.routes()?;
    let routes = routes
        .into_iter()
        .filter(|r| r.bits > 0)
        .map(|r| (r.to, r.bits));
    let networks = addresses.into_iter().chain(routes);
    let networks = networks.filter_map(|(address, bits)| Network::around(address, bits));
    Ok(networks.collect())
}

/// Whether a range that somebody chose is free of what the machine reaches without davit. Blocks.
///
/// # Errors
/// [`RangeError::Routed`] when it is not.
pub(crate) fn check_free(range: Network) -> Result<(), RangeError> {
    let mut netlink = Netlink::open().map_err(RangeError::Routes)?;
    let addresses = netlink.all_addresses().map_err(RangeError::Routes)?;
    // an address without a network around it may be the gateway's own
    let inside =
        |network: &Network| network.bits() < network.family().bits() && network.overlaps(range);
    let networks = addresses
        .into_iter()
        .filter_map(|(address, bits)| Network::around(address, bits));
    match networks.into_iter().find(inside) {
        Some(with) => Err(RangeError::Routed { range, with }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Who may open a file may lock it: an account of the machine would have kept all clusters from starting.
    #[test]
    fn other_accounts_do_not_hold_claims() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims {
            patience: Duration::from_millis(50),
            ..Claims::within(dir.path().join("claims"))
        };
        // As it was made before.
        fs::create_dir(&claims.dir).unwrap();
        fs::set_permissions(&claims.dir, fs::Permissions::from_mode(0o755)).unwrap();
        let held = claims.lock_removal().unwrap();
        let mode = fs::metadata(&claims.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // Nor is waited for ever for whoever has it.
        let refused = claims.lock_removal().unwrap_err();
        assert!(matches!(refused, RangeError::Claims { .. }), "{refused}");
        drop(held);
        claims.lock_removal().unwrap();
    }

    #[test]
    fn a_range_has_one_owner_while_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::within(dir.path().join("claims"));
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // Documentation: no machine reaches it.
        let first: Network = "198.51.100.0/26".parse().unwrap();
        let within = "198.51.100.0/24".parse().unwrap();
        let but = "198.51.100.64/28".parse().unwrap();
        let choose = |owner: &Path, first| claims.choose(owner, first, within, &[but]);
        assert_eq!(choose(one.path(), first).unwrap(), first);
        assert_eq!(choose(one.path(), first).unwrap(), first, "its own");
        let next = choose(two.path(), first).unwrap();
        assert_eq!(next.to_string(), "198.51.100.128/26");
        // Round and round, but never out of what is private.
        let last = "198.51.100.192/26".parse().unwrap();
        let three = tempfile::tempdir().unwrap();
        assert_eq!(choose(three.path(), last).unwrap(), last);
        let four = tempfile::tempdir().unwrap();
        let none = choose(four.path(), last).unwrap_err();
        assert!(matches!(none, RangeError::None { .. }), "{none}");
        let part = "198.51.100.128/28".parse().unwrap();
        claims.claim(two.path(), part).unwrap();
        let taken = claims.claim(one.path(), part).unwrap_err();
        assert!(
            taken.to_string().contains(&*two.path().to_string_lossy()),
            "{taken}"
        );
        drop(two);
        claims.claim(one.path(), part).unwrap();
    }
}
