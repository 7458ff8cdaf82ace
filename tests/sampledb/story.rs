//! A cluster with the operator and its images, and what tests do in it.

use crate::harness::{self, Cluster, any_kubectl, root, run, tests_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a step may take on a busy machine.
const STEP: Duration = Duration::from_secs(120);

/// The engines, and what their packages have that others have not.
pub(crate) const ENGINES: [(&str, &str); 3] = [
    ("sqlite", "sqlite3"),
    ("redis", "redis-server"),
    ("postgres", "initdb"),
];

pub(crate) struct Story {
    pub(crate) cluster: Cluster,
    pub(crate) kubectl: PathBuf,
    pub(crate) begun: Instant,
}

/// A program on the PATH, or where Debian's postgresql has its own.
fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|v| v.path().join("bin")));
    folders
        .into_iter()
        .any(|folder| folder.join(program).is_file())
}

impl Story {
    /// A cluster with the images of the engines that this machine has; the operator runs.
    pub(crate) fn begin(wanted: &[&str], flags: &str) -> Option<(Self, Vec<&'static str>)> {
        root()?;
        let kubectl = any_kubectl()?;
        let program = Path::new(harness::DAVIT).with_file_name("sampledb");
        let program = harness::part("sampledb", program.is_file().then_some(program))?;
        harness::part("busybox", installed("busybox").then_some(()))?;
        let engines = ENGINES
            .into_iter()
            .filter(|(engine, _)| wanted.contains(engine));
        let engines =
            engines.filter(|(_, p)| harness::part(p, installed(p).then_some(())).is_some());
        let engines: Vec<&str> = engines.map(|(engine, _)| engine).collect();
        engines.first()?;
        let cluster = Cluster::up(&["--node-name", "node-1"]);
        let begun = Instant::now();
        let story = Self {
            cluster,
            kubectl,
            begun,
        };
        story.images(&program, &engines);
        let deploy = tests_dir().join("../examples/sampledb/deploy");
        for file in ["crd.yaml", "operator.yaml"] {
            story.run(&["apply", "-f", deploy.join(file).to_str().unwrap()]);
        }
        let path = "/spec/template/spec/containers/0/args";
        let patch = format!(r#"[{{"op":"add","path":"{path}","value":[{flags}]}}]"#);
        story.run(&[
            "-n",
            OPERATOR,
            "patch",
            "deploy",
            "sampledb-operator",
            "--type=json",
            "-p",
            &patch,
        ]);
        story.run(&[
            "-n",
            OPERATOR,
            "rollout",
            "status",
            "deploy/sampledb-operator",
            "--timeout=120s",
        ]);
        Some((story, engines))
    }

    pub(crate) fn images(&self, program: &Path, engines: &[&str]) {
        let script = tests_dir().join("../examples/sampledb/make-images");
        let (archive, data) = (
            self.cluster.dir.path().join("images.tar"),
            self.cluster.dir.path().join("data"),
        );
        run(Command::new(script)
            .arg(&archive)
            .arg(program)
            .args(engines));
        let import = ["image", "import", "--data-dir"];
        let names = run(Command::new(harness::DAVIT)
            .args(import)
            .arg(data)
            .arg(&archive));
        assert_eq!(names.lines().count(), 1 + 2 * engines.len(), "{names}");
        std::fs::remove_file(&archive).unwrap();
        self.lap("images");
    }

    pub(crate) fn lap(&self, what: &str) {
        println!("{what} after {:.1} s", self.begun.elapsed().as_secs_f32());
    }

    /// Runs kubectl; again as long as the API server does not reach the operator's webhook: a replica that ends is an
    /// endpoint of the Service for a moment longer.
    pub(crate) fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let end = Instant::now() + STEP;
        loop {
            let out = harness::output(self.cluster.kubectl(&self.kubectl).args(args));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if out.status.success() {
                return Ok(text(&out.stdout));
            }
            let error = text(&out.stderr);
            if !error.contains("failed calling webhook") || Instant::now() > end {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> String {
        self.try_run(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}{}", self.state()))
    }

    pub(crate) fn apply(&self, manifest: &str) {
        let file = self.cluster.dir.path().join("applied.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// A field of an object, empty when it is not there.
    pub(crate) fn get(&self, object: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.try_run(&["get", object, "-o", &path])
            .unwrap_or_default()
    }

    pub(crate) fn condition(&self, name: &str, kind: &str, field: &str) -> String {
        self.get(
            &format!("sdb/{name}"),
            &format!("{{.status.conditions[?(@.type==\"{kind}\")].{field}}}"),
        )
    }

    pub(crate) fn state(&self) -> String {
        let kinds = ["sdb", "pods,jobs,sts,cronjobs", "pvc,pv", "events"];
        let get = |kind: &str| {
            self.try_run(&["get", kind, "-o", "wide"])
                .unwrap_or_else(|e| e)
        };
        let log = [
            "-n",
            OPERATOR,
            "logs",
            "-l",
            "app=sampledb-operator",
            "--tail=20",
            "--prefix",
        ];
        format!(
            "\n{}\n{}\n{}",
            kinds.map(get).join("\n"),
            self.try_run(&log).unwrap_or_else(|e| e),
            self.last_words()
        )
    }

    /// What containers that were started again had said before.
    fn last_words(&self) -> String {
        let path = "jsonpath={range .items[?(@.status.containerStatuses[0].restartCount>0)]}{.metadata.name}{\"\\n\"}{end}";
        let pods = self.try_run(&["get", "pods", "-o", path]);
        let pods = pods.unwrap_or_else(|_| String::new());
        let said = pods.lines().map(|pod| {
            let said = self.try_run(&["logs", pod, "--previous", "--tail=20", "--prefix"]);
            said.unwrap_or_else(|e| e)
        });
        said.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + STEP;
        while !holds() {
            assert!(
                Instant::now() < end,
                "not within {STEP:?}: {what}{}",
                self.state()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn running(&self, name: &str, version: &str) {
        self.eventually(&format!("{name} runs in version {version}"), || {
            self.get(&format!("sdb/{name}"), "{.status.phase} {.status.version}")
                == format!("Running {version}")
        });
    }

    /// Runs a command of the image's program in the client's pod.
    pub(crate) fn client(&self, name: &str, args: &[&str]) -> Result<String, String> {
        let pod = format!("{name}-client");
        self.try_run(&[&["exec", &pod, "--", "sampledb", "work"], args].concat())
    }

    /// What is read through the Service, once it answers.
    pub(crate) fn rows(&self, name: &str) -> String {
        let mut rows = String::new();
        self.eventually(&format!("{name} answers"), || {
            let read = self.client(name, &["rows"]);
            read.map(|read| rows = read).is_ok()
        });
        rows
    }

    /// Writes rows; once more when it was not told that they are written.
    pub(crate) fn add(&self, name: &str, first: u64, last: u64) {
        self.write(name, &["add", &first.to_string(), &last.to_string()]);
    }

    /// Writes one row without a text, likewise.
    pub(crate) fn add_empty(&self, name: &str, row: u64) {
        let row = row.to_string();
        self.write(name, &["add", &row, &row, "--value", ""]);
    }

    fn write(&self, name: &str, args: &[&str]) {
        self.eventually(&format!("{name} takes rows"), || {
            self.client(name, args).is_ok()
        });
    }

    /// A backup now.
    pub(crate) fn backup(&self, name: &str) {
        let from = format!("--from=cronjob/{name}-backup");
        let job = format!("{name}-now");
        self.run(&["create", "job", &from, &job]);
        self.run(&[
            "wait",
            "--for=condition=Complete",
            &format!("job/{job}"),
            "--timeout=120s",
        ]);
        self.run(&["delete", "job", &job]);
    }

    pub(crate) fn gone(&self, object: &str) {
        self.eventually(&format!("{object} is gone"), || {
            self.try_run(&["get", object])
                .is_err_and(|e| e.contains("NotFound"))
        });
    }
}

pub(crate) const OPERATOR: &str = "sampledb-system";

pub(crate) fn database(name: &str, engine: &str, version: u32, more: &str) -> String {
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

pub(crate) fn rows(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("{n} row {n}\n")).collect()
}
