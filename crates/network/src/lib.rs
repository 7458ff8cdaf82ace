//! A node's network: links of pods, the Service proxy, names, ways to the pods of other nodes.
//!
//! [`NodeNetwork::open`] takes over what an earlier run left in the kernel; from then on pods can be connected
//! ([`NodeNetwork::links`]). [`NodeNetwork::run`] follows the API. What stands in the kernel stays when davit ends:
//! connections go on, and a restart finds everything as it was. [`remove`] takes it away.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod alone;
mod announce;
mod conntrack_limits;
mod dns;
mod either;
mod follower;
mod health;
mod http;
mod maps;
mod metrics;
mod node;
mod node_ports;
#[cfg(test)]
mod packets;
mod pods;
mod policy;
mod proxy;
mod ranges;
mod rules;
mod ruleset;
mod tables;
mod told;
mod watch;
mod ways;

pub use alone::{LocalPods, ProxyAlone};
pub use conntrack_limits::ConntrackLimits;
pub use dns::{DnsAlone, DnsOptions};
pub use either::CniOrOwn;
pub use node_ports::{NodePortAddresses, NodePortAddressesError};
pub use pods::PodLinks;
pub use ranges::{Claims, RangeError};
pub use told::ProxyOptions;
pub use watch::{NodeNetwork, Options};
pub use ways::{NodeRoutes, WayOptions};

use davit_net::nft::{HeldTable, Table};
use davit_net::route::Netlink;
use davit_netplan::{Family, Network};
use ruleset::owner_of;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// What cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A range of addresses.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The kernel, or a file.
    #[error("{what}: {error}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Adds what was attempted.
fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Io { what, error }
}

/// What tells a cluster or node from others on the same machine: a number of 16 bits.
fn number_of(data_dir: &Path) -> u16 {
    let hash = xxhash_rust::xxh3::xxh3_64(data_dir.as_os_str().as_encoded_bytes());
    // the upper bits
    u16::try_from(hash >> 48).unwrap_or_default()
}

/// With what the names of its links begin.
fn links_of(data_dir: &Path) -> String {
    format!("{}{:04x}", rules::ALL_LINKS, number_of(data_dir))
}

/// The metric of its routes to other nodes.
fn metric_of(data_dir: &Path) -> u32 {
    1 + u32::from(number_of(data_dir))
}

/// The name of its table.
fn table_of(links: &str) -> String {
    format!("davit-{}", &links[rules::ALL_LINKS.len()..])
}

/// The tables of the cluster or node with this data directory, there or not.
#[must_use]
pub fn tables(data_dir: &Path) -> [Table; 2] {
    let name = table_of(&links_of(data_dir));
    Family::ALL.map(|family| ruleset::table(&name, family))
}

/// Removes a table, if it is there.
fn remove_table(table: &Table) -> io::Result<()> {
    if table.mark()?.is_none() {
        return Ok(());
    }
    let mut change = table.transaction();
    change.delete_table();
    table.commit(change)
}

/// Takes away whatever the cluster or node with this data directory has in the kernel: table, links, addresses, routes, and
/// the claim on the node's ranges. That on the cluster's stays: it is written down, and wanted again by the next start. Blocks.
///
/// # Errors
/// What the kernel says.
pub fn remove(data_dir: &Path) -> Result<(), Error> {
    let ranges = Claims::of_nodes().held(data_dir)?;
    let links = links_of(data_dir);
    for table in tables(data_dir) {
        remove_table(&table).map_err(failed("removing the table"))?;
    }
    let withdrawn = withdraw(&links, metric_of(data_dir), &ranges);
    withdrawn.map_err(failed("removing links, addresses and routes"))?;
    announce::withdraw(data_dir).map_err(failed("removing addresses of load balancers"))?;
    // Last, so that what could not be removed is found again.
    Claims::of_nodes().release(data_dir)?;
    Ok(())
}

/// Gives back the range of the cluster with this data directory, which is no more. Blocks.
///
/// # Errors
/// When the claims cannot be read or removed.
pub fn release_range(data_dir: &Path) -> Result<(), Error> {
    Claims::of_clusters().release(data_dir)?;
    Ok(())
}

/// Takes away what clusters have left that are no more: whose data directory has gone, by their claims and, where those that
/// live can be told (`present`), by the marks of their tables. Blocks.
fn sweep(data_dir: &Path, present: Option<&HeldTable>) -> Result<(), Error> {
    let _lock = Claims::of_nodes().lock_removal()?;
    for claims in [Claims::of_nodes(), Claims::of_clusters()] {
        for gone in claims.abandoned(data_dir)? {
            remove(&gone)?;
            release_range(&gone)?;
        }
    }
    match present {
        Some(_) => sweep_marked(data_dir),
        None => Ok(()),
    }
}

/// Those of which no claim tells: claims end with the machine's start, and are taken away in whatever network namespace a
/// cluster begins.
fn sweep_marked(data_dir: &Path) -> Result<(), Error> {
    let marks = davit_net::nft::marks().map_err(failed("nf_tables"))?;
    let owners: BTreeSet<PathBuf> = marks.iter().filter_map(|mark| owner_of(mark)).collect();
    for owner in owners {
        let lives = || presence(&owner).mark().map(|mark| mark.is_some());
        if owner != data_dir && !owner.is_dir() && !lives().map_err(failed("nf_tables"))? {
            remove(&owner)?;
        }
    }
    Ok(())
}

/// Held as long as the tables of the cluster or node with this data directory are used: a table that is, as they are, one
/// network namespace's, and nobody's who could not change them. Who is in a container of its own has its directory where
/// others do not see it.
fn presence(data_dir: &Path) -> Table {
    let name = format!("davit-lives-{:04x}", number_of(data_dir));
    ruleset::table(&name, Family::V4)
}

fn withdraw(links: &str, metric: u32, ranges: &[Network]) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let tunnels = Family::ALL.map(|family| rules::tunnel_name(links, family));
    for found in netlink.links()? {
        if found.name.starts_with(links) || tunnels.contains(&found.name) {
            netlink.remove_link(&found.name)?;
        }
    }
    for route in netlink.routes()? {
        if route.protocol == pods::PROTOCOL && route.metric == metric {
            netlink.remove_route(&route)?;
        }
    }
    if let Some(lo) = netlink.link("lo")? {
        for range in ranges {
            netlink.remove_host_address(&lo, range.gateway())?;
        }
    }
    Ok(())
}
