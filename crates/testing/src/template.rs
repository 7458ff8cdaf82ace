//! A prepared cluster that others begin as copies of.

use crate::{Cluster, ClusterOptions, Error, files};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The objects of a cluster that was prepared once. What takes long to make (definitions, charts, thousands of objects) is
/// there in each copy from its first moment.
#[derive(Debug)]
pub struct Template {
    dir: TempDir,
}

impl Template {
    /// Starts a cluster with these options, has `prepare` make what the copies are to have, and stops it.
    ///
    /// # Errors
    /// Those of the start and the end, and what `prepare` fails with.
    pub async fn prepare<E: From<Error>>(
        options: ClusterOptions,
        prepare: impl AsyncFnOnce(&Cluster) -> Result<(), E>,
    ) -> Result<Self, E> {
        if options.node {
            return Err(Error::TemplateWithNode.into());
        }
        let dir = tempfile::Builder::new().prefix("davit-template-").tempdir();
        let dir = dir.map_err(files("make the template's directory"))?;
        let template = Self { dir };
        let data_dir = template.data_dir().display().to_string();
        let place = ["--data-dir", &data_dir, "--port", "0"].map(str::to_owned);
        let cluster = Cluster::launch(options, place.to_vec()).await?;
        prepare(&cluster).await?;
        cluster.stop().await?;
        Ok(template)
    }

    /// A cluster that begins as a copy.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(&self) -> Result<Cluster, Error> {
        ClusterOptions::new().like(self).start().await
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        Path::join(self.dir.path(), "data")
    }
}
