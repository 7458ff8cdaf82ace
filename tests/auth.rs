//! Who is let in and who may do what, with an unmodified kubectl.

use crate::harness;
use harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// What kubectl wrote to standard output and standard error, whatever came of it.
fn said(command: &mut Command) -> String {
    let out = output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&out.stdout), text(&out.stderr))
}

fn can(cluster: &Cluster, k: &Path, args: &[&str]) -> String {
    let all = [&["auth", "can-i"], args].concat();
    said(cluster.kubectl(k).args(all)).trim().to_owned()
}

#[test]
fn items_187_188_193_roles_decide_for_users_groups_and_service_accounts() {
    let Some(k) = any_kubectl() else { return };
    let c = Cluster::up(&["--no-node"]);
    let run = |args: &[&str]| kubectl(&c, &k, args);
    assert_eq!(can(&c, &k, &["delete", "pods"]), "yes");
    assert_eq!(can(&c, &k, &["list", "pods", "--as", "bob"]), "no");
    let refused = said(c.kubectl(&k).args(["get", "pods", "--as", "bob"]));
    assert_eq!(
        refused.trim(),
        "Error from server (Forbidden): pods is forbidden: User \"bob\" cannot list resource \"pods\" in API \
         group \"\" in the namespace \"default\""
    );
    run(&[
        "create",
        "role",
        "reader",
        "--verb=get,list,watch",
        "--resource=pods,pods/log",
    ]);
    run(&[
        "create",
        "rolebinding",
        "bob-reads",
        "--role=reader",
        "--user=bob",
    ]);
    run(&["get", "pods", "--as", "bob"]);
    assert_eq!(can(&c, &k, &["list", "pods", "--as", "bob"]), "yes");
    assert_eq!(
        can(&c, &k, &["get", "pods", "--subresource=log", "--as", "bob"]),
        "yes"
    );
    assert_eq!(
        can(
            &c,
            &k,
            &["list", "pods", "-n", "kube-system", "--as", "bob"]
        ),
        "no"
    );
    let list = can(&c, &k, &["--list", "--as", "bob"]);
    assert!(
        list.contains("pods/log") && list.contains("selfsubjectaccessreviews"),
        "{list}"
    );
    // the aggregated roles are filled
    eventually("role view has rules", SOON, || {
        let role =
            said(
                c.kubectl(&k)
                    .args(["get", "clusterrole", "view", "-o", "jsonpath={.rules}"]),
            );
        role.contains("configmaps")
    });
    run(&[
        "create",
        "clusterrolebinding",
        "devs",
        "--clusterrole=view",
        "--group=devs",
    ]);
    assert_eq!(
        can(
            &c,
            &k,
            &[
                "list",
                "deployments.apps",
                "-A",
                "--as",
                "eve",
                "--as-group",
                "devs"
            ]
        ),
        "yes"
    );
    assert_eq!(
        can(
            &c,
            &k,
            &["list", "secrets", "-A", "--as", "eve", "--as-group", "devs"]
        ),
        "no"
    );
    let reconciled = kubectl_stdin(
        &c,
        &k,
        &["auth", "reconcile", "-f", "-"],
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader, namespace: default}\n\
         rules: [{apiGroups: [\"\"], resources: [services], verbs: [get]}]\n",
    );
    assert!(reconciled.contains("reconciled"), "{reconciled}");
    assert_eq!(can(&c, &k, &["get", "services", "--as", "bob"]), "yes");
    // service accounts get what they are given, by their token
    eventually("the service account default exists", SOON, || {
        output(c.kubectl(&k).args(["get", "sa", "default"]))
            .status
            .success()
    });
    let token = run(&["create", "token", "default"]).trim().to_owned();
    let as_token = |args: &[&str]| {
        let server = c.server.clone();
        let mut command = Command::new(&k);
        command
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", c.dir.path())
            .args([
                "--server",
                &server,
                "--insecure-skip-tls-verify",
                "--token",
                &token,
            ])
            .args(args);
        said(&mut command)
    };
    let who = as_token(&["auth", "whoami"]);
    assert!(
        who.contains("system:serviceaccount:default:default"),
        "{who}"
    );
    assert!(as_token(&["get", "cm"]).contains("Forbidden"));
    run(&[
        "create",
        "rolebinding",
        "sa-views",
        "--clusterrole=view",
        "--serviceaccount=default:default",
    ]);
    assert!(as_token(&["get", "cm"]).contains("kube-root-ca.crt"));
    let review = kubectl_stdin(
        &c,
        &k,
        &[
            "create",
            "-o",
            "jsonpath={.status.user.username}",
            "-f",
            "-",
        ],
        &format!(
            "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: \"{token}\"}}\n"
        ),
    );
    assert_eq!(review, "system:serviceaccount:default:default");
}

#[test]
fn items_095_184_an_approved_certificate_logs_in_also_by_a_credential_plugin() {
    let Some(k) = any_kubectl() else { return };
    let Some(openssl) = harness::program("openssl") else {
        return;
    };
    let c = Cluster::up(&["--no-node"]);
    let run = |args: &[&str]| kubectl(&c, &k, args);
    let path = |name: &str| c.dir.path().join(name).display().to_string();
    let (key, csr) = (path("jane.key"), path("jane.csr"));
    // two organizations: both are groups
    harness::run(Command::new(openssl).args([
        "req",
        "-new",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        &key,
        "-out",
        &csr,
        "-subj",
        "/O=devs/O=ops/CN=jane",
    ]));
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(std::fs::read(&csr).unwrap());
    kubectl_stdin(
        &c,
        &k,
        &["create", "-f", "-"],
        &format!(
            "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: jane}}\n\
             spec:\n  request: {encoded}\n  signerName: kubernetes.io/kube-apiserver-client\n  \
             expirationSeconds: 3600\n  usages: [client auth]\n"
        ),
    );
    assert!(run(&["get", "csr", "jane"]).contains("Pending"));
    run(&["certificate", "approve", "jane"]);
    let mut issued = String::new();
    eventually("the certificate is issued", SOON, || {
        issued = run(&["get", "csr", "jane", "-o", "jsonpath={.status.certificate}"]);
        !issued.is_empty()
    });
    assert!(run(&["get", "csr", "jane"]).contains("Approved,Issued"));
    let pem = base64::engine::general_purpose::STANDARD
        .decode(&issued)
        .unwrap();
    let certificate = path("jane.crt");
    std::fs::write(&certificate, pem).unwrap();
    let plain = || {
        let mut command = Command::new(&k);
        command
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", c.dir.path())
            .args(["--server", &c.server, "--insecure-skip-tls-verify"]);
        command
    };
    let who = said(plain().args([
        "--client-certificate",
        &certificate,
        "--client-key",
        &key,
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo}",
    ]));
    assert!(
        who.contains("jane") && who.contains("devs") && who.contains("ops"),
        "{who}"
    );
    // the same by an exec credential plugin
    let plugin = path("plugin.sh");
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {
            "clientCertificateData": std::fs::read_to_string(&certificate).unwrap(),
            "clientKeyData": std::fs::read_to_string(&key).unwrap(),
        },
    });
    std::fs::write(path("credential.json"), credential.to_string()).unwrap();
    std::fs::write(
        &plugin,
        format!("#!/bin/sh\ncat {}\n", path("credential.json")),
    )
    .unwrap();
    let executable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(&plugin, executable).unwrap();
    let config = path("exec.kubeconfig");
    std::fs::write(
        &config,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"{}\", insecure-skip-tls-verify: true}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {plugin}, \
             interactiveMode: Never}}}}}}]\n",
            c.server
        ),
    )
    .unwrap();
    let who = said(
        Command::new(&k)
            .env("KUBECONFIG", &config)
            .env("HOME", c.dir.path())
            .args(["auth", "whoami"]),
    );
    assert!(who.contains("jane"), "{who}");
    // nobody there for another authority's certificate, and none for a wrong token
    let refused = said(plain().args(["--token", "wrong", "get", "ns"]));
    assert!(
        refused.contains("Unauthorized") || refused.contains("must be logged in"),
        "{refused}"
    );
}

#[test]
fn the_certificate_names_the_address_that_the_server_listens_on() {
    let Some(k) = any_kubectl() else { return };
    let c = Cluster::up(&["--no-node", "--bind-address", "127.0.0.2"]);
    assert!(c.server.contains("//127.0.0.2:"), "{}", c.server);
    assert_eq!(kubectl(&c, &k, ["get", "--raw", "/readyz"]), "ok");
}
