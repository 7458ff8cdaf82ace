//! `cargo xtask dist`: what is handed out, made of one binary: an archive with completions and manual pages, a Debian package,
//! of a static binary an image, and the checksums of all. The same binary gives the same files: entries are sorted and dated
//! by the last commit.

mod deb;
mod image;
mod target;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Shells that get a completion script: name, place in the archive, place in the package.
const SHELLS: [(&str, &str, &str); 3] = [
    (
        "bash",
        "completions/davit.bash",
        "usr/share/bash-completion/completions/davit",
    ),
    (
        "zsh",
        "completions/_davit",
        "usr/share/zsh/vendor-completions/_davit",
    ),
    (
        "fish",
        "completions/davit.fish",
        "usr/share/fish/vendor_completions.d/davit.fish",
    ),
];

/// What kubectl calls.
const PLUGINS: [&str; 2] = ["kubectl-davit", "kubectl_complete-davit"];

/// What the unit reads, which is the administrator's once it is there.
const CONFIGURATION: &str = "etc/davit/davit.yaml";

/// What goes into an archive.
enum Content {
    File {
        bytes: Vec<u8>,
        mode: u32,
    },
    Link(&'static str),
    /// With its mode.
    Directory(u32),
}

impl Content {
    fn text(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File {
            bytes: bytes.into(),
            mode: 0o644,
        }
    }

    fn program(bytes: Vec<u8>) -> Self {
        Self::File { bytes, mode: 0o755 }
    }
}

/// Files by their paths.
type Tree = BTreeMap<String, Content>;

/// What was asked for.
#[derive(Debug, Default)]
struct Wanted {
    binary: Option<PathBuf>,
    target: Option<String>,
    to: Option<PathBuf>,
}

impl Wanted {
    fn read(flags: &[&str]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            let value = flags
                .next()
                .with_context(|| format!("{flag} needs a value"))?;
            match *flag {
                "--binary" => wanted.binary = Some(value.into()),
                "--target" => wanted.target = Some((*value).to_owned()),
                "--to" => wanted.to = Some(value.into()),
                _ => {
                    bail!("{flag} is not known; there are --binary FILE, --target TARGET, --to DIR")
                }
            }
        }
        if wanted.binary.is_some() && wanted.target.is_some() {
            bail!("--target is for a binary that is built here, --binary names one");
        }
        Ok(wanted)
    }
}

/// Makes everything.
pub(crate) fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let wanted = Wanted::read(flags)?;
    let architecture = architecture(wanted.target.as_deref())?;
    let binary = match wanted.binary {
        Some(binary) => std::path::absolute(&binary)?,
        None => build(root, wanted.target.as_deref())?,
    };
    let to = wanted.to.unwrap_or_else(|| root.join("target/dist"));
    std::fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    let version = version(&binary)?;
    let date = date(root);
    let scratch = to.join(".making");
    let parts = Parts::of(&binary, &scratch, root);
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    let parts = parts?;
    let name = format!("davit-{version}-{}-linux", architecture.0);
    let archive = parts.archive(&name)?;
    let archive = gzip(&tar(&archive, date)?)?;
    let package = deb::package(&parts.package()?, &version, architecture.1, date)?;
    let mut made = vec![
        (format!("{name}.tar.gz"), archive),
        (format!("davit_{version}_{}.deb", architecture.1), package),
    ];
    match image::refused(&parts.binary, architecture.0) {
        Some(why) => eprintln!("{why}"),
        None => made.push((
            format!("{name}.oci.tar"),
            parts.image(&version, architecture.1, date)?,
        )),
    }
    let mut sums = String::new();
    for (name, bytes) in made {
        let sum = hex(&Sha256::digest(&bytes));
        let _infallible = writeln!(sums, "{sum}  {name}");
        put(&to.join(&name), &bytes)?;
    }
    put(&to.join("SHA256SUMS"), sums.as_bytes())
}

fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

fn build(root: &Path, target: Option<&str>) -> Result<PathBuf> {
    if let Some(target) = target {
        target::check(target)?;
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "-p", "davit"])
        .current_dir(root);
    if let Some(target) = target {
        cargo.args(["--target", target]);
    }
    if !cargo.status().context("cargo")?.success() {
        bail!("davit does not build");
    }
    Ok(root
        .join("target")
        .join(target.unwrap_or(""))
        .join("release/davit"))
}

/// What the binary itself says.
fn asked(binary: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(binary).args(args).output();
    let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
    if !output.status.success() {
        bail!(
            "davit {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output.stdout)
}

fn version(binary: &Path) -> Result<String> {
    let said = String::from_utf8(asked(binary, &["version"])?)?;
    let version = said.trim().strip_prefix("davit ");
    Ok(version
        .context("davit does not say its version")?
        .to_owned())
}

/// Seconds of the last commit, or of SOURCE_DATE_EPOCH.
fn date(root: &Path) -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .and_then(|date| date.parse().ok());
    let of_commit = || {
        let git = Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(root)
            .output()
            .ok()?;
        String::from_utf8(git.stdout).ok()?.trim().parse().ok()
    };
    given.or_else(of_commit).unwrap_or(0)
}

/// The architecture of a target, as Rust and as Debian name it.
fn architecture(target: Option<&str>) -> Result<(&'static str, &'static str)> {
    let named = target.and_then(|target| target.split('-').next());
    match named.unwrap_or(std::env::consts::ARCH) {
        "x86_64" => Ok(("x86_64", "amd64")),
        "aarch64" => Ok(("aarch64", "arm64")),
        other => bail!("packages for {other} are not made"),
    }
}

/// What both are made of.
struct Parts {
    binary: Vec<u8>,
    unit: String,
    configuration: Vec<u8>,
    /// By shell.
    completions: BTreeMap<&'static str, Vec<u8>>,
    /// By name.
    manual: BTreeMap<String, Vec<u8>>,
    license: Vec<u8>,
    readme: Vec<u8>,
}

impl Parts {
    fn of(binary: &Path, scratch: &Path, root: &Path) -> Result<Self> {
        let manual = scratch.join("man");
        let installed = scratch.join("root");
        let at = |path: &Path| path.display().to_string();
        asked(binary, &["reference", "--man", &at(&manual)])?;
        asked(binary, &["install", "--destdir", &at(&installed)])?;
        let unit = std::fs::read_to_string(installed.join("etc/systemd/system/davit.service"))?;
        let mut completions = BTreeMap::new();
        for (shell, ..) in SHELLS {
            completions.insert(shell, asked(binary, &["completion", shell])?);
        }
        let mut pages = BTreeMap::new();
        for entry in std::fs::read_dir(&manual)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            pages.insert(name, std::fs::read(entry.path())?);
        }
        Ok(Self {
            binary: std::fs::read(binary)?,
            // A package's programs are in /usr, and its units are not the administrator's.
            unit: unit.replace("/usr/local/bin/", "/usr/bin/"),
            configuration: std::fs::read(installed.join(CONFIGURATION))?,
            completions,
            manual: pages,
            license: std::fs::read(root.join("LICENSE"))?,
            readme: std::fs::read(root.join("README.md"))?,
        })
    }

    fn archive(&self, name: &str) -> Result<Tree> {
        let mut tree = Tree::new();
        let mut add = |path: &str, content| tree.insert(format!("{name}/{path}"), content);
        add("davit", Content::program(self.binary.clone()));
        for plugin in PLUGINS {
            add(plugin, Content::Link("davit"));
        }
        add("LICENSE", Content::text(self.license.clone()));
        add("README.md", Content::text(self.readme.clone()));
        for (shell, path, _) in SHELLS {
            add(path, Content::text(self.completion(shell)?));
        }
        for (page, text) in &self.manual {
            add(&format!("man/{page}"), Content::text(text.clone()));
        }
        Ok(tree)
    }

    fn package(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        let mut add = |path: &str, content| tree.insert(path.to_owned(), content);
        add("usr/bin/davit", Content::program(self.binary.clone()));
        for plugin in PLUGINS {
            add(&format!("usr/bin/{plugin}"), Content::Link("davit"));
        }
        add(
            "usr/lib/systemd/system/davit.service",
            Content::text(self.unit.clone()),
        );
        let configuration = self.configuration.clone();
        add(
            CONFIGURATION,
            Content::File {
                bytes: configuration,
                mode: 0o600,
            },
        );
        add(
            "usr/share/doc/davit/copyright",
            Content::text(self.license.clone()),
        );
        for (shell, _, path) in SHELLS {
            add(path, Content::text(self.completion(shell)?));
        }
        for (page, text) in &self.manual {
            add(
                &format!("usr/share/man/man1/{page}.gz"),
                Content::text(gzip(text)?),
            );
        }
        Ok(tree)
    }

    fn image(&self, version: &str, architecture: &str, date: u64) -> Result<Vec<u8>> {
        image::archive(&self.binary, &self.license, version, architecture, date)
    }

    fn completion(&self, shell: &str) -> Result<Vec<u8>> {
        self.completions.get(shell).cloned().context("completion")
    }
}

/// Sorted, of root, of one date, with the directories above.
fn tar(tree: &Tree, date: u64) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let header = |kind, mode, size| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(date);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    let mut made: Vec<PathBuf> = Vec::new();
    for (path, content) in tree {
        let mut above: Vec<&Path> = Path::new(path)
            .ancestors()
            .skip(1)
            .filter(|p| *p != Path::new(""))
            .collect();
        above.reverse();
        for directory in above {
            if !made.iter().any(|one| one == directory) {
                let mut header = header(tar::EntryType::Directory, 0o755, 0);
                archive.append_data(
                    &mut header,
                    Path::new(".").join(directory),
                    std::io::empty(),
                )?;
                made.push(directory.to_owned());
            }
        }
        let path = Path::new(".").join(path);
        match content {
            Content::Directory(mode) => {
                let mut header = header(tar::EntryType::Directory, *mode, 0);
                archive.append_data(&mut header, path, std::io::empty())?;
            }
            Content::File { bytes, mode } => {
                let mut header = header(tar::EntryType::Regular, *mode, bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice())?;
            }
            Content::Link(to) => {
                let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                archive.append_link(&mut header, path, to)?;
            }
        }
    }
    Ok(archive.into_inner()?)
}

/// By the machine's gzip, without name and time: this program is built without optimization, and binaries are large.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = Command::new("gzip");
    gzip.arg("-n").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut gzip = gzip.spawn().context("gzip")?;
    let mut input = gzip.stdin.take().context("gzip")?;
    let output = std::thread::scope(|scope| {
        // Whoever writes all before he reads waits for ever; what fails shows in the status.
        scope.spawn(move || input.write_all(bytes));
        gzip.wait_with_output()
    });
    let output = output.context("gzip")?;
    if !output.status.success() {
        bail!("gzip: {}", output.status);
    }
    Ok(output.stdout)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _infallible = write!(out, "{byte:02x}");
        out
    })
}
