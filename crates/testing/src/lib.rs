//! A Kubernetes cluster in a test: what kind and envtest are used for, in some ten milliseconds.
//!
//! ```no_run
//! # async fn test() -> Result<(), davit_testing::Error> {
//! let cluster = davit_testing::Cluster::start().await?;
//! let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(cluster.client());
//! # drop(namespaces);
//! cluster.stop().await
//! # }
//! ```
//!
//! Each cluster is a process of its own, `davit up --ephemeral --exit-with-parent`, with directories and ports that nobody
//! else has: many run at once, and none outlives the test, even one that is killed. The program is found by the variable
//! `DAVIT_BINARY`, beside the test's program (Cargo's `target` directory), or in `PATH`.
#![forbid(unsafe_code)]

mod cluster;
mod log;
mod options;
mod process;
mod template;

pub use cluster::Cluster;
pub use options::ClusterOptions;
pub use template::Template;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nowhere is a davit.
    #[error("no davit was found beside the test or in PATH; DAVIT_BINARY=FILE names one")]
    NoBinary,
    /// It cannot be started.
    #[error("cannot start {}", binary.display())]
    Start {
        /// The program.
        binary: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ended, or said nothing in time.
    #[error("davit did not become ready within {limit:?}; its log:\n{log}")]
    NotReady {
        /// How long it was waited for.
        limit: Duration,
        /// What it wrote last.
        log: String,
    },
    /// Its kubeconfig cannot be used.
    #[error("the cluster's kubeconfig {} cannot be used", kubeconfig.display())]
    Client {
        /// The file.
        kubeconfig: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It did not end well.
    #[error("davit ended with {status}; its log:\n{log}")]
    Ended {
        /// How.
        status: String,
        /// What it wrote last.
        log: String,
    },
    /// Files of the cluster.
    #[error("cannot {what}")]
    Files {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A template holds objects; containers cannot be copied.
    #[error("a template has no node of its own: containers cannot be copied")]
    TemplateWithNode,
}

fn files(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Files { what, source }
}
