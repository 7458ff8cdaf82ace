//! What clients see of a full disk.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::cluster::*;
use crate::serve::Served;

/// Unmounts the file system of a test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_healed_by_space() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=96m", "tmpfs"])
        .arg(dir.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a small file system needs root");
        return;
    }
    let _mounted = Mounted(dir.path().to_owned());
    let c = Cluster::below(dir, |_| {}).await;
    c.ready().await;
    let url = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"k": "v"}});
    c.post(url, &map("old")).await.ok(201);

    // a server that serves leaves its port in the cluster's own endpoints
    Served::new(&c).await.stop().await;
    let ballast = c.dir.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let full = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
    drop(file);
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let refused = c.post(url, &map("new")).await.error(500, "InternalError");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("no space left on device"), "{message}");
    let ready = c.get("/readyz").await;
    assert_eq!(ready.code, 500);
    assert!(ready.text().contains("[-]etcd-readiness failed"));
    assert_eq!(c.get("/livez").await.code, 200);
    c.get(&format!("{url}/old")).await.ok(200);
    // a server that starts now answers, and publishes its endpoints when it can
    let served = Served::new(&c).await;
    let token = [("authorization", "Bearer secret")];
    let (code, body) = served.get(&format!("{url}/old"), &token).await;
    assert_eq!(code, 200, "{body}");
    let port = async || {
        let own = "/api/v1/namespaces/default/endpoints/kubernetes";
        let own = c.get(own).await.ok(200);
        own["subsets"][0]["ports"][0]["port"].as_u64()
    };
    let expected = Some(u64::from(served.address.port()));
    assert_ne!(port().await, expected);
    c.delete(&format!("{url}/old"), &json!({})).await.ok(200);

    std::fs::remove_file(&ballast).unwrap();
    c.ready().await;
    c.post(url, &map("new")).await.ok(201);
    let published = async {
        while port().await != expected {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let published = tokio::time::timeout(Duration::from_secs(30), published);
    published.await.expect("the endpoints are written");
    served.stop().await;
}
