//! A machine drawn by its NUMA nodes: what each has, and who holds it.

use crate::page::{Page, Tone, tone_of_health};
use crate::plain::bytes;
use davit_api::devices::{Device, NodeDevices, NumaPlace};
use davit_topology::CpuSet;
use std::collections::BTreeMap;

/// Squares of one line; what is beyond is counted.
const SQUARES: usize = 64;
/// Names of devices in one line.
const NAMES: usize = 8;

/// One of what a resource has.
struct Square {
    name: String,
    health: String,
    holder: Option<String>,
}

impl Square {
    fn of(device: &Device) -> Self {
        Self {
            name: device.id.clone(),
            health: device.health.clone(),
            holder: holder(device),
        }
    }

    fn drawn(&self) -> (Tone, &'static str) {
        let tone = tone_of_health(&self.health);
        match (tone, &self.holder) {
            (Tone::Bad, _) => (tone, "✗"),
            (Tone::Doubtful, _) => (tone, "?"),
            (_, Some(_)) => (Tone::Title, "■"),
            (_, None) => (Tone::Good, "□"),
        }
    }
}

/// `namespace/pod` of who holds a device.
fn holder(device: &Device) -> Option<String> {
    let first = device.holders.first()?;
    Some(format!("{}/{}", first.namespace, first.pod))
}

/// Draws all that a node has said.
pub(crate) fn draw(page: &mut Page, node: &str, devices: &NodeDevices) {
    page.toned(Tone::Title, format!("Node {node}"));
    places(page, devices);
}

/// The same without the node's name.
pub(crate) fn places(page: &mut Page, devices: &NodeDevices) {
    if devices.numa.is_empty() {
        page.line("  its agent does not tell its NUMA nodes");
    }
    for place in &devices.numa {
        let title = format!(
            "╭─ NUMA node {}   CPUs {}   {}",
            place.id,
            place.cpus,
            bytes(i64::try_from(place.memory).unwrap_or(i64::MAX))
        );
        page.toned(Tone::Title, title);
        resources(page, devices, |device| {
            device.numa_nodes.contains(&place.id)
        });
        cpus(page, devices, place);
        sizes(page, devices, place);
        page.line("╰─");
    }
    let is_elsewhere = |device: &Device| {
        let known = |id: &i64| devices.numa.iter().any(|place| place.id == *id);
        !device.numa_nodes.iter().any(known)
    };
    if placed(devices).any(is_elsewhere) {
        page.toned(Tone::Title, "╭─ near no NUMA node");
        resources(page, devices, is_elsewhere);
        page.line("╰─");
    }
}

/// The devices of plugins, and those of claims.
fn placed(devices: &NodeDevices) -> impl Iterator<Item = &Device> {
    let of_claims = devices.held.iter().filter(|held| !held.claim.is_empty());
    devices.devices.iter().chain(of_claims)
}

/// What of these is in a place.
fn resources(page: &mut Page, devices: &NodeDevices, is_here: impl Fn(&Device) -> bool) {
    let mut all: BTreeMap<&str, Vec<Square>> = BTreeMap::new();
    for device in placed(devices).filter(|device| is_here(device)) {
        let squares = all.entry(&device.resource).or_default();
        squares.push(Square::of(device));
    }
    for (resource, squares) in all {
        row(page, resource, &squares);
    }
}

/// A line of squares, who holds which, and what is not healthy.
fn row(page: &mut Page, resource: &str, squares: &[Square]) {
    let held = squares.iter().filter(|square| square.holder.is_some());
    let text = format!("   {} of {} held", held.count(), squares.len());
    let title = format!("│ {resource}   ");
    let mut pieces = vec![(Tone::Plain, title.as_str())];
    for square in squares.iter().take(SQUARES) {
        let (tone, drawn) = square.drawn();
        pieces.push((tone, drawn));
    }
    if squares.len() > SQUARES {
        pieces.push((Tone::Plain, "…"));
    }
    pieces.push((Tone::Plain, &text));
    page.pieces(&pieces);
    let mut by: BTreeMap<(&str, Tone), Vec<&str>> = BTreeMap::new();
    for Square {
        name,
        health,
        holder,
    } in squares
    {
        if let Some(holder) = holder {
            by.entry((holder, Tone::Plain)).or_default().push(name);
        }
        let tone = tone_of_health(health);
        if matches!(tone, Tone::Bad | Tone::Doubtful) {
            by.entry((health, tone)).or_default().push(name);
        }
    }
    for ((who, tone), which) in by {
        let names = named(&which);
        page.pieces(&[(Tone::Plain, "│   "), (tone, who), (Tone::Plain, &names)]);
    }
}

fn named(which: &[&str]) -> String {
    let mut names = format!("   {}", which[..which.len().min(NAMES)].join(", "));
    if let Some(more @ 1..) = which.len().checked_sub(NAMES) {
        names.push_str(&format!(" and {more} more"));
    }
    names
}

/// A square for each CPU: those that containers have to themselves, and the others.
fn cpus(page: &mut Page, devices: &NodeDevices, place: &NumaPlace) {
    let Ok(here) = place.cpus.parse::<CpuSet>() else {
        return;
    };
    let mut holders: BTreeMap<u32, String> = BTreeMap::new();
    let of_cpus = devices.held.iter().filter(|held| held.resource == "cpu");
    for device in of_cpus {
        let theirs = device.id.parse::<CpuSet>().unwrap_or_default();
        for cpu in theirs.intersection(&here).iter() {
            holders.insert(cpu, holder(device).unwrap_or_default());
        }
    }
    if holders.is_empty() {
        return;
    }
    let squares: Vec<Square> = here
        .iter()
        .map(|cpu| Square {
            name: cpu.to_string(),
            health: String::new(),
            holder: holders.remove(&cpu),
        })
        .collect();
    row(page, "cpu", &squares);
}

/// Memory and huge pages that containers have to themselves, which have no squares.
fn sizes(page: &mut Page, devices: &NodeDevices, place: &NumaPlace) {
    let sized = devices.held.iter().filter(|held| {
        held.claim.is_empty() && held.resource != "cpu" && held.numa_nodes.contains(&place.id)
    });
    for device in sized {
        let holder = holder(device).unwrap_or_default();
        page.line(format!("│ {}   {holder}   {}", device.resource, device.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Paint;
    use davit_api::devices::Holder;

    fn device(resource: &str, id: &str, numa: &[i64], pod: &str) -> Device {
        let holder = Holder {
            namespace: "n".into(),
            pod: pod.into(),
            ..Holder::default()
        };
        Device {
            resource: resource.into(),
            id: id.into(),
            numa_nodes: numa.to_vec(),
            holders: [holder].into_iter().filter(|h| !h.pod.is_empty()).collect(),
            ..Device::default()
        }
    }

    #[test]
    fn every_device_stands_in_its_place_with_its_holder() {
        let mut broken = device("x.example/foo", "foo-2", &[0], "");
        broken.health = "Unhealthy".into();
        let place = |id: i64, cpus: &str| NumaPlace {
            id,
            cpus: cpus.into(),
            memory: 16 << 30,
        };
        let mut gpu = device("gpu.example", "pool/g0", &[1], "q");
        gpu.claim = "n/c".into();
        let table = NodeDevices {
            devices: vec![
                device("x.example/foo", "foo-0", &[0], "p\x1b[2J"),
                device("x.example/foo", "foo-1", &[0], ""),
                broken,
                device("x.example/foo", "foo-3", &[], ""),
            ],
            held: vec![
                device("cpu", "2-3,4", &[0, 1], "q"),
                device("memory", "1Gi", &[1], "q"),
                gpu,
            ],
            numa: vec![place(0, "0-3"), place(1, "4-5")],
            ..NodeDevices::default()
        };
        let mut page = Page::new(Paint::NONE);
        draw(&mut page, "a", &table);
        let expected = "\
Node a
╭─ NUMA node 0   CPUs 0-3   16Gi
│ x.example/foo   ■□✗   1 of 3 held
│   Unhealthy   foo-2
│   n/p\u{fffd}[2J   foo-0
│ cpu   □□■■   2 of 4 held
│   n/q   2, 3
╰─
╭─ NUMA node 1   CPUs 4-5   16Gi
│ gpu.example   ■   1 of 1 held
│   n/q   pool/g0
│ cpu   ■□   1 of 2 held
│   n/q   4
│ memory   n/q   1Gi
╰─
╭─ near no NUMA node
│ x.example/foo   □   0 of 1 held
╰─
";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn many_devices_fit_a_line() {
        let all = (0..200).map(|n| device("r", &format!("d{n}"), &[], "p"));
        let table = NodeDevices {
            devices: all.collect(),
            ..NodeDevices::default()
        };
        let mut page = Page::new(Paint::NONE);
        draw(&mut page, "a", &table);
        let text = page.into_text();
        assert!(text.contains("■…   200 of 200 held"), "{text}");
        assert!(text.contains("d7 and 192 more"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() < 100),
            "{text}"
        );
    }
}
