use super::*;
use std::time::Instant;

fn plugin(script: &str) -> ExecConfig {
    serde_json::from_value(json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "env": [{ "name": "PASSWORD", "value": "very-secret" }],
        "interactiveMode": "Never",
    }))
    .unwrap()
}

fn says(status: &str) -> ExecConfig {
    plugin(&format!(
        "echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{status}}}'"
    ))
}

async fn fails(script: &str) -> String {
    let limit = Duration::from_millis(700);
    let Err(error) = run(&plugin(script), limit).await else {
        panic!("{script} has given credentials");
    };
    error.to_string()
}

#[tokio::test]
async fn what_a_program_says_is_used_and_asked_for_again() {
    let credential = run(&says(r#"{"token":"abc"}"#), LIMIT).await.unwrap();
    assert_eq!(credential.header.unwrap(), "Bearer abc");
    let mut auth = AuthInfo {
        exec: Some(says(r#"{"clientCertificateData":"C","clientKeyData":"K"}"#)),
        ..AuthInfo::default()
    };
    assert!(settle(&mut auth, false).await.unwrap().is_none());
    assert_eq!(auth.client_certificate_data.unwrap(), STANDARD.encode("C"));
    assert!(auth.exec.is_none(), "nobody else runs it");

    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let over = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
    let script = format!("echo x >> {}; echo '{over}'", count.display());
    let mut auth = AuthInfo {
        exec: Some(plugin(&script)),
        ..AuthInfo::default()
    };
    let again = settle(&mut auth, false).await.unwrap().unwrap();
    assert_eq!(again.header().await.unwrap().unwrap(), "Bearer t");
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\nx\n");
    // A token that is there is taken, and the program left alone.
    let mut auth = AuthInfo {
        exec: Some(plugin("exit 1")),
        token: Some("own".to_owned().into()),
        ..AuthInfo::default()
    };
    assert!(settle(&mut auth, false).await.unwrap().is_none());
    let mut auth: AuthInfo = serde_json::from_value(json!({
        "auth-provider": { "name": "gcp", "config": { "cmd-path": "sleep", "cmd-args": "600" } },
    }))
    .unwrap();
    assert!(
        settle(&mut auth, false).await.is_err(),
        "nobody would limit its program"
    );
}

#[tokio::test]
async fn a_program_has_a_deadline_and_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let began = Instant::now();
    let script = format!("sleep 600 & echo $! > {}; wait", file.display());
    assert!(fails(&script).await.contains("has not ended"));
    let called = std::fs::read_to_string(file).unwrap();
    let gone = async {
        let stat = format!("/proc/{}/stat", called.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone)
        .await
        .expect("what it has called goes on");
    // Its output is kept open by what it has called.
    assert!(fails("sleep 600 & exit 0").await.contains("has not ended"));
    assert!(fails("yes").await.contains("more than"));
    assert!(fails("yes >&2").await.contains("has not ended"));
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn errors_show_nothing_that_is_secret() {
    let failed = fails("echo token-of-mine; printf 'no\\033[2J luck' >&2; exit 3").await;
    assert_eq!(failed, "exit status: 3: no\\u{1b}[2J luck");
    let long = fails("yes | head -c 100000 >&2; exit 3").await;
    assert!(long.len() < 2000, "{}", long.len());
    for script in [
        "echo token-of-mine",
        "echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"token-of-mine\"}}'",
        "printf %s '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"token-of-mine\\u0001\"}}'",
        "echo token-of-mine >&1; exit 1",
    ] {
        let error = fails(script).await;
        assert!(!error.contains("token-of-mine"), "{error}");
        assert!(!error.contains("very-secret"), "{error}");
    }
}
