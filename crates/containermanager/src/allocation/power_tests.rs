//! The allocation log and power cuts: what was acknowledged is there, and what is there was once so.
//!
//! `DAVIT_POWER_CUTS` says how many moments are looked at, `DAVIT_POWER_SEED` which chances.

use std::collections::BTreeMap;
use std::path::Path;

use davit_faults::disk::{Image, Recorder, Survival};
use davit_faults::{Dice, asked};
use davit_topology::NumaMask;
use davit_topology::devices::ContainerKind;

use super::{Change, DeviceHold, Ledger, PodName};

const R: &str = "example.com/foo";
const PODS: u64 = 5;
/// Enough, with what each says, that the log is rewritten in between.
const COMMITS: u64 = 120;

/// The commit gives its pod a device of its own.
fn change(commit: u64) -> Change {
    let uid = format!("p{}", commit % PODS);
    Change::Hold(DeviceHold {
        pod: PodName {
            uid: uid.clone(),
            namespace: "default".into(),
            name: uid,
        },
        container: "main".into(),
        kind: ContainerKind::App,
        resource: R.into(),
        devices: [(format!("d{commit}").as_str().into(), NumaMask::EMPTY)].into(),
        response: vec![7; 16_000],
        since: 0,
    })
}

/// Who holds what after so many commits.
fn held_after(commits: u64) -> BTreeMap<u64, String> {
    (1..=commits)
        .map(|commit| (commit % PODS, format!("d{commit}")))
        .collect()
}

fn held(ledger: &Ledger) -> BTreeMap<u64, String> {
    let of = |pod: u64| {
        ledger.read(|table| {
            let holds = table.held(&format!("p{pod}"), "main", R)?;
            holds
                .devices
                .keys()
                .next()
                .map(|id| (pod, id.as_str().to_owned()))
        })
    };
    (0..PODS).filter_map(of).collect()
}

/// Which commits a disk has, at least those that were acknowledged; or what is wrong.
fn verify(image: &Image, acknowledged: u64) -> Result<u64, String> {
    let dir = tempfile::tempdir().unwrap();
    image.write_to(dir.path()).unwrap();
    let path = dir.path().join("allocations.log");
    let ledger = Ledger::open(&path, Vec::new()).map_err(|error| error.to_string())?;
    let there = held(&ledger);
    let found = (acknowledged..=COMMITS).find(|commits| held_after(*commits) == there);
    let found = found.ok_or_else(|| format!("{there:?} after {acknowledged} commits"))?;
    drop(ledger);
    let again = Ledger::open(&path, Vec::new()).map_err(|error| error.to_string())?;
    if held(&again) != there {
        return Err("opened again it says something else".to_owned());
    }
    Ok(found)
}

async fn work(path: &Path, recorder: &Recorder) {
    let half = COMMITS / 2;
    for commits in [1..=half, half + 1..=COMMITS] {
        let ledger = Ledger::open(path, Vec::new()).unwrap();
        for commit in commits {
            let claims = ledger.reservation("");
            ledger.commit(vec![change(commit)], claims).await.unwrap();
            recorder.say(commit);
        }
    }
}

#[tokio::test]
async fn no_allocation_is_lost_to_a_power_cut() {
    let moments = asked("DAVIT_POWER_CUTS", 20);
    let seed = asked("DAVIT_POWER_SEED", 1) as u64;
    println!("DAVIT_POWER_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let Some(recorder) = Recorder::mount_or_skip(dir.path()) else {
        return;
    };
    work(&dir.path().join("allocations.log"), &recorder).await;
    let recording = recorder.end();
    let last = recording.events.len();
    let step = (last / moments.max(1)).max(1);
    let mut dice = Dice::new(seed);
    let (mut images, mut failures) = (0, Vec::new());
    for base in (0..=last).step_by(step) {
        let cut = (base + dice.below(step)).min(last);
        let acknowledged = recording.said(cut).max().unwrap_or(0);
        let chance = seed * 1_000_000 + cut as u64;
        for survival in [
            Survival::All,
            Survival::Nothing,
            Survival::Some(chance),
            Survival::SomeWithoutJournal(chance),
        ] {
            images += 1;
            if let Err(why) = verify(&recording.image(cut, survival), acknowledged) {
                failures.push(format!("cut {cut} {survival:?}: {why}"));
            }
        }
    }
    println!("{last} changes, {images} images of {COMMITS} commits");
    failures.truncate(10);
    assert!(failures.is_empty(), "{failures:#?}");
}
