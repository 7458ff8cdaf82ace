//! What policies let through, in the table: a set for each group of peers, a chain for each thing that is allowed, and
//! for each pod here two elements that lead to its chains.
//!
//! Sets and chains are numbered, so that nothing of an object's reaches their names. What is new is written before what
//! leads to it, and what is old goes after that: at no moment is less or more allowed than before or after.

use super::{BATCH, Ruleset, State};
use crate::maps::{Map, set_of_peers};
use crate::rules::policy::{Side, allowed, chains};
use crate::rules::{FORBIDDEN, ended as ended_rule};
use davit_net::conntrack::{self, Connection};
use davit_net::nft::{Data, Element, IpVersion, Verdict};
use davit_netplan::{Allowance, Family, Isolation, PodGroup, lets_pass, octets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

/// With what the names begin.
const CHAIN: &str = "allow-";
const SET: &str = "peers-";
/// New chains of one transaction, at most.
const CHAINS: usize = 64;

/// What of policies stands in the table.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The last number given.
    last: u64,
    groups: BTreeMap<PodGroup, (u64, BTreeSet<IpAddr>)>,
    chains: BTreeMap<(Side, BTreeSet<Allowance>), u64>,
    /// Of an earlier run: they stay until everything is written anew.
    old_sets: Vec<String>,
    old_chains: Vec<String>,
}

/// What is to stand in the table.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Of each pod here, by its address. One that is not known yet is cut off.
    pub(crate) pods: BTreeMap<IpAddr, Option<Isolation>>,
    /// The groups that the pods' policies name.
    pub(crate) groups: BTreeMap<PodGroup, BTreeSet<IpAddr>>,
}

impl Judgement {
    /// Whether policies of pods here forbid a connection; nothing if it is of no pod that is known. As the rules do, this goes
    /// by where it came from and by which endpoint it has gone to.
    fn forbids(&self, connection: &Connection, own: &BTreeSet<IpAddr>) -> Option<bool> {
        let (from, (to, port)) = (connection.original.from.0, connection.reply.from);
        let port = (connection.protocol, port);
        let is_member = |group: &PodGroup, peer| {
            let members = self.groups.get(group);
            members.is_some_and(|members| members.contains(&peer))
        };
        let isolation = |pod: &IpAddr| self.pods.get(pod).and_then(Option::as_ref);
        let (receiver, sender) = (isolation(&to), isolation(&from));
        if receiver.is_none() && sender.is_none() {
            return None;
        }
        let comes_in = receiver.is_none_or(|pod| {
            own.contains(&from) || lets_pass(pod.ingress.as_ref(), from, port, is_member)
        });
        let goes_out = sender.is_none_or(|pod| lets_pass(pod.egress.as_ref(), to, port, is_member));
        Some(from != to && !(comes_in && goes_out))
    }
}

/// What has come of bringing the table to what policies say.
#[derive(Debug)]
pub(crate) enum Judged {
    /// Pods have come or gone meanwhile: nothing was done.
    Outdated,
    /// Everything stands there, but for what the kernel has refused: the pods that it is about are cut off.
    Written(BTreeMap<IpAddr, String>),
}

fn element(address: IpAddr, data: Option<Data>) -> Element {
    Element {
        key: octets(address),
        is_end: false,
        data,
    }
}

fn elements(addresses: &[IpAddr]) -> Vec<Element> {
    addresses
        .iter()
        .map(|address| element(*address, None))
        .collect()
}

impl Written {
    /// What an earlier run has left. `last` is at least what this one has counted to.
    pub(super) fn found(sets: Vec<String>, chains: &BTreeSet<String>, last: u64) -> Self {
        let old_sets: Vec<String> = sets
            .into_iter()
            .filter(|name| name.starts_with(SET))
            .collect();
        let old_chains = chains.iter().filter(|name| name.starts_with(CHAIN));
        let old_chains: Vec<String> = old_chains.cloned().collect();
        let number = |name: &String| name.split('-').nth(1)?.parse::<u64>().ok();
        let numbers = old_sets.iter().chain(&old_chains).filter_map(number);
        Self {
            last: numbers.max().unwrap_or_default().max(last),
            old_sets,
            old_chains,
            ..Self::default()
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set(&self, group: &PodGroup) -> Option<String> {
        self.groups
            .get(group)
            .map(|(number, _)| format!("{SET}{number}"))
    }
}

/// The chains that pods need.
fn chains_of(judgement: &Judgement) -> BTreeSet<(Side, &BTreeSet<Allowance>)> {
    let pods = judgement.pods.values().flatten();
    let sides = pods.flat_map(|isolation| {
        let ingress = isolation
            .ingress
            .iter()
            .map(|allowed| (Side::Source, allowed));
        let egress = isolation
            .egress
            .iter()
            .map(|allowed| (Side::Destination, allowed));
        ingress.chain(egress)
    });
    sides.collect()
}

impl Ruleset {
    /// How often pods here have come and gone.
    pub(crate) fn pods_changed(&self) -> u64 {
        self.state.lock().pods_changed
    }

    /// Brings the table to what policies say, if pods have not come or gone since they had changed `as_of` times. What the
    /// kernel refuses of one pod's policies cuts off the pods with these; when it refuses more, everything is written anew
    /// the next time.
    pub(crate) fn judge(&self, as_of: u64, judgement: &Judgement) -> io::Result<Judged> {
        let mut state = self.state.lock();
        if state.pods_changed != as_of {
            return Ok(Judged::Outdated);
        }
        let done = self.enter_peers(&mut state, judgement);
        let done = done.and_then(|()| self.enter_chains(&mut state, judgement));
        let done = done.and_then(|refused| {
            self.clear_peers(&mut state, judgement)?;
            Ok(Judged::Written(refused))
        });
        if done.is_err() {
            self.read_again(&mut state);
        }
        done
    }

    /// Has connections of pods here go on or not as policies say now: those that these forbid are marked, and what is marked
    /// is dropped. `own` are the addresses of this machine, which nobody judges. Answers with how many have ended.
    pub(crate) fn end_forbidden(
        &self,
        judgement: &Judgement,
        own: &BTreeSet<IpAddr>,
    ) -> io::Result<usize> {
        let version = match self.family {
            Family::V4 => IpVersion::Four,
            Family::V6 => IpVersion::Six,
        };
        let (mut ended, mut goes_on) = (Vec::new(), Vec::new());
        for connection in conntrack::connections(version)? {
            let is_marked = connection.mark & FORBIDDEN != 0;
            match judgement.forbids(&connection, own) {
                Some(true) if !is_marked => ended.push(connection),
                Some(false) if is_marked => goes_on.push(connection),
                _ => {}
            }
        }
        if !ended.is_empty() {
            let mut state = self.state.lock();
            if !state.has_ended {
                let mut change = self.table.transaction();
                ended_rule(&mut change);
                self.table.commit(change)?;
                state.has_ended = true;
            }
        }
        conntrack::mark(&ended, FORBIDDEN, true)?;
        conntrack::mark(&goes_on, FORBIDDEN, false)?;
        Ok(ended.len())
    }

    /// New sets, and new members of those that are there.
    fn enter_peers(&self, state: &mut State, judgement: &Judgement) -> io::Result<()> {
        for (group, members) in &judgement.groups {
            let written = &mut state.policies;
            if !written.groups.contains_key(group) {
                let number = written.number();
                let mut change = self.table.transaction();
                change.add_set(&set_of_peers(&format!("{SET}{number}")));
                self.table.commit(change)?;
                written
                    .groups
                    .insert(group.clone(), (number, BTreeSet::new()));
            }
            let Some((number, held)) = written.groups.get_mut(group) else {
                continue;
            };
            let name = format!("{SET}{number}");
            let new: Vec<IpAddr> = members.difference(held).copied().collect();
            for batch in new.chunks(BATCH) {
                let mut change = self.table.transaction();
                change.add_elements(&name, &elements(batch));
                self.table.commit(change)?;
                held.extend(batch);
            }
        }
        Ok(())
    }

    /// New chains, some at once; those that the kernel refuses, and why.
    fn make_chains(
        &self,
        state: &mut State,
        judgement: &Judgement,
    ) -> io::Result<BTreeMap<(Side, BTreeSet<Allowance>), String>> {
        let all = chains_of(judgement).into_iter();
        let missing = all.filter(|(side, rules)| {
            let key = (*side, (*rules).clone());
            !state.policies.chains.contains_key(&key)
        });
        let missing: Vec<(Side, &BTreeSet<Allowance>)> = missing.collect();
        let mut refused = BTreeMap::new();
        for some in missing.chunks(CHAINS) {
            let Err(error) = self.make_some(state, some) else {
                continue;
            };
            tracing::debug!(%error, "chains of network policies: one by one");
            for one in some {
                if let Err(error) = self.make_some(state, std::slice::from_ref(one)) {
                    refused.insert((one.0, one.1.clone()), error.to_string());
                }
            }
        }
        match refused.len() {
            // nothing of one policy's then
            failed if failed > 1 && failed == missing.len() => {
                let why = refused.into_values().next().unwrap_or_default();
                Err(io::Error::other(why))
            }
            _ => Ok(refused),
        }
    }

    /// Makes chains at once, or none of them.
    fn make_some(
        &self,
        state: &mut State,
        some: &[(Side, &BTreeSet<Allowance>)],
    ) -> io::Result<()> {
        let mut change = self.table.transaction();
        let mut new = Vec::with_capacity(some.len());
        for (side, rules) in some {
            let number = state.policies.number();
            let chain = format!("{CHAIN}{number}");
            allowed(&mut change, &chain, *side, self.family, rules, |group| {
                state.policies.set(group)
            });
            new.push(((*side, (*rules).clone()), number));
        }
        self.table.commit(change)?;
        state.policies.chains.extend(new);
        Ok(())
    }

    /// New chains, and then the elements that lead to them, at once; the pods that are cut off because the kernel has
    /// refused theirs.
    fn enter_chains(
        &self,
        state: &mut State,
        judgement: &Judgement,
    ) -> io::Result<BTreeMap<IpAddr, String>> {
        let refused = self.make_chains(state, judgement)?;
        let mut cut_off = BTreeMap::new();
        let mut change = self.table.transaction();
        let mut entered = Vec::new();
        for (address, isolation) in &judgement.pods {
            for (map, side) in [
                (Map::Ingress, Side::Source),
                (Map::Egress, Side::Destination),
            ] {
                let verdict = match isolation {
                    None => Verdict::Drop,
                    Some(isolation) => {
                        let rules = match side {
                            Side::Source => &isolation.ingress,
                            Side::Destination => &isolation.egress,
                        };
                        let number = rules.as_ref().map(|rules| {
                            let key = (side, rules.clone());
                            if let Some(why) = refused.get(&key) {
                                cut_off.insert(*address, why.clone());
                            }
                            state.policies.chains.get(&key)
                        });
                        match number {
                            None => Verdict::Return,
                            Some(Some(number)) => Verdict::Goto(format!("{CHAIN}{number}")),
                            Some(None) => Verdict::Drop,
                        }
                    }
                };
                let wanted = element(*address, Some(Data::Verdict(verdict)));
                let place = (wanted.key.clone(), false);
                let held = state.maps.get(&map).and_then(|held| held.get(&place));
                // Only where a pod is now, and where something else is to stand.
                let Some(held) = held.filter(|held| **held != wanted.data) else {
                    continue;
                };
                let before = element(*address, held.clone());
                change.delete_elements(map.name(), &[before]);
                change.add_elements(map.name(), std::slice::from_ref(&wanted));
                entered.push((map, place, wanted.data));
            }
        }
        self.table.commit(change)?;
        for (map, place, data) in entered {
            state.maps.entry(map).or_default().insert(place, data);
        }
        Ok(cut_off)
    }

    /// Members, chains and sets that nothing needs any more.
    fn clear_peers(&self, state: &mut State, judgement: &Judgement) -> io::Result<()> {
        let needed = chains_of(judgement);
        let unused = |key: &(Side, BTreeSet<Allowance>)| !needed.contains(&(key.0, &key.1));
        let mut change = self.table.transaction();
        let gone = state.policies.chains.iter().filter(|(key, _)| unused(key));
        for ((_, rules), number) in gone {
            for chain in chains(&format!("{CHAIN}{number}"), rules) {
                change.delete_chain(&chain);
            }
        }
        for chain in &state.policies.old_chains {
            change.delete_chain(chain);
        }
        self.table.commit(change)?;
        state.policies.chains.retain(|key, _| !unused(key));
        for chain in std::mem::take(&mut state.policies.old_chains) {
            state.chains.remove(&chain);
        }

        let mut change = self.table.transaction();
        for set in &state.policies.old_sets {
            change.delete_set(set);
        }
        for (group, (number, _)) in &state.policies.groups {
            if !judgement.groups.contains_key(group) {
                change.delete_set(&format!("{SET}{number}"));
            }
        }
        self.table.commit(change)?;
        state.policies.old_sets.clear();
        state
            .policies
            .groups
            .retain(|group, _| judgement.groups.contains_key(group));
        for (group, (number, held)) in &mut state.policies.groups {
            let members = judgement.groups.get(group);
            let gone = held
                .iter()
                .filter(|address| members.is_none_or(|m| !m.contains(address)));
            let gone: Vec<IpAddr> = gone.copied().collect();
            for batch in gone.chunks(BATCH) {
                let mut change = self.table.transaction();
                change.delete_elements(&format!("{SET}{number}"), &elements(batch));
                self.table.commit(change)?;
                held.retain(|address| !batch.contains(address));
            }
        }
        Ok(())
    }
}
