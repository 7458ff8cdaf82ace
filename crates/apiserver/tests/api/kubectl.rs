//! The real kubectl against the server, when there is one on the machine.

use std::path::PathBuf;
use std::process::{Command, Output};

use davit_pki::{Kubeconfig, write_kubeconfig};

use crate::cluster::Cluster;
use crate::serve::Served;

/// kubectl with a home and a kubeconfig of its own.
struct Kubectl {
    program: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    fn find() -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join("kubectl"))
            .find(|file| file.is_file())
    }

    fn new(program: PathBuf, cluster: &Cluster, served: &Served) -> Self {
        let home = cluster.dir.path().join("home");
        let pki = served.server.pki().unwrap();
        let config = Kubeconfig {
            server_name: None,
            cluster: "davit",
            user: "admin",
            server: &format!("https://{}", served.address),
            ca: pki.ca_certificate(),
            identity: &pki.admin().unwrap(),
        };
        write_kubeconfig(&home.join("config"), &config).unwrap();
        Self { program, home }
    }

    async fn output(&self, arguments: &str, input: &str) -> Output {
        let mut command = Command::new(&self.program);
        command.args(arguments.split(' ').map(|word| word.replace('~', " ")));
        command
            .env("HOME", &self.home)
            .env("KUBECONFIG", self.home.join("config"));
        command.current_dir(&self.home);
        let file = self.home.join("input.yaml");
        std::fs::write(&file, input).unwrap();
        tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap()
    }

    /// Standard output of a command that must succeed; a `~` in an argument is a blank.
    async fn run(&self, arguments: &str, input: &str) -> String {
        let output = self.output(arguments, input).await;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {arguments}: {out}{err}");
        out.into_owned()
    }

    async fn fails(&self, arguments: &str, input: &str) -> String {
        let output = self.output(arguments, input).await;
        assert!(!output.status.success(), "kubectl {arguments} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: a}}
spec:
  containers:
  - {name: c, image: busybox, resources: {limits: {vendor.example/foo: \"1\"}}}
";

const DEPLOYMENT: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: nginx}]}
";

const UNKNOWN_FIELD: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: u}
dataa: {a: b}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_085_to_087_and_132_to_136_kubectl_works() {
    let Some(program) = Kubectl::find() else {
        println!("skipped: no kubectl on this machine");
        return;
    };
    let c = Cluster::new().await;
    let served = Served::new(&c).await;
    let k = Kubectl::new(program, &c, &served);
    pods_and_objects(&k).await;
    workloads(&k).await;
    discovery(&k).await;
    served.stop().await;
}

async fn pods_and_objects(k: &Kubectl) {
    k.run("create serviceaccount default", "").await;
    assert_eq!(k.run("apply -f input.yaml", POD).await, "pod/a created\n");
    assert_eq!(k.run("apply -f input.yaml", POD).await, "pod/a unchanged\n");
    assert!(
        k.run("describe pod a", "")
            .await
            .contains("vendor.example/foo:  1")
    );
    k.run("label pod a x=y", "").await;
    k.run("annotate pod a note=here", "").await;
    assert!(
        k.run("get pods -l app=a --show-labels", "")
            .await
            .contains("app=a,x=y")
    );
    k.run(
        "patch pod a -p {\"metadata\":{\"labels\":{\"z\":\"1\"}}}",
        "",
    )
    .await;
    assert!(
        k.run("get pod a -o jsonpath={.metadata.labels.z}", "")
            .await
            == "1"
    );
    k.run("run b --image=busybox -- sleep 1", "").await;
    k.run("delete pod a b --timeout=20s", "").await;
    k.run("wait --for=delete pod/a --timeout=20s", "").await;
    k.run("create configmap m --from-literal=a=b", "").await;
    k.run(
        "create secret generic s --from-literal=a=b --dry-run=server",
        "",
    )
    .await;
    k.run("delete configmap m", "").await;
    let error = k
        .fails("apply --validate=strict -f input.yaml", UNKNOWN_FIELD)
        .await;
    assert!(
        error.contains("strict decoding error: unknown field \"dataa\""),
        "{error}"
    );
    let error = k.fails("delete namespace default", "").await;
    assert!(
        error.contains("this namespace may not be deleted"),
        "{error}"
    );
}

async fn workloads(k: &Kubectl) {
    assert!(
        k.run("apply -f input.yaml", DEPLOYMENT)
            .await
            .contains("created")
    );
    assert!(
        k.run("apply -f input.yaml", DEPLOYMENT)
            .await
            .contains("unchanged")
    );
    k.run("diff -f input.yaml", DEPLOYMENT).await;
    k.run("scale deployment web --replicas=3", "").await;
    k.run("set image deployment/web c=nginx:2", "").await;
    k.run("rollout restart deployment web", "").await;
    assert!(k.run("get deployment web", "").await.contains("0/3"));
    k.run("expose deployment web --port=80", "").await;
    k.run("autoscale deployment web --max=3", "").await;
    k.run("replace --force -f input.yaml", DEPLOYMENT).await;
    k.run("create job j --image=busybox", "").await;
    k.run("create cronjob cj --image=busybox --schedule=*~*~*~*~*", "")
        .await;
    k.run("create ingress i --rule=foo/bar=svc:80", "").await;
    k.run(
        "create poddisruptionbudget p --selector=a=b --min-available=1",
        "",
    )
    .await;
    k.run("get all,hpa,ingress,pdb -o wide", "").await;
}

async fn discovery(k: &Kubectl) {
    let resources = k.run("api-resources", "").await;
    for words in [
        "pods                                po ",
        "deployments                         deploy",
    ] {
        assert!(resources.contains(words), "{resources}");
    }
    assert!(
        k.run("api-versions", "")
            .await
            .contains("resource.k8s.io/v1alpha1\n")
    );
    assert!(k.run("version", "").await.contains("v1.36.0+davit"));
    k.run("cluster-info", "").await;
    let explained = k.run("explain pod.spec.containers --recursive", "").await;
    assert!(explained.contains("imagePullPolicy"), "{explained}");
    k.run("explain deployment.spec -o plaintext-openapiv2", "")
        .await;
    let who = k.run("auth whoami", "").await;
    assert!(
        who.contains("kubernetes-admin") && who.contains("[X509SHA256="),
        "{who}"
    );
    assert_eq!(k.run("auth can-i create pods", "").await, "yes\n");
    k.run("auth can-i --list", "").await;
    assert!(k.run("create token default", "").await.starts_with("eyJ"));
    assert!(
        k.run("get --raw /readyz?verbose", "")
            .await
            .contains("readyz check passed")
    );
    k.run("get pods --as=bob --as-group=system:masters", "")
        .await;
    k.run("get events", "").await;
}
