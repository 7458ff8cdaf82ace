//! The runtime's configuration of sandboxes and containers out of pod specs.

use crate::context::Context;
use crate::runtime_state::{PodRuntime, container_annotations, container_labels, sandbox_labels};
use crate::{dns, security, sysctls};
use davit_beneath::{Links, Root};
use davit_containermanager::ContainerOptions;
use davit_oci::read_only::is_recursive;
use davit_podimages::{ImageVolumes, Present};
use davit_pods::env::{self, NodeFacts};
use davit_pods::expansion::{TooLong, expand};
use davit_pods::paths::PRIVATE_DIR;
use davit_pods::pod::{PodExt, Role};
use davit_pods::resources;
use davit_podvolumes::{Mounted, Ready, SubPath, too_many_sub_paths};
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// Why a container cannot be configured; the message of `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The environment.
    #[error(transparent)]
    Env(#[from] env::Error),
    /// The security context.
    #[error(transparent)]
    Security(#[from] security::Error),
    /// Devices.
    #[error(transparent)]
    Devices(#[from] davit_containermanager::OptionsError),
    /// A mount names a volume that the pod does not have.
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A sub-path.
    #[error(
        "failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\": {cause}"
    )]
    SubPath {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// What is wrong.
        cause: String,
    },
    /// More sub-paths than the node mounts.
    #[error("{0}")]
    TooManySubPaths(String),
    /// Files that the node makes for the container.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A full name that no machine can have.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long (64 characters is the max, {len} \
         characters requested)",
        len = .0.len()
    )]
    LongName(String),
}

/// Path of `seccomp` profiles below the node's directory.
pub(crate) fn seccomp_root(ctx: &Context) -> PathBuf {
    ctx.paths.root().join("seccomp")
}

/// How the pod's users map to the host's, where they are not the same.
fn users(ctx: &Context, pod: &Pod) -> Result<Option<cri::UserNamespace>, Error> {
    ctx.users.of(pod).map_err(|source| Error::Io {
        what: "cannot give the pod users of its own",
        source,
    })
}

/// Configuration of a pod's sandbox.
///
/// # Errors
/// No users for a pod that wants its own; a full name that is too long.
pub(crate) fn sandbox(
    ctx: &Context,
    pod: &Pod,
    attempt: u32,
) -> Result<cri::PodSandboxConfig, Error> {
    let users = users(ctx, pod)?;
    let context = pod.pod_spec().security_context.as_ref();
    let wanted = context.and_then(|c| c.sysctls.as_ref());
    let mut port_mappings = Vec::new();
    for (role, container) in pod.all_containers() {
        if role == Role::Ephemeral || pod.host_network() {
            continue;
        }
        for port in container.ports.iter().flatten() {
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp,
                Some("SCTP") => cri::Protocol::Sctp,
                _ => cri::Protocol::Tcp,
            };
            port_mappings.push(cri::PortMapping {
                protocol: protocol as i32,
                container_port: port.container_port,
                host_port: port.host_port.unwrap_or(0),
                host_ip: port.host_ip.clone().unwrap_or_default(),
            });
        }
    }
    Ok(cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.pod_name().to_owned(),
            uid: pod.uid().to_owned(),
            namespace: pod.ns().to_owned(),
            attempt,
        }),
        hostname: if pod.host_network() {
            String::new()
        } else {
            let domain = &ctx.options.cluster_dns.domain;
            dns::machine_name(pod, domain).map_err(Error::LongName)?
        },
        log_directory: ctx
            .paths
            .pod_log_dir(pod.ns(), pod.pod_name(), pod.uid())
            .to_string_lossy()
            .into_owned(),
        dns_config: Some(dns::config(pod, &ctx.options.cluster_dns, &ctx.host_dns)),
        port_mappings,
        labels: sandbox_labels(pod).into_iter().collect(),
        annotations: pod
            .metadata
            .annotations
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: ctx.pod_cgroup(pod),
            security_context: Some(security::sandbox(pod, &seccomp_root(ctx), users.as_ref())),
            sysctls: wanted
                .into_iter()
                .flatten()
                .map(|s| (sysctls::dotted(&s.name), s.value.clone()))
                .collect(),
            overhead: Some(resources::overhead(pod, ctx.options.host.quotas)),
            resources: Some(resources::sandbox_resources(pod, ctx.options.host.quotas)),
        }),
        ..cri::PodSandboxConfig::default()
    })
}

/// What a container's configuration is made from.
pub(crate) struct ContainerParts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container's role.
    pub role: Role,
    /// The container.
    pub container: &'a Container,
    /// Its `restartCount`.
    pub restart_count: u32,
    /// What the runtime has, to find the target of an ephemeral container.
    pub runtime: &'a PodRuntime,
    /// The image.
    pub image: &'a Present,
    /// The images that the container mounts as volumes.
    pub image_volumes: &'a ImageVolumes,
    /// The pod's other volumes.
    pub volumes: &'a Mounted,
    /// What the downward API shows.
    pub facts: &'a NodeFacts,
    /// What the devices add.
    pub devices: ContainerOptions,
}

/// Configuration of a container.
///
/// # Errors
/// References that cannot be followed, sub-paths that lead out, `runAsNonRoot`.
pub(crate) async fn container(
    ctx: &Context,
    parts: ContainerParts<'_>,
) -> Result<cri::ContainerConfig, Error> {
    let ContainerParts {
        pod,
        role,
        container,
        restart_count,
        image,
        ..
    } = parts;
    let services = ctx.services();
    let files = ctx.volumes.env_files(pod, container, parts.volumes);
    let files = files.await.map_err(env::Error::from)?;
    let objects = &*ctx.objects;
    let mut own = env::build(pod, container, parts.facts, &services, objects, &files).await?;
    for (object, keys) in &own.skipped {
        let reference = pod.container_reference(role, &container.name);
        let message = format!(
            "Keys [{}] from the EnvFrom {object} were skipped since they are considered invalid environment variable names.",
            keys.join(", ")
        );
        ctx.recorder
            .warning(&reference, "InvalidEnvironmentVariableNames", message);
    }
    let of_devices = |name: &str| {
        let mut envs = parts.devices.envs.iter();
        envs.find(|e| e.key == name).map(cri::KeyValue::text)
    };
    let mut words = |list: &Option<Vec<String>>| {
        list.iter()
            .flatten()
            .map(|word| own.expand(word, of_devices))
            .collect::<Result<Vec<_>, _>>()
    };
    let (command, args) = (words(&container.command)?, words(&container.args)?);
    let mut envs = parts.devices.envs.clone();
    // One entry a name: the pod's own value stands in for the plugin's.
    envs.retain(|e| own.get(&e.key).is_none());
    envs.extend(own.vars().map(|(k, v)| cri::KeyValue::new(k, v)));
    let lookup = |name: &str| {
        own.get(name)
            .map(Cow::Borrowed)
            .or_else(|| of_devices(name))
    };
    let mut mounts = mounts(ctx, &parts, lookup).await?;
    let mut devices = parts.devices.devices.clone();
    devices.extend(volume_devices(&parts)?);
    let users = users(ctx, pod)?;
    if let Some(users) = &users {
        // Files are on disk as the pod sees them, whatever range it has.
        for mount in &mut mounts {
            mount.uid_mappings.clone_from(&users.uids);
            mount.gid_mappings.clone_from(&users.gids);
        }
    }
    let target = match role {
        Role::Ephemeral => ephemeral_target(pod, &container.name, parts.runtime),
        _ => None,
    };
    let user = security::ImageUser {
        uid: image.uid,
        name: &image.username,
    };
    let context = security::container(
        pod,
        container,
        &user,
        target,
        security::SeccompOptions {
            root: &seccomp_root(ctx),
            by_default: ctx.options.seccomp_default,
        },
        users.as_ref(),
    )?;
    let mut annotations: HashMap<String, String> =
        parts.devices.annotations.clone().into_iter().collect();
    annotations.extend(container_annotations(pod, container, restart_count));
    let mut limits = resources::linux_resources(pod, role, container, &ctx.limit_rules());
    parts.devices.compute.apply(&mut limits);
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: container.name.clone(),
            attempt: restart_count,
        }),
        image: Some(cri::ImageSpec {
            image: image.reference.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..cri::ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs,
        mounts,
        devices,
        labels: container_labels(pod, container).into_iter().collect(),
        annotations: annotations.into_iter().collect(),
        log_path: format!("{}/{restart_count}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(limits),
            security_context: Some(context),
        }),
        cdi_devices: parts.devices.cdi_devices.clone(),
        stop_signal: stop_signal(container),
        ..cri::ContainerConfig::default()
    })
}

fn stop_signal(container: &Container) -> i32 {
    let name = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.stop_signal.as_deref())
        .unwrap_or_default();
    cri::Signal::from_str_name(name).map_or(0, |s| s as i32)
}

fn ephemeral_target(pod: &Pod, name: &str, runtime: &PodRuntime) -> Option<String> {
    let list = pod.pod_spec().ephemeral_containers.as_ref()?;
    let target = list
        .iter()
        .find(|c| c.name == name)?
        .target_container_name
        .as_deref()
        .filter(|t| !t.is_empty())?;
    runtime.latest(target).map(|c| c.id.clone())
}

async fn mounts<'a>(
    ctx: &Context,
    parts: &ContainerParts<'_>,
    lookup: impl Fn(&str) -> Option<Cow<'a, str>>,
) -> Result<Vec<cri::Mount>, Error> {
    let ContainerParts {
        pod,
        container,
        volumes,
        ..
    } = parts;
    if let Some(why) = too_many_sub_paths(pod, container) {
        return Err(Error::TooManySubPaths(why));
    }
    let mut out = parts.devices.mounts.clone();
    let mut of_volumes = Vec::new();
    let mut wanted = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let sub = sub_path(parts, mount, &lookup)?;
        if let Some(image) = parts.image_volumes.get(&mount.name) {
            of_volumes.push(cri::Mount {
                container_path: absolute(&mount.mount_path),
                readonly: true,
                image: Some(image.clone()),
                image_sub_path: sub.unwrap_or_default(),
                ..cri::Mount::default()
            });
            continue;
        }
        let Some(Ready::Directory {
            path: root,
            read_only: volume_read_only,
        }) = volumes.get(&mount.name)
        else {
            return Err(Error::NoVolume {
                volume: mount.name.clone(),
                container: container.name.clone(),
            });
        };
        if let Some(path) = sub {
            let part = SubPath {
                volume: mount.name.clone(),
                index,
                root: root.clone(),
                path,
            };
            wanted.push((of_volumes.len(), part));
        }
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
            _ => cri::MountPropagation::PropagationPrivate,
        };
        let read_only = mount.read_only == Some(true);
        of_volumes.push(cri::Mount {
            container_path: absolute(&mount.mount_path),
            host_path: root.to_string_lossy().into_owned(),
            readonly: read_only || *volume_read_only || is_projected(pod, &mount.name),
            propagation: propagation as i32,
            recursive_read_only: read_only
                && is_recursive(mount.recursive_read_only.as_deref(), ctx.recursive_mounts),
            ..cri::Mount::default()
        });
    }
    for (place, host) in mount_sub_paths(ctx, parts, wanted).await? {
        of_volumes[place].host_path = host.to_string_lossy().into_owned();
    }
    out.extend(of_volumes);
    let taken = |path: &str| {
        container
            .volume_mounts
            .iter()
            .flatten()
            .any(|m| m.mount_path.trim_end_matches('/') == path)
    };
    if !taken("/etc/hosts") && parts.role != Role::Ephemeral {
        out.push(plain_mount(
            "/etc/hosts",
            &hosts_file(ctx, pod, parts.facts)?,
        ));
    }
    let log = container
        .termination_message_path
        .as_deref()
        .unwrap_or("/dev/termination-log");
    if !log.is_empty() && !taken(log) {
        out.push(plain_mount(
            log,
            &termination_file(ctx, pod, &container.name, parts.restart_count)?,
        ));
    }
    Ok(out)
}

/// Block volumes of the container.
fn volume_devices(parts: &ContainerParts<'_>) -> Result<Vec<cri::Device>, Error> {
    let container = parts.container;
    let device = |wanted: &VolumeDevice| match parts.volumes.get(&wanted.name) {
        Some(Ready::Device { path, read_only }) => Ok(cri::Device {
            container_path: wanted.device_path.clone(),
            host_path: path.to_string_lossy().into_owned(),
            permissions: if *read_only { "r" } else { "mrw" }.to_owned(),
        }),
        _ => Err(Error::NoVolume {
            volume: wanted.name.clone(),
            container: container.name.clone(),
        }),
    };
    container
        .volume_devices
        .iter()
        .flatten()
        .map(device)
        .collect()
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn plain_mount(container_path: &str, host: &Path) -> cri::Mount {
    cri::Mount {
        container_path: container_path.to_owned(),
        host_path: host.to_string_lossy().into_owned(),
        ..cri::Mount::default()
    }
}

/// Volumes whose content the node writes are read-only whatever the mount says.
fn is_projected(pod: &Pod, name: &str) -> bool {
    pod.pod_spec().volumes.iter().flatten().any(|v| {
        v.name == name
            && (v.config_map.is_some()
                || v.secret.is_some()
                || v.projected.is_some()
                || v.downward_api.is_some())
    })
}

/// The part of the volume that the container gets, if it is not the whole.
fn sub_path<'a>(
    parts: &ContainerParts<'_>,
    mount: &VolumeMount,
    lookup: &impl Fn(&str) -> Option<Cow<'a, str>>,
) -> Result<Option<String>, Error> {
    let failed = |cause: String| sub_path_error(parts, &mount.name, cause);
    let expr = mount.sub_path_expr.as_deref().filter(|e| !e.is_empty());
    let sub = match (expr, mount.sub_path.as_deref().filter(|s| !s.is_empty())) {
        (Some(expr), _) => expand_sub_path(expr, lookup).map_err(failed)?,
        (None, Some(sub)) => sub.to_owned(),
        (None, None) => return Ok(None),
    };
    if sub.starts_with('/') || sub.split('/').any(|part| part == "..") {
        return Err(failed(format!(
            "unable to provision SubPath `{sub}`: must be a relative path inside the volume"
        )));
    }
    Ok(Some(sub))
}

/// The path that an expression with references to variables stands for. One that is not known is an error.
fn expand_sub_path<'a>(
    expr: &str,
    lookup: &impl Fn(&str) -> Option<Cow<'a, str>>,
) -> Result<String, String> {
    /// As of any path.
    const MAX_BYTES: usize = 4096;
    let mut missing = Vec::new();
    let path = expand(expr, MAX_BYTES, |name| {
        let value = lookup(name);
        if value.is_none() {
            missing.push(name.to_owned());
        }
        value
    });
    match path {
        _ if !missing.is_empty() => Err(format!("missing value for {}", missing.join(", "))),
        Ok(path) => Ok(path),
        Err(TooLong) => Err(format!("it is longer than {MAX_BYTES} bytes")),
    }
}

fn sub_path_error(parts: &ContainerParts<'_>, volume: &str, cause: String) -> Error {
    Error::SubPath {
        volume: volume.to_owned(),
        container: parts.container.name.clone(),
        cause,
    }
}

/// Mounts the parts of volumes that the container gets. Each comes and goes with its place among the mounts.
async fn mount_sub_paths(
    ctx: &Context,
    parts: &ContainerParts<'_>,
    wanted: Vec<(usize, SubPath)>,
) -> Result<impl Iterator<Item = (usize, PathBuf)>, Error> {
    let (places, wanted): (Vec<usize>, Vec<SubPath>) = wanted.into_iter().unzip();
    let container = &parts.container.name;
    let mounted = ctx.volumes.mount_sub_paths(parts.pod, container, wanted);
    let mounted = mounted
        .await
        .map_err(|error| sub_path_error(parts, &error.volume, error.cause))?;
    Ok(places.into_iter().zip(mounted))
}

fn hosts_file(ctx: &Context, pod: &Pod, facts: &NodeFacts) -> Result<PathBuf, Error> {
    let host = if pod.host_network() {
        std::fs::read_to_string("/etc/hosts").ok()
    } else {
        None
    };
    let text = dns::hosts_file(
        pod,
        &facts.pod_ips,
        &ctx.options.cluster_dns.domain,
        host.as_deref(),
    );
    let path = ctx.paths.hosts_file(pod.uid());
    write_file(
        ctx,
        &path,
        text.as_bytes(),
        0o644,
        "cannot write the pod's hosts file",
    )?;
    Ok(path)
}

fn termination_file(
    ctx: &Context,
    pod: &Pod,
    container: &str,
    restart_count: u32,
) -> Result<PathBuf, Error> {
    let path = ctx
        .paths
        .container(pod.uid(), container)
        .join(format!("termination-{restart_count}"));
    write_file(
        ctx,
        &path,
        &[],
        0o666,
        "cannot make the termination message file",
    )?;
    Ok(path)
}

/// Writes a file of a pod's directory; whoever has the agent's directory as a volume may have put links there.
fn write_file(
    ctx: &Context,
    path: &Path,
    data: &[u8],
    mode: u32,
    what: &'static str,
) -> Result<(), Error> {
    let pods = ctx.paths.pods();
    let write = || {
        let below = path.strip_prefix(&pods).map_err(io::Error::other)?;
        let dir = below.parent().unwrap_or(Path::new(""));
        let dir = Root::open_itself(&pods, Links::Refused)?.mkdir_all(dir, PRIVATE_DIR)?;
        let name = path.file_name().unwrap_or_default();
        io::Result::Ok(dir.write_in_place(name, data, mode)?)
    };
    write().map_err(|source| Error::Io { what, source })
}
