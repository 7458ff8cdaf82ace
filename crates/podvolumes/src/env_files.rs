//! Files of volumes that say what variables of containers are (`fileKeyRef`).

use super::{Mounted, Ready, Volumes};
use davit_pods::env_files::{EnvFileError, EnvFiles, selectors};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::{Container, Pod};

impl Volumes {
    /// Reads the files of the pod's volumes that variables of the container refer to.
    ///
    /// # Errors
    /// What is not there or cannot be read, or file systems that do not answer.
    pub async fn env_files(
        &self,
        pod: &Pod,
        container: &Container,
        mounted: &Mounted,
    ) -> Result<EnvFiles, EnvFileError> {
        let selected: Vec<_> = selectors(container).cloned().collect();
        if selected.is_empty() {
            return Ok(EnvFiles::default());
        }
        let mounted = mounted.clone();
        let work = move || {
            EnvFiles::read(&selected, |volume| match mounted.get(volume)? {
                Ready::Directory { path, .. } => Some(path.as_path()),
                Ready::Device { .. } => None,
            })
        };
        let read = self.waits.run(format!("env files {}", pod.uid()), work);
        let no_answer = |error: std::io::Error| Err(EnvFileError::NoAnswer(error.to_string()));
        read.await.unwrap_or_else(no_answer)
    }
}
