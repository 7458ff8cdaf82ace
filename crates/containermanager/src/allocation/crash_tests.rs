//! The allocation log under SIGKILL: a child process commits as fast as it can and is killed at
//! a random moment, hundreds of times. Everything it was told is durable must be there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use davit_topology::NumaMask;
use davit_topology::devices::{ContainerKind, DeviceSet};

use super::{Change, DeviceHold, Ledger, PodName};

const R: &str = "example.com/foo";
const LOG: &str = "DAVIT_TEST_ALLOCATION_LOG";
const PODS: u64 = 16;
const DEVICES: u64 = 48;

fn hold(pod: u64, devices: &DeviceSet) -> Change {
    Change::Hold(DeviceHold {
        pod: PodName {
            uid: format!("p{pod}"),
            namespace: "default".into(),
            name: format!("p{pod}"),
        },
        container: "main".into(),
        kind: ContainerKind::App,
        resource: R.into(),
        devices: devices
            .iter()
            .map(|d| (d.clone(), NumaMask::EMPTY))
            .collect(),
        response: vec![7; 40],
        since: 0,
    })
}

/// A small generator, so that each round differs and can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One pod's life: holds and releases; says before and after each commit what it is about.
async fn churn(ledger: &Ledger, pod: u64, seed: u64) {
    let mut random = Random(seed * 31 + pod + 1);
    loop {
        let wanted: DeviceSet = (0..3)
            .map(|_| format!("d{}", random.below(DEVICES)).into())
            .collect();
        let mut claims = ledger.reservation(&format!("p{pod}"));
        if claims.add("main", ContainerKind::App, R, &wanted).is_ok() {
            let names: Vec<&str> = wanted
                .iter()
                .map(davit_topology::DeviceId::as_str)
                .collect();
            eprintln!("@try p{pod} {}", names.join(","));
            ledger
                .commit(vec![hold(pod, &wanted)], claims)
                .await
                .unwrap();
            eprintln!("@ok p{pod}");
        }
        if random.below(2) == 0 {
            eprintln!("@try p{pod} -");
            let release = Change::Release {
                uid: format!("p{pod}"),
            };
            ledger
                .commit(vec![release], ledger.reservation(""))
                .await
                .unwrap();
            eprintln!("@ok p{pod}");
        }
        tokio::task::yield_now().await;
    }
}

/// The child; does nothing unless the parent below asks for it.
#[test]
fn child() {
    let Ok(path) = std::env::var(LOG) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ledger = Ledger::open(Path::new(&path), Vec::new()).unwrap();
        let seed = u64::from(std::process::id());
        futures::future::join_all((0..PODS).map(|pod| churn(&ledger, pod, seed))).await;
    });
}

/// What a pod may hold after the crash: what was acknowledged last, or what was under way.
#[derive(Debug, Clone, Default)]
struct Expected {
    known: BTreeSet<String>,
    trying: Option<BTreeSet<String>>,
}

fn follow(expected: &mut BTreeMap<String, Expected>, said: &str) {
    // The last line may be cut; a commit it announces cannot have been made then.
    let whole = said.rfind('\n').map_or("", |end| &said[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["@try", pod, "-"] => {
                expected.entry(pod.into()).or_default().trying = Some(BTreeSet::new());
            }
            ["@try", pod, ids] => {
                let ids = ids.split(',').map(str::to_owned).collect();
                expected.entry(pod.into()).or_default().trying = Some(ids);
            }
            ["@ok", pod] => {
                let pod = expected.get_mut(pod).unwrap();
                pod.known = pod.trying.take().unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_to_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("allocations.log");
    let mut expected: BTreeMap<String, Expected> = BTreeMap::new();
    let (mut acknowledged, mut random) = (0, Random(0x5eed));
    for _ in 0..200 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["allocation::crash_tests::child", "--exact", "--nocapture"])
            .env(LOG, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stderr.take().unwrap();
        let (awake, first) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
            loop {
                match pipe.read(&mut chunk).unwrap() {
                    0 => return String::from_utf8(said).unwrap(),
                    n => said.extend_from_slice(&chunk[..n]),
                }
                // Nobody listens after the first time.
                let _ = awake.send(());
            }
        });
        first.recv_timeout(Duration::from_secs(30)).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let said = reader.join().unwrap();
        acknowledged += said.matches("@ok").count();
        follow(&mut expected, &said);

        let ledger = Ledger::open(&path, Vec::new()).unwrap();
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (pod, expected) in &mut expected {
            let held: BTreeSet<String> = ledger.read(|t| {
                let held = t.held(pod, "main", R);
                held.into_iter()
                    .flat_map(|h| h.devices.keys().map(|d| d.as_str().to_owned()))
                    .collect()
            });
            let trying = expected.trying.take();
            assert!(
                held == expected.known || Some(&held) == trying.as_ref(),
                "{pod} holds {held:?}, was told {:?}, tried {trying:?}",
                expected.known
            );
            for id in &held {
                assert_eq!(
                    owners.insert(id.clone(), pod.clone()),
                    None,
                    "{id} has two owners"
                );
            }
            expected.known = held;
        }
    }
    assert!(acknowledged > 200, "only {acknowledged} commits");
}
