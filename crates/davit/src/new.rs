//! `davit new`: a project to begin a device plugin or a driver with.

mod project;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use project::{ProjectKind, ProjectPlan};
use std::path::{Path, PathBuf};

/// What `davit new` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct New {
    #[command(subcommand)]
    what: NewWhat,
}

#[derive(Debug, Clone, Subcommand)]
enum NewWhat {
    /// A device plugin in Rust, on davit's SDK
    #[command(visible_alias = "plugin")]
    DevicePlugin {
        #[command(flatten)]
        project: Project,
        /// Extended resource that pods ask for [default: vendor.example/NAME]
        #[arg(long, value_name = "DOMAIN/NAME")]
        resource: Option<String>,
    },
    /// A driver of dynamic resource allocation in Rust, on davit's SDK
    #[command(visible_alias = "driver")]
    DraDriver {
        #[command(flatten)]
        project: Project,
        /// Name of the driver, a domain [default: NAME.vendor.example]
        #[arg(long, value_name = "DOMAIN")]
        driver_name: Option<String>,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Project {
    /// Name of the program and of its devices: lower case letters, digits and dashes
    name: String,
    /// Directory to make [default: NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    sdk: Sdk,
}

/// Where the SDK is. It is in no registry of crates yet.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Sdk {
    /// A checkout of davit's sources, or crates/sdk in it, for the SDK
    #[arg(long, value_name = "DIR")]
    sdk_path: Option<PathBuf>,
    /// A git repository of davit's sources, for the SDK
    #[arg(long, value_name = "URL")]
    sdk_git: Option<String>,
}

/// Runs `davit new`.
pub(crate) fn run(args: New) -> Result<()> {
    let (kind, chosen, project) = match args.what {
        NewWhat::DevicePlugin { project, resource } => {
            (ProjectKind::DevicePlugin, resource, project)
        }
        NewWhat::DraDriver {
            project,
            driver_name,
        } => (ProjectKind::DraDriver, driver_name, project),
    };
    let sdk = project.sdk.dependency()?;
    let plan = ProjectPlan::new(kind, &project.name, chosen, sdk)?;
    let dir = project.dir.unwrap_or_else(|| project.name.clone().into());
    write(&plan, &dir)?;
    print!("{}", plan.next_steps(&dir));
    Ok(())
}

impl Sdk {
    /// As Cargo.toml says it.
    fn dependency(&self) -> Result<String> {
        if let Some(url) = &self.sdk_git {
            return Ok(format!("git = {}", quoted(url)?));
        }
        let given = self.sdk_path.as_deref().context("no SDK")?;
        let below = given.join("crates/sdk");
        let found = [given, &below].into_iter().find(|dir| is_sdk(dir));
        let Some(found) = found else {
            bail!(
                "--sdk-path {}: there is no davit-sdk; name a checkout of davit's sources",
                given.display()
            );
        };
        let path = std::path::absolute(found).context("--sdk-path")?;
        let text = path.to_str().context("--sdk-path: the path is no UTF-8")?;
        Ok(format!("path = {}", quoted(text)?))
    }
}

/// Whether the crate is there.
fn is_sdk(dir: &Path) -> bool {
    let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    manifest
        .lines()
        .any(|line| line.trim() == "name = \"davit-sdk\"")
}

/// A string of TOML: one of JSON is one, too.
fn quoted(text: &str) -> Result<String> {
    serde_json::to_string(text).context("cannot quote")
}

/// Writes a project into a directory that was not there. What was begun and fails is taken away again.
fn write(plan: &ProjectPlan, dir: &Path) -> Result<()> {
    std::fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let written = plan.files().into_iter().try_for_each(|(name, text)| {
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))
    });
    if written.is_err() {
        // The first error is the one to tell.
        let _left = std::fs::remove_dir_all(dir);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdk_is_found_in_a_checkout_or_named_itself() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for given in [checkout.clone(), checkout.join("crates/sdk")] {
            let sdk = Sdk {
                sdk_path: Some(given),
                sdk_git: None,
            };
            let said = sdk.dependency().unwrap();
            assert!(
                said.starts_with("path = \"/") && said.ends_with("crates/sdk\""),
                "{said}"
            );
        }
        let nowhere = Sdk {
            sdk_path: Some(checkout.join("docs")),
            sdk_git: None,
        };
        assert!(nowhere.dependency().is_err());
    }

    #[test]
    fn what_is_there_already_stays() {
        let dir = tempfile::tempdir().unwrap();
        let plan = ProjectPlan::new(
            ProjectKind::DevicePlugin,
            "x",
            None,
            "git = \"g\"".to_owned(),
        )
        .unwrap();
        assert!(write(&plan, dir.path()).is_err());
        assert!(dir.path().is_dir());
        let new = dir.path().join("new");
        write(&plan, &new).unwrap();
        assert!(new.join("src/main.rs").is_file() && new.join("README.md").is_file());
    }
}
