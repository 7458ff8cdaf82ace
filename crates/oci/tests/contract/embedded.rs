//! The embedded runtime.

use crate::{contract, image, run_tests};
use davit_oci::contract::{Pod, Setup, Test, shell};
use davit_oci::{Embedded, EmbeddedOptions, Runtime};
use davit_proto::cri::v1 as cri;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HELPER: &str = "contract-helper";

fn options(dir: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(dir.join("root"));
    options.cgroup_parent = format!("/davit-contract-{}", std::process::id());
    options.allow_host_image = true;
    options.cdi_dirs = vec![dir.join("cdi")];
    options
}

async fn open(dir: &Path) -> Embedded {
    Embedded::new(options(dir)).await.expect("open runtime")
}

fn setup(runtime: Embedded, dir: &Path) -> Setup {
    Setup {
        runtime: Arc::new(runtime),
        image: image::NAME.to_owned(),
        dir: dir.to_owned(),
        cgroup_parent: format!("/davit-contract-{}", std::process::id()),
    }
}

/// A davit that is going to be killed: starts containers and prints their IDs.
pub(crate) fn helper_if_invoked() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) != Some(HELPER) {
        return;
    }
    let dir = PathBuf::from(&args[2]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let setup = setup(open(&dir).await, &dir);
        let pod = Pod::run(&setup).await;
        let mut counter = pod.container(shell(
            "i=0; while true; do i=$((i+1)); echo $i; sleep 0.02; done",
        ));
        counter.log_path = "counter.log".to_owned();
        let one = pod.start(counter).await;
        let two = pod.start(pod.container(shell("sleep 1; exit 6"))).await;
        let three = pod.create(pod.container(shell("exit 8"))).await;
        let four = pod.create(pod.container(shell("exit 9"))).await;
        println!(
            "{} {one} {two} {three} {four} {}",
            pod.id, pod.config.log_directory
        );
        std::future::pending::<()>().await;
    });
}

async fn pid_of(setup: &Setup, id: &str) -> String {
    let out = setup
        .runtime
        .exec_sync(
            id,
            shell("cut -d' ' -f22 /proc/1/stat"),
            Duration::from_secs(5),
            1 << 20,
        )
        .await
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// A davit that was killed leaves its containers running; the next one takes them over.
async fn adoption(_: Setup) {
    use std::io::BufRead;
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let archive = dir.join("image.tar");
    image::write(&image::busybox().unwrap(), &archive);
    {
        let runtime = open(dir).await;
        let images = runtime.images().clone();
        tokio::task::spawn_blocking(move || images.import(&archive))
            .await
            .unwrap()
            .unwrap();
    }
    let mut helper = std::process::Command::new("/proc/self/exe")
        .args([HELPER, &dir.to_string_lossy()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(helper.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    helper.kill().unwrap();
    helper.wait().unwrap();
    let ids: Vec<&str> = line.split_whitespace().collect();
    let [pod, one, two, three, four, logs] = ids[..] else {
        panic!("{line:?}")
    };
    tokio::time::sleep(Duration::from_millis(1300)).await; // the second ends while nobody is there
    let file = |id: &str, name: &str| dir.join("root/containers").join(id).join(name);
    // davit was killed before the third's monitor was there; the fourth's takes its time and fails.
    std::fs::write(file(three, "started"), "").unwrap();
    let slow = std::fs::File::create(file(four, "started")).unwrap();
    slow.lock().unwrap();
    let exit = file(four, "exit.json");
    let slow = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(4));
        let record = serde_json::json!({
            "code": 128, "started_at": 1, "finished_at": 2, "reason": "StartError", "message": "slow",
        });
        std::fs::write(exit, record.to_string()).unwrap();
        drop(slow);
    });

    let begin = Instant::now();
    let setup = setup(open(dir).await, dir);
    println!("  adopted in {:?}", begin.elapsed());
    let status = |id: &str| {
        let (runtime, id) = (setup.runtime.clone(), id.to_owned());
        async move { runtime.container_status(&id).await.unwrap() }
    };
    assert_eq!(
        status(one).await.state,
        cri::ContainerState::ContainerRunning as i32
    );
    let ended = status(two).await;
    assert_eq!(
        (ended.state, ended.exit_code),
        (cri::ContainerState::ContainerExited as i32, 6)
    );
    assert!(
        ended.finished_at - ended.started_at > 900_000_000,
        "the true times"
    );
    slow.join().unwrap();
    assert_eq!(status(four).await.reason, "StartError");
    assert_eq!(
        status(three).await.state,
        cri::ContainerState::ContainerCreated as i32
    );
    let sandbox = setup.runtime.pod_sandbox_status(pod).await.unwrap();
    assert_eq!(sandbox.state, cri::PodSandboxState::SandboxReady as i32);

    let before = pid_of(&setup, one).await;
    let log = || {
        std::fs::read_to_string(Path::new(logs).join("counter.log"))
            .unwrap()
            .lines()
            .count()
    };
    let lines = log();
    setup.runtime.start_container(three).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(log() > lines, "its output is still logged");
    assert_eq!(pid_of(&setup, one).await, before, "it was not restarted");
    assert_eq!(status(three).await.exit_code, 8);
    setup
        .runtime
        .stop_container(one, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(status(one).await.exit_code, 137);
    setup.runtime.remove_pod_sandbox(pod).await.unwrap();
    assert!(
        setup
            .runtime
            .list_containers(None)
            .await
            .unwrap()
            .is_empty()
    );
}

/// A container whose monitor is killed does not outlive it, and its end is reported as unknown.
async fn lost_monitor(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 1000"))).await;
    let state = std::fs::read_to_string(
        setup
            .dir
            .join("root/containers")
            .join(&id)
            .join("state.json"),
    )
    .unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let kill = |pid: &serde_json::Value| {
        std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
    };
    kill(&state["monitor"]);
    let status = pod.wait(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
    let proc = format!("/proc/{}", state["pid"]);
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::fs::read_to_string(format!("{proc}/stat")).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(Instant::now() < deadline, "the container lives on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pod.remove().await;
}

/// The host's root as an image: everything is there, nothing of it can be changed.
async fn host_image(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let marker = format!("/davit-host-image-{}", std::process::id());
    let mut config = pod.container(shell(&format!(
        "ls /etc/passwd; touch {marker} && echo written; id -u"
    )));
    config.image.as_mut().unwrap().image = davit_oci::image::HOST_IMAGE.to_owned();
    let (code, text) = pod.output(config).await;
    assert_eq!((code, text.as_str()), (0, "/etc/passwd\nwritten\n0\n"));
    assert!(!Path::new(&marker).exists());
    pod.remove().await;
}

/// Nothing stays behind: no cgroups, no mounts, no processes, no directories.
async fn clean(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let container = pod.start(pod.container(shell("sleep 1000"))).await;
    pod.output(pod.container(shell("true"))).await;
    let id = pod.id.clone();
    let cgroup = pod
        .config
        .linux
        .as_ref()
        .unwrap()
        .cgroup_parent
        .trim_start_matches('/')
        .to_owned();
    pod.remove().await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&id), "{mounts}");
    for entry in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        assert!(
            !entry.path().join(&cgroup).exists(),
            "{:?}",
            entry.path().join(&cgroup)
        );
    }
    for dir in [
        "root/containers",
        "root/sandboxes",
        "root/run/sandboxes",
        "root/run/containers",
    ] {
        let left: Vec<_> = std::fs::read_dir(setup.dir.join(dir))
            .unwrap()
            .flatten()
            .map(|e| e.path())
            .collect();
        let ours = |path: &&PathBuf| {
            path.to_string_lossy().contains(&id) || path.to_string_lossy().contains(&container)
        };
        assert!(!left.iter().any(|path| ours(&path)), "{left:?}");
    }
}

/// Many containers at once; also the figures.
async fn figures(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut times = Vec::new();
    for _ in 0..30 {
        let begin = Instant::now();
        let config = pod.container(vec!["/bin/true".into()]);
        let id = pod.start(config).await;
        pod.wait(&id).await;
        setup.runtime.remove_container(&id).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    println!(
        "  create+start+exit+delete: median {:?}, worst {:?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );

    let begin = Instant::now();
    let pod = Arc::new(pod);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let pod = pod.clone();
        tasks.spawn(async move { pod.start(pod.container(shell("sleep 1000"))).await });
    }
    let ids: Vec<String> = tasks.join_all().await;
    println!(
        "  50 containers at once: running after {:?}",
        begin.elapsed()
    );
    let mut memory = Vec::new();
    for id in &ids {
        let state = std::fs::read_to_string(
            setup
                .dir
                .join("root/containers")
                .join(id)
                .join("state.json"),
        )
        .unwrap();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        let rollup =
            std::fs::read_to_string(format!("/proc/{}/smaps_rollup", state["monitor"])).unwrap();
        let field = |name: &str| -> u64 {
            rollup
                .lines()
                .find(|l| l.starts_with(name))
                .unwrap()
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse()
                .unwrap()
        };
        memory.push((field("Pss:"), field("Private_Dirty:"), field("Rss:")));
    }
    memory.sort();
    println!(
        "  monitor memory in KiB (PSS, private dirty, RSS), median of 50: {:?}",
        memory[25]
    );
    let begin = Instant::now();
    Arc::into_inner(pod).unwrap().remove().await;
    println!("  50 containers removed in {:?}", begin.elapsed());
}

fn ip(args: &str) -> bool {
    let output = std::process::Command::new("ip")
        .args(args.split_whitespace())
        .output();
    output.is_ok_and(|output| output.status.success())
}

/// A CDI file of version 1.1.0 with one device.
fn cdi(setup: &Setup, device: &str, edits: &serde_json::Value) -> cri::CdiDevice {
    let dir = setup.dir.join("cdi");
    std::fs::create_dir_all(&dir).unwrap();
    let spec = serde_json::json!({"cdiVersion": "1.1.0", "kind": "lab.davit.dev/thing",
        "devices": [{"name": device, "containerEdits": edits}]});
    std::fs::write(dir.join(format!("{device}.json")), spec.to_string()).unwrap();
    cri::CdiDevice {
        name: format!("lab.davit.dev/thing={device}"),
    }
}

/// A network device of the host is there for each container of a pod that names it, and on the host when the pod ends.
async fn net_devices(setup: Setup) {
    let host = format!("dvc{}", std::process::id() % 100_000);
    if !ip(&format!("link add {host}a type veth peer name {host}b")) {
        println!("  skipped: no ip, or a kernel without veth");
        return;
    }
    let edits = |host: &str| serde_json::json!({"netDevices": [{"hostInterfaceName": host, "name": "fast0"}]});
    let device = cdi(&setup, "net", &edits(&format!("{host}a")));
    assert!(ip(&format!("addr add 192.0.2.9/24 dev {host}a")));
    let pod = Pod::run_isolated(&setup).await;
    let container = |script: &str| {
        let mut container = pod.container(shell(script));
        container.cdi_devices = vec![device.clone()];
        container
    };
    // One after the other, as when a container starts again, and one beside another.
    let show = "cat /proc/net/dev /proc/net/fib_trie";
    let _beside = pod.start(container("sleep 1000")).await;
    for _ in 0..2 {
        let (code, shown) = pod.output(container(show)).await;
        assert_eq!(code, 0, "{shown}");
        assert!(
            shown.contains("fast0:") && shown.contains("192.0.2.9"),
            "{shown}"
        );
    }
    assert!(!ip(&format!("link show {host}a")), "it is in the pod");
    pod.remove().await;
    assert!(ip(&format!("link show {host}a")), "it is back");

    let missing = cdi(&setup, "none", &edits("dvc-none"));
    let pod = Pod::run_isolated(&setup).await;
    let mut wanted = pod.container(shell("true"));
    wanted.cdi_devices = vec![missing];
    let id = pod.create(wanted).await;
    let error = setup.runtime.start_container(&id).await.unwrap_err();
    let why = "network device \"dvc-none\" is not on this machine";
    assert!(error.to_string().contains(why), "{error}");
    pod.remove().await;

    let pod = Pod::run(&setup).await;
    let mut wanted = pod.container(shell("true"));
    wanted.cdi_devices = vec![device];
    let refused = setup
        .runtime
        .create_container(&pod.id, wanted, pod.config.clone());
    let error = refused.await.unwrap_err();
    assert!(error.to_string().contains("network of its own"), "{error}");
    pod.remove().await;
    assert!(ip(&format!("link del {host}b")));
}

/// A hook that is run in the container is one of its programs: the image says what is at its path.
async fn hooks(setup: Setup) {
    let script = "grep -E '^(Uid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status > /hook";
    let hook = serde_json::json!({"hooks": [{"hookName": "startContainer", "path": "/bin/sh",
        "args": ["sh", "-c", script], "env": ["PATH=/bin"]}]});
    let device = cdi(&setup, "hook", &hook);
    let alone = Pod::run(&setup).await;
    let shared = Pod::run_with(&setup, |config| {
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod as i32;
    })
    .await;
    for pod in [alone, shared] {
        // Where the hook finds itself below /proc it is in the container's namespace of processes.
        let same =
            "grep -E '^(Uid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status | diff - /hook";
        let mut container = pod.container(shell(same));
        container.cdi_devices = vec![device.clone()];
        let (code, shown) = pod.output(container).await;
        assert_eq!(code, 0, "the hook is more than the container: {shown}");
        pod.remove().await;
    }
}

/// A class of service needs a machine that has them.
async fn cache_classes(setup: Setup) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if mounts.lines().any(|line| line.contains(" resctrl ")) {
        println!("  skipped: resctrl is mounted, and whose classes they are is not known");
        return;
    }
    let pod = Pod::run(&setup).await;
    let mut wanted = pod.container(shell("true"));
    let edits = serde_json::json!({"intelRdt": {"closID": "gold"}});
    wanted.cdi_devices = vec![cdi(&setup, "gold", &edits)];
    let id = pod.create(wanted).await;
    let error = setup.runtime.start_container(&id).await.unwrap_err();
    let why = "intelRdt: resctrl is not mounted on this machine";
    assert!(error.to_string().contains(why), "{error}");
    pod.remove().await;
}

const OWN: &[Test] = &[
    ("net_devices", |setup| Box::pin(net_devices(setup))),
    ("cache_classes", |setup| Box::pin(cache_classes(setup))),
    ("hooks", |setup| Box::pin(hooks(setup))),
    ("adoption", |setup| Box::pin(adoption(setup))),
    ("lost_monitor", |setup| Box::pin(lost_monitor(setup))),
    ("host_image", |setup| Box::pin(host_image(setup))),
    ("clean", |setup| Box::pin(clean(setup))),
    ("figures", |setup| Box::pin(figures(setup))),
    ("pause", |setup| Box::pin(crate::confinement::pause(setup))),
    ("programs_by_descriptor", |setup| {
        Box::pin(crate::confinement::programs_by_descriptor(setup))
    }),
    ("null_devices", |setup| {
        Box::pin(crate::confinement::null_devices(setup))
    }),
    ("files_of_the_pod", |setup| {
        Box::pin(crate::confinement::files_of_the_pod(setup))
    }),
    ("memory_scores", |setup| {
        Box::pin(crate::confinement::memory_scores(setup))
    }),
    ("working_directories", |setup| {
        Box::pin(crate::confinement::working_directories(setup))
    }),
    ("programs_of_32_bits", |setup| {
        Box::pin(crate::confinement::programs_of_32_bits(setup))
    }),
    ("user_namespaces", |setup| {
        Box::pin(crate::confinement::user_namespaces(setup))
    }),
    ("keyrings", |setup| {
        Box::pin(crate::confinement::keyrings(setup))
    }),
    ("joining", |setup| {
        Box::pin(crate::confinement::joining(setup))
    }),
];

/// Runs everything on a runtime in a directory of its own.
pub(crate) async fn run(busybox: &Path, filters: &[String]) -> usize {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let archive = dir.join("image.tar");
    image::write(busybox, &archive);
    let runtime = open(dir).await;
    let images = runtime.images().clone();
    let names = tokio::task::spawn_blocking(move || images.import(&archive))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(names, [image::NAME]);
    let setup = setup(runtime.clone(), dir);
    let mut failed = run_tests("embedded", &setup, contract(), filters).await;
    failed += run_tests("embedded", &setup, OWN, filters).await;
    for sandbox in runtime.list_pod_sandboxes(None).await.unwrap() {
        let _ = runtime.remove_pod_sandbox(&sandbox.id).await;
    }
    crate::remove_cgroups("davit-contract-");
    failed
}
