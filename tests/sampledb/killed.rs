//! Item 133, by hand: `cargo test --workspace --test cluster sampledb::item_133 -- --ignored --nocapture`.

use crate::sampledb::story::{OPERATOR, Story, database, rows};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
#[ignore = "four minutes of changes while the operator is killed fifty times"]
fn item_133_an_operator_that_is_killed_at_random_makes_nothing_twice() {
    let Some((story, _)) = Story::begin(&["sqlite"], r#""--retry=1","--lease-duration=2""#) else {
        return;
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(rand::random_range(500..6000)));
                // while it is down the API server may be slow to answer, too: a kill more or less is none
                let _killed = story.try_run(&[
                    "-n",
                    OPERATOR,
                    "delete",
                    "pods",
                    "--all",
                    "--force",
                    "--wait=false",
                ]);
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut round = 0;
        while !over.load(Ordering::Relaxed) {
            round += 1;
            changes(&story, &format!("shop-{round}"));
            story.lap(&format!("round {round}"));
        }
    });
}

/// Everything that can be asked of a database, and that each was done once.
fn changes(story: &Story, name: &str) {
    let apply = |name: &str, version: u32, more: &str| {
        story.apply(&database(name, "sqlite", version, more));
    };
    let once = |job: &str| {
        let pods = [
            "get",
            "pods",
            "-l",
            &format!("batch.kubernetes.io/job-name={job}"),
            "-o",
            "name",
        ];
        assert_eq!(story.run(&pods).lines().count(), 1, "{job}");
    };
    apply(name, 1, "");
    story.running(name, "1");
    story.add(name, 1, 100);
    once(&format!("{name}-init"));
    apply(name, 2, "");
    story.running(name, "2");
    once(&format!("{name}-upgrade-2"));
    assert_eq!(story.rows(name), rows(1, 100));
    let claims = story.run(&[
        "get",
        "pvc",
        "-l",
        &format!("app.kubernetes.io/instance={name}"),
        "-o",
        "name",
    ]);
    let wanted =
        format!("persistentvolumeclaim/data-{name}-0\npersistentvolumeclaim/{name}-backup\n");
    assert_eq!(claims, wanted);
    story.run(&["delete", "sdb", name, "--wait=false"]);
    story.gone(&format!("sdb/{name}"));
    story.gone(&format!("pvc/data-{name}-0"));
    let copy = format!("{name}-copy");
    apply(
        &copy,
        2,
        &format!(", deletionSnapshot: false, restoreFrom: {{claim: {name}-backup}}"),
    );
    story.running(&copy, "2");
    assert_eq!(story.rows(&copy), rows(1, 100));
    story.run(&["delete", "sdb", &copy, "--wait=false"]);
    story.gone(&format!("sdb/{copy}"));
    for pod in [name, &copy] {
        story.run(&["delete", "pod", &format!("{pod}-client"), "--wait=false"]);
    }
}
