//! Reading a plugin's device lists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Streaming;

use super::agent::{Client, said};

/// A device stream.
pub(super) struct Lists(Streaming<pb::ListAndWatchResponse>);

/// What came while nothing was to come.
pub(super) struct Watched {
    pub(super) lists: usize,
    pub(super) last: Option<Vec<pb::Device>>,
    /// Why the stream ended, if it did.
    pub(super) ended: Option<String>,
}

impl Lists {
    pub(super) async fn open(mut client: Client, limit: Duration) -> Result<Self, String> {
        match timeout(limit, client.list_and_watch(pb::Empty {})).await {
            Ok(Ok(answer)) => Ok(Self(answer.into_inner())),
            Ok(Err(status)) => Err(format!("ListAndWatch: {}", said(&status))),
            Err(_) => Err(format!(
                "ListAndWatch was not answered in {} s",
                limit.as_secs()
            )),
        }
    }

    /// The next list.
    pub(super) async fn next(&mut self, limit: Duration) -> Result<Vec<pb::Device>, String> {
        match timeout(limit, self.0.message()).await {
            Ok(Ok(Some(list))) => Ok(list.devices),
            Ok(Ok(None)) => Err("the stream ended".to_owned()),
            Ok(Err(status)) => Err(format!("the stream broke: {}", said(&status))),
            Err(_) => Err(format!("no list in {} s", limit.as_secs())),
        }
    }

    /// Waits for a list that `wanted` accepts.
    pub(super) async fn until(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&[pb::Device]) -> bool,
    ) -> Result<Vec<pb::Device>, String> {
        let deadline = Instant::now() + limit;
        let mut lists = 0_usize;
        loop {
            match timeout_at(deadline, self.0.message()).await {
                Ok(Ok(Some(list))) if wanted(&list.devices) => return Ok(list.devices),
                Ok(Ok(Some(_))) => lists += 1,
                Ok(Ok(None)) => return Err("the stream ended".to_owned()),
                Ok(Err(status)) => return Err(format!("the stream broke: {}", said(&status))),
                Err(_) => return Err(format!("{lists} other lists in {} s", limit.as_secs())),
            }
        }
    }

    /// Looks at the stream for some time.
    pub(super) async fn watch(&mut self, time: Duration) -> Watched {
        let deadline = Instant::now() + time;
        let mut watched = Watched {
            lists: 0,
            last: None,
            ended: None,
        };
        loop {
            match timeout_at(deadline, self.0.message()).await {
                Ok(Ok(Some(list))) => {
                    watched.lists += 1;
                    watched.last = Some(list.devices);
                }
                Ok(Ok(None)) => watched.ended = Some("the stream ended".to_owned()),
                Ok(Err(status)) => {
                    watched.ended = Some(format!("the stream broke: {}", said(&status)));
                }
                Err(_) => return watched,
            }
            if watched.ended.is_some() {
                return watched;
            }
        }
    }
}

/// The IDs in a list.
pub(super) fn ids(list: &[pb::Device]) -> BTreeSet<String> {
    list.iter().map(|d| d.id.clone()).collect()
}

/// The IDs of healthy devices, in the order of the list.
pub(super) fn healthy(list: &[pb::Device]) -> Vec<String> {
    let healthy = list.iter().filter(|d| d.health == pb::HEALTHY);
    healthy.map(|d| d.id.clone()).collect()
}

/// Whether the IDs of a list are as they have to be.
pub(super) fn check_ids(list: &[pb::Device]) -> Result<String, String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for device in list {
        if device.id.is_empty() {
            return Err("a device without ID".to_owned());
        }
        if device.id.len() > 63 {
            return Err(format!(
                "ID {:?} has {} characters",
                device.id,
                device.id.len()
            ));
        }
        *seen.entry(&device.id).or_default() += 1;
    }
    match seen.iter().find(|(_, n)| **n > 1) {
        Some((id, n)) => Err(format!("ID {id:?} is there {n} times")),
        None => Ok(format!("{} devices, {}", list.len(), sample(list))),
    }
}

/// Whether the health of all devices is a word of the interface.
pub(super) fn check_health(list: &[pb::Device]) -> Result<String, String> {
    let odd = list
        .iter()
        .find(|d| d.health != pb::HEALTHY && d.health != pb::UNHEALTHY);
    match odd {
        Some(d) => Err(format!("device {:?} is {:?}", d.id, d.health)),
        None => Ok(format!("{} of {} healthy", healthy(list).len(), list.len())),
    }
}

/// Whether the NUMA nodes of all devices can be such.
pub(super) fn check_numa(list: &[pb::Device]) -> Result<String, String> {
    let mut with = 0;
    let mut nodes = BTreeSet::new();
    for device in list {
        let Some(topology) = &device.topology else {
            continue;
        };
        if topology.nodes.is_empty() {
            return Err(format!(
                "device {:?} has a topology without nodes; leave it out instead",
                device.id
            ));
        }
        let mut own = BTreeSet::new();
        for node in &topology.nodes {
            if !(0..1024).contains(&node.id) {
                return Err(format!(
                    "device {:?} is on NUMA node {}",
                    device.id, node.id
                ));
            }
            if !own.insert(node.id) {
                return Err(format!(
                    "device {:?} names NUMA node {} twice",
                    device.id, node.id
                ));
            }
        }
        nodes.extend(own);
        with += 1;
    }
    Ok(match with {
        0 => "no topology".to_owned(),
        _ => format!("{with} of {} devices on NUMA nodes {nodes:?}", list.len()),
    })
}

/// The first IDs, to recognize them.
pub(super) fn sample(list: &[pb::Device]) -> String {
    let first: Vec<&str> = list.iter().take(3).map(|d| d.id.as_str()).collect();
    let more = if list.len() > 3 { ", …" } else { "" };
    format!("[{}{more}]", first.join(", "))
}
