//! Images behind a password that a credential provider plugin knows, from a real registry (checklist 10.11, 151).

use crate::pods::{Kube, images};
use base64::Engine;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: keys
  matchImages: ['127.0.0.1:PORT']
  defaultCacheDuration: 1m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

/// Serves an image over plain HTTP to those who know the password. Ends with the test program.
fn registry(image: HashMap<String, (String, Vec<u8>)>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is none of our business.
            let _gone = answer(stream, &image);
        }
    });
    port
}

fn answer(
    mut stream: TcpStream,
    image: &HashMap<String, (String, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let expected = base64::engine::general_purpose::STANDARD.encode("robot:secret");
    let mut known = false;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let header = line
            .split_once(':')
            .map(|(k, v)| (k.to_ascii_lowercase(), v.trim()));
        known |=
            header.is_some_and(|(k, v)| k == "authorization" && v == format!("Basic {expected}"));
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let none = (String::new(), Vec::new());
    let (status, (kind, body)) = match image.get(path) {
        _ if !known => ("401 Unauthorized", &none),
        None if path == "/v2/" => ("200 OK", &none),
        None => ("404 Not Found", &none),
        Some(found) => ("200 OK", found),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nWWW-Authenticate: Basic realm=\"test\"\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if !request.starts_with("HEAD") {
        stream.write_all(body)?;
    }
    Ok(())
}

fn plugin(bin: &Path, port: u16, password: &str) {
    use std::os::unix::fs::PermissionsExt;
    let response = serde_json::json!({
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry",
        "cacheDuration": "0s",
        "auth": {format!("127.0.0.1:{port}"): {"username": "robot", "password": password}},
    });
    let script = format!("#!/bin/sh\ncat > \"$0.in\"\necho '{response}'\n");
    // In one step: the old one may be at work.
    let new = bin.join("keys.new");
    std::fs::write(&new, script).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(new, bin.join("keys")).unwrap();
}

pub(crate) fn scenario() {
    let Some(busybox) = images::busybox() else {
        return;
    };
    let port = registry(images::registry_content(&busybox, "team/app", "1"));
    let dir = crate::harness::temp_dir();
    let (bin, config) = (dir.path().join("bin"), dir.path().join("config.yaml"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(&config, CONFIG.replace("PORT", &port.to_string())).unwrap();
    plugin(&bin, port, "forgotten");
    let (config, bin_dir) = (config.display().to_string(), bin.display().to_string());
    let flags = [
        "--image-credential-provider-config",
        &config,
        "--image-credential-provider-bin-dir",
        &bin_dir,
    ];
    let Some(kube) = Kube::up("1.36", &flags) else {
        return;
    };
    let image = format!("127.0.0.1:{port}/team/app:1");
    let pod = crate::pods::pod("private", "Always", "exec sleep 1000", "");
    kube.create(&pod.replace("davit.local/host", &image));
    kube.eventually("the pull is refused", || {
        let status = kube.row("private").get(2).cloned().unwrap_or_default();
        status == "ErrImagePull" || status == "ImagePullBackOff"
    });
    let asked = std::fs::read_to_string(bin.join("keys.in")).unwrap();
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    assert_eq!(asked["image"], format!("127.0.0.1:{port}/team/app"));
    plugin(&bin, port, "secret");
    kube.wait_ready("private");
    kube.clean_up();
}

/// A pod without any credentials that wants a private image which another's pod has brought to the node.
const WITHOUT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: thief}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: "IMAGE"
    imagePullPolicy: POLICY
    command: [/bin/sh, -c, "exec sleep 1000"]
"#;

const WITHOUT_VOLUME: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: thief}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: davit.local/host
    imagePullPolicy: Never
    command: [/bin/sh, -c, "exec sleep 1000"]
    volumeMounts: [{name: data, mountPath: /mnt}]
  volumes:
  - name: data
    image: {reference: "IMAGE", pullPolicy: POLICY}
"#;

/// KEP-2535: an image that is there is for those who could have pulled it.
pub(crate) fn others() {
    let Some(busybox) = images::busybox() else {
        return;
    };
    let port = registry(images::registry_content(&busybox, "team/app", "1"));
    let Some(mut kube) = Kube::up("1.36", &[]) else {
        return;
    };
    let image = format!("127.0.0.1:{port}/team/app:1");
    let secret = |namespace: &str, password: &str| {
        let (server, password) = (
            format!("--docker-server=127.0.0.1:{port}"),
            format!("--docker-password={password}"),
        );
        let of = [
            "create",
            "secret",
            "docker-registry",
            "pull",
            "-n",
            namespace,
        ];
        let with = ["--docker-username=robot", &server, &password];
        kube.run([&of[..], &with[..]].concat());
    };
    kube.run(["create", "namespace", "thief"]);
    secret("default", "secret");
    secret("thief", "guessed");
    let pulled = |name: &str| {
        let pod = crate::pods::pod(name, "Always", "exec sleep 1000", "");
        let pod = pod.replace("davit.local/host", &image);
        kube.create(&pod.replace(
            "  containers:",
            "  imagePullSecrets: [{name: pull}]\n  containers:",
        ));
        kube.wait_ready(name);
    };
    pulled("owner");
    pulled("again");
    let id = kube.field("owner", ".status.containerStatuses[0].imageID");
    let id = &id[id.find("sha256:").unwrap()..];
    kube.eventually("the thief's account", || {
        let account = ["get", "serviceaccount", "default", "-n", "thief"];
        kube.try_run(account).is_ok()
    });
    let manifest = |template: &str, name: &str, image: &str, policy: &str| {
        let pod = template.replace("NAME", name).replace("IMAGE", image);
        pod.replace("POLICY", policy)
    };
    let guessing = manifest(WITHOUT, "guessing", &image, "IfNotPresent").replace(
        "  containers:",
        "  imagePullSecrets: [{name: pull}]\n  containers:",
    );
    kube.create(&guessing);
    for (name, template, image, policy) in [
        ("plain", WITHOUT, image.as_str(), "IfNotPresent"),
        ("never", WITHOUT, &image, "Never"),
        ("by-id", WITHOUT, id, "IfNotPresent"),
        ("by-id-never", WITHOUT, id, "Never"),
        ("volume", WITHOUT_VOLUME, &image, "IfNotPresent"),
        ("volume-never", WITHOUT_VOLUME, &image, "Never"),
        ("volume-by-id", WITHOUT_VOLUME, id, "Never"),
    ] {
        kube.create(&manifest(template, name, image, policy));
    }
    let waits = |kube: &Kube, name: &str| {
        let path = "jsonpath={.status.containerStatuses[0].state}";
        let state = kube.try_run(["get", "pod", name, "-n", "thief", "-o", path]);
        let state = state.unwrap_or_default();
        assert!(!state.contains("running"), "{name} has the image: {state}");
        state.contains("Pull")
    };
    let all = [
        "guessing",
        "plain",
        "never",
        "by-id",
        "by-id-never",
        "volume",
        "volume-never",
        "volume-by-id",
    ];
    for name in all {
        kube.eventually(&format!("{name} is refused"), || waits(&kube, name));
    }
    // Whoever is started again knows as much.
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.run(["delete", "pod", "-n", "thief", "plain", "--now"]);
    kube.create(&manifest(WITHOUT, "plain", &image, "IfNotPresent"));
    kube.eventually("plain is refused again", || waits(&kube, "plain"));
    kube.clean_up();
}
