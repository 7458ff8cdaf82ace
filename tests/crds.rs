//! Custom kinds through the oldest and the newest kubectl that are promised.

mod sampledb;

use crate::harness;
use harness::{Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output};
use std::path::Path;
use std::time::Duration;

const DEFINITION: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: shirts.stable.example.com
spec:
  group: stable.example.com
  scope: Namespaced
  names:
    plural: shirts
    singular: shirt
    kind: Shirt
    shortNames: [sh]
    categories: [all]
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.count, statusReplicasPath: .status.count}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the shirt is like.
            x-kubernetes-validations:
            - {rule: 'self.count <= 100', message: so many shirts}
            properties:
              color: {type: string}
              size: {type: string}
              count: {type: integer, default: 1}
          status:
            type: object
            properties:
              count: {type: integer}
    selectableFields:
    - jsonPath: .spec.color
    - jsonPath: .spec.size
    additionalPrinterColumns:
    - {jsonPath: .spec.color, name: Color, type: string}
    - {jsonPath: .spec.size, name: Size, type: string}
    - {jsonPath: .metadata.creationTimestamp, name: Age, type: date, priority: 1}
";

const SHIRTS: &str = "
apiVersion: stable.example.com/v1
kind: Shirt
metadata: {name: example1}
spec: {color: blue, size: S}
---
apiVersion: stable.example.com/v1
kind: Shirt
metadata: {name: example2}
spec: {color: blue, size: M}
---
apiVersion: stable.example.com/v1
kind: Shirt
metadata: {name: example3}
spec: {color: green, size: M}
";

fn shirts(cluster: &Cluster, k: &Path) {
    kubectl_stdin(cluster, k, &["apply", "-f", "-"], DEFINITION);
    let name = "crd/shirts.stable.example.com";
    kubectl(
        cluster,
        k,
        ["wait", "--for=condition=Established", name, "--timeout=10s"],
    );
    kubectl_stdin(cluster, k, &["apply", "-f", "-"], SHIRTS);
    assert_eq!(
        kubectl(cluster, k, ["get", "shirts.stable.example.com"]),
        "NAME       COLOR   SIZE\nexample1   blue    S\nexample2   blue    M\nexample3   green   M\n"
    );
    let selector = "--field-selector=spec.color=blue";
    assert_eq!(
        kubectl(cluster, k, ["get", "shirts.stable.example.com", selector]),
        "NAME       COLOR   SIZE\nexample1   blue    S\nexample2   blue    M\n"
    );
    let wide = kubectl(cluster, k, ["get", "sh", "-o", "wide"]);
    assert!(
        wide.starts_with("NAME       COLOR   SIZE   AGE\n"),
        "{wide}"
    );
    let all = kubectl(cluster, k, ["get", "all"]);
    assert!(all.contains("shirt.stable.example.com/example1"), "{all}");
    let again = kubectl_stdin(cluster, k, &["apply", "-f", "-"], SHIRTS);
    assert!(again.contains("example1 unchanged"), "{again}");
    let explained = kubectl(cluster, k, ["explain", "shirt.spec"]);
    assert!(explained.contains("What the shirt is like."), "{explained}");
    kubectl(cluster, k, ["scale", "shirt/example1", "--replicas=5"]);
    let count = "jsonpath={.spec.count}";
    assert_eq!(
        kubectl(cluster, k, ["get", "sh", "example1", "-o", count]),
        "5"
    );
    let wait = "--for=jsonpath={.spec.count}=5";
    kubectl(cluster, k, ["wait", wait, "sh/example1", "--timeout=5s"]);
    let server_side = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    kubectl_stdin(cluster, k, &server_side, SHIRTS);
    let patch = [
        "patch",
        "sh",
        "example2",
        "--type=merge",
        "-p",
        r#"{"spec":{"count":101}}"#,
    ];
    let refused = output(cluster.kubectl(k).args(patch));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(
        text,
        "The Shirt \"example2\" is invalid: spec: Invalid value: so many shirts\n"
    );
    kubectl(cluster, k, ["delete", name, "--timeout=30s"]);
    eventually("the kind is gone", Duration::from_secs(10), || {
        let list = output(
            cluster
                .kubectl(k)
                .args(["get", "--raw"])
                .arg("/apis/stable.example.com"),
        );
        !list.status.success()
    });
}

/// Two kinds of one group: one has the preferred version, the other only another.
fn two_versions() -> String {
    let definition = |plural: &str, kind: &str, version: &str| {
        format!(
            "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.parts.example.com}}
spec:
  group: parts.example.com
  scope: Namespaced
  names: {{plural: {plural}, kind: {kind}}}
  versions:
  - name: {version}
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object}}}}
---"
        )
    };
    definition("bolts", "Bolt", "v1") + &definition("nuts", "Nut", "v1alpha1")
}

/// What exists only in a version that its group does not prefer is collected, counted and deleted like anything else;
/// and of a namespace the pods go first.
fn kinds_of_other_versions(cluster: &Cluster, k: &Path) {
    kubectl_stdin(cluster, k, &["apply", "-f", "-"], &two_versions());
    let established = "--for=condition=Established";
    for name in ["crd/bolts.parts.example.com", "crd/nuts.parts.example.com"] {
        kubectl(cluster, k, ["wait", established, name, "--timeout=10s"]);
    }
    kubectl(cluster, k, ["create", "namespace", "parts"]);
    let nut = "---\n{apiVersion: parts.example.com/v1alpha1, kind: Nut, metadata: {name: owner}}";
    let within = |args: &[&str]| kubectl(cluster, k, [&["-n", "parts"], args].concat());
    kubectl_stdin(cluster, k, &["-n", "parts", "create", "-f", "-"], nut);
    let uid = within(&["get", "nut", "owner", "-o", "jsonpath={.metadata.uid}"]);
    let owned = format!(
        "apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  ownerReferences: [{{apiVersion: parts.example.com/v1alpha1, kind: Nut, name: owner, uid: {uid}, blockOwnerDeletion: true}}]
---
apiVersion: v1
kind: ResourceQuota
metadata: {{name: counts}}
spec: {{hard: {{count/nuts.parts.example.com: '5'}}}}
"
    );
    kubectl_stdin(cluster, k, &["-n", "parts", "create", "-f", "-"], &owned);
    let used = r"jsonpath={.status.used.count/nuts\.parts\.example\.com}";
    eventually("the nut is counted", Duration::from_secs(30), || {
        within(&["get", "resourcequota", "counts", "-o", used]) == "1"
    });
    let foreground = "--cascade=foreground";
    within(&["delete", "nut", "owner", foreground, "--timeout=60s"]);
    assert_eq!(within(&["get", "nuts", "-o", "name"]), "");
    assert!(!within(&["get", "cm", "-o", "name"]).contains("owned"));

    kubectl_stdin(cluster, k, &["-n", "parts", "create", "-f", "-"], nut);
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: held, finalizers: [example.com/hold]}, spec: {containers: [{name: c, image: example.test/c:1}]}}";
    eventually("the default account", Duration::from_secs(10), || {
        within(&["get", "sa", "-o", "name"]).contains("default")
    });
    kubectl_stdin(cluster, k, &["-n", "parts", "create", "-f", "-"], pod);
    kubectl(cluster, k, ["delete", "namespace", "parts", "--wait=false"]);
    let remaining = "jsonpath={.status.conditions[?(@.type=='NamespaceContentRemaining')].message}";
    eventually("the pod is reported", Duration::from_secs(30), || {
        kubectl(cluster, k, ["get", "namespace", "parts", "-o", remaining])
            == "Some resources are remaining: pods. has 1 resource instances"
    });
    assert!(within(&["get", "nuts", "-o", "name"]).contains("owner"));
    let release = r#"{"metadata":{"finalizers":null}}"#;
    within(&["patch", "pod", "held", "--type=merge", "-p", release]);
    let gone = ["wait", "--for=delete", "namespace/parts", "--timeout=60s"];
    kubectl(cluster, k, gone);
    // What outlived its namespace would be back with the next of that name.
    kubectl(cluster, k, ["create", "namespace", "parts"]);
    assert_eq!(within(&["get", "nuts", "-o", "name"]), "");
}

#[test]
fn item_142_157_158_162_the_shirts_of_the_documentation() {
    for release in ["1.27", "1.36"] {
        let Some(binary) = kubectl_binary(release) else {
            continue;
        };
        println!("kubectl {release}");
        let cluster = Cluster::up(&["--no-node"]);
        shirts(&cluster, &binary);
        kinds_of_other_versions(&cluster, &binary);
    }
}

/// Only what the example says: no short name, no categories, no subresources.
const PLAIN: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: shirts.stable.example.com
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: shirts, singular: shirt, kind: Shirt}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              color: {type: string}
              size: {type: string}
    selectableFields:
    - jsonPath: .spec.color
    - jsonPath: .spec.size
    additionalPrinterColumns:
    - {jsonPath: .spec.color, name: Color, type: string}
    - {jsonPath: .spec.size, name: Size, type: string}
";

#[test]
fn item_157_158_the_example_as_it_is_written() {
    for release in ["1.27", "1.36"] {
        let Some(k) = kubectl_binary(release) else {
            continue;
        };
        println!("kubectl {release}");
        let cluster = Cluster::up(&["--no-node"]);
        let created = kubectl_stdin(&cluster, &k, &["create", "-f", "-"], PLAIN);
        assert_eq!(
            created,
            "customresourcedefinition.apiextensions.k8s.io/shirts.stable.example.com created\n"
        );
        // Nobody waits: the first objects follow at once.
        eventually("the kind is served", Duration::from_secs(10), || {
            let made = output(
                cluster
                    .kubectl(&k)
                    .args(["get", "shirts.stable.example.com"]),
            );
            made.status.success()
        });
        kubectl_stdin(&cluster, &k, &["create", "-f", "-"], SHIRTS);
        let get = |more: &[&str]| {
            let args = [&["get", "shirts.stable.example.com"], more].concat();
            kubectl(&cluster, &k, args)
        };
        let (head, one) = ("NAME       COLOR   SIZE\n", "example1   blue    S\n");
        let (two, three) = ("example2   blue    M\n", "example3   green   M\n");
        assert_eq!(get(&[]), format!("{head}{one}{two}{three}"));
        let blue = get(&["--field-selector", "spec.color=blue"]);
        assert_eq!(blue, format!("{head}{one}{two}"));
        let both = get(&["--field-selector=spec.color!=green,spec.size=M"]);
        assert_eq!(both, format!("{head}{two}"));
        let everywhere = get(&["-A", "--field-selector=spec.size=S", "-o", "name"]);
        assert_eq!(everywhere, "shirt.stable.example.com/example1\n");
        let args = [
            "delete",
            "shirts.stable.example.com",
            "--field-selector=spec.color=green",
        ];
        let deleted = kubectl(&cluster, &k, args);
        assert!(deleted.contains("\"example3\" deleted"), "{deleted}");
        assert_eq!(get(&[]), format!("{head}{one}{two}"));
        let refused = output(cluster.kubectl(&k).args([
            "get",
            "shirts",
            "--field-selector=spec.sleeves=long",
        ]));
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(
            text.contains("field label not supported: spec.sleeves"),
            "{text}"
        );
        let all = kubectl(&cluster, &k, ["get", "all"]);
        assert!(!all.contains("shirt"), "it is in no category: {all}");
    }
}
