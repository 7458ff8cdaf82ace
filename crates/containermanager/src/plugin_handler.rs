//! What takes plugins into service that this crate has no use for itself.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a plugin is not taken into service; the plugin gets to read it.
pub type PluginHandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Takes the plugins of one type into service when they register, as the kubelet's plugin handlers do.
#[async_trait::async_trait]
pub trait PluginHandler: Debug + Send + Sync {
    /// Whether a plugin with this name and these versions may be registered. `endpoint` is the socket of its service,
    /// `socket` the one by which it registers.
    ///
    /// # Errors
    /// Why not.
    fn validate(
        &self,
        name: &str,
        endpoint: &Path,
        socket: &Path,
        versions: &[String],
    ) -> Result<(), PluginHandlerError>;

    /// Takes a plugin into service that was found valid.
    ///
    /// # Errors
    /// Why it is not in service.
    async fn register(
        &self,
        name: &str,
        endpoint: PathBuf,
        socket: &Path,
        versions: &[String],
    ) -> Result<(), PluginHandlerError>;

    /// Takes what registered by this socket out of service; does not wait for that.
    fn disconnect(self: Arc<Self>, socket: &Path);
}
