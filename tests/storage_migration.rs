//! Storage version migration by its kind, as upstream's integration tests have it: Secrets after a new key, custom objects
//! after a new storage version.

use crate::harness::{Cluster, any_kubectl, eventually, kubectl_stdin, output, run, temp_dir};
use std::path::{Path, PathBuf};
use std::time::Duration;

const GATE: &str = "StorageVersionMigrator=true";
const STEP: Duration = Duration::from_secs(60);

struct Migrated {
    cluster: Cluster,
    kubectl: PathBuf,
}

impl Migrated {
    fn run(&self, args: &[&str]) -> String {
        run(self.cluster.kubectl(&self.kubectl).args(args))
    }

    fn fails(&self, args: &[&str]) -> String {
        let out = output(self.cluster.kubectl(&self.kubectl).args(args));
        assert!(!out.status.success(), "{args:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn apply(&self, manifest: &str) {
        let args = ["apply", "-f", "-"];
        kubectl_stdin(&self.cluster, &self.kubectl, &args, manifest);
    }

    fn begin(&self, name: &str, group: &str, resource: &str) {
        self.apply(&format!(
            "apiVersion: storagemigration.k8s.io/v1beta1\nkind: StorageVersionMigration\nmetadata: {{name: {name}}}\n\
             spec: {{resource: {{group: \"{group}\", resource: {resource}}}}}\n"
        ));
    }

    /// The conditions of a migration that are true.
    fn conditions(&self, name: &str) -> Vec<String> {
        let path =
            "jsonpath={range .status.conditions[?(@.status==\"True\")]}{.type}{\"\\n\"}{end}";
        let text = self.run(&["get", "storageversionmigration", name, "-o", path]);
        text.lines().map(str::to_owned).collect()
    }

    fn migrate(&self, name: &str, group: &str, resource: &str) {
        self.begin(name, group, resource);
        eventually("the migration has succeeded", STEP, || {
            self.conditions(name) == ["Succeeded"]
        });
    }

    fn version(&self, kind: &str, name: &str) -> String {
        let path = "jsonpath={.metadata.resourceVersion} {.metadata.generation}";
        self.run(&["get", kind, name, "-o", path])
    }
}

/// Writes the configuration of encryption with these keys, the first of which is written with.
fn keys(file: &Path, names: &[&str]) {
    // any 32 bytes, another 32 for each name
    let key = |name: &str| match name {
        "one" => "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        _ => "YWJjZGVmZ2hpamFiY2RlZmdoaWphYmNkZWZnaGlqYWI=",
    };
    let keys = names
        .iter()
        .map(|name| format!("{{name: {name}, secret: {}}}", key(name)));
    let keys: Vec<String> = keys.collect();
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aescbc: {{keys: [{}]}}}}]\n",
        keys.join(", ")
    );
    std::fs::write(file, text).unwrap();
}

#[test]
fn item_75_secrets_are_written_with_the_new_key() {
    let Some(kubectl) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("encryption.yaml");
    keys(&file, &["one"]);
    let path = file.display().to_string();
    let flags = ["--no-node", "--feature-gates", GATE];
    let flags = [&flags[..], &["--encryption-provider-config", &path]].concat();
    let cluster = Cluster::up(&flags);
    let mut all = Migrated { cluster, kubectl };
    for i in 0..3 {
        let name = format!("s{i}");
        all.run(&["create", "secret", "generic", &name, "--from-literal=a=b"]);
    }
    let before = all.version("secret", "s1");
    assert!(all.cluster.interrupt().success());
    keys(&file, &["two", "one"]);
    all.cluster.start_again();
    assert_eq!(all.version("secret", "s1"), before);
    all.migrate("first", "", "secrets");
    let after = all.version("secret", "s1");
    assert_ne!(after, before);
    // Nothing is left to do for another one.
    all.migrate("second", "", "secrets");
    assert_eq!(all.version("secret", "s1"), after);
    // The old key is not needed any more.
    assert!(all.cluster.interrupt().success());
    keys(&file, &["two"]);
    all.cluster.start_again();
    for i in 0..3 {
        let name = format!("s{i}");
        let value = all.run(&["get", "secret", &name, "-o", "jsonpath={.data.a}"]);
        assert_eq!(value, "Yg==");
    }
}

fn definition(versions: &[(&str, bool)]) -> String {
    let version = |(name, storage): &(&str, bool)| {
        format!(
            "  - {{name: {name}, served: true, storage: {storage}, schema: {{openAPIV3Schema: {{type: object, \
             x-kubernetes-preserve-unknown-fields: true}}}}}}\n"
        )
    };
    let versions: String = versions.iter().map(version).collect();
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.example.com}}\nspec:\n  \
         group: example.com\n  scope: Namespaced\n  names: {{plural: things, singular: thing, kind: Thing}}\n  versions:\n{versions}"
    )
}

#[test]
fn item_75_custom_objects_come_into_the_new_storage_version() {
    let Some(kubectl) = any_kubectl() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node", "--feature-gates", GATE]);
    let all = Migrated { cluster, kubectl };
    let stored = || {
        let path = "jsonpath={.status.storedVersions}";
        all.run(&["get", "crd", "things.example.com", "-o", path])
    };
    let thing = |version: &str, name: &str| {
        let manifest = format!(
            "apiVersion: example.com/{version}\nkind: Thing\nmetadata: {{name: {name}}}\nspec: {{n: 1}}\n"
        );
        all.apply(&manifest);
        all.version("things.v1.example.com", name)
    };
    let wait = [
        "wait",
        "--for=condition=Established",
        "crd/things.example.com",
    ];
    all.apply(&definition(&[("v1", true)]));
    all.run(&wait);
    let first = thing("v1", "first");
    all.apply(&definition(&[("v1", true), ("v2", false)]));
    eventually("v2 is served", STEP, || {
        let path = "/apis/example.com/v2";
        output(
            all.cluster
                .kubectl(&all.kubectl)
                .args(["get", "--raw", path]),
        )
        .status
        .success()
    });
    let second = thing("v2", "second");
    all.apply(&definition(&[("v1", false), ("v2", true)]));
    assert_eq!(stored(), r#"["v1","v2"]"#);
    // stored in v2 from when the server has seen the definition
    std::thread::sleep(Duration::from_secs(1));
    let third = thing("v1", "third");

    all.migrate("things", "example.com", "things");
    assert_eq!(stored(), r#"["v2"]"#);
    let path = "jsonpath={.status.conditions[?(@.type==\"StorageMigrating\")]['status','reason']}";
    let said = all.run(&["get", "crd", "things.example.com", "-o", path]);
    assert_eq!(said, "False MigrationSucceeded");
    let after = |name: &str| all.version("things.v2.example.com", name);
    // Written anew, and no change: the generation is the same.
    for (name, before) in [("first", &first), ("second", &second)] {
        let after = after(name);
        assert_ne!(&after, before);
        assert_eq!(after.split(' ').next_back(), before.split(' ').next_back());
    }
    assert_eq!(after("third"), third, "it was in v2");
    // Another one finds nothing to do, and one version is enough afterwards.
    let before = after("first");
    all.migrate("again", "example.com", "things");
    assert_eq!(after("first"), before);
    assert_eq!(stored(), r#"["v2"]"#);
    all.apply(&definition(&[("v2", true)]));
    assert_eq!(all.run(&["get", "things", "-o", "name"]).lines().count(), 3);
}

#[test]
fn item_76_migrations_that_cannot_be_done_say_so_and_changes_meanwhile_do_no_harm() {
    let Some(kubectl) = any_kubectl() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node", "--feature-gates", GATE]);
    let all = Migrated { cluster, kubectl };
    all.begin("reviews", "authentication.k8s.io", "tokenreviews");
    eventually("the migration has failed", STEP, || {
        all.conditions("reviews").contains(&"Failed".to_owned())
    });
    let path = "jsonpath={.status.conditions[?(@.type==\"Failed\")].message}";
    let said = all.run(&["get", "storageversionmigration", "reviews", "-o", path]);
    assert!(
        said.contains("does not support discovery operations"),
        "{said}"
    );
    // Objects come, change and go while several migrations of them wait for one another.
    for i in 0..3 {
        all.begin(&format!("m{i}"), "", "configmaps");
        for j in 0..5 {
            let name = format!("c{}", j % 3);
            all.run(&[
                "create",
                "configmap",
                &name,
                &format!("--from-literal=a={i}{j}"),
            ]);
            all.run(&["delete", "configmap", &name]);
        }
    }
    eventually("all have succeeded", STEP, || {
        (0..3).all(|i| all.conditions(&format!("m{i}")) == ["Succeeded"])
    });
    let left = all.run(&["get", "configmaps", "-o", "name"]);
    assert!(!left.contains("configmap/c"), "nothing was made: {left}");
    // It is written once and for all.
    let patch = r#"{"spec": {"resource": {"group": "", "resource": "pods"}}}"#;
    let said = all.fails(&[
        "patch",
        "storageversionmigration",
        "m0",
        "--type",
        "merge",
        "-p",
        patch,
    ]);
    assert!(said.contains("immutable"), "{said}");
}
