//! Flags of `davit image`.

use crate::output::ListOutput;
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    pub(crate) action: ImageAction,
    /// Where the runtime's state lives [default: beside the admin.kubeconfig that $KUBECONFIG names, else /var/lib/davit
    /// as root or ~/.local/share/davit]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ImageAction {
    /// Import an OCI or Docker archive
    Import {
        /// The archive (tar, tar.gz) or an OCI layout directory
        file: PathBuf,
    },
    /// Pull images from their registries, without credentials
    Pull {
        /// Names, as pods have them
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// List images
    #[command(visible_alias = "ls")]
    List {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<ListOutput>,
    },
    /// Remove images
    Rm {
        /// Names, digests or IDs
        #[arg(required = true)]
        images: Vec<String>,
    },
}
