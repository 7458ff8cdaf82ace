//! The half on the nodes: a CDI file a claim.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use davit_sdk::async_trait;
use davit_sdk::classic::{ClassicNode, Failure, HandedClaim};
use serde_json::json;

use crate::controller::Handle;

pub(crate) struct TestNode {
    driver: String,
    cdi_dir: PathBuf,
    node_name: Option<String>,
}

impl TestNode {
    pub(crate) fn new(driver: &str, cdi_dir: &Path, node_name: Option<String>) -> Result<Self> {
        let made = std::fs::create_dir_all(cdi_dir);
        made.with_context(|| format!("make CDI directory {}", cdi_dir.display()))?;
        Ok(Self {
            driver: driver.to_owned(),
            cdi_dir: cdi_dir.to_owned(),
            node_name,
        })
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.cdi_dir.join(format!("{}-{uid}.json", self.driver))
    }
}

/// UIDs become names of files and devices.
fn check(claim: &HandedClaim) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if claim.uid.is_empty() || !claim.uid.chars().all(plain) {
        return Err(Failure::new(format!("strange claim UID {:?}", claim.uid)));
    }
    Ok(())
}

/// The variable of a claim without parameters, as later test drivers name it.
fn variable(claim: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("claim_{}", claim.chars().map(plain).collect::<String>())
}

#[async_trait]
impl ClassicNode for TestNode {
    async fn prepare(&self, claim: &HandedClaim, handle: &str) -> Result<Vec<String>, Failure> {
        check(claim)?;
        let handle: Handle = serde_json::from_str(handle)
            .map_err(|e| Failure::because("parse resource handle", e))?;
        if let Some(node) = &self.node_name
            && !handle.node_name.is_empty()
            && handle.node_name != *node
        {
            return Err(Failure::new(format!(
                "claim was allocated for node {}, this is {node}",
                handle.node_name
            )));
        }
        let (kind, device) = (
            format!("{}/test", self.driver),
            format!("claim-{}", claim.uid),
        );
        let mut env: Vec<String> = handle
            .env_vars
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        if env.is_empty() {
            // A CDI device has to change something.
            env.push(format!("{}=true", variable(&claim.name)));
        }
        let spec = json!({
            "cdiVersion": "0.3.0",
            "kind": kind,
            "devices": [{"name": device, "containerEdits": {"env": env}}],
        });
        let file = self.file(&claim.uid);
        // Runtimes read every file of the folder at any time: it must appear at once.
        let draft = self.cdi_dir.join(format!(".{}-{}", self.driver, claim.uid));
        let written =
            std::fs::write(&draft, spec.to_string()).and_then(|()| std::fs::rename(&draft, &file));
        written.map_err(|e| Failure::because("write CDI file", e))?;
        tracing::info!(claim = claim.name, file = %file.display(), "prepared");
        Ok(vec![format!("{kind}={device}")])
    }

    async fn unprepare(&self, claim: &HandedClaim, _: &[String]) -> Result<(), Failure> {
        check(claim)?;
        match std::fs::remove_file(self.file(&claim.uid)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::because("remove CDI file", error))
            }
            _ => {
                tracing::info!(claim = claim.name, "unprepared");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn claims_become_files_and_go_again() {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::new("d.example.com", dir.path(), Some("n".into())).unwrap();
        let claim = HandedClaim {
            namespace: "x".into(),
            name: "c".into(),
            uid: "u-1".into(),
        };
        let handle = r#"{"EnvVars":{"user_a":"b"},"NodeName":"n"}"#;
        for _ in 0..2 {
            let ids = node.prepare(&claim, handle).await.unwrap();
            assert_eq!(ids, ["d.example.com/test=claim-u-1"]);
        }
        let text = std::fs::read(dir.path().join("d.example.com-u-1.json")).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(spec["devices"][0]["containerEdits"]["env"][0], "user_a=b");
        node.prepare(&claim, "{}").await.unwrap();
        let text = std::fs::read_to_string(dir.path().join("d.example.com-u-1.json")).unwrap();
        assert!(text.contains("claim_c=true"), "{text}");
        let elsewhere = node.prepare(&claim, r#"{"NodeName":"other"}"#).await;
        assert!(elsewhere.unwrap_err().to_string().contains("node other"));
        for _ in 0..2 {
            node.unprepare(&claim, &[]).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let evil = HandedClaim {
            uid: "../x".into(),
            ..claim
        };
        assert!(node.prepare(&evil, handle).await.is_err());
    }
}
