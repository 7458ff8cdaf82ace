//! `davit install` and `davit uninstall`: davit as a service of systemd.

mod unit;

use crate::configuration::{self, Setting};
use crate::{down, paths};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
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

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
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
    let configuration = wanted_configuration(commands, command, &args.flags, &file)?;
    write_binary(&place.at(BINARY))?;
    for plugin in PLUGINS.map(|plugin| place.at(plugin)) {
        let shown = plugin.display();
        match std::fs::symlink_metadata(&plugin) {
            Ok(_) if is_ours(&plugin) => {}
            Ok(_) => println!("{shown} is there already, not davit's, and stays"),
            Err(_) => {
                symlink(PLUGIN_SAYS, &plugin).with_context(|| format!("cannot make {shown}"))?;
            }
        }
    }
    let script = crate::completion::script(clap_complete::Shell::Bash)?;
    write(&place.at(COMPLETION), &script, 0o644)?;
    if let Some(text) = configuration {
        // it may hold a token
        write(&file, text.as_bytes(), 0o600)?;
        println!("wrote {}", file.display());
    }
    let unit = unit::text(command, &format!("/{BINARY}"), &format!("/{CONFIGURATION}"));
    write(&place.at(UNIT), unit.as_bytes(), 0o644)?;
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
    let (unit, file) = (place.at(UNIT), place.at(CONFIGURATION));
    if !unit.exists() && !file.exists() && !place.at(BINARY).exists() {
        bail!("davit is not installed in {}", place.root.display());
    }
    if place.has_systemd() && unit.exists() {
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
    let mut files = vec![unit, place.at(COMPLETION), place.at(BINARY)];
    let plugins = PLUGINS.map(|plugin| place.at(plugin));
    files.extend(plugins.into_iter().filter(|plugin| is_ours(plugin)));
    if args.purge {
        files.push(file.clone());
    }
    for file in files {
        remove(&file)?;
    }
    if args.purge {
        // others may have something there
        let _kept = file.parent().map(std::fs::remove_dir);
    } else if file.exists() {
        println!("{} stays; --purge removes it", file.display());
    }
    if place.has_systemd() {
        systemctl(&["daemon-reload"])?;
    }
    Ok(())
}

/// Whether a program of kubectl's is the link that [`install`] makes.
fn is_ours(plugin: &Path) -> bool {
    std::fs::read_link(plugin).is_ok_and(|says| says == Path::new(PLUGIN_SAYS))
}

/// The text for the configuration file; none if the one that is there stays. Either is one that the command starts with.
fn wanted_configuration(
    commands: &clap::Command,
    command: &str,
    flags: &[OsString],
    file: &Path,
) -> Result<Option<String>> {
    let exists = file.exists();
    if exists && !flags.is_empty() {
        bail!(
            "{} is there already; write the flags into it",
            file.display()
        );
    }
    let mut line = vec![OsString::from(command)];
    if exists {
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
    Ok((!exists).then(|| configuration::file_of(command, &said)))
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

/// Puts this program there, unless it is there.
fn write_binary(to: &Path) -> Result<()> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if id(&own).is_some() && id(&own) == id(to) {
        return Ok(());
    }
    let bytes = std::fs::read(&own).with_context(|| format!("cannot read {}", own.display()))?;
    write(to, &bytes, 0o755)?;
    println!("wrote {}", to.display());
    Ok(())
}

/// Writes a file anew, and its directory: a program that runs may be replaced, and who looks sees the one or the other.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    if let Some(dir) = path.parent() {
        make_dirs(dir).with_context(what)?;
    }
    davit_beneath::write_durably(path, bytes, mode).with_context(what)
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

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
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

    #[test]
    fn a_plugin_of_somebody_else_is_not_ours() {
        let tmp = tempfile::tempdir().unwrap();
        let place = InstallPaths::new(Some(tmp.path())).unwrap();
        let plugin = place.at(PLUGINS[0]);
        make_dirs(plugin.parent().unwrap()).unwrap();
        let mode = std::fs::metadata(tmp.path().join("usr/local")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o755);
        assert!(!is_ours(&plugin));
        symlink(PLUGIN_SAYS, &plugin).unwrap();
        assert!(is_ours(&plugin));
        std::fs::remove_file(&plugin).unwrap();
        symlink("/opt/another", &plugin).unwrap();
        assert!(!is_ours(&plugin));
        std::fs::remove_file(&plugin).unwrap();
        std::fs::write(&plugin, "#!/bin/sh\n").unwrap();
        assert!(!is_ours(&plugin));
    }
}
