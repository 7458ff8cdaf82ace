//! davit's table in the kernel, and what stands in it.

mod policy;

pub(crate) use policy::{Judged, Judgement};

use crate::maps::Map;
use crate::rules::{self, TunnelPort};
use davit_net::nft::{Data, Element, IpVersion, Table, Transaction};
use davit_netplan::{Chain, Family, Network};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The rules of another layout are thrown away at start.
const LAYOUT: &str = "davit 7 ";
/// Bytes that the kernel keeps with a table, at most.
const MARK: usize = 256;
/// Elements of one transaction, at most: the kernel works on nothing else meanwhile.
const BATCH: usize = 4096;

/// A key of a set, and whether an interval ends there.
pub(crate) type SetBoundary = (Vec<u8>, bool);
type Elements = HashMap<SetBoundary, Option<Data>>;

/// What is to change. What stands there already is not written.
#[derive(Debug, Default)]
pub(crate) struct Update {
    /// New or other data; none takes the element away.
    pub(crate) elements: BTreeMap<(Map, SetBoundary), Wanted>,
    /// The chains that elements lead to.
    pub(crate) chains: BTreeSet<Chain>,
}

/// An element, and what is to stand there.
type ElementWish<'a> = (&'a (Map, SetBoundary), &'a Wanted);

/// What is to stand somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// It is in the set.
    Member,
    /// The map has this.
    Data(Data),
}

#[derive(Debug, Default)]
struct State {
    maps: HashMap<Map, Elements>,
    chains: BTreeSet<String>,
    pods: Option<Network>,
    tunnel: Option<TunnelPort>,
    policies: policy::Written,
    /// The rule for connections that policies have ended is there.
    has_ended: bool,
    /// How often pods here have come and gone.
    pods_changed: u64,
}

/// The table of a name and family, there or not.
pub(crate) fn table(name: &str, family: Family) -> Table {
    let version = match family {
        Family::V4 => IpVersion::Four,
        Family::V6 => IpVersion::Six,
    };
    Table::new(name, version)
}

/// The table of one family. Calls block.
#[derive(Debug)]
pub(crate) struct Ruleset {
    family: Family,
    table: Table,
    /// What the names of our links begin with.
    links: String,
    /// What the table is made with.
    mark: Vec<u8>,
    state: Mutex<State>,
}

/// What a table is made with: how it is laid out, whose links it is about, and whose it is where that has room.
fn mark(links: &str, owner: Option<&Path>) -> Vec<u8> {
    let mut mark = format!("{LAYOUT}{links}").into_bytes();
    let owner = owner.map(|owner| owner.as_os_str().as_bytes());
    if let Some(owner) = owner.filter(|owner| mark.len() + 1 + owner.len() <= MARK) {
        mark.push(b' ');
        mark.extend_from_slice(owner);
    }
    mark
}

/// The data directory of whoever has made a table with this mark, if that stands there.
pub(crate) fn owner_of(mark: &[u8]) -> Option<PathBuf> {
    let rest = mark.strip_prefix(LAYOUT.as_bytes())?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let owner = Path::new(OsStr::from_bytes(rest.get(space + 1..)?));
    owner.is_absolute().then(|| owner.to_owned())
}

impl Update {
    pub(crate) fn set(&mut self, map: Map, key: Vec<u8>, wanted: Wanted) {
        self.elements.insert((map, (key, false)), wanted);
    }
}

impl Ruleset {
    /// Takes over the table that an earlier run has left, or makes it.
    pub(crate) fn open(
        name: &str,
        family: Family,
        links: &str,
        owner: Option<&Path>,
    ) -> io::Result<Self> {
        let ruleset = Self {
            mark: mark(links, owner),
            family,
            table: table(name, family),
            links: links.to_owned(),
            state: Mutex::default(),
        };
        let state = ruleset.adopt(0)?;
        *ruleset.state.lock() = state;
        Ok(ruleset)
    }

    /// Of whose packets it is.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// What stands in the table, which is made when it is not there. Numbers up to `numbered` are not given again.
    fn adopt(&self, numbered: u64) -> io::Result<State> {
        let mut state = State::default();
        if self.table.mark()?.as_ref() == Some(&self.mark) {
            for map in Map::ALL.into_iter().filter(|map| *map != Map::Affinity) {
                let elements = self.table.elements(map.name())?;
                let placed = elements.into_iter().map(|e| ((e.key, e.is_end), e.data));
                state.maps.insert(map, placed.collect());
            }
            state.chains = self.table.chains()?.into_iter().collect();
            let sets = self.table.sets()?;
            state.policies = policy::Written::found(sets, &state.chains, numbered);
            return Ok(state);
        }
        let mut change = self.table.transaction();
        // To be there is what it takes to be removed.
        change.add_table(&self.mark);
        change.delete_table();
        change.add_table(&self.mark);
        rules::lay_out(&mut change, self.family, &self.links);
        self.table.commit(change)?;
        Ok(state)
    }

    /// Whether the table is there as it was made; if not it is made anew, empty, and everything is to be told again.
    pub(crate) fn restore(&self) -> io::Result<bool> {
        if self.table.mark()?.as_ref() == Some(&self.mark) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        let (pods, tunnel) = (state.pods, state.tunnel);
        self.renew(&mut state)?;
        drop(state);
        self.set_pods(pods)?;
        self.set_tunnel(tunnel)?;
        Ok(true)
    }

    /// By which packets tunnels of this node are reached: of those of other machines than nodes none comes in from then on.
    pub(crate) fn set_tunnel(&self, tunnel: Option<TunnelPort>) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.tunnel == tunnel {
            return Ok(());
        }
        let mut change = self.table.transaction();
        rules::tunnel(&mut change, tunnel);
        self.table.commit(change)?;
        state.tunnel = tunnel;
        Ok(())
    }

    /// The range of this node's pods.
    pub(crate) fn set_pods(&self, pods: Option<Network>) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut change = self.table.transaction();
        rules::leave(&mut change, pods);
        self.table.commit(change)?;
        state.pods = pods;
        Ok(())
    }

    /// What stands in a map.
    pub(crate) fn places(&self, map: Map) -> Vec<SetBoundary> {
        let state = self.state.lock();
        let places = state.maps.get(&map).into_iter().flat_map(HashMap::keys);
        places.cloned().collect()
    }

    /// What the map has for a key; nothing for what is not there, and for sets.
    pub(crate) fn data(&self, map: Map, key: &[u8]) -> Option<Data> {
        let state = self.state.lock();
        let place = (key.to_vec(), false);
        state.maps.get(&map)?.get(&place)?.clone()
    }

    /// Does the changes; those of up to some thousand elements at once or not at all, and between these pods come and go.
    /// When the kernel refuses, what stands in it is read anew.
    pub(crate) fn apply(&self, update: &Update) -> io::Result<()> {
        let all: Vec<ElementWish<'_>> = update.elements.iter().collect();
        let chains = |state: &mut State| self.write_chains(state, &update.chains);
        // sets of intervals are written whole
        if update.elements.keys().any(|(map, _)| map.set().intervals) {
            return self.attempt(|state| {
                chains(state)?;
                self.write(state, &all)
            });
        }
        self.attempt(chains)?;
        for some in all.chunks(BATCH) {
            self.attempt(|state| self.write(state, some))?;
        }
        Ok(())
    }

    /// Changes something, and lets those who wait do so next.
    fn attempt(&self, work: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let done = work(&mut state);
        if done.is_err() {
            self.read_again(&mut state);
        }
        MutexGuard::unlock_fair(state);
        done
    }

    /// As [`Ruleset::apply`], for elements of pods here that come or go. Answers with how often that has happened.
    pub(crate) fn apply_pods(&self, update: &Update) -> io::Result<u64> {
        let all: Vec<ElementWish<'_>> = update.elements.iter().collect();
        let mut changes = 0;
        self.attempt(|state| {
            state.pods_changed += 1;
            changes = state.pods_changed;
            self.write_chains(state, &update.chains)?;
            self.write(state, &all)
        })?;
        Ok(changes)
    }

    /// After the kernel has refused something. What cannot be read stays as it was thought to be.
    fn read_again(&self, state: &mut State) {
        if let Err(error) = self.renew(state) {
            tracing::warn!(%error, "the network's table cannot be read");
        }
    }

    fn renew(&self, state: &mut State) -> io::Result<()> {
        let read = self.adopt(state.policies.last())?;
        *state = State {
            pods: state.pods,
            pods_changed: state.pods_changed + 1,
            ..read
        };
        Ok(())
    }

    /// As [`Ruleset::apply`], and nothing else stays in these maps.
    pub(crate) fn replace(&self, maps: &[Map], update: Update) -> io::Result<()> {
        self.apply(&self.only(maps, update))
    }

    /// The change after which nothing else stays in these maps.
    pub(crate) fn only(&self, maps: &[Map], mut update: Update) -> Update {
        for map in maps {
            for place in self.places(*map) {
                let key = (*map, place);
                update.elements.entry(key).or_insert(Wanted::Nothing);
            }
        }
        update
    }

    fn write(&self, state: &mut State, wishes: &[ElementWish<'_>]) -> io::Result<()> {
        let anew = intervals_that_change(state, wishes);
        let mut pending: Vec<(Map, Element, bool, bool)> = Vec::new();
        for ((map, (key, is_end)), wanted) in wishes {
            let place = (key.clone(), *is_end);
            let held = state.maps.get(map).and_then(|held| held.get(&place));
            let data = match wanted {
                Wanted::Nothing | Wanted::Member => None,
                Wanted::Data(data) => Some(data.clone()),
            };
            let (remove, add) = (held.is_some(), **wanted != Wanted::Nothing);
            let stays = remove == add && held.is_none_or(|held| *held == data);
            if stays && !anew.contains(map) {
                continue;
            }
            let element = Element {
                key: key.clone(),
                is_end: *is_end,
                data,
            };
            pending.push((*map, element, remove, add));
        }
        for batch in pending.chunks(BATCH) {
            let mut change = self.table.transaction();
            group(batch, |map, elements, add| {
                if add {
                    change.add_elements(map.name(), elements);
                } else {
                    change.delete_elements(map.name(), elements);
                }
            });
            self.table.commit(change)?;
            for (map, element, _, add) in batch {
                let place = (element.key.clone(), element.is_end);
                let held = state.maps.entry(*map).or_default();
                match add {
                    true => drop(held.insert(place, element.data.clone())),
                    false => drop(held.remove(&place)),
                }
            }
        }
        Ok(())
    }

    fn write_chains(&self, state: &mut State, chains: &BTreeSet<Chain>) -> io::Result<()> {
        let mut change: Option<Transaction> = None;
        let mut made = Vec::new();
        for chain in chains {
            // those that a chain leads to come first
            for chain in chain.leads_to().iter().chain([chain]) {
                let name = chain.name();
                if state.chains.contains(&name) || made.contains(&name) {
                    continue;
                }
                let change = change.get_or_insert_with(|| self.table.transaction());
                rules::chain(change, chain, self.family, &self.links);
                made.push(name);
            }
        }
        if let Some(change) = change {
            self.table.commit(change)?;
            state.chains.extend(made);
        }
        Ok(())
    }

    /// The clients that keep endpoints.
    pub(crate) fn clients(&self) -> io::Result<Vec<Element>> {
        self.table.elements(Map::Affinity.name())
    }

    /// Lets clients choose anew. One that has ended meanwhile does not matter.
    pub(crate) fn forget_clients(&self, clients: &[Element]) {
        for client in clients {
            let mut change = self.table.transaction();
            let one = std::slice::from_ref(client);
            change.delete_elements(Map::Affinity.name(), one);
            if let Err(error) = self.table.commit(change) {
                tracing::debug!(%error, "a client of a Service has ended by itself");
            }
        }
    }

    /// Removes the table, as somebody else might.
    #[cfg(test)]
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut change = self.table.transaction();
        change.add_table(&self.mark);
        change.delete_table();
        self.table.commit(change)
    }
}

/// Sets of intervals are written whole: the kernel takes no new edge of an interval without the other.
fn intervals_that_change(state: &State, wishes: &[ElementWish<'_>]) -> BTreeSet<Map> {
    let changed = wishes.iter().filter(|((map, place), wanted)| {
        let held = state
            .maps
            .get(map)
            .is_some_and(|held| held.contains_key(place));
        map.set().intervals && held != (**wanted != Wanted::Nothing)
    });
    changed.map(|((map, _), _)| *map).collect()
}

/// Tells of removals first, then of new elements, each map's together.
fn group(batch: &[(Map, Element, bool, bool)], mut tell: impl FnMut(Map, &[Element], bool)) {
    for add in [false, true] {
        let mut grouped: BTreeMap<Map, Vec<Element>> = BTreeMap::new();
        for (map, element, remove, insert) in batch {
            if (add && *insert) || (!add && *remove) {
                grouped.entry(*map).or_default().push(element.clone());
            }
        }
        for (map, elements) in grouped {
            tell(map, &elements, add);
        }
    }
}

#[cfg(test)]
mod tests;
