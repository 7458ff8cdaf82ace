//! The operator of `examples/sampledb`, in a cluster, with real databases: items 131 to 137 of the checklist of volumes.
//!
//! Images are made of the packages of this machine. Rows are written through the databases' Services and are there again
//! after each of: pod, operator and davit killed, upgrade, restore, deletion.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use harness::{Cluster, any_kubectl, kubectl_stdin, root, run, tests_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a step may take on a busy machine.
const STEP: Duration = Duration::from_secs(120);

/// The engines, and what their packages have that others have not.
const ENGINES: [(&str, &str); 3] = [
    ("sqlite", "sqlite3"),
    ("redis", "redis-server"),
    ("postgres", "initdb"),
];

struct Story {
    cluster: Cluster,
    kubectl: PathBuf,
}

/// A program on the PATH, or where Debian's postgresql has its own.
fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|v| v.path().join("bin")));
    folders.into_iter().any(|folder| folder.join(program).is_file())
}

impl Story {
    /// A cluster with the images of the engines that this machine has; the operator runs.
    fn begin() -> Option<(Self, Vec<&'static str>)> {
        root()?;
        let kubectl = any_kubectl()?;
        let program = Path::new(harness::DAVIT).with_file_name("sampledb");
        let program = harness::part("sampledb", program.is_file().then_some(program))?;
        harness::part("busybox", installed("busybox").then_some(()))?;
        let engines = ENGINES.into_iter().filter(|(_, p)| harness::part(p, installed(p).then_some(())).is_some());
        let engines: Vec<&str> = engines.map(|(engine, _)| engine).collect();
        engines.first()?;
        let cluster = Cluster::up(&["--node-name", "node-1"]);
        let story = Self { cluster, kubectl };
        story.images(&program, &engines);
        let deploy = tests_dir().join("../examples/sampledb/deploy");
        for file in ["crd.yaml", "operator.yaml"] {
            story.run(&["apply", "-f", deploy.join(file).to_str().unwrap()]);
        }
        let patch = r#"[{"op":"add","path":"/spec/template/spec/containers/0/args","value":["--retry=1"]}]"#;
        story.run(&["-n", OPERATOR, "patch", "deploy", "sampledb-operator", "--type=json", "-p", patch]);
        story.run(&["-n", OPERATOR, "rollout", "status", "deploy/sampledb-operator", "--timeout=120s"]);
        Some((story, engines))
    }

    fn images(&self, program: &Path, engines: &[&str]) {
        let before = Instant::now();
        let script = tests_dir().join("../examples/sampledb/make-images");
        let folder = self.cluster.dir.path().join("images");
        let made = run(Command::new(script).arg(&folder).arg(program).args(engines));
        let archives: Vec<&str> = made.lines().collect();
        assert_eq!(archives.len(), engines.len() + 1, "{made}");
        for archive in archives {
            let data = self.cluster.dir.path().join("data");
            run(Command::new(harness::DAVIT).args(["image", "import", archive, "--data-dir"]).arg(data));
        }
        std::fs::remove_dir_all(&folder).unwrap();
        println!("images: {:?}", before.elapsed());
    }

    fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let out = harness::output(self.cluster.kubectl(&self.kubectl).args(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }

    fn run(&self, args: &[&str]) -> String {
        self.try_run(args).unwrap_or_else(|error| panic!("{args:?}: {error}{}", self.state()))
    }

    fn apply(&self, manifest: &str) {
        kubectl_stdin(&self.cluster, &self.kubectl, &["apply", "-f", "-"], manifest);
    }

    /// A field of an object, empty when it is not there.
    fn get(&self, object: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.try_run(&["get", object, "-o", &path]).unwrap_or_default()
    }

    fn condition(&self, name: &str, kind: &str, field: &str) -> String {
        self.get(&format!("sdb/{name}"), &format!("{{.status.conditions[?(@.type==\"{kind}\")].{field}}}"))
    }

    fn state(&self) -> String {
        let kinds = ["sdb", "pods,jobs,sts,cronjobs", "pvc,pv", "events"];
        let get = |kind: &str| self.try_run(&["get", kind, "-o", "wide"]).unwrap_or_else(|e| e);
        let log = ["-n", OPERATOR, "logs", "-l", "app=sampledb-operator", "--tail=20", "--prefix"];
        format!("\n{}\n{}", kinds.map(get).join("\n"), self.try_run(&log).unwrap_or_else(|e| e))
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + STEP;
        while !holds() {
            assert!(Instant::now() < end, "not within {STEP:?}: {what}{}", self.state());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn running(&self, name: &str, version: &str) {
        self.eventually(&format!("{name} runs in version {version}"), || {
            self.get(&format!("sdb/{name}"), "{.status.phase} {.status.version}") == format!("Running {version}")
        });
    }

    /// Runs a command of the image's program in the client's pod.
    fn client(&self, name: &str, args: &[&str]) -> Result<String, String> {
        let pod = format!("{name}-client");
        self.try_run(&[&["exec", &pod, "--", "sampledb", "work"], args].concat())
    }

    /// What is read through the Service, once it answers.
    fn rows(&self, name: &str) -> String {
        let mut rows = String::new();
        self.eventually(&format!("{name} answers"), || {
            let read = self.client(name, &["rows"]);
            read.map(|read| rows = read).is_ok()
        });
        rows
    }

    fn add(&self, name: &str, first: u64, last: u64) {
        let (first, last) = (first.to_string(), last.to_string());
        self.client(name, &["add", &first, &last]).unwrap_or_else(|e| panic!("add to {name}: {e}{}", self.state()));
    }

    /// A backup now.
    fn backup(&self, name: &str) {
        let from = format!("--from=cronjob/{name}-backup");
        let job = format!("{name}-now");
        self.run(&["create", "job", &from, &job]);
        self.run(&["wait", "--for=condition=Complete", &format!("job/{job}"), "--timeout=120s"]);
        self.run(&["delete", "job", &job]);
    }

    fn gone(&self, object: &str) {
        self.eventually(&format!("{object} is gone"), || {
            self.try_run(&["get", object]).is_err_and(|e| e.contains("NotFound"))
        });
    }
}

const OPERATOR: &str = "sampledb-system";

fn database(name: &str, engine: &str, version: u32, more: &str) -> String {
    format!(
        "apiVersion: demo.davit.dev/v1
kind: SampleDB
metadata: {{name: {name}}}
spec: {{engine: {engine}, version: {version}, storage: {{size: 64Mi}}{more}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}-client}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: davit.local/sampledb-{engine}:1
    command: [sh, -c, 'exec sleep 100000']
    envFrom: [{{configMapRef: {{name: {name}}}}}, {{secretRef: {{name: {name}}}}}]
"
    )
}

fn rows(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("{n} row {n}\n")).collect()
}

#[test]
fn items_131_to_137_every_row_is_found_again() {
    let Some((mut story, engines)) = Story::begin() else {
        return;
    };
    made_and_refused(&story, &engines);
    for engine in &engines {
        story.backup(engine);
        assert_ne!(story.get(&format!("sdb/{engine}"), "{.metadata.name}"), "");
    }
    killed(&mut story, &engines);
    upgraded(&story, &engines);
    restored(&story, &engines);
    deleted(&story, &engines);
}

/// Items 131 and 132: everything is there within a minute, and a thousand rows are read back.
fn made_and_refused(story: &Story, engines: &[&str]) {
    let before = Instant::now();
    for engine in engines {
        let more = ", backup: {schedule: '* * * * *', keep: 3}";
        story.apply(&database(engine, engine, 1, more));
    }
    for engine in engines {
        story.running(engine, "1");
    }
    println!("all run after {:?}", before.elapsed());
    let listed = story.run(&["get", "sampledb"]);
    println!("{listed}");
    assert!(listed.starts_with("NAME"), "{listed}");
    for engine in engines {
        story.run(&["wait", "--for=condition=Ready", &format!("pod/{engine}-client"), "--timeout=60s"]);
        story.add(engine, 1, 1000);
        assert_eq!(story.rows(engine), rows(1, 1000), "{engine}");
        for part in ["sts/", "job/X-init", "cronjob/X-backup", "secret/", "cm/", "svc/", "svc/X-client", "pvc/data-X-0", "pvc/X-backup"] {
            let part = if part.ends_with('/') { format!("{part}{engine}") } else { part.replace('X', engine) };
            assert_ne!(story.get(&part, "{.metadata.uid}"), "", "{part}");
        }
    }
    let first = engines[0];
    let patch = |spec: &str| story.try_run(&["patch", "sdb", first, "--type=merge", "-p", &format!("{{\"spec\":{spec}}}")]);
    for (spec, told) in [
        (r#"{"version":3}"#, "spec.version: 3 is none of 1, 2"),
        (r#"{"backup":{"schedule":"often"}}"#, "1 fields where there are five"),
        (r#"{"storage":{"size":"1Mi"}}"#, "storage can grow and not shrink"),
        (r#"{"engine":"other"}"#, "Unsupported value"),
    ] {
        let error = patch(spec).unwrap_err();
        assert!(error.contains(told), "{spec}: {error}");
    }
    let from = database("copy", first, 1, ", restoreFrom: {claim: nobodys}");
    let file = story.cluster.dir.path().join("refused.yaml");
    std::fs::write(&file, from.split("---").next().unwrap()).unwrap();
    let error = story.try_run(&["create", "-f", file.to_str().unwrap()]).unwrap_err();
    assert!(error.contains("there is no claim \"nobodys\""), "{error}");
}

/// The databases' pods, the operator and davit are killed, all within a few seconds of rows that were acknowledged.
fn killed(story: &mut Story, engines: &[&str]) {
    for engine in engines {
        story.add(engine, 1001, 1100);
        story.run(&["delete", "pod", &format!("{engine}-0"), "--force", "--wait=false"]);
    }
    story.run(&["-n", OPERATOR, "delete", "pods", "--all", "--force", "--wait=false"]);
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
        story.eventually("the webhook answers", || {
            let patch = ["patch", "sdb", engine, "--type=merge", "-p", r#"{"spec":{"version":2}}"#];
            story.try_run(&patch).is_ok()
        });
    };
    let first = engines[0];
    let claim = story.get(&format!("pvc/data-{first}-0"), "{.metadata.uid}");
    story.client(first, &["add", "1201", "1201", "--value", ""]).unwrap();
    for engine in engines {
        upgrade(engine);
    }
    story.eventually("the upgrade has failed", || story.condition(first, "UpToDate", "reason") == "UpgradeFailed");
    let told = story.condition(first, "UpToDate", "message");
    assert!(told.contains("1 row(s) have no text") && told.contains(&format!("delete job {first}-upgrade-2")), "{told}");
    story.running(first, "1");
    assert_eq!(story.rows(first), rows(1, 1200) + "1201 \n");
    let events = story.run(&["get", "events", "--field-selector", "reason=UpToDateUpgradeFailed", "-o", "name"]);
    assert_eq!(events.lines().count(), 1, "{events}");
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
    assert_eq!(story.get(&format!("pvc/data-{first}-0"), "{.metadata.uid}"), claim);
}

/// Item 134: a backup by the clock, and a database that begins with one.
fn restored(story: &Story, engines: &[&str]) {
    let first = engines[0];
    story.eventually("a backup by the clock", || {
        story.condition(first, "BackedUp", "status") == "True" && story.get(&format!("sdb/{first}"), "{.status.lastBackup}") != ""
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
        story.run(&["delete", "pod", &format!("{engine}-copy-client"), "--wait=false"]);
    }
}

/// Takes the place of the folder with the backups, or gives it back.
const BREAK: &str = "mv /backup/dumps /backup/aside && touch /backup/dumps";
const REPAIR: &str = "rm /backup/dumps && mv /backup/aside /backup/dumps";

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
    story.eventually("the mechanic's end", || story.get("pod/mechanic", "{.status.phase}") == "Succeeded");
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
    story.eventually("the last backup fails", || story.condition(first, "FinalBackup", "reason") == "Failed");
    let told = story.condition(first, "FinalBackup", "message");
    assert!(told.contains("make /backup/dumps"), "{told}");
    assert_ne!(story.get(&format!("sdb/{first}"), "{.metadata.deletionTimestamp}"), "");
    assert_eq!(story.get(&format!("sdb/{first}"), "{.status.phase}"), "Terminating");
    assert_eq!(story.get(&format!("pvc/data-{first}-0"), "{.status.phase}"), "Bound");
    assert_eq!(story.get(&format!("pvc/data-{first}-0"), "{.metadata.deletionTimestamp}"), "");
    assert_eq!(story.get(&format!("pv/{volume}"), "{.status.phase}"), "Bound");
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
        // all that went with the former one is collected
        story.gone(&format!("job/{engine}-init"));
        let from = format!(", restoreFrom: {{claim: {engine}-backup}}");
        story.apply(&database(engine, engine, 2, &from));
    }
    for (engine, kept) in engines.iter().zip(kept) {
        story.running(engine, "2");
        assert_eq!(story.rows(engine), kept, "{engine}");
    }
}
