//! A container comes into being: its record and its bundle on disk. Nothing runs yet.

use super::{Container, Phase};
use crate::embedded::record::{self, ContainerRecord, Proto};
use crate::embedded::sandbox::Sandbox;
use crate::embedded::spec::{self, SpecParts};
use crate::embedded::{Inner, image_part, io_error, new_id, user};
use crate::monitor::{Bundle, ImageMount, ProcessMark, RootFs, clean_path, files, now_nanos};
use crate::runtime::{Error, Result};
use davit_proto::cri::v1 as cri;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Resolves image, user and CDI devices, and writes what the container's monitor starts from.
pub(super) fn create(
    inner: &Inner,
    sandbox: &Sandbox,
    config: cri::ContainerConfig,
    sandbox_config: &cri::PodSandboxConfig,
    joined: Option<ProcessMark>,
) -> Result<Arc<Container>> {
    let name = config
        .image
        .as_ref()
        .map(|image| image.image.clone())
        .unwrap_or_default();
    let image = inner
        .images
        .find(&name)?
        .ok_or_else(|| Error::NotFound(format!("image {name:?}")))?;
    let context = config
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.clone())
        .unwrap_or_default();
    let volumes = image_mounts(inner, &config)?;
    let user = user::resolve(inner.images.layers_dir(), &image, &context)?;
    let id = new_id();
    let dir = inner.options.root.join("containers").join(&id);
    let parent = sandbox_config
        .linux
        .as_ref()
        .map(|linux| linux.cgroup_parent.as_str())
        .unwrap_or_default();
    let parent = if parent.is_empty() {
        &inner.options.cgroup_parent
    } else {
        parent
    };
    if !parent.starts_with('/') || parent.contains("..") || parent.ends_with(".slice") {
        return Err(Error::InvalidArgument(format!(
            "cgroup parent {parent:?} is not a cgroupfs path"
        )));
    }
    let log_path = match (
        sandbox_config.log_directory.as_str(),
        config.log_path.as_str(),
    ) {
        ("", _) | (_, "") => String::new(),
        (directory, file) => PathBuf::from(directory)
            .join(file)
            .to_string_lossy()
            .into_owned(),
    };
    let record = ContainerRecord {
        sandbox_id: sandbox.id().to_owned(),
        created_at: now_nanos(),
        image_id: image.id.clone(),
        image_ref: image
            .digests
            .first()
            .cloned()
            .unwrap_or_else(|| image.id.clone()),
        layers: volumes
            .iter()
            .flat_map(|volume| &volume.lower)
            .chain(&image.layers)
            .cloned()
            .collect(),
        cgroup: format!("{}/{id}", parent.trim_matches('/')),
        log_path,
        user: (user.uid, user.gid, user.groups.clone()),
        stop_signal: stop_signal(&config, &image.config.stop_signal),
        socket: inner
            .options
            .run_dir
            .join("containers")
            .join(format!("{id}.sock")),
        id,
        config: Proto(config),
    };
    let sandbox_record = sandbox.record();
    let built = spec::build(&SpecParts {
        record: &record,
        config: &record.config.0,
        sandbox: &sandbox_record,
        sandbox_config,
        namespaces: &sandbox_record.namespaces,
        pod_dir: sandbox.dir(),
        image: &image,
        user: &user,
        target_pid_namespace: joined
            .map(|process| PathBuf::from(format!("/proc/{}/ns/pid", process.pid))),
        cdi: &inner.cdi,
        open_files: inner.options.open_files,
    })?;
    let target = dir.join("rootfs");
    let rootfs = if image.is_host() {
        RootFs::Host {
            scratch: dir.join("scratch"),
            target,
        }
    } else {
        RootFs::Overlay {
            layers: inner.images.layers_dir().to_owned(),
            lower: image.layers.iter().rev().cloned().collect(),
            upper: dir.join("upper"),
            work: dir.join("work"),
            target,
        }
    };
    let config = &record.config.0;
    let bundle = Bundle {
        id: record.id.clone(),
        socket: record.socket.clone(),
        rootfs,
        images: volumes
            .into_iter()
            .enumerate()
            .map(|(number, volume)| ImageMount {
                scratch: dir.join(format!("images/{number}")),
                ..volume
            })
            .collect(),
        log_path: Some(PathBuf::from(&record.log_path)).filter(|path| !path.as_os_str().is_empty()),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        seccomp: built.seccomp.programs,
        seccomp_flags: built.seccomp.flags,
        limits: built.limits,
        devices: Some(built.devices),
        target: joined,
    };
    let write = || -> std::io::Result<()> {
        for name in ["rootfs", "upper", "work", "scratch"] {
            fs::create_dir_all(dir.join(name))?;
        }
        for image in &bundle.images {
            for name in ["root", "empty", "mapped"] {
                fs::create_dir_all(image.scratch.join(name))?;
            }
        }
        fs::write(dir.join(files::CONFIG), serde_json::to_vec(&built.spec)?)?;
        fs::write(dir.join(files::BUNDLE), serde_json::to_vec(&bundle)?)?;
        record::save(&dir, &record)
    };
    if let Err(error) = write() {
        let _ = davit_beneath::remove_tree(&dir);
        return Err(io_error(format_args!("create container {}", record.id))(
            error,
        ));
    }
    Ok(Container::new(inner, dir, record, Phase::Created))
}

/// The images that are mounted as volumes, at each place the one that the configuration names last.
fn image_mounts(inner: &Inner, config: &cri::ContainerConfig) -> Result<Vec<ImageMount>> {
    let mut mounts = BTreeMap::new();
    for mount in &config.mounts {
        let Some(wanted) = &mount.image else { continue };
        let name = &wanted.image;
        let image = inner.images.find(name)?;
        let image = image.ok_or_else(|| Error::NotFound(format!("image {name:?}")))?;
        if image.is_host() || image.layers.is_empty() {
            return Err(Error::InvalidArgument(format!(
                "mount {}: image {name:?} has no layers of its own",
                mount.container_path
            )));
        }
        let destination = clean_path(Path::new(&mount.container_path));
        let mount = ImageMount {
            destination: destination.clone(),
            layers: inner.images.layers_dir().to_owned(),
            lower: image.layers.iter().rev().cloned().collect(),
            sub_path: mount.image_sub_path.clone(),
            scratch: PathBuf::new(),
        };
        check_part(&mount)?;
        mounts.insert(destination, mount);
    }
    Ok(mounts.into_values().collect())
}

/// A part that the image does not have is an error now, and not when the container starts.
fn check_part(mount: &ImageMount) -> Result<()> {
    let (part, at) = (&mount.sub_path, mount.destination.display());
    match image_part::find(&mount.layers, &mount.lower, Path::new(part)) {
        Ok(image_part::Found::Absent) => Err(Error::InvalidArgument(format!(
            "mount {at}: the image has no sub-path {part:?}"
        ))),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Internal(format!("mount {at}: image: {error}"))),
    }
}

/// The stop signal as a number: the pod's choice, the image's, or SIGTERM.
fn stop_signal(config: &cri::ContainerConfig, image: &str) -> i32 {
    let by_name = |name: &str| -> Option<i32> {
        if let Ok(number) = name.parse() {
            return Some(number);
        }
        let upper = name.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let (base, rest) = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
            (Some(rest), _) => (nix::libc::SIGRTMIN(), rest),
            (_, Some(rest)) => (nix::libc::SIGRTMAX(), rest),
            _ => {
                let name = match name {
                    "CLD" => "CHLD",
                    "POLL" => "IO",
                    "IOT" => "ABRT",
                    name => name,
                };
                return format!("SIG{name}")
                    .parse::<nix::sys::signal::Signal>()
                    .ok()
                    .map(|s| s as i32);
            }
        };
        let offset: i32 = match rest.replace("PLUS", "+").replace("MINUS", "-").as_str() {
            "" => 0,
            rest => rest.trim_start_matches('+').parse().ok()?,
        };
        Some(base + offset)
    };
    let asked = cri::Signal::try_from(config.stop_signal)
        .ok()
        .filter(|s| *s != cri::Signal::RuntimeDefault);
    asked
        .and_then(|signal| by_name(signal.as_str_name()))
        .or_else(|| by_name(image))
        .unwrap_or(nix::libc::SIGTERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals() {
        let of = |signal, image| {
            stop_signal(
                &cri::ContainerConfig {
                    stop_signal: signal,
                    ..Default::default()
                },
                image,
            )
        };
        assert_eq!(of(0, ""), 15);
        assert_eq!(of(0, "SIGQUIT"), 3);
        assert_eq!(of(0, "9"), 9);
        assert_eq!(of(0, "SIGRTMIN+3"), nix::libc::SIGRTMIN() + 3);
        assert_eq!(of(cri::Signal::Sigint as i32, "SIGQUIT"), 2);
        assert_eq!(
            of(cri::Signal::Sigrtmaxminus2 as i32, ""),
            nix::libc::SIGRTMAX() - 2
        );
        assert_eq!(of(0, "nonsense"), 15);
    }
}
