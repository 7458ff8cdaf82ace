//! The operator of `examples/sampledb`, in a cluster, with real databases: items 131 to 137 of the checklist of volumes.
//!
//! Images are made of the packages of this machine. Rows are written through the databases' Services and are there again
//! after each of: pod, operator and davit killed, upgrade, restore, deletion.

mod killed;
mod story;

use story::{ENGINES, OPERATOR, Story, database, rows};

#[test]
fn items_131_to_137_every_row_is_found_again() {
    let all = ENGINES.map(|(engine, _)| engine);
    let Some((mut story, engines)) = Story::begin(&all, r#""--retry=1""#) else {
        return;
    };
    made_and_refused(&story, &engines);
    story.lap("made");
    pods_and_processes_end(&mut story, &engines);
    story.lap("killed");
    upgraded(&story, &engines);
    story.lap("upgraded");
    restored(&story, &engines);
    story.lap("restored");
    deleted(&story, &engines);
    story.lap("deleted and restored");
}

/// Items 131 and 132: everything is there within a minute, and a thousand rows are read back.
fn made_and_refused(story: &Story, engines: &[&str]) {
    for engine in engines {
        let more = ", backup: {schedule: '* * * * *', keep: 3}";
        story.apply(&database(engine, engine, 1, more));
    }
    for engine in engines {
        story.running(engine, "1");
    }
    story.lap("all run");
    let listed = story.run(&["get", "sampledb"]);
    println!("{listed}");
    assert!(listed.starts_with("NAME"), "{listed}");
    for engine in engines {
        story.run(&[
            "wait",
            "--for=condition=Ready",
            &format!("pod/{engine}-client"),
            "--timeout=60s",
        ]);
        story.add(engine, 1, 1000);
        assert_eq!(story.rows(engine), rows(1, 1000), "{engine}");
        for part in [
            "sts/",
            "job/X-init",
            "cronjob/X-backup",
            "secret/",
            "cm/",
            "svc/",
            "svc/X-client",
            "pvc/data-X-0",
            "pvc/X-backup",
        ] {
            let part = if part.ends_with('/') {
                format!("{part}{engine}")
            } else {
                part.replace('X', engine)
            };
            assert_ne!(story.get(&part, "{.metadata.uid}"), "", "{part}");
        }
    }
    let first = engines[0];
    let patch = |spec: &str| {
        story.try_run(&[
            "patch",
            "sdb",
            first,
            "--type=merge",
            "-p",
            &format!("{{\"spec\":{spec}}}"),
        ])
    };
    for (spec, told) in [
        (r#"{"version":3}"#, "spec.version: 3 is none of 1, 2"),
        (
            r#"{"backup":{"schedule":"often"}}"#,
            "1 fields where there are five",
        ),
        (
            r#"{"storage":{"size":"1Mi"}}"#,
            "storage can grow and not shrink",
        ),
        (r#"{"engine":"other"}"#, "Unsupported value"),
    ] {
        let error = patch(spec).unwrap_err();
        assert!(error.contains(told), "{spec}: {error}");
    }
    let from = database("copy", first, 1, ", restoreFrom: {claim: nobodys}");
    let file = story.cluster.dir.path().join("refused.yaml");
    std::fs::write(&file, from.split("---").next().unwrap()).unwrap();
    let error = story
        .try_run(&["create", "-f", file.to_str().unwrap()])
        .unwrap_err();
    assert!(error.contains("there is no claim \"nobodys\""), "{error}");
}

/// The databases' pods, the operator and davit are killed, all within a few seconds of rows that were acknowledged.
fn pods_and_processes_end(story: &mut Story, engines: &[&str]) {
    for engine in engines {
        story.add(engine, 1001, 1100);
        story.run(&[
            "delete",
            "pod",
            &format!("{engine}-0"),
            "--force",
            "--wait=false",
        ]);
    }
    story.run(&[
        "-n",
        OPERATOR,
        "delete",
        "pods",
        "--all",
        "--force",
        "--wait=false",
    ]);
    for engine in engines {
        assert_eq!(story.rows(engine), rows(1, 1100), "{engine}");
        story.add(engine, 1101, 1200);
    }
    story.cluster.keep_port();
    story.cluster.kill();
    story.cluster.start_again();
    for engine in engines {
        assert_eq!(story.rows(engine), rows(1, 1200), "{engine}");
        story.running(engine, "1");
    }
}

/// Item 135: an upgrade that fails leaves the old version serving, one that succeeds has every row.
fn upgraded(story: &Story, engines: &[&str]) {
    let upgrade = |engine: &str| {
        let patch = r#"{"spec":{"version":2}}"#;
        story.run(&["patch", "sdb", engine, "--type=merge", "-p", patch]);
    };
    let first = engines[0];
    let claim = story.get(&format!("pvc/data-{first}-0"), "{.metadata.uid}");
    story.add_empty(first, 1201);
    for engine in engines {
        upgrade(engine);
    }
    story.eventually("the upgrade has failed", || {
        story.condition(first, "UpToDate", "reason") == "UpgradeFailed"
    });
    let told = story.condition(first, "UpToDate", "message");
    assert!(
        told.contains("1 row(s) have no text")
            && told.contains(&format!("delete job {first}-upgrade-2")),
        "{told}"
    );
    story.running(first, "1");
    assert_eq!(story.rows(first), rows(1, 1200) + "1201 \n");
    // the event is written after the condition, and once
    let events = || {
        let reason = "reason=UpToDateUpgradeFailed";
        story.run(&["get", "events", "--field-selector", reason, "-o", "name"])
    };
    story.eventually("an event about it", || !events().is_empty());
    assert_eq!(events().lines().count(), 1, "{}", events());
    // the cause is repaired
    story.add(first, 1201, 1201);
    story.run(&["delete", "job", &format!("{first}-upgrade-2")]);
    for engine in engines {
        story.running(engine, "2");
    }
    let all = |engine: &str| rows(1, if engine == first { 1201 } else { 1200 });
    for engine in engines {
        assert_eq!(story.rows(engine), all(engine), "{engine}");
        let job = format!("job/{engine}-upgrade-2");
        assert_eq!(story.get(&job, "{.status.succeeded}"), "1");
    }
    assert_eq!(
        story.get(&format!("pvc/data-{first}-0"), "{.metadata.uid}"),
        claim
    );
}

/// Item 134: a backup by the clock, and a database that begins with one.
fn restored(story: &Story, engines: &[&str]) {
    let first = engines[0];
    story.eventually("a backup by the clock", || {
        story.condition(first, "BackedUp", "status") == "True"
            && !story
                .get(&format!("sdb/{first}"), "{.status.lastBackup}")
                .is_empty()
    });
    for engine in engines {
        story.backup(engine);
        let from = format!(", restoreFrom: {{claim: {engine}-backup}}");
        story.apply(&database(&format!("{engine}-copy"), engine, 2, &from));
    }
    for engine in engines {
        let copy = format!("{engine}-copy");
        story.running(&copy, "2");
        assert_eq!(story.rows(&copy), story.rows(engine), "{engine}");
        // of a copy nothing is to be kept
        let patch = r#"{"spec":{"deletionSnapshot":false}}"#;
        story.run(&["patch", "sdb", &copy, "--type=merge", "-p", patch]);
        story.run(&["delete", "sdb", &copy, "--wait=false"]);
    }
    for engine in engines {
        story.gone(&format!("sdb/{engine}-copy"));
        story.gone(&format!("pvc/data-{engine}-copy-0"));
        story.run(&[
            "delete",
            "pod",
            &format!("{engine}-copy-client"),
            "--wait=false",
        ]);
    }
}

/// Takes the place of the folder with the backups, whatever a backup that is under way makes there meanwhile.
const BREAK: &str = "mv /backup/dumps /backup/aside; until [ -f /backup/dumps ]; do rm -rf /backup/dumps; touch /backup/dumps; done";
/// Gives it back; a backup may have made it anew.
const REPAIR: &str = "rm /backup/dumps; mkdir -p /backup/dumps && mv /backup/aside/* /backup/dumps && rmdir /backup/aside";

/// Runs a command on the claim with the backups.
fn on_backups(story: &Story, engine: &str, script: &str) {
    story.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: mechanic}}
spec:
  restartPolicy: Never
  securityContext: {{runAsUser: 10001, fsGroup: 10001}}
  volumes: [{{name: backup, persistentVolumeClaim: {{claimName: {engine}-backup}}}}]
  containers:
  - {{name: main, image: 'davit.local/sampledb-{engine}:1', command: [sh, -c, '{script}'], volumeMounts: [{{name: backup, mountPath: /backup}}]}}
"
    ));
    story.eventually("the mechanic's end", || {
        story.get("pod/mechanic", "{.status.phase}") == "Succeeded"
    });
    story.run(&["delete", "pod", "mechanic"]);
}

/// Items 136 and 137: the data go after the last backup, and not before it.
fn deleted(story: &Story, engines: &[&str]) {
    let first = engines[0];
    let volume = story.get(&format!("pvc/data-{first}-0"), "{.spec.volumeName}");
    for engine in engines {
        story.add(engine, 1202, 1300);
    }
    let kept: Vec<String> = engines.iter().map(|engine| story.rows(engine)).collect();
    on_backups(story, first, BREAK);
    for engine in engines {
        story.run(&["delete", "sdb", engine, "--wait=false"]);
    }
    story.eventually("the last backup fails", || {
        story.condition(first, "FinalBackup", "reason") == "Failed"
    });
    let told = story.condition(first, "FinalBackup", "message");
    assert!(told.contains("make /backup/dumps"), "{told}");
    assert_ne!(
        story.get(&format!("sdb/{first}"), "{.metadata.deletionTimestamp}"),
        ""
    );
    assert_eq!(
        story.get(&format!("sdb/{first}"), "{.status.phase}"),
        "Terminating"
    );
    assert_eq!(
        story.get(&format!("pvc/data-{first}-0"), "{.status.phase}"),
        "Bound"
    );
    assert_eq!(
        story.get(
            &format!("pvc/data-{first}-0"),
            "{.metadata.deletionTimestamp}"
        ),
        ""
    );
    assert_eq!(
        story.get(&format!("pv/{volume}"), "{.status.phase}"),
        "Bound"
    );
    on_backups(story, first, REPAIR);
    for engine in engines {
        story.gone(&format!("sdb/{engine}"));
        story.gone(&format!("sts/{engine}"));
        story.gone(&format!("pvc/data-{engine}-0"));
        story.run(&["delete", "pod", &format!("{engine}-client"), "--wait=false"]);
    }
    story.gone(&format!("pv/{volume}"));
    for engine in engines {
        story.gone(&format!("pod/{engine}-client"));
        let from = format!(", restoreFrom: {{claim: {engine}-backup}}");
        story.apply(&database(engine, engine, 2, &from));
    }
    for (engine, kept) in engines.iter().zip(kept) {
        story.running(engine, "2");
        assert_eq!(story.rows(engine), kept, "{engine}");
    }
}
