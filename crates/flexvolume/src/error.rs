//! What goes wrong with a driver, and what that means for the volume.

use crate::name::InvalidDriverName;
use std::path::PathBuf;
use std::time::Duration;

/// What an error says about the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The driver says that it did not do it.
    Final,
    /// The driver may have done it.
    Uncertain,
    /// The driver was not asked.
    NotAsked,
}

/// Why a call on a driver failed. Holds nothing of the options, which may contain secrets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No volume can have such a driver.
    #[error("no volume plugin matched: {0}")]
    Name(#[from] InvalidDriverName),
    /// There is no such executable.
    #[error("no volume plugin matched: FlexVolume driver {driver} is not installed in {}", dir.display())]
    NotInstalled {
        /// The driver.
        driver: String,
        /// The directory of drivers.
        dir: PathBuf,
    },
    /// The executable is there, but did not say what it can do.
    #[error(
        "error creating Flexvolume plugin from directory {directory}, skipping. Error: {cause}"
    )]
    Init {
        /// Its directory.
        directory: String,
        /// How `init` ended.
        cause: Box<Error>,
    },
    /// The executable, or the directory of drivers, cannot be looked at.
    #[error("cannot look at {}: {source}", path.display())]
    Look {
        /// The path.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The executable cannot be started.
    #[error("cannot run {}: {source}", path.display())]
    Start {
        /// The executable.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The driver's own word.
    #[error("{command} command failed, status: {status}, reason: {message}")]
    Failed {
        /// The command.
        command: &'static str,
        /// Any status but `Success`.
        status: String,
        /// The driver's reason.
        message: String,
    },
    /// `init` has to be supported.
    #[error("Not supported")]
    NotSupported,
    /// The driver says `Success`, and its exit code the contrary.
    #[error("{0}")]
    Exit(String),
    /// What the driver wrote is no answer.
    #[error(
        "FlexVolume driver {driver} gave no answer to {command} ({ended}): {why}; it wrote {output:?}"
    )]
    NoAnswer {
        /// The driver.
        driver: String,
        /// The command.
        command: &'static str,
        /// How the process ended.
        ended: String,
        /// What is wrong with it.
        why: String,
        /// The beginning of what it wrote.
        output: String,
    },
    /// The process and all that it had started were ended.
    #[error("timeout: FlexVolume driver {driver} did not end {command} within {} s", limit.as_secs())]
    TimedOut {
        /// The driver.
        driver: String,
        /// The command.
        command: &'static str,
        /// How long it had.
        limit: Duration,
    },
}

impl Error {
    /// What the error says about the volume.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Name(_)
            | Self::NotInstalled { .. }
            | Self::Init { .. }
            | Self::Look { .. }
            | Self::Start { .. } => Outcome::NotAsked,
            Self::Failed { .. } | Self::NotSupported => Outcome::Final,
            Self::Exit(_) | Self::NoAnswer { .. } | Self::TimedOut { .. } => Outcome::Uncertain,
        }
    }

    /// Whether no executable is there.
    pub fn is_not_installed(&self) -> bool {
        matches!(self, Self::NotInstalled { .. } | Self::Name(_))
    }
}
