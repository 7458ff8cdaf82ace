//! From a CRI container configuration to an OCI one.

use super::OpenFiles;
use super::record::{ContainerRecord, Namespaces, SandboxRecord};
use super::user::User;
use super::users::Mapping;
use crate::caps::CapSet;
use crate::cgroup::{DeviceKind, DeviceRule, Limits, default_rules};
use crate::image::Image;
use crate::monitor::clean_path;
use crate::runtime::{Error, Result};
use crate::seccomp;
use davit_proto::cri::v1 as cri;
use oci_spec::runtime::Spec;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a container is made from.
pub(super) struct SpecParts<'a> {
    pub(super) record: &'a ContainerRecord,
    pub(super) config: &'a cri::ContainerConfig,
    pub(super) sandbox: &'a SandboxRecord,
    pub(super) sandbox_config: &'a cri::PodSandboxConfig,
    /// Namespace files and the shared memory of the pod.
    pub(super) namespaces: &'a Namespaces,
    /// Directory with the pod's `resolv.conf` and `hostname`.
    pub(super) pod_dir: &'a Path,
    pub(super) image: &'a Image,
    pub(super) user: &'a User,
    /// File that stands for the pid namespace of another container, for ephemeral containers.
    pub(super) target_pid_namespace: Option<PathBuf>,
    /// CDI devices.
    pub(super) cdi: &'a crate::cdi::Registry,
    /// How many files the container's processes may open.
    pub(super) open_files: Option<OpenFiles>,
}

/// The results: configuration, seccomp programs, device rules and limits.
pub(super) struct Built {
    pub(super) spec: Spec,
    pub(super) seccomp: seccomp::CompiledProfile,
    pub(super) devices: Vec<DeviceRule>,
    pub(super) limits: Limits,
}

fn security(config: &cri::ContainerConfig) -> cri::LinuxContainerSecurityContext {
    config
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.clone())
        .unwrap_or_default()
}

/// The CRI limits as the cgroup code takes them. Zero means "not set" in CRI.
pub(super) fn limits(resources: &cri::LinuxContainerResources) -> Limits {
    let positive = |value: i64| u64::try_from(value).ok().filter(|v| *v > 0);
    let set = |value: i64| Some(value).filter(|v| *v != 0);
    let text = |value: &String| Some(value.clone()).filter(|v| !v.is_empty());
    Limits {
        cpu_shares: positive(resources.cpu_shares),
        cpu_quota: set(resources.cpu_quota),
        cpu_period: positive(resources.cpu_period),
        cpus: text(&resources.cpuset_cpus),
        mems: text(&resources.cpuset_mems),
        memory: set(resources.memory_limit_in_bytes),
        memory_swap: set(resources.memory_swap_limit_in_bytes),
        pids: None,
        hugepages: resources
            .hugepage_limits
            .iter()
            .map(|limit| {
                (
                    limit.page_size.clone(),
                    i64::try_from(limit.limit).unwrap_or(i64::MAX),
                )
            })
            .collect(),
        unified: resources
            .unified
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    }
}

fn args(config: &cri::ContainerConfig, image: &Image) -> Result<Vec<String>> {
    let (command, arguments) = (&config.command, &config.args);
    let mut args = if command.is_empty() {
        image.config.entrypoint.clone()
    } else {
        command.clone()
    };
    if !arguments.is_empty() {
        args.extend(arguments.iter().cloned());
    } else if command.is_empty() {
        args.extend(image.config.cmd.iter().cloned());
    }
    if args.is_empty() {
        Err(Error::InvalidArgument("no command specified".to_owned()))
    } else {
        Ok(args)
    }
}

fn env(config: &cri::ContainerConfig, image: &Image, hostname: &str) -> Result<Vec<String>> {
    let mut env: Vec<String> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut set = |pair: String| {
        let name = pair.split('=').next().unwrap_or_default();
        match places.get(name) {
            Some(place) => env[*place] = pair,
            None => {
                places.insert(name.to_owned(), env.len());
                env.push(pair);
            }
        }
    };
    set(DEFAULT_PATH.to_owned());
    set(format!("HOSTNAME={hostname}"));
    if config.tty {
        set("TERM=xterm".to_owned());
    }
    for pair in &image.config.env {
        set(if pair.contains('=') {
            pair.clone()
        } else {
            format!("{pair}=")
        });
    }
    for pair in &config.envs {
        let value = std::str::from_utf8(&pair.value).map_err(|_| {
            Error::Unimplemented(format!("environment variable {} is not UTF-8", pair.key))
        })?;
        set(format!("{}={value}", pair.key));
    }
    Ok(env)
}

/// A device file of the host, with its numbers.
fn device(host: &Path, container: &Path) -> std::io::Result<Option<(Value, DeviceKind, u32, u32)>> {
    let metadata = fs::metadata(host)?;
    let kind = metadata.file_type();
    let (letter, device_kind) = if kind.is_char_device() {
        ("c", DeviceKind::Char)
    } else if kind.is_block_device() {
        ("b", DeviceKind::Block)
    } else {
        return Ok(None);
    };
    let (major, minor) = (
        rustix::fs::major(metadata.rdev()),
        rustix::fs::minor(metadata.rdev()),
    );
    let value = json!({
        "path": container, "type": letter, "major": major, "minor": minor,
        "fileMode": metadata.mode() & 0o777, "uid": metadata.uid(), "gid": metadata.gid(),
    });
    Ok(Some((value, device_kind, major, minor)))
}

/// Device files for a host path, which may be a directory of them.
fn add_devices(
    host: &Path,
    container: &Path,
    access: &str,
    depth: u8,
    devices: &mut Vec<Value>,
    rules: &mut Vec<DeviceRule>,
) -> Result<()> {
    const MAX_DEPTH: u8 = 8;
    let failed =
        |e: std::io::Error| Error::InvalidArgument(format!("device {}: {e}", host.display()));
    if let Some((value, kind, major, minor)) = device(host, container).map_err(failed)? {
        devices.retain(|old| old["path"] != value["path"]);
        devices.push(value);
        rules.push(DeviceRule::allow(kind, Some(major), Some(minor), access));
        return Ok(());
    }
    if !host.is_dir() || depth >= MAX_DEPTH {
        return Err(Error::InvalidArgument(format!(
            "{} is not a device",
            host.display()
        )));
    }
    for entry in fs::read_dir(host).map_err(failed)?.flatten() {
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() || kind.is_char_device() || kind.is_block_device() {
            let inside = container.join(entry.file_name());
            add_devices(&entry.path(), &inside, access, depth + 1, devices, rules)?;
        }
    }
    Ok(())
}

/// Every device of the host, for privileged containers.
fn host_devices(dir: &Path, depth: u8, devices: &mut Vec<Value>) {
    const SKIP: [&str; 8] = [
        "pts",
        "shm",
        "fd",
        "mqueue",
        ".lxc",
        ".lxd-mounts",
        ".udev",
        "console",
    ];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if SKIP.iter().any(|skip| name == *skip) || (name == "ptmx" && depth == 0) {
            continue;
        }
        if kind.is_dir() && depth < 8 {
            host_devices(&entry.path(), depth + 1, devices);
        } else if (kind.is_char_device() || kind.is_block_device())
            && let Ok(Some((value, ..))) = device(&entry.path(), &entry.path())
        {
            // Links are left out: `/dev/stdin` and its like stand for files of this process.
            devices.push(value);
        }
    }
}

fn base_mounts(parts: &SpecParts<'_>, privileged: bool) -> Vec<Value> {
    let access = if privileged { "rw" } else { "ro" };
    let bind = |target: &str, source: &Path, options: &[&str]| {
        let mut all = vec!["rbind", "rprivate"];
        all.extend(options);
        json!({"destination": target, "type": "bind", "source": source, "options": all})
    };
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
        json!({"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
            "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", access]}),
        json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
            "options": ["nosuid", "noexec", "nodev", "relatime", access]}),
        bind(
            "/dev/shm",
            &parts.namespaces.shm,
            &["nosuid", "nodev", "noexec"],
        ),
    ];
    for (target, file) in [
        ("/etc/hostname", "hostname"),
        ("/etc/resolv.conf", "resolv.conf"),
    ] {
        let source = parts.pod_dir.join(file);
        if source.exists() {
            mounts.push(bind(
                target,
                &source,
                if security(parts.config).readonly_rootfs {
                    &["ro"]
                } else {
                    &[]
                },
            ));
        }
    }
    mounts
}

/// Takes the place of an earlier mount at the same path.
fn put(mounts: &mut Vec<Value>, mount: Value) {
    mounts.retain(|old| old["destination"] != mount["destination"]);
    mounts.push(mount);
}

fn id_mappings(list: &[cri::IdMapping]) -> Value {
    list.iter()
        .map(|m| json!({"containerID": m.container_id, "hostID": m.host_id, "size": m.length}))
        .collect()
}

fn mounts(parts: &SpecParts<'_>, privileged: bool, users: Option<&Mapping>) -> Result<Vec<Value>> {
    let mut own = Vec::new();
    for mount in &parts.config.mounts {
        let target = &mount.container_path;
        let clean = clean_path(Path::new(target));
        if !Path::new(target).is_absolute() || clean == Path::new("/") {
            return Err(Error::InvalidArgument(format!("mount path {target:?}")));
        }
        let mapped = !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty();
        let same = |mapping: &Mapping| {
            (&mapping.uids, &mapping.gids) == (&mount.uid_mappings, &mount.gid_mappings)
        };
        if mapped && !users.is_some_and(same) {
            return Err(Error::InvalidArgument(format!(
                "mount {target}: its IDs are not mapped as the pod's"
            )));
        }
        if mount.image.is_some() {
            let value = json!({"destination": clean, "type": "image",
                "options": ["rprivate", "ro", "nosuid", "nodev", "noexec"]});
            put(&mut own, value);
            continue;
        }
        let source = Path::new(&mount.host_path);
        if !source.exists() {
            fs::create_dir_all(source)
                .map_err(|e| Error::Internal(format!("mount source {}: {e}", source.display())))?;
        }
        let propagation = match cri::MountPropagation::try_from(mount.propagation) {
            Ok(cri::MountPropagation::PropagationHostToContainer) => "rslave",
            Ok(cri::MountPropagation::PropagationBidirectional) => "rshared",
            _ => "rprivate",
        };
        let access = match (mount.readonly, mount.recursive_read_only) {
            (true, true) => "rro",
            (true, false) => "ro",
            (false, true) => {
                return Err(Error::InvalidArgument(format!(
                    "mount {target}: recursive read-only but not read-only"
                )));
            }
            (false, false) => "rw",
        };
        let mut value = json!({"destination": clean, "type": "bind", "source": source,
            "options": ["rbind", propagation, access]});
        if mapped {
            value["uidMappings"] = id_mappings(&mount.uid_mappings);
            value["gidMappings"] = id_mappings(&mount.gid_mappings);
        }
        put(&mut own, value);
    }
    let mut mounts = base_mounts(parts, privileged);
    // What lies below a mount of the container's own would be hidden by it.
    let at = |mount: &Value| PathBuf::from(mount["destination"].as_str().unwrap_or_default());
    mounts.retain(|base| own.iter().all(|mount| !at(base).starts_with(at(mount))));
    // A parent that is listed later must not hide its child. The sort is stable.
    own.sort_by_key(|mount| {
        Path::new(mount["destination"].as_str().unwrap_or_default())
            .components()
            .count()
    });
    mounts.extend(own);
    Ok(mounts)
}

fn namespaces(
    parts: &SpecParts<'_>,
    context: &cri::LinuxContainerSecurityContext,
) -> Result<Vec<Value>> {
    let mut list = vec![json!({"type": "mount"}), json!({"type": "cgroup"})];
    let files = parts.namespaces;
    for (kind, path) in [
        ("network", &files.net),
        ("ipc", &files.ipc),
        ("uts", &files.uts),
    ] {
        if let Some(path) = path {
            list.push(json!({"type": kind, "path": path}));
        }
    }
    let options = context.namespace_options.clone().unwrap_or_default();
    match cri::NamespaceMode::try_from(options.pid) {
        Ok(cri::NamespaceMode::Node) => {}
        Ok(cri::NamespaceMode::Pod) if parts.sandbox.pause.is_some() => {
            list.push(json!({"type": "pid", "path": files.pid}));
        }
        Ok(cri::NamespaceMode::Target) => match &parts.target_pid_namespace {
            Some(path) => list.push(json!({"type": "pid", "path": path})),
            None => {
                return Err(Error::InvalidArgument(format!(
                    "target container {:?} is not running",
                    options.target_id
                )));
            }
        },
        _ => list.push(json!({"type": "pid"})),
    }
    if let Some(path) = &files.user {
        list.push(json!({"type": "user", "path": path}));
    }
    Ok(list)
}

fn seccomp_programs(
    context: &cri::LinuxContainerSecurityContext,
    privileged: bool,
    caps: CapSet,
) -> Result<seccomp::CompiledProfile> {
    use cri::security_profile::ProfileType;
    if privileged {
        return Ok(seccomp::CompiledProfile::default());
    }
    let invalid = |e: seccomp::Error| Error::InvalidArgument(e.to_string());
    // Who asked for a filter is not run without one.
    let available = || match crate::sys::seccomp_available() {
        true => Ok(()),
        false => Err(Error::Unimplemented("seccomp, by this kernel".to_owned())),
    };
    let default = || {
        available()?;
        let programs = seccomp::default_profile(caps).map_err(invalid)?;
        Ok(seccomp::CompiledProfile { programs, flags: 0 })
    };
    let from_file = |path: &str| {
        available()?;
        let json = fs::read(path)
            .map_err(|e| Error::InvalidArgument(format!("seccomp profile {path}: {e}")))?;
        seccomp::Profile::parse(&json)
            .and_then(|profile| profile.compile(caps))
            .map_err(invalid)
    };
    let Some(profile) = &context.seccomp else {
        // The field of older nodes.
        return match context.seccomp_profile_path.as_str() {
            "runtime/default" | "docker/default" => default(),
            path => match path.strip_prefix("localhost/") {
                Some(file) => from_file(file),
                None => Ok(seccomp::CompiledProfile::default()),
            },
        };
    };
    match ProfileType::try_from(profile.profile_type) {
        Ok(ProfileType::RuntimeDefault) => default(),
        Ok(ProfileType::Localhost) => from_file(&profile.localhost_ref),
        Ok(ProfileType::Unconfined) => Ok(seccomp::CompiledProfile::default()),
        Err(_) => Err(Error::InvalidArgument(format!(
            "seccomp profile type {}",
            profile.profile_type
        ))),
    }
}

/// Profiles of AppArmor are not applied yet, and a container is not run without one that it asks for.
fn check_apparmor(context: &cri::LinuxContainerSecurityContext) -> Result<()> {
    use cri::security_profile::ProfileType;
    let wanted = match context.apparmor.as_ref().map(|p| (p.profile_type, p)) {
        Some((kind, _)) if kind == ProfileType::Unconfined as i32 => return Ok(()),
        Some((kind, profile)) if kind == ProfileType::Localhost as i32 => &profile.localhost_ref,
        Some(_) => "runtime/default",
        None => context.apparmor_profile.as_str(),
    };
    match wanted {
        "" | "unconfined" => Ok(()),
        name => Err(Error::Unimplemented(format!("AppArmor profile {name}"))),
    }
}

/// How the container's users map to the host's, which is the pod's business.
fn users_of(
    parts: &SpecParts<'_>,
    context: &cri::LinuxContainerSecurityContext,
) -> Result<Option<Mapping>> {
    let sandbox = &parts.sandbox.config.0;
    let pod = sandbox
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.as_ref()?.namespace_options.as_ref());
    let pod = pod.map_or(Ok(None), Mapping::of)?;
    let own = context.namespace_options.as_ref();
    if own.map_or(Ok(None), Mapping::of)? != pod {
        return Err(Error::InvalidArgument(
            "the container's users are not mapped as the pod's".to_owned(),
        ));
    }
    Ok(pod)
}

/// Puts the edits of the container's CDI devices in, of those in the field first.
fn inject_devices(
    parts: &SpecParts<'_>,
    value: &mut Value,
    rules: &mut Vec<DeviceRule>,
) -> Result<()> {
    let config = parts.config;
    let mut names: Vec<String> = config.cdi_devices.iter().map(|d| d.name.clone()).collect();
    names.extend(crate::cdi::annotated(config.annotations.iter()));
    if names.is_empty() {
        return Ok(());
    }
    let failed = |e: String| Error::Internal(format!("CDI device injection failed: {e}"));
    let edits = parts
        .cdi
        .resolve(&names)
        .map_err(|e| failed(e.to_string()))?;
    crate::cdi::edits::apply(&edits, value, rules).map_err(|e| failed(e.to_string()))
}

/// Builds everything the monitor needs to know about the process and its surroundings.
pub(super) fn build(parts: &SpecParts<'_>) -> Result<Built> {
    let config = parts.config;
    let context = security(config);
    let privileged = context.privileged;
    check_apparmor(&context)?;
    let resources = config
        .linux
        .as_ref()
        .and_then(|linux| linux.resources.clone())
        .unwrap_or_default();
    let asked = context.capabilities.clone().unwrap_or_default();
    let base = if privileged {
        CapSet::all()
    } else {
        CapSet::DEFAULT
    };
    let invalid = |e: crate::caps::UnknownCapability| Error::InvalidArgument(e.to_string());
    let ambient = CapSet::default()
        .adjusted(&asked.add_ambient_capabilities, &[])
        .map_err(invalid)?;
    let caps = base
        .adjusted(&asked.add_capabilities, &asked.drop_capabilities)
        .map_err(invalid)?;
    let caps = CapSet(caps.0 | ambient.0);

    let (mut devices, mut rules) = (Vec::new(), default_rules());
    if privileged {
        host_devices(Path::new("/dev"), 0, &mut devices);
        rules.push(DeviceRule::allow(DeviceKind::All, None, None, "rwm"));
    }
    for device in &config.devices {
        let access = if device.permissions.is_empty() {
            "rwm"
        } else {
            &device.permissions
        };
        if !access.bytes().all(|letter| b"rwm".contains(&letter)) {
            return Err(Error::InvalidArgument(format!(
                "device permissions {access:?}"
            )));
        }
        let container = if device.container_path.is_empty() {
            &device.host_path
        } else {
            &device.container_path
        };
        add_devices(
            Path::new(&device.host_path),
            Path::new(container),
            access,
            0,
            &mut devices,
            &mut rules,
        )?;
    }

    let users = users_of(parts, &context)?;
    let names = |set: CapSet| set.names().collect::<Vec<_>>();
    let hostname = &parts.sandbox.hostname;
    let cwd = [&config.working_dir, &parts.image.config.working_dir]
        .into_iter()
        .find(|dir| !dir.is_empty())
        .map_or("/", String::as_str);
    if !Path::new(cwd).is_absolute() {
        return Err(Error::InvalidArgument(format!(
            "working directory {cwd:?} is not absolute"
        )));
    }
    let mut value = json!({
        "ociVersion": "1.2.0",
        "hostname": hostname,
        "root": {"path": "rootfs", "readonly": context.readonly_rootfs},
        "process": {
            "terminal": config.tty,
            "user": {"uid": parts.user.uid, "gid": parts.user.gid, "additionalGids": parts.user.groups},
            "args": args(config, parts.image)?,
            "env": env(config, parts.image, hostname)?,
            "cwd": cwd,
            "capabilities": {
                "bounding": names(caps), "effective": names(caps), "permitted": names(caps),
                "inheritable": names(ambient), "ambient": names(ambient),
            },
            "noNewPrivileges": context.no_new_privs,
            "oomScoreAdj": resources.oom_score_adj,
            "rlimits": parts.open_files.map(|files| [
                json!({"type": "RLIMIT_NOFILE", "soft": files.soft, "hard": files.hard}),
            ]),
        },
        "mounts": mounts(parts, privileged, users.as_ref())?,
        "annotations": config.annotations,
        "linux": {
            "cgroupsPath": format!("/{}", parts.record.cgroup),
            "namespaces": namespaces(parts, &context)?,
            "devices": devices,
            "maskedPaths": if privileged { &[] } else { context.masked_paths.as_slice() },
            "readonlyPaths": if privileged { &[] } else { context.readonly_paths.as_slice() },
        },
    });
    if let Some(users) = &users {
        value["linux"]["uidMappings"] = id_mappings(&users.uids);
        value["linux"]["gidMappings"] = id_mappings(&users.gids);
    }
    inject_devices(parts, &mut value, &mut rules)?;
    let spec = serde_json::from_value(value)
        .map_err(|e| Error::Internal(format!("OCI configuration: {e}")))?;
    if parts.sandbox_config.metadata.is_none() {
        return Err(Error::InvalidArgument(
            "sandbox configuration without metadata".to_owned(),
        ));
    }
    Ok(Built {
        spec,
        seccomp: seccomp_programs(&context, privileged, caps)?,
        devices: rules,
        limits: limits(&resources),
    })
}
