//! Logs, exec, attach, cp and port-forward.

use crate::pods::{Kube, pod};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

const STAY: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
const RESTARTER: &str =
    "[ -e /work/ran ] && { echo second; exec sleep 1000; }; touch /work/ran; echo first; exit 3";
const COUNTER: &str =
    "for i in 1 2 3 4 5; do echo line $i; sleep 0.3; done; echo to stderr >&2; sleep 0.2";
// kubectl first tells a size that is one too large, so that what is shown is drawn anew.
const TYPED: &str = "(while [ ! -e /tmp/got ]; do echo ready; sleep 0.2; done) & \
    read line; touch /tmp/got; echo got $line; n=0; \
    while [ $n -lt 50 ]; do case $(stty size) in 34*) break;; esac; sleep 0.1; n=$((n+1)); done; stty size; exit 6";
const ECHO: &str = "while read line; do echo got $line; done; echo end";

pub(crate) fn scenario(kube: &Kube) {
    kube.create(&pod("shell", "Always", STAY, ""));
    kube.create(&pod("counter", "Never", COUNTER, ""));
    let web = "mkdir /www; head -c 300000 /dev/zero >/www/zero; exec busybox httpd -f -p 127.0.0.1:8080 -h /www";
    kube.create(&pod("web", "Always", web, ""));
    let scratch = "  volumes: [{name: work, emptyDir: {}}]\n---";
    let restarter = pod(
        "restarter",
        "OnFailure",
        RESTARTER,
        "volumeMounts: [{name: work, mountPath: /work}]",
    );
    kube.create(&restarter.replace("---", scratch));
    logs(kube);
    previous_logs(kube);
    kube.wait_ready("shell");
    exec(kube);
    terminal(kube);
    attach(kube);
    copy(kube);
    kube.wait_ready("web");
    port_forward(kube);
}

/// Item 127.
fn logs(kube: &Kube) {
    kube.eventually("a first line", || {
        kube.try_run(["logs", "counter"])
            .is_ok_and(|l| l.contains("line 1"))
    });
    let all = "line 1\nline 2\nline 3\nline 4\nline 5\nto stderr\n";
    // Follows while the container runs and ends when it does.
    let begun = Instant::now();
    assert_eq!(kube.run(["logs", "-f", "counter"]), all);
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "logs -f took {:?}",
        begun.elapsed()
    );
    assert_eq!(kube.run(["logs", "counter"]), all);
    assert_eq!(
        kube.run(["logs", "counter", "--tail=2"]),
        "line 5\nto stderr\n"
    );
    assert_eq!(kube.run(["logs", "counter", "--tail=0"]), "");
    assert_eq!(
        kube.run(["logs", "counter", "--limit-bytes=9"]),
        "line 1\nli"
    );
    assert_eq!(kube.run(["logs", "counter", "--since=1h"]), all);
    assert_eq!(
        kube.run(["logs", "counter", "--since-time=2999-01-01T00:00:00Z"]),
        ""
    );
    let prefixed = kube.run([
        "logs",
        "counter",
        "--all-containers",
        "--prefix",
        "--tail=1",
    ]);
    assert_eq!(prefixed, "[pod/counter/main] to stderr\n");
    let stamped = kube.run(["logs", "counter", "--timestamps"]);
    for (line, plain) in stamped.lines().zip(all.lines()) {
        let (stamp, text) = line.split_once(' ').unwrap();
        assert!(
            stamp.parse::<jiff::Timestamp>().is_ok() && text == plain,
            "{line}"
        );
    }
    let third = stamped.lines().nth(2).unwrap().split_once(' ').unwrap().0;
    let since = kube.run(["logs", "counter", &format!("--since-time={third}")]);
    assert!(
        since.ends_with("line 3\nline 4\nline 5\nto stderr\n"),
        "{since}"
    );
    let error = kube.try_run(["logs", "counter", "--previous"]).unwrap_err();
    assert!(
        error.contains("previous terminated container \"main\" in pod \"counter\" not found"),
        "{error}"
    );
    let error = kube
        .try_run(["logs", "counter", "-c", "other"])
        .unwrap_err();
    assert!(
        error.contains("container other is not valid for pod counter"),
        "{error}"
    );
}

fn previous_logs(kube: &Kube) {
    kube.eventually("a restart", || {
        kube.field("restarter", ".status.containerStatuses[0].restartCount") == "1"
    });
    kube.eventually("the second log", || {
        kube.try_run(["logs", "restarter"])
            .is_ok_and(|l| l == "second\n")
    });
    assert_eq!(kube.run(["logs", "restarter", "--previous"]), "first\n");
    assert_eq!(
        kube.field(
            "restarter",
            ".status.containerStatuses[0].lastState.terminated.exitCode"
        ),
        "3"
    );
}

/// Items 121, 122 and 124: kubectl 1.27 speaks SPDY, 1.33 WebSocket.
fn exec(kube: &Kube) {
    let failing = "echo out; echo err >&2; exit 7";
    let out = kube
        .command(["exec", "shell", "--", "/bin/sh", "-c", failing])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&out.stdout), "out\n");
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        "err\ncommand terminated with exit code 7\n"
    );

    let out = kube.pipe(&["exec", "-i", "shell", "--", "cat"], b"hi\n");
    assert!(out.status.success() && out.stdout == b"hi\n", "{out:?}");
    let much: Vec<u8> = (0..3_000_000_u32)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    let out = kube.pipe(&["exec", "-i", "shell", "--", "cat"], &much);
    assert!(
        out.status.success() && out.stdout == much,
        "{} of {} bytes came back",
        out.stdout.len(),
        much.len()
    );
    // A command that ends before it has read everything ends kubectl as well.
    let out = kube.pipe(&["exec", "-i", "shell", "--", "head", "-c", "5"], &much);
    assert!(
        out.status.success() && out.stdout == much[..5],
        "{:?}",
        out.status
    );

    // What a command leaves behind may hold its output open; the command's end still is the end.
    let begun = Instant::now();
    assert_eq!(kube.exec("shell", "sleep 1000 & echo left"), "left\n");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );

    let error = kube
        .try_run(["exec", "shell", "--", "/no/such/program"])
        .unwrap_err();
    assert!(error.contains("/no/such/program"), "{error}");
    let error = kube
        .try_run(["exec", "shell", "-c", "other", "--", "true"])
        .unwrap_err();
    assert!(
        error.contains("container other is not valid for pod shell"),
        "{error}"
    );
    let error = kube.try_run(["exec", "counter", "--", "true"]).unwrap_err();
    assert!(
        error.contains("cannot exec into a container in a completed pod"),
        "{error}"
    );
}

/// Runs a shell line under `script`, which gives it a terminal; types once the marker has been shown: before that the
/// terminal may not be raw. Returns what the terminal showed and the exit code.
fn under_terminal(kube: &Kube, line: &str, marker: &str, input: &str) -> (String, Option<i32>) {
    let mut child = std::process::Command::new("timeout")
        .args(["60", "script", "-qec", line, "/dev/null"])
        .env("KUBECONFIG", &kube.cluster.kubeconfig)
        .env("KUBECTL", &kube.binary)
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
    let mut to_type = Some(input);
    while let Ok(read @ 1..) = stdout.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..read]);
        if String::from_utf8_lossy(&shown).contains(marker)
            && let Some(text) = to_type.take()
        {
            stdin.write_all(text.as_bytes()).unwrap();
        }
    }
    let status = child.wait().unwrap();
    (String::from_utf8_lossy(&shown).into_owned(), status.code())
}

fn terminal(kube: &Kube) {
    if crate::harness::program("script").is_none() {
        return;
    }
    let size = "stty rows 33 cols 101; exec \"$KUBECTL\" exec -it shell -- /bin/sh -c 'sleep 0.5; tty; stty size; exit 4'";
    let (shown, code) = under_terminal(kube, size, "/dev/pts", "");
    assert!(
        shown.contains("/dev/pts/") && shown.contains("33 101"),
        "{shown}"
    );
    assert_eq!(code, Some(4), "{shown}");
    let interactive = "exec \"$KUBECTL\" exec -it shell -- /bin/sh -c 'echo go; exec /bin/sh'";
    let (shown, code) = under_terminal(kube, interactive, "go\r\n", "echo $((40+2))\nexit 5\n");
    assert!(shown.contains("42\r\n"), "{shown:?}");
    assert_eq!(code, Some(5), "{shown}");
}

fn attach(kube: &Kube) {
    kube.create(&pod(
        "reader",
        "Never",
        &format!("echo hello; {ECHO}"),
        "stdin: true\nstdinOnce: true",
    ));
    kube.wait_ready("reader");
    let out = kube.pipe(&["attach", "-i", "reader"], b"a\nb\n");
    assert!(out.status.success(), "{out:?}");
    // The container ends when its only standard input does.
    kube.wait_phase("reader", "Succeeded");
    assert_eq!(kube.run(["logs", "reader"]), "hello\ngot a\ngot b\nend\n");

    // Where others may come after, a client goes when it has said all, and the container goes on.
    kube.create(&pod(
        "open",
        "Never",
        &format!("echo hello; {ECHO}"),
        "stdin: true",
    ));
    kube.wait_ready("open");
    for (said, so_far) in [("a\n", "hello\ngot a\n"), ("b\n", "hello\ngot a\ngot b\n")] {
        let out = kube.pipe(&["attach", "-i", "open"], said.as_bytes());
        assert!(out.status.success(), "{out:?}");
        kube.eventually("what was said", || kube.run(["logs", "open"]) == so_far);
    }
    assert_eq!(kube.field("open", ".status.phase"), "Running");

    // Without standard input attach shows what comes.
    kube.create(&pod(
        "ticker",
        "Never",
        "while [ ! -e /tmp/stop ]; do echo tick; sleep 0.1; done",
        "",
    ));
    kube.wait_ready("ticker");
    let mut watching = kube.spawn(&["attach", "ticker"]);
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "tick");
    // From the background: the container's end would take a command with it that has not ended yet.
    kube.exec("ticker", "{ sleep 0.5; touch /tmp/stop; } &");
    assert!(lines.all(|line| line.unwrap() == "tick"));
    assert!(
        watching.wait().unwrap().success(),
        "attach ends well when the container does"
    );

    // What everybody types first.
    let args = [
        "run",
        "once",
        "-i",
        "--rm",
        "--restart=Never",
        "--image=davit.local/host",
        "--command",
        "--",
        "cat",
    ];
    let out = kube.pipe(&args, b"through\n");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("through\n") && text.contains("pod \"once\" deleted"),
        "{out:?}"
    );
    // kubectl waits for the pod by a watch, in protobuf from 1.33 on.
    let complaints = String::from_utf8_lossy(&out.stderr);
    assert!(
        !complaints.contains("watch ended with error"),
        "{complaints}"
    );

    if crate::harness::program("script").is_some() {
        kube.create(&pod("typed", "Never", TYPED, "stdin: true\ntty: true"));
        kube.wait_ready("typed");
        let line = "stty rows 34 cols 102; exec \"$KUBECTL\" attach -it typed";
        let (shown, code) = under_terminal(kube, line, "ready", "word\r");
        assert!(
            shown.contains("got word\r\n") && shown.contains("34 102\r\n"),
            "{shown:?}"
        );
        // The end of the container is no failure of attach.
        assert_eq!(code, Some(0), "{shown}");
        kube.wait_phase("typed", "Failed");
    }
}

/// Item 126.
fn copy(kube: &Kube) {
    let from = kube.dir().join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    let content: Vec<u8> = (0..1_000_000_u32)
        .map(|n| u8::try_from(n % 253).unwrap())
        .collect();
    std::fs::write(from.join("sub/file"), &content).unwrap();
    let path = |p: &std::path::Path| p.display().to_string();
    kube.run(["cp", &path(&from), "shell:/tmp/copied"]);
    assert_eq!(
        kube.exec("shell", "wc -c </tmp/copied/sub/file").trim(),
        "1000000"
    );
    let back = kube.dir().join("back");
    kube.run(["cp", "shell:/tmp/copied/sub/file", &path(&back)]);
    assert!(std::fs::read(back).unwrap() == content);
    // The container's root is its own: nothing of it reaches the host.
    assert!(!std::path::Path::new("/tmp/copied").exists());
}

/// Item 125.
fn port_forward(kube: &Kube) {
    let mut forwarding = kube.spawn(&["port-forward", "pod/web", ":8080"]);
    let mut lines = BufReader::new(forwarding.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let port: u16 = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.split_once(' ')?.0.parse().ok())
        .unwrap_or_else(|| panic!("{line}"));
    let get = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(b"GET /zero HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..200.min(answer.len())]).into_owned();
        assert!(text.contains(" 200 OK\r\n"), "{text}");
        assert!(answer.len() > 300_000, "{} bytes", answer.len());
    };
    get();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(get);
        }
    });
    get();
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
}
