//! Commands in running containers, and their streams.

use super::*;

pub(super) async fn exec_sync(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("sleep 60"));
    config.envs = vec![cri::KeyValue::new("A", "1")];
    let id = pod.start(config).await;
    let limit = Duration::from_secs(10);
    let answer = setup
        .runtime
        .exec_sync(&id, shell("echo $A; echo err >&2; exit 3"), limit, 1 << 20)
        .await
        .unwrap();
    assert_eq!(
        (&answer.stdout[..], &answer.stderr[..], answer.exit_code),
        (&b"1\n"[..], &b"err\n"[..], 3)
    );
    let answer = setup
        .runtime
        .exec_sync(&id, shell("head -c 1000000 /dev/zero"), limit, 1 << 20)
        .await
        .unwrap();
    assert_eq!(answer.stdout.len(), 1_000_000);
    let answer = setup
        .runtime
        .exec_sync(&id, shell("head -c 1000000 /dev/zero; exit 4"), limit, 1000)
        .await
        .unwrap();
    assert_eq!((answer.stdout.len(), answer.exit_code), (1000, 4));
    let missing = setup
        .runtime
        .exec_sync(&id, vec!["/no/such".into()], limit, 1 << 20)
        .await;
    assert!(missing.is_err(), "{missing:?}");
    setup
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        setup
            .runtime
            .exec_sync(&id, shell("true"), limit, 1 << 20)
            .await
            .is_err()
    );
    pod.remove().await;
}

pub(super) async fn exec_sync_timeout(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let begin = Instant::now();
    let answer = setup
        .runtime
        .exec_sync(
            &id,
            vec!["/bin/sleep".into(), "50".into()],
            Duration::from_secs(1),
            1 << 20,
        )
        .await;
    assert!(
        matches!(answer, Err(Error::DeadlineExceeded { .. })),
        "{answer:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(5));
    let deadline = Instant::now() + Duration::from_secs(5);
    while run(&setup, &id, "ps").await.contains("sleep 50") {
        assert!(Instant::now() < deadline, "the process lives on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pod.remove().await;
}

/// The live ends, or `None` for a runtime that serves streams itself.
async fn session(setup: &Setup, request: cri::ExecRequest) -> Option<ExecSession> {
    match setup.runtime.exec(request).await.unwrap() {
        Streaming::Direct(session) => Some(session),
        Streaming::Url(url) => {
            assert!(url.starts_with("http"), "{url}");
            None
        }
    }
}

pub(super) async fn exec_streams(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let request = cri::ExecRequest {
        container_id: id,
        cmd: shell("cat; echo done >&2; exit 5"),
        stdin: true,
        stdout: true,
        stderr: true,
        ..cri::ExecRequest::default()
    };
    if let Some(mut session) = session(&setup, request).await {
        let text = vec![b'x'; 300_000];
        let mut stdin = session.stdin.take().unwrap();
        let (mut stdout, mut stderr) = (
            session.stdout.take().unwrap(),
            session.stderr.take().unwrap(),
        );
        let sent = text.clone();
        let (mut out, mut err) = (Vec::new(), String::new());
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            drop(stdin);
        };
        let (_, read, _, code) = tokio::join!(
            write,
            stdout.read_to_end(&mut out),
            stderr.read_to_string(&mut err),
            session.exit
        );
        read.unwrap();
        assert!(out == text, "{} bytes came back", out.len());
        assert_eq!((err.as_str(), code.unwrap()), ("done\n", 5));
    }
    pod.remove().await;
}

pub(super) async fn exec_terminal(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let request = cri::ExecRequest {
        container_id: id,
        cmd: shell("tty; read line; stty size; echo got $line"),
        stdin: true,
        stdout: true,
        tty: true,
        ..cri::ExecRequest::default()
    };
    if let Some(mut session) = session(&setup, request).await {
        let mut stdout = session.stdout.take().unwrap();
        let mut stdin = session.stdin.take().unwrap();
        assert!(session.stderr.is_none());
        let resize = session.resize.take().unwrap();
        let talk = async {
            resize
                .send(crate::runtime::TerminalSize {
                    width: 101,
                    height: 33,
                })
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            stdin.write_all(b"hello\n").await.unwrap();
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            text
        };
        let (text, code) = tokio::join!(talk, session.exit);
        assert_eq!(code.unwrap(), 0);
        assert!(
            text.contains("/dev/pts/") && text.contains("33 101") && text.contains("got hello"),
            "{text:?}"
        );
    }
    pod.remove().await;
}

pub(super) async fn attach(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "read line; echo out $line; echo err >&2; cat >/dev/null; exit 4",
    ));
    (config.stdin, config.stdin_once) = (true, true);
    let id = pod.start(config.clone()).await;
    let request = cri::AttachRequest {
        container_id: id,
        stdin: true,
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    if let Streaming::Direct(mut session) = setup.runtime.attach(request).await.unwrap() {
        let mut stdin = session.stdin.take().unwrap();
        let (mut stdout, mut stderr) = (
            session.stdout.take().unwrap(),
            session.stderr.take().unwrap(),
        );
        let (mut out, mut err) = (String::new(), String::new());
        let write = async {
            stdin.write_all(b"words\n").await.unwrap();
            drop(stdin);
        };
        let (_, _, _, code) = tokio::join!(
            write,
            stdout.read_to_string(&mut out),
            stderr.read_to_string(&mut err),
            session.exit
        );
        assert_eq!(
            (out.as_str(), err.as_str(), code.unwrap()),
            ("out words\n", "err\n", 4)
        );
        assert!(
            pod.log(&config).contains("out words\n"),
            "attached output is logged too"
        );
    }
    pod.remove().await;
}
