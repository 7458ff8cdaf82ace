//! What processes of the runtime leave within a container's reach.

use davit_oci::contract::{Pod, Setup, shell};
use davit_proto::cri::v1 as cri;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The argument that makes this program look at all processes around it.
const WATCHER: &str = "contract-watcher";
/// Where containers find this program.
const PROGRAM: &str = "/watcher";

/// Inside a container: reports each process that offers more than this one has. Runs until it is ended.
pub(crate) fn helper_if_invoked() {
    if std::env::args().nth(1).as_deref() != Some(WATCHER) {
        return;
    }
    let own = std::fs::metadata("/").unwrap();
    // A directory of the host, which is in this container's image, too, but in no other's.
    let marker = std::env::args().nth(2).unwrap();
    let caps = capabilities("self").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    println!("watching");
    loop {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            if !pid.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            if seen.insert(pid.clone()) {
                println!("process {pid}");
            }
            if let Ok(root) = std::fs::metadata(format!("/proc/{pid}/root/"))
                && (root.dev(), root.ino()) != (own.dev(), own.ino())
                && std::fs::metadata(format!("/proc/{pid}/root{marker}")).is_ok()
            {
                println!("FOUND root of {pid}");
            }
            if let Some(more) = capabilities(&pid)
                && more & !caps != 0
            {
                println!("FOUND capabilities of {pid}: {more:x}");
            }
        }
    }
}

fn capabilities(pid: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("CapPrm:"))?;
    u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

/// A program that looks at its neighbours with the right to.
fn watcher(pod: &Pod, setup: &Setup) -> cri::ContainerConfig {
    let marker = setup.dir.display().to_string();
    let mut config = pod.container(vec![PROGRAM.into(), WATCHER.into(), marker]);
    davit_image(&mut config);
    config.log_path = "watcher.log".to_owned();
    config.mounts = vec![cri::Mount {
        container_path: PROGRAM.to_owned(),
        host_path: std::env::current_exe().unwrap().display().to_string(),
        readonly: true,
        ..cri::Mount::default()
    }];
    let context = context(&mut config);
    context.capabilities = Some(cri::Capability {
        add_capabilities: vec!["SYS_PTRACE".into()],
        ..cri::Capability::default()
    });
    config
}

/// The program is linked with the libraries of this machine.
fn davit_image(config: &mut cri::ContainerConfig) {
    davit_oci::image::HOST_IMAGE.clone_into(&mut config.image.as_mut().unwrap().image);
}

fn context(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
}

async fn shared(setup: &Setup) -> Pod {
    Pod::run_with(setup, |config| {
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod as i32;
    })
    .await
}

async fn until_seen(pod: &Pod, config: &cri::ContainerConfig, text: &str) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !pod.log(config).contains(text) {
        assert!(std::time::Instant::now() < deadline, "{}", pod.log(config));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The first process of a shared pid namespace has nothing that a container could take.
pub(crate) async fn pause(setup: Setup) {
    let pod = shared(&setup).await;
    let mut config = pod.container(shell(
        "grep -E '^(Name|Uid|Cap(Prm|Eff|Bnd)|Seccomp|NoNewPrivs):' /proc/1/status | tr -d '\\t '; \
         echo fds $(ls /proc/1/fd | wc -l); echo root $(ls -A /proc/1/root | wc -l); \
         touch /proc/1/root/x 2>/dev/null && echo written; \
         for n in net ipc uts; do [ $(readlink /proc/1/ns/$n) = $(readlink /proc/self/ns/$n) ] || echo other $n; done; \
         kill -9 1; kill 1; tr '\\0' ' ' < /proc/1/cmdline",
    ));
    context(&mut config).capabilities = Some(cri::Capability {
        add_capabilities: vec!["SYS_PTRACE".into()],
        ..cri::Capability::default()
    });
    let (code, text) = pod.output(config).await;
    assert_eq!(code, 0, "{text}");
    assert_eq!(
        text.lines().take(9).collect::<Vec<_>>(),
        [
            "Name:pause",
            "Uid:65535655356553565535",
            "CapPrm:0000000000000000",
            "CapEff:0000000000000000",
            "CapBnd:0000000000000000",
            "NoNewPrivs:1",
            "Seccomp:2",
            "fds 0",
            "root 0",
        ],
        "{text}"
    );
    assert!(
        !text.contains("other") && !text.contains("written"),
        "{text}"
    );
    // Orphans are still reaped.
    let id = pod
        .start(pod.container(shell("sh -c 'sleep 0.05 &'; sleep 60")))
        .await;
    let zombies = "for i in $(seq 200); do grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null || exit 0; sleep 0.05; done; exit 1";
    let answer = setup
        .runtime
        .exec_sync(&id, shell(zombies), Duration::from_secs(20), 1 << 20)
        .await;
    assert_eq!(answer.unwrap().exit_code, 0);
    pod.remove().await;
}

/// Working directories by magic links are no way out, of containers and of commands in them.
pub(crate) async fn working_directories(setup: Setup) {
    let pod = shared(&setup).await;
    for cwd in [
        "/proc/1/root",
        "/proc/self/fd/3",
        "/proc/self/cwd/x",
        "/proc/thread-self/fd/7/..",
    ] {
        let mut config = pod.container(shell("pwd; ls"));
        config.working_dir = cwd.to_owned();
        let id = pod.create(config).await;
        let error = setup.runtime.start_container(&id).await.unwrap_err();
        assert!(error.to_string().contains("chdir to cwd"), "{cwd}: {error}");
    }
    // The directory is a directory at the start, and exchanged for a link before the command comes.
    let mut config = pod.container(shell(
        "cd /; rmdir /work; ln -s /proc/1/root /work; touch /ready; sleep 60",
    ));
    config.working_dir = "/work".to_owned();
    let id = pod.start(config).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let answer = setup
            .runtime
            .exec_sync(&id, shell("pwd; ls"), Duration::from_secs(5), 1 << 20)
            .await;
        match answer {
            Err(error) => {
                assert!(error.to_string().contains("chdir to cwd"), "{error}");
                break;
            }
            // The directory itself, or what is left of one that has just been removed.
            Ok(answer) => assert!(
                std::time::Instant::now() < deadline
                    && [&b"/work\n"[..], b"\n"].contains(&&answer.stdout[..]),
                "{answer:?}"
            ),
        }
    }
    pod.remove().await;
}

/// What is open while a container is made is no way to its program: a name with `/proc/self/fd` in it, or a `PATH`, finds
/// nothing of other containers (CVE-2024-21626).
pub(crate) async fn programs_by_descriptor(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let victim = pod
        .start(pod.container(shell(
            "printf '#!/bin/sh\\necho of another' > /tmp/tool; chmod 755 /tmp/tool; touch /ready; sleep 60",
        )))
        .await;
    let state = setup.dir.join("root/containers").join(&victim);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !state.join("upper/ready").exists() {
        assert!(std::time::Instant::now() < deadline, "the victim is ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let run: serde_json::Value =
        serde_json::from_slice(&std::fs::read(state.join("state.json")).unwrap()).unwrap();
    let at = |fd: u32| format!("/proc/self/fd/{fd}/{}/root/tmp", run["pid"]);
    let mut config = pod.container(vec!["tool".to_owned()]);
    let path: Vec<String> = (3..40).map(at).collect();
    config.envs = vec![cri::KeyValue::new("PATH", path.join(":"))];
    let id = pod.create(config).await;
    let error = setup.runtime.start_container(&id).await.unwrap_err();
    assert!(error.to_string().contains("not found in $PATH"), "{error}");
    for fd in 3..24 {
        let id = pod
            .create(pod.container(vec![format!("{}/tool", at(fd))]))
            .await;
        let error = setup.runtime.start_container(&id).await.unwrap_err();
        let error = error.to_string();
        // The socket by which the monitor is told is no directory.
        let nowhere = error.contains("no such file") || error.contains("not a directory");
        assert!(nowhere, "{fd}: {error}");
    }
    pod.remove().await;
}

/// Standard descriptors that lead nowhere are the container's own `/dev/null`: what is done to it is done to nobody else's.
pub(crate) async fn null_devices(setup: Setup) {
    let before = std::fs::metadata("/dev/null").unwrap().mode();
    let pod = Pod::run(&setup).await;
    let change = "[ -c /proc/self/fd/0 ] && chmod 611 /proc/self/fd/0 && stat -c %a /dev/null";
    let (code, text) = pod.script(change).await;
    assert_eq!((code, text.trim()), (0, "611"), "{text}");
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let answer = setup
        .runtime
        .exec_sync(&id, shell(change), Duration::from_secs(10), 1 << 20)
        .await
        .unwrap();
    let host = std::fs::metadata("/dev/null").unwrap().mode();
    assert_eq!(host, before, "the host's has its mode");
    assert_eq!(answer.stdout, b"611\n", "{answer:?}");
    // Where there is no such device there is nothing to read all the same.
    let (code, text) = pod.script("rm /dev/null; sleep 0.1; cat; echo end").await;
    assert_eq!((code, text.trim()), (0, "end"));
    pod.remove().await;
}

/// What a container writes to files that were made for its pod counts.
pub(crate) async fn files_of_the_pod(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let script = "head -c 3000000 /dev/zero >> /etc/resolv.conf; touch /ready; sleep 60";
    let id = pod.start(pod.container(shell(script))).await;
    let ready = setup
        .dir
        .join("root/containers")
        .join(&id)
        .join("upper/ready");
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !ready.exists() {
        assert!(std::time::Instant::now() < deadline, "it has written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stats = setup.runtime.container_stats(&id).await.unwrap();
    let used = stats.writable_layer.and_then(|layer| layer.used_bytes);
    assert!(used.unwrap().value > 2_900_000, "{used:?}");
    pod.remove().await;
}

/// Commands are as readily ended for want of memory as the container is.
pub(crate) async fn memory_scores(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("sleep 60"));
    config
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default()
        .oom_score_adj = 987;
    let id = pod.start(config).await;
    let command = shell("cat /proc/1/oom_score_adj /proc/self/oom_score_adj");
    let answer = setup
        .runtime
        .exec_sync(&id, command, Duration::from_secs(10), 1 << 20)
        .await
        .unwrap();
    assert_eq!(answer.stdout, b"987\n987\n");
    pod.remove().await;
}

/// Commands that come into a container, and containers that come into a shared pid namespace, are never more than the
/// container's own while they can be seen.
pub(crate) async fn joining(setup: Setup) {
    let pod = shared(&setup).await;
    let config = watcher(&pod, &setup);
    let id = pod.start(config.clone()).await;
    until_seen(&pod, &config, "watching").await;
    for _ in 0..40 {
        let command = vec!["/bin/true".to_owned()];
        let answer = setup
            .runtime
            .exec_sync(&id, command, Duration::from_secs(10), 1 << 20)
            .await
            .unwrap();
        assert_eq!(answer.exit_code, 0);
    }
    for _ in 0..5 {
        let (code, _) = pod.script("true").await;
        assert_eq!(code, 0);
    }
    let log = pod.log(&config);
    assert!(
        log.lines().filter(|l| l.starts_with("process")).count() > 5,
        "{log}"
    );
    assert!(!log.contains("FOUND"), "{log}");
    // An ephemeral container in the namespace of one that has its own.
    let own = Pod::run(&setup).await;
    let config = watcher(&own, &setup);
    let id = own.start(config.clone()).await;
    until_seen(&own, &config, "watching").await;
    for _ in 0..5 {
        let mut other = own.container(shell("tr '\\0' ' ' < /proc/1/cmdline"));
        let options = context(&mut other)
            .namespace_options
            .get_or_insert_default();
        options.pid = cri::NamespaceMode::Target as i32;
        options.target_id.clone_from(&id);
        let (_, text) = own.output(other).await;
        assert!(
            text.contains(WATCHER),
            "it sees the other's processes: {text}"
        );
    }
    let log = own.log(&config);
    assert!(!log.contains("FOUND"), "{log}");
    own.remove().await;
    pod.remove().await;
}

/// A static program for i386 that does nothing but end with code 7: an ELF header, one segment, three instructions.
fn program_for_i386() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    const START: u32 = 0x54;
    let code: [u8; 12] = [
        0xb8, 1, 0, 0, 0, // mov eax, 1 (exit)
        0xbb, 7, 0, 0, 0, // mov ebx, 7
        0xcd, 0x80, // int 0x80
    ];
    let size = START + code.len() as u32;
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2, 0, 3, 0]); // an executable for the 80386
    for word in [1, BASE + START, 52, 0, 0] {
        elf.extend(u32::to_le_bytes(word));
    }
    for half in [52u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, 0, BASE, BASE, size, size, 5, 0x1000] {
        elf.extend(u32::to_le_bytes(word));
    }
    elf.extend(code);
    elf
}

/// 32-bit programs run under the default profile and under those that name their architecture, and are ended under
/// others; profiles hold for them, too.
pub(crate) async fn programs_of_32_bits(setup: Setup) {
    use cri::security_profile::ProfileType;
    use std::os::unix::fs::PermissionsExt;
    let program = setup.dir.join("i386");
    std::fs::write(&program, program_for_i386()).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let runs = std::process::Command::new(&program).status();
    if !runs.is_ok_and(|status| status.code() == Some(7)) {
        println!("  skipped: this kernel runs no 32-bit programs");
        return;
    }
    let pod = Pod::run(&setup).await;
    let profile = |name: &str, architectures: &str, calls: &str| {
        let file = setup.dir.join(name);
        let json = format!(
            r#"{{"defaultAction":"SCMP_ACT_ALLOW","architectures":[{architectures}],"syscalls":[
                {{"names":[{calls}],"action":"SCMP_ACT_KILL_PROCESS"}}]}}"#
        );
        std::fs::write(&file, json).unwrap();
        (ProfileType::Localhost, file.display().to_string())
    };
    let cases = [
        ((ProfileType::RuntimeDefault, String::new()), 7),
        (
            profile("native", r#""SCMP_ARCH_X86_64""#, r#""reboot""#),
            159,
        ),
        (
            profile(
                "both",
                r#""SCMP_ARCH_X86_64","SCMP_ARCH_X86""#,
                r#""reboot""#,
            ),
            7,
        ),
        (profile("exit", r#""SCMP_ARCH_X86""#, r#""exit""#), 159),
    ];
    for ((kind, file), code) in cases {
        let mut config = pod.container(vec!["/i386".into()]);
        config.mounts = vec![cri::Mount {
            container_path: "/i386".to_owned(),
            host_path: program.display().to_string(),
            readonly: true,
            ..cri::Mount::default()
        }];
        context(&mut config).seccomp = Some(cri::SecurityProfile {
            profile_type: kind as i32,
            localhost_ref: file.clone(),
        });
        assert_eq!(pod.output(config).await.0, code, "{kind:?} {file}");
    }
    pod.remove().await;
}

/// Each container has a session keyring, its commands have the same, and nobody has the one that davit was started with.
pub(crate) async fn keyrings(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(pod.start(pod.container(shell("sleep 60"))).await);
    }
    let own = std::fs::read_to_string("/proc/keys").unwrap_or_default();
    if own.is_empty() {
        println!("  skipped: this kernel has no keyrings");
    }
    let mut seen = std::collections::BTreeSet::new();
    for id in ids.iter().filter(|_| !own.is_empty()) {
        for _ in 0..2 {
            let answer = setup
                .runtime
                .exec_sync(
                    id,
                    shell("cat /proc/keys"),
                    Duration::from_secs(10),
                    1 << 20,
                )
                .await
                .unwrap();
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            // Those of the user are seen by all of his: what is only for who has it is the container's.
            let own = text.lines().filter(|line| {
                let permissions = line.split_whitespace().nth(4);
                permissions == Some("3f000000") && line.contains("_ses")
            });
            let own: Vec<_> = own
                .map(|line| line.split_whitespace().next().unwrap().to_owned())
                .collect();
            assert_eq!(own.len(), 1, "{text}");
            seen.extend(own);
        }
    }
    assert!(own.is_empty() || seen.len() == 2, "{seen:?}");
    pod.remove().await;
}

/// A pod whose users are not the host's: what it does there, the host sees as a range of its own.
pub(crate) async fn user_namespaces(setup: Setup) {
    use std::os::unix::fs::PermissionsExt;
    const BASE: u32 = 7 << 16;
    let map = vec![cri::IdMapping {
        host_id: BASE,
        container_id: 0,
        length: 1 << 16,
    }];
    let users = cri::UserNamespace {
        mode: cri::NamespaceMode::Pod as i32,
        uids: map.clone(),
        gids: map.clone(),
    };
    let volume = setup.dir.join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(volume.join("secret"), "of the volume").unwrap();
    std::fs::set_permissions(
        volume.join("secret"),
        std::fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    for shared in [false, true] {
        let pod = Pod::run_with(&setup, |config| {
            config.hostname = "mapped".to_owned();
            let linux = config.linux.get_or_insert_default();
            let context = linux.security_context.get_or_insert_default();
            let options = context.namespace_options.get_or_insert_default();
            options.network = cri::NamespaceMode::Pod as i32;
            options.userns_options = Some(users.clone());
            if shared {
                options.pid = cri::NamespaceMode::Pod as i32;
            }
        })
        .await;
        let mut config = pod.container(shell(
            "touch /ready; cat /proc/self/uid_map | tr -s ' '; ls -ln /bin/busybox | awk '{print $3, $4}'; \
             cat /volume/secret; echo; echo mine > /volume/mine; chown 5:6 /volume/mine; \
             hostname inside && hostname; echo x > /dev/null && head -c1 /dev/zero | wc -c; \
             ip link set lo down && ip link set lo up && echo network; mkdir /own && mount -t tmpfs none /own && echo mounted; \
             mknod /tmp/disk b 8 0 2>/dev/null || echo no device; sleep 60",
        ));
        config.mounts = vec![cri::Mount {
            container_path: "/volume".to_owned(),
            host_path: volume.display().to_string(),
            uid_mappings: map.clone(),
            gid_mappings: map.clone(),
            ..cri::Mount::default()
        }];
        context(&mut config).capabilities = Some(cri::Capability {
            add_capabilities: vec!["SYS_ADMIN".into(), "NET_ADMIN".into()],
            ..cri::Capability::default()
        });
        config
            .image
            .as_mut()
            .unwrap()
            .image
            .clone_from(&setup.image);
        let id = pod.start(config.clone()).await;
        until_seen(&pod, &config, "no device").await;
        assert_eq!(
            pod.log(&config).lines().map(str::trim).collect::<Vec<_>>(),
            [
                format!("0 {BASE} 65536").as_str(),
                "0 0",
                "of the volume",
                "inside",
                "1",
                "network",
                "mounted",
                "no device",
            ]
        );
        let mine = std::fs::metadata(volume.join("mine")).unwrap();
        assert_eq!(
            (mine.uid(), mine.gid()),
            (5, 6),
            "on disk as the pod sees it"
        );
        let state = setup.dir.join("root/containers").join(&id);
        let made = std::fs::metadata(state.join("upper/ready")).unwrap();
        assert_eq!(
            (made.uid(), made.gid()),
            (BASE, BASE),
            "not the host's root"
        );
        let run: serde_json::Value =
            serde_json::from_slice(&std::fs::read(state.join("state.json")).unwrap()).unwrap();
        let process = std::fs::metadata(format!("/proc/{}/ns", run["pid"])).unwrap();
        assert_eq!(process.uid(), BASE);
        let command =
            shell("id -u; cat /proc/self/uid_map | tr -s ' '; tty 2>/dev/null; cat /volume/secret");
        let answer = setup
            .runtime
            .exec_sync(&id, command, Duration::from_secs(10), 1 << 20)
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(
            text.starts_with(&format!("0\n 0 {BASE} 65536\n")) && text.ends_with("of the volume"),
            "{text}"
        );
        // As another user, with a terminal, on the host's root as image.
        let mut other = pod.container(vec![
            "/bin/sh".into(),
            "-c".into(),
            "id -u; tty; cat /proc/1/comm; ls -ld /etc/shadow; head -c1 /etc/shadow || echo kept"
                .into(),
        ]);
        davit_image(&mut other);
        other.tty = true;
        context(&mut other).run_as_user = Some(cri::Int64Value { value: 1234 });
        let (_, text) = pod.output(other).await;
        assert!(
            text.starts_with("1234") && text.contains("/dev/pts/0") && text.contains("kept"),
            "{text}"
        );
        let mut wrong = pod.container(shell("true"));
        context(&mut wrong)
            .namespace_options
            .as_mut()
            .unwrap()
            .userns_options = None;
        let refused = setup
            .runtime
            .create_container(&pod.id, wrong, pod.config.clone())
            .await;
        assert!(
            refused.is_err(),
            "a container with the host's users in such a pod"
        );
        pod.remove().await;
        std::fs::remove_file(volume.join("mine")).unwrap();
    }
}
