//! Plugins here are shell scripts that write down what they are called with; no privileges are needed.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// Notes environment and input, then answers with the file `NAME.COMMAND` if there is one.
const NOTING: &str = r#"#!/bin/sh
me=$(basename "$0")
dir=$(dirname "$0")
in="$dir/in.$$"
cat > "$in"
{ echo "== $me $CNI_COMMAND"; env | grep '^CNI_' | sort; cat "$in"; echo; } > "$in.call"
cat "$in.call" >> "$dir/calls"
[ -e "$dir/$me.$CNI_COMMAND" ] || exit 0
. "$dir/$me.$CNI_COMMAND"
"#;

struct Bench {
    dir: tempfile::TempDir,
    cni: Cni,
}

impl Bench {
    fn new(conflist: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["conf", "bin", "cache"] {
            fs::create_dir(path(name)).unwrap();
        }
        if !conflist.is_empty() {
            fs::write(path("conf/10-test.conflist"), conflist).unwrap();
        }
        let cni = Cni::new(CniOptions {
            conf_dir: path("conf"),
            bin_dirs: vec![path("missing"), path("bin")],
            cache_dir: path("cache"),
            wished_addresses: false,
        });
        Self { dir, cni }
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn plugin(&self, name: &str) {
        self.write(&format!("bin/{name}"), NOTING, 0o755);
    }

    /// What a plugin does at a command, as lines of shell.
    fn answer(&self, name: &str, command: &str, script: &str) {
        self.write(&format!("bin/{name}.{command}"), script, 0o644);
    }

    /// The calls so far: (plugin and command, variables, input).
    fn calls(&self) -> Vec<(String, String, Value)> {
        let text = fs::read_to_string(self.dir.path().join("bin/calls")).unwrap_or_default();
        let calls = text.split("== ").filter(|c| !c.is_empty());
        let parse = |call: &str| {
            let mut lines: Vec<&str> = call.trim_end().lines().collect();
            let input = serde_json::from_str(lines.pop().unwrap()).unwrap();
            (lines[0].to_owned(), lines[1..].join("\n"), input)
        };
        calls.map(parse).collect()
    }

    fn called(&self) -> Vec<String> {
        self.calls().into_iter().map(|(what, ..)| what).collect()
    }

    fn cached(&self) -> usize {
        fs::read_dir(self.dir.path().join("cache")).unwrap().count()
    }
}

fn pod(id: &str) -> PodNetwork {
    PodNetwork {
        sandbox_id: id.to_owned(),
        name: "web".to_owned(),
        namespace: "default".to_owned(),
        uid: "u1".to_owned(),
        netns: "/proc/self/ns/net".into(),
        ports: vec![davit_proto::cri::v1::PortMapping {
            protocol: 0,
            container_port: 80,
            host_port: 8080,
            host_ip: String::new(),
        }],
        ..PodNetwork::default()
    }
}

const TWO: &str = r#"{"cniVersion": "0.4.0", "name": "net", "plugins": [
    {"type": "first", "mtu": 1400, "ipam": {"type": "host-local"}},
    {"type": "second", "capabilities": {"portMappings": true, "bandwidth": true, "dns": false}}]}"#;

fn two(answer: &str) -> Bench {
    let bench = Bench::new(TWO);
    bench.plugin("first");
    bench.plugin("second");
    bench.answer("first", "ADD", &format!("echo '{answer}'"));
    bench.answer(
        "second",
        "ADD",
        "sed 's/.*\"prevResult\":\\({.*}\\),\"runtimeConfig.*/\\1/' \"$in\"",
    );
    bench
}

const ANSWER: &str =
    r#"{"ips":[{"address":"fd00::2/64","version":"6"},{"address":"10.9.0.2/24","version":"4"}]}"#;

#[tokio::test]
async fn checklist_10_11_152_the_calls_of_a_chain() {
    let bench = two(ANSWER);
    let pod = pod("abc");
    assert_eq!(
        bench.cni.attach(&pod).await.unwrap(),
        ["10.9.0.2", "fd00::2"]
    );
    bench.cni.check(&pod).await.unwrap();
    bench.cni.detach(&pod).await.unwrap();
    let calls = bench.calls();
    let order: Vec<&str> = calls.iter().map(|(what, ..)| what.as_str()).collect();
    let expected = [
        "first ADD",
        "second ADD",
        "first CHECK",
        "second CHECK",
        "second DEL",
        "first DEL",
    ];
    assert_eq!(order, expected);
    let bin = bench.dir.path().join("bin");
    let missing = bench.dir.path().join("missing");
    assert_eq!(
        calls[0].1,
        format!(
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
             K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u1\nCNI_COMMAND=ADD\nCNI_CONTAINERID=abc\n\
             CNI_IFNAME=eth0\nCNI_NETNS=/proc/self/ns/net\nCNI_PATH={}:{}",
            missing.display(),
            bin.display()
        )
    );
    // A plugin sees its own keys, and only what it asked for of what the runtime offers.
    assert_eq!(
        calls[0].2,
        json!({"cniVersion": "0.4.0", "name": "net", "type": "first", "mtu": 1400, "ipam": {"type": "host-local"}})
    );
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]);
    let result = json!({"cniVersion": "0.4.0", "ips": [
        {"address": "fd00::2/64", "version": "6"}, {"address": "10.9.0.2/24", "version": "4"}]});
    let second = json!({
        "cniVersion": "0.4.0", "name": "net", "type": "second",
        "capabilities": {"portMappings": true, "bandwidth": true, "dns": false},
        "runtimeConfig": {"portMappings": ports}, "prevResult": result,
    });
    for at in [1, 3, 4] {
        assert_eq!(calls[at].2, second, "{}", calls[at].0);
    }
    assert_eq!(calls[5].2["prevResult"], result);
    assert_eq!(bench.cached(), 0);
    // DEL again is nothing.
    bench.cni.detach(&pod).await.unwrap();
    assert_eq!(bench.calls().len(), 6);
}

#[tokio::test]
async fn a_delete_goes_by_the_configuration_of_its_add() {
    let bench = two(ANSWER);
    let pod = pod("abc");
    bench.cni.attach(&pod).await.unwrap();
    bench.write("conf/10-test.conflist", "{}", 0o644);
    bench.answer(
        "second",
        "DEL",
        "echo '{\"code\": 7, \"msg\": \"not now\", \"details\": \"later\"}'; exit 1",
    );
    let error = bench.cni.detach(&pod).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "plugin type=\"second\" failed (delete): not now; later"
    );
    assert_eq!(bench.cached(), 1, "it is tried again");
    bench.answer("second", "DEL", "");
    bench.cni.detach(&pod).await.unwrap();
    assert_eq!(bench.cached(), 0);
}

#[tokio::test]
async fn leftovers_are_disconnected_at_start() {
    let bench = two(ANSWER);
    bench.cni.attach(&pod("living")).await.unwrap();
    bench.cni.attach(&pod("dead")).await.unwrap();
    // One that was cut short: its address is taken, but nobody answered.
    bench.answer("second", "ADD", "exit 3");
    bench.cni.attach(&pod("torn")).await.unwrap_err();
    let before = bench.calls().len();
    bench
        .cni
        .collect(&BTreeSet::from(["living".to_owned()]))
        .await
        .unwrap();
    let calls = bench.calls().split_off(before);
    let mut ids: Vec<&str> = calls
        .iter()
        .map(|(_, env, _)| {
            env.split("CNI_CONTAINERID=")
                .nth(1)
                .unwrap()
                .lines()
                .next()
                .unwrap()
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["dead", "dead", "torn", "torn"]);
    assert!(calls.iter().all(|(what, ..)| what.ends_with(" DEL")));
    assert_eq!(bench.cached(), 1);
}

#[tokio::test]
async fn errors_are_worded_as_libcni_words_them() {
    let bench = two(ANSWER);
    for (script, text) in [
        (
            "echo '{\"code\": 11, \"msg\": \"try again\"}'; exit 1",
            "try again",
        ),
        (
            "exit 2",
            "netplugin failed with no error message: exit status 2",
        ),
        ("echo oh >&2; exit 1", "netplugin failed: \"oh\\n\""),
        (
            "echo oh; exit 1",
            "netplugin failed but error parsing its diagnostic message \"oh\\n\": ",
        ),
        ("echo oh", "error parsing the plugin's result \"oh\\n\": "),
    ] {
        bench.answer("first", "ADD", script);
        let error = bench.cni.attach(&pod("abc")).await.unwrap_err().to_string();
        let expected = format!("plugin type=\"first\" failed (add): {text}");
        assert!(error.starts_with(&expected), "{error}");
    }
    fs::remove_file(bench.dir.path().join("bin/second")).unwrap();
    bench.answer("first", "ADD", &format!("echo '{ANSWER}'"));
    let error = bench.cni.attach(&pod("abc")).await.unwrap_err().to_string();
    let (a, b) = (
        bench.dir.path().join("missing"),
        bench.dir.path().join("bin"),
    );
    assert_eq!(
        error,
        format!(
            "plugin type=\"second\" failed (add): failed to find plugin \"second\" in path [{} {}]",
            a.display(),
            b.display()
        )
    );
}

#[tokio::test]
async fn a_pod_without_address_is_refused() {
    let bench = two(
        "{\"interfaces\":[{\"name\":\"eth1\"}],\"ips\":[{\"interface\":0,\"address\":\"10.9.0.2/24\"}]}",
    );
    let error = bench.cni.attach(&pod("abc")).await.unwrap_err().to_string();
    assert_eq!(error, "failed to find network info for sandbox \"abc\"");
}

#[tokio::test]
async fn readiness_needs_a_configuration() {
    let bench = Bench::new("");
    let says = async || bench.cni.ready().await.unwrap_err().to_string();
    let none = "Network plugin returns error: cni plugin not initialized";
    assert_eq!(says().await, none);
    bench.write("conf/notes.txt", "no configuration", 0o644);
    assert_eq!(says().await, none);
    for (file, text, cause) in [
        ("20.conf", "{}", "missing 'type'"),
        (
            "10.conflist",
            "{\"name\": \"n\", \"plugins\": []}",
            "no plugins in list",
        ),
        (
            "09.conflist",
            "{\"plugins\": [{\"type\": \"a\"}]}",
            "no name",
        ),
        (
            "08.conflist",
            "{\"name\": \"../n\", \"plugins\": [{\"type\": \"a\"}]}",
            "invalid characters found in network name",
        ),
        (
            "07.conflist",
            "{\"name\": \"n\", \"cniVersion\": \"7.0.0\", \"plugins\": [{\"type\": \"a\"}]}",
            "unsupported CNI version \"7.0.0\"",
        ),
    ] {
        bench.write(&format!("conf/{file}"), text, 0o644);
        let text = says().await;
        assert!(
            text.starts_with(none) && text.contains(cause) && text.contains(file),
            "{text}"
        );
    }
    // A single plugin is a list of one; the first name wins.
    bench.write(
        "conf/05.conf",
        "{\"name\": \"n\", \"cniVersion\": \"0.3.1\", \"type\": \"a\"}",
        0o644,
    );
    bench.cni.ready().await.unwrap();
    let list = bench.cni.list().await.unwrap();
    assert_eq!((list.name.as_str(), list.plugins.len()), ("n", 1));
}

#[tokio::test]
async fn status_and_gc_of_version_1_1() {
    let bench = Bench::new(
        r#"{"cniVersions": ["0.4.0", "1.1.0", "9.0.0"], "cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]}"#,
    );
    bench.plugin("a");
    bench.answer(
        "a",
        "STATUS",
        "echo '{\"code\": 50, \"msg\": \"no uplink\"}'; exit 1",
    );
    assert_eq!(
        bench.cni.ready().await.unwrap_err().to_string(),
        "Network plugin returns error: plugin type=\"a\" failed (status): no uplink"
    );
    bench.answer("a", "STATUS", "");
    bench.cni.ready().await.unwrap();
    bench
        .cni
        .collect(&BTreeSet::from(["x".to_owned()]))
        .await
        .unwrap();
    let (what, variables, input) = bench.calls().pop().unwrap();
    assert_eq!(what, "a GC");
    assert!(variables.contains("CNI_CONTAINERID=\n"), "{variables}");
    let valid = json!([{"containerID": "x", "ifname": "eth0"}]);
    assert_eq!(input["cniVersion"], "1.1.0");
    assert_eq!(input["cni.dev/valid-attachments"], valid);
    assert_eq!(input["cni.dev/attachments"], valid);
}

#[tokio::test]
async fn older_versions_know_neither_status_nor_gc() {
    let bench = two(ANSWER);
    bench.cni.ready().await.unwrap();
    bench.cni.collect(&BTreeSet::new()).await.unwrap();
    assert!(bench.called().is_empty());
}

#[tokio::test]
async fn plugins_in_files_of_their_own() {
    let list = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]}"#;
    let bench = Bench::new(list);
    fs::create_dir(bench.dir.path().join("conf/net")).unwrap();
    bench.write("conf/net/1.conf", r#"{"type": "b"}"#, 0o644);
    assert_eq!(bench.cni.list().await.unwrap().plugins.len(), 2);
    let inlined = list.replace("\"name\"", "\"loadOnlyInlinedPlugins\": true, \"name\"");
    bench.write("conf/10-test.conflist", &inlined, 0o644);
    assert_eq!(bench.cni.list().await.unwrap().plugins.len(), 1);
}

#[tokio::test]
async fn a_plugin_that_hangs_goes_with_its_children_when_given_up() {
    let bench = two(ANSWER);
    let file = bench.dir.path().join("alive");
    let touch = format!(
        "(while :; do date > {}; sleep 0.05; done) & sleep 100",
        file.display()
    );
    bench.answer("first", "ADD", &touch);
    let pod = pod("abc");
    let attach = bench.cni.attach(&pod);
    let given_up = tokio::time::timeout(Duration::from_secs(1), attach).await;
    assert!(given_up.is_err());
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let _ = fs::remove_file(&file);
        tokio::time::sleep(Duration::from_millis(300)).await;
        if !file.exists() {
            break;
        }
        assert!(Instant::now() < deadline, "the plugin's child lives on");
    }
}

/// One that leaves a program in the background, which holds its outputs, has answered all the same.
#[tokio::test]
async fn a_program_that_is_left_in_the_background_holds_nobody_up() {
    let bench = two(ANSWER);
    let script = format!("setsid sleep 30 & echo $! > $dir/pid; echo '{ANSWER}'");
    bench.answer("first", "ADD", &script);
    let pod = pod("abc");
    let attach = tokio::time::timeout(Duration::from_secs(20), bench.cni.attach(&pod));
    assert_eq!(attach.await.unwrap().unwrap(), ["10.9.0.2", "fd00::2"]);
    let pid = fs::read_to_string(bench.dir.path().join("bin/pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_plugin_says_no_more_than_anybody_reads() {
    let bench = two(ANSWER);
    for script in [
        "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1",
        "head -c 10000000 /dev/zero | tr '\\0' x; exit 1",
        "head -c 10000000 /dev/zero | tr '\\0' x",
        "printf '{\"msg\": \"'; head -c 1000000 /dev/zero | tr '\\0' x; echo '\"}'; exit 1",
    ] {
        bench.answer("first", "ADD", script);
        let error = bench.cni.attach(&pod("abc")).await.unwrap_err().to_string();
        assert!((4_000..10_000).contains(&error.len()), "{}", error.len());
    }
}

/// The node's status waits for it.
#[tokio::test]
async fn plugins_that_do_not_say_how_they_are_have_a_limit() {
    let mut bench =
        Bench::new(r#"{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "a"}]}"#);
    bench.plugin("a");
    bench.answer("a", "STATUS", "sleep 100");
    bench.cni.status_limit = Duration::from_millis(200);
    let asked = tokio::time::timeout(Duration::from_secs(20), bench.cni.ready());
    let error = asked.await.unwrap().unwrap_err().to_string();
    assert!(error.ends_with("plugins do not answer STATUS"), "{error}");
}

/// Whoever may create pods would have another's address, and what network policies let that one do.
#[tokio::test]
async fn pods_choose_addresses_where_they_may() {
    let list = TWO.replace(r#""dns": false"#, r#""ips": true"#);
    let mut bench = Bench::new(&list);
    bench.plugin("first");
    bench.plugin("second");
    let mut pod = pod("abc");
    let wish = ("davit.dev/pod-ips".to_owned(), "10.9.0.7/24".to_owned());
    pod.annotations.extend([wish]);
    let refused = bench.cni.attach(&pod).await.unwrap_err();
    assert!(refused.0.contains("without --cni-pod-ips"), "{refused}");
    assert!(bench.calls().is_empty(), "no plugin hears of it");
    bench.cni.wished_addresses = true;
    bench.answer("first", "ADD", &format!("echo '{ANSWER}'"));
    let _answered = bench.cni.attach(&pod).await;
    let given = bench.calls().pop().unwrap().2;
    assert_eq!(given["runtimeConfig"]["ips"], json!(["10.9.0.7/24"]));
}
