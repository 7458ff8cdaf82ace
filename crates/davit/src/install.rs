//! `davit install` and `davit uninstall`: davit as a service of systemd.

mod unit;

use crate::configuration::{self, Setting};
use crate::{down, paths};
use anyhow::{Context, Result, bail};
use davit_beneath::{Links, Root};
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const BINARY: &str = "usr/local/bin/davit";
/// Make `kubectl davit`, and what completes it.
const PLUGINS: [&str; 2] = [
    "usr/local/bin/kubectl-davit",
    "usr/local/bin/kubectl_complete-davit",
];
/// What these links say.
const PLUGIN_SAYS: &str = "davit";
const COMPLETION: &str = "usr/share/bash-completion/completions/davit";
const CONFIGURATION: &str = "etc/davit/davit.yaml";
const UNIT: &str = "etc/systemd/system/davit.service";
const SERVICE: &str = "davit.service";

/// Flags of `davit install`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Install {
    /// A worker of a cluster (`davit node`) instead of a cluster of its own (`davit up`)
    #[arg(long)]
    node: bool,
    /// Neither enable nor start the service
    #[arg(long)]
    no_start: bool,
    /// Write the files below this directory instead of `/`, for a package or an image; nothing is started
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Flags of `davit up` or `davit node` for the configuration file, after `--`
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

/// Flags of `davit uninstall`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Uninstall {
    /// Delete the configuration and everything that the cluster or node has stored, too
    #[arg(long)]
    purge: bool,
    /// Where `davit install --destdir` has written
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
}

/// Where the files are.
struct InstallPaths {
    root: PathBuf,
    /// Whether this is a directory of files and not the machine.
    is_elsewhere: bool,
}

impl InstallPaths {
    fn new(destdir: Option<&Path>) -> Result<Self> {
        if destdir.is_none() && !paths::is_root() {
            bail!("services of the machine are root's; --destdir DIR writes the files elsewhere");
        }
        Ok(Self {
            root: destdir.unwrap_or(Path::new("/")).to_owned(),
            is_elsewhere: destdir.is_some(),
        })
    }

    /// As it is shown.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The directory itself. An image that is unpacked there may have links, which lead somewhere in the image and not on this
    /// machine.
    fn open(&self) -> Result<Root> {
        let opened = Root::open(&self.root, Links::Confined);
        opened.with_context(|| format!("cannot open {}", self.root.display()))
    }

    /// Whether systemd is in charge of this machine, and its services are meant.
    fn has_systemd(&self) -> bool {
        !self.is_elsewhere && sd_notify::booted().unwrap_or(false)
    }
}

pub(crate) fn install(args: &Install, commands: &clap::Command) -> Result<()> {
    let place = InstallPaths::new(args.destdir.as_deref())?;
    let command = if args.node { "node" } else { "up" };
    let file = place.at(CONFIGURATION);
    let exists = place
        .open()
        .is_ok_and(|root| root.entry(CONFIGURATION).is_ok());
    let there = exists.then_some(&*file);
    let configuration = wanted_configuration(commands, command, &args.flags, there)?;
    make_dirs(&place.root).with_context(|| format!("cannot make {}", place.root.display()))?;
    let root = place.open()?;
    if write_binary(&root)? {
        println!("wrote {}", place.at(BINARY).display());
    }
    for plugin in PLUGINS {
        let place = place.at(plugin);
        let shown = place.display();
        match root.entry_itself(plugin) {
            Ok(_) if is_ours(&root, plugin) => {}
            Ok(_) => println!("{shown} is there already, not davit's, and stays"),
            Err(_) => {
                let made = root.symlink(PLUGIN_SAYS, plugin);
                made.with_context(|| format!("cannot make {shown}"))?;
            }
        }
    }
    let script = crate::completion::script(clap_complete::Shell::Bash)?;
    write(&root, COMPLETION, &script, 0o644)?;
    if let Some(text) = configuration {
        // it may hold a token
        write(&root, CONFIGURATION, text.as_bytes(), 0o600)?;
        println!("wrote {}", file.display());
    }
    let unit = unit::text(command, &format!("/{BINARY}"), &format!("/{CONFIGURATION}"));
    write(&root, UNIT, unit.as_bytes(), 0o644)?;
    println!("wrote {}", place.at(UNIT).display());
    if !place.has_systemd() {
        if !place.is_elsewhere {
            println!(
                "systemd does not run here; start `/{BINARY} {command} --configuration /{CONFIGURATION}` by other means"
            );
        }
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    if args.no_start {
        println!("start it with `systemctl enable --now davit`");
        return Ok(());
    }
    systemctl(&["enable", SERVICE])?;
    // it may run already, from another binary
    systemctl(&["restart", SERVICE])?;
    println!("davit runs; `systemctl status davit` and `journalctl -u davit` say how");
    Ok(())
}

pub(crate) async fn uninstall(args: Uninstall, commands: &clap::Command) -> Result<()> {
    let place = InstallPaths::new(args.destdir.as_deref())?;
    let file = place.at(CONFIGURATION);
    let root = place.open()?;
    let has = |path: &str| root.entry(path).is_ok();
    if ![UNIT, CONFIGURATION, BINARY].into_iter().any(has) {
        bail!("davit is not installed in {}", place.root.display());
    }
    if place.has_systemd() && has(UNIT) {
        systemctl(&["disable", "--now", SERVICE])?;
    }
    if !place.is_elsewhere {
        for (data_dir, root) in used(commands, &file)? {
            let data_dir = paths::data_dir(data_dir.as_deref())?;
            if paths::holds_cluster(&data_dir) {
                down::run(down::Down::of(data_dir, root, args.purge)).await?;
            } else if data_dir.exists() {
                println!("{} holds no cluster and stays", data_dir.display());
            }
        }
    }
    let mut files = vec![UNIT, COMPLETION, BINARY];
    files.extend(PLUGINS.into_iter().filter(|plugin| is_ours(&root, plugin)));
    if args.purge {
        files.push(CONFIGURATION);
    }
    for file in files {
        match root.remove_file(file) {
            Err(error) if !error.is_not_found() => {
                return Err(error)
                    .with_context(|| format!("cannot remove {}", place.at(file).display()));
            }
            _ => {}
        }
    }
    if args.purge {
        // others may have something there
        let _kept = Path::new(CONFIGURATION)
            .parent()
            .map(|dir| root.remove_dir(dir));
    } else if root.entry(CONFIGURATION).is_ok() {
        println!("{} stays; --purge removes it", file.display());
    }
    if place.has_systemd() {
        systemctl(&["daemon-reload"])?;
    }
    Ok(())
}

/// Whether a program of kubectl's is the link that [`install`] makes.
fn is_ours(root: &Root, plugin: &str) -> bool {
    let says = root.read_link(plugin);
    says.is_ok_and(|says| says == Path::new(PLUGIN_SAYS))
}

/// The text for the configuration file; none if the one that is there stays. Either is one that the command starts with.
fn wanted_configuration(
    commands: &clap::Command,
    command: &str,
    flags: &[OsString],
    there: Option<&Path>,
) -> Result<Option<String>> {
    let mut line = vec![OsString::from(command)];
    if let Some(file) = there {
        if !flags.is_empty() {
            bail!(
                "{} is there already; write the flags into it",
                file.display()
            );
        }
        line.extend(["--configuration".into(), file.into()]);
    }
    line.extend(flags.iter().cloned());
    // the environment of this process is not the service's
    let settings = configuration::settings(commands, line, |_| None)?;
    let knows = |name| settings.iter().any(|s| s.value_of(name).is_some());
    if command == "node"
        && !["kubeconfig", "join", "discoveryFile"]
            .into_iter()
            .any(knows)
    {
        bail!(
            "a worker has to know its cluster: -- --join HOST:PORT --token TOKEN --discovery-token-ca-cert-hash HASH (docs/node.md), or -- --kubeconfig FILE"
        );
    }
    let said: Vec<Setting> = settings.into_iter().filter(Setting::is_flag).collect();
    Ok(there
        .is_none()
        .then(|| configuration::file_of(command, &said)))
}

/// Data directory and root of what the configuration file starts.
fn used(commands: &clap::Command, file: &Path) -> Result<Vec<(Option<PathBuf>, Option<PathBuf>)>> {
    if !file.exists() {
        return Ok(vec![(None, None)]);
    }
    let sections = configuration::commands_in(commands, file)?;
    sections
        .into_iter()
        .map(|command| {
            let line = vec![command.into(), "--configuration".into(), file.into()];
            let settings = configuration::settings(commands, line, |_| None)?;
            let of = |name| {
                settings
                    .iter()
                    .find_map(|s| s.value_of(name))
                    .map(PathBuf::from)
            };
            Ok((of("dataDir"), of("root")))
        })
        .collect()
}

/// Puts this program there. Answers whether it was not there.
fn write_binary(root: &Root) -> Result<bool> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let id = std::fs::metadata(&own).map(|meta| (meta.dev(), meta.ino()));
    let there = root.entry(BINARY).and_then(|entry| entry.stat());
    let there = there.map(|stat| (stat.st_dev, stat.st_ino));
    if id.is_ok_and(|id| there.is_ok_and(|there| there == id)) {
        return Ok(false);
    }
    let bytes = std::fs::read(&own).with_context(|| format!("cannot read {}", own.display()))?;
    write(root, BINARY, &bytes, 0o755)?;
    Ok(true)
}

/// Writes a file anew, and its directory, which all may enter whatever the umask of who installs: a program that runs may be
/// replaced, and who looks sees the one or the other.
fn write(root: &Root, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let what = || format!("cannot write {path}");
    let (dir, name) = path.rsplit_once('/').with_context(what)?;
    let dir = root.mkdir_all(dir, 0o755).with_context(what)?;
    davit_beneath::write_durably_in(&dir, name, bytes, mode).with_context(what)
}

/// Makes what is missing of a directory for all to enter, whatever the umask of who installs.
fn make_dirs(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() || dir == Path::new("") {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make_dirs(above)?;
    }
    std::fs::create_dir(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))
}

fn systemctl(args: &[&str]) -> Result<()> {
    let said = || format!("systemctl {}", args.join(" "));
    let status = Command::new("systemctl")
        .args(args)
        .status()
        .with_context(said)?;
    if !status.success() {
        bail!("{} has failed: {status}", said());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_plugin_of_somebody_else_is_not_ours() {
        let tmp = tempfile::tempdir().unwrap();
        let place = InstallPaths::new(Some(tmp.path())).unwrap();
        let root = place.open().unwrap();
        let plugin = PLUGINS[0];
        write(&root, BINARY, b"", 0o755).unwrap();
        let mode = std::fs::metadata(tmp.path().join("usr/local")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o755);
        assert!(!is_ours(&root, plugin));
        root.symlink(PLUGIN_SAYS, plugin).unwrap();
        assert!(is_ours(&root, plugin));
        root.remove_file(plugin).unwrap();
        root.symlink("/opt/another", plugin).unwrap();
        assert!(!is_ours(&root, plugin));
        root.remove_file(plugin).unwrap();
        std::fs::write(place.at(plugin), "#!/bin/sh\n").unwrap();
        assert!(!is_ours(&root, plugin));
    }

    /// The links of an image that somebody else has made lead to where its files are written.
    #[tokio::test]
    async fn nothing_is_written_or_removed_outside_an_image() {
        let tmp = tempfile::tempdir().unwrap();
        let (image, host) = (tmp.path().join("image"), tmp.path().join("host"));
        for dir in ["usr/local/bin", "etc/systemd/system", "etc/davit"] {
            std::fs::create_dir_all(host.join(dir)).unwrap();
        }
        std::fs::write(host.join(UNIT), "the host's").unwrap();
        std::fs::create_dir_all(image.join("usr")).unwrap();
        symlink(host.join("etc"), image.join("etc")).unwrap();
        symlink("../../host/usr/local", image.join("usr/local")).unwrap();
        let args = Install {
            node: false,
            no_start: true,
            destdir: Some(image.clone()),
            flags: Vec::new(),
        };
        let commands = crate::args::Args::full_command();
        install(&args, &commands).unwrap();
        let in_image = image.join(host.strip_prefix("/").unwrap());
        assert!(in_image.join(UNIT).is_file() && image.join("host").join(BINARY).is_file());
        let of_host = || std::fs::read_to_string(host.join(UNIT)).unwrap();
        assert_eq!(of_host(), "the host's");
        assert_eq!(
            std::fs::read_dir(host.join("usr/local/bin"))
                .unwrap()
                .count(),
            0
        );
        assert_eq!(
            std::fs::read_dir(host.join("etc/davit")).unwrap().count(),
            0
        );
        let args = Uninstall {
            purge: true,
            destdir: Some(image.clone()),
        };
        uninstall(args, &commands).await.unwrap();
        assert!(!in_image.join(UNIT).exists() && !image.join("host").join(BINARY).exists());
        assert_eq!(of_host(), "the host's");
    }
}
