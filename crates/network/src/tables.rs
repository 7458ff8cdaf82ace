//! The tables of a node, one for each family of addresses.

use crate::ruleset::{Ruleset, table};
use davit_netplan::Family;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// That of IPv4 is there from the start; that of IPv6 is made when there is something for it. Calls block.
#[derive(Debug)]
pub(crate) struct Tables {
    name: String,
    links: String,
    /// The data directory of who has them.
    owner: Option<PathBuf>,
    made: Mutex<BTreeMap<Family, Arc<Ruleset>>>,
}

impl Tables {
    /// Takes over what an earlier run has left, and makes the table of IPv4.
    pub(crate) fn open(name: &str, links: &str, owner: Option<&Path>) -> io::Result<Self> {
        let tables = Self {
            name: name.to_owned(),
            links: links.to_owned(),
            owner: owner.map(Path::to_owned),
            made: Mutex::default(),
        };
        tables.of(Family::V4)?;
        // a kernel without IPv6 has none
        if matches!(table(name, Family::V6).mark(), Ok(Some(_))) {
            tables.of(Family::V6)?;
        }
        Ok(tables)
    }

    /// The table of a family, which is made when it is not there.
    pub(crate) fn of(&self, family: Family) -> io::Result<Arc<Ruleset>> {
        let mut made = self.made.lock();
        if let Some(ruleset) = made.get(&family) {
            return Ok(ruleset.clone());
        }
        let opened = Ruleset::open(&self.name, family, &self.links, self.owner.as_deref())?;
        let ruleset = Arc::new(opened);
        made.insert(family, ruleset.clone());
        Ok(ruleset)
    }

    /// Those that are there.
    pub(crate) fn all(&self) -> Vec<Arc<Ruleset>> {
        self.made.lock().values().cloned().collect()
    }

    /// What the names of the links here begin with.
    pub(crate) fn links(&self) -> &str {
        &self.links
    }
}
