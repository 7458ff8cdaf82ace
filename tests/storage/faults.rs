//! davit killed at random moments while volumes of the default class are made, given to pods, grown, copied and deleted.

use super::block::{devices_of, loop_devices, with_device};
use super::{Kube, claim, pod};
use std::path::Path;
use std::time::Duration;

/// Numbers that are the same for the same seed.
struct Moments(u64);

impl Moments {
    /// The next pause, of less than `most` milliseconds.
    fn next(&mut self, most: u64) -> Duration {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(self.0 % most)
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |text| text.parse().unwrap())
}

fn mounted_below(dir: &Path) -> usize {
    let dir = dir.display().to_string();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(&dir)).count()
}

impl Kube {
    fn cut(&mut self, after: Duration) {
        // The moment is what is tried.
        std::thread::sleep(after);
        self.cluster.kill();
        self.cluster.start_again();
    }

    /// kubectl may meet a server that is being started again.
    fn insist(&self, what: &str, args: &[&str]) {
        self.eventually(what, || self.try_run(args).is_ok());
    }
}

/// Checklist 126, 142 and 143 for the default class. `DAVIT_SEED` and `DAVIT_ROUNDS` say which moments and how many.
#[test]
#[ignore = "minutes; by hand"]
fn items_126_and_142_nothing_is_lost_or_left_whenever_davit_is_killed() {
    if loop_devices().is_none() {
        return;
    }
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    kube.cluster.keep_port();
    let seed = number("DAVIT_SEED", 1);
    println!("DAVIT_SEED={seed}");
    let mut moments = Moments(seed.max(1));
    for round in 0..number("DAVIT_ROUNDS", 5) {
        let (files, raw, copy) = (
            format!("files-{round}"),
            format!("raw-{round}"),
            format!("copy-{round}"),
        );
        let ask = |mode: &str, size: &str, more: &str| {
            format!(
                "volumeMode: {mode}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}{more}"
            )
        };
        kube.apply(&claim(&files, &ask("Filesystem", "1Mi", "")));
        kube.apply(&claim(&raw, &ask("Block", "1Mi", "")));
        let keep = "echo $HOSTNAME >> /mnt/rows; sync; exec sleep 10000";
        kube.apply(&pod(&files, &files, keep));
        kube.apply(&with_device(&raw, &raw, false));
        kube.cut(moments.next(3000));
        for name in [&files, &raw] {
            kube.wait(&format!("pod/{name}"), "{.status.phase}", "Running");
        }
        let write = "echo rows! | dd of=/dev/own conv=fsync,notrunc 2>/dev/null";
        kube.insist(
            "rows are written",
            &["exec", &raw, "--", "/bin/sh", "-c", write],
        );
        let image = kube
            .volumes()
            .join(kube.get(&format!("pvc/{raw}"), "{.spec.volumeName}"))
            .join("data.img");

        let grow = r#"{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}"#;
        kube.run(&["patch", "pvc", &raw, "-p", grow]);
        kube.cut(moments.next(500));
        kube.wait(&format!("pvc/{raw}"), "{.status.capacity.storage}", "2Mi");
        assert_eq!(devices_of(&image).len(), 1, "round {round}");

        let source = format!(", dataSource: {{kind: PersistentVolumeClaim, name: {raw}}}");
        kube.apply(&claim(&copy, &ask("Block", "2Mi", &source)));
        kube.apply(&with_device(&copy, &copy, true));
        kube.cut(moments.next(3000));
        kube.wait(&format!("pod/{copy}"), "{.status.phase}", "Running");
        for name in [&raw, &copy] {
            let read = "dd if=/dev/own bs=6 count=1 2>/dev/null";
            let args = ["exec", name, "--", "/bin/sh", "-c", read];
            kube.eventually("the device has its rows", || {
                kube.try_run(&args).is_ok_and(|said| said == "rows!\n")
            });
        }

        kube.insist(
            "deletion begins",
            &["delete", "pod", "--all", "--wait=false"],
        );
        kube.insist(
            "deletion begins",
            &["delete", "pvc", "--all", "--wait=false"],
        );
        kube.cut(moments.next(3000));
        kube.eventually("no volume is left", || {
            let left = kube.try_run(&["get", "pv,pvc,pod", "-o", "name"]);
            left.is_ok_and(|text| text.is_empty())
        });
        kube.eventually("nothing is left on the node", || {
            let held = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().count();
            let volumes = kube.volumes();
            // Of the volumes the trash is left, and nothing in it.
            held(&volumes) == 1
                && held(&volumes.join(".trash")) == 0
                && mounted_below(&kube.dir().join("root/var/lib/kubelet/plugins")) == 0
                && !super::block::losetup(&["--list", "--noheadings", "--output", "BACK-FILE"])
                    .contains(&volumes.display().to_string())
        });
    }
}
