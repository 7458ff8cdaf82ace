//! What a cluster is to have.

use crate::{Cluster, Error, Template, files};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;

/// How long a cluster may take to start, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// What a cluster is to have. By default the control plane: API server, scheduler and controllers, which need no privileges.
#[derive(Debug)]
pub struct ClusterOptions {
    pub(crate) binary: Option<PathBuf>,
    pub(crate) node: bool,
    pub(crate) simulated_nodes: usize,
    pub(crate) inventory: Option<String>,
    pub(crate) template: Option<PathBuf>,
    pub(crate) flags: Vec<String>,
    pub(crate) limit: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            binary: None,
            node: false,
            simulated_nodes: 0,
            inventory: None,
            template: None,
            flags: Vec::new(),
            limit: START,
        }
    }
}

impl ClusterOptions {
    /// The control plane alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This program instead of the one that is found.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// With a node that runs containers. Needs root.
    #[must_use]
    pub fn with_node(mut self) -> Self {
        self.node = true;
        self
    }

    /// With so many simulated nodes: real node agents with devices, whose containers run nothing. They need no privileges.
    #[must_use]
    pub fn simulated_nodes(mut self, number: usize) -> Self {
        self.simulated_nodes = number;
        self
    }

    /// With the simulated devices of an inventory (YAML, docs/lab.md) on all nodes.
    #[must_use]
    pub fn devices(mut self, inventory: impl Into<String>) -> Self {
        self.inventory = Some(inventory.into());
        self
    }

    /// With the objects that a template has.
    #[must_use]
    pub fn like(mut self, template: &Template) -> Self {
        self.template = Some(template.data_dir());
        self
    }

    /// With another flag of `davit up`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// How long it may take to start; a minute unless told otherwise.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the cluster.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(self) -> Result<Cluster, Error> {
        let mut place = vec!["--ephemeral".to_owned()];
        if let Some(template) = &self.template {
            place.extend(["--template".to_owned(), template.display().to_string()]);
        }
        Cluster::launch(self, place).await
    }

    /// The command line, and a file that has to be there as long as the cluster starts.
    pub(crate) fn command(
        &self,
        place: Vec<String>,
    ) -> Result<(Vec<String>, Option<NamedTempFile>), Error> {
        let mut all = vec!["up".to_owned(), "--exit-with-parent".to_owned()];
        all.extend(place);
        if !self.node {
            all.push("--no-node".to_owned());
        }
        if self.simulated_nodes > 0 {
            all.extend(["--sim-nodes".to_owned(), self.simulated_nodes.to_string()]);
        }
        let mut inventory = None;
        if let Some(text) = &self.inventory {
            let written = || -> std::io::Result<NamedTempFile> {
                let mut file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
                file.write_all(text.as_bytes())?;
                Ok(file)
            };
            let file = written().map_err(files("write the inventory of devices"))?;
            all.extend(["--devices".to_owned(), file.path().display().to_string()]);
            inventory = Some(file);
        }
        all.extend(self.flags.iter().cloned());
        Ok((all, inventory))
    }

    /// The program.
    pub(crate) fn program(&self) -> Result<PathBuf, Error> {
        if let Some(path) = &self.binary {
            return Ok(path.clone());
        }
        if let Some(path) = std::env::var_os("DAVIT_BINARY") {
            return Ok(path.into());
        }
        let here = std::env::current_exe().ok();
        // target/debug/deps/test-…, target/debug/examples/…
        let above = here.iter().flat_map(|exe| exe.ancestors().skip(1).take(2));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let listed = std::env::split_paths(&path).collect::<Vec<_>>();
        above
            .map(Path::to_owned)
            .chain(listed)
            .map(|dir| dir.join("davit"))
            .find(|file| file.is_file())
            .ok_or(Error::NoBinary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_on_the_command_line() {
        let options = ClusterOptions::new()
            .simulated_nodes(2)
            .devices("resources: []")
            .flag("--no-scheduler");
        let (line, inventory) = options.command(vec!["--ephemeral".to_owned()]).unwrap();
        let inventory = inventory.unwrap();
        let file = inventory.path().display().to_string();
        let expected = format!(
            "up --exit-with-parent --ephemeral --no-node --sim-nodes 2 --devices {file} --no-scheduler"
        );
        assert_eq!(line.join(" "), expected);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "resources: []");
        let (line, _) = ClusterOptions::new()
            .with_node()
            .command(Vec::new())
            .unwrap();
        assert_eq!(line.join(" "), "up --exit-with-parent");
    }
}
