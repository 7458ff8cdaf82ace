//! The table of registered drivers.

use crate::driver::{CALL_LIMIT, DriverClient};
use crate::{CsiVersion, NotRegistered, PLUGIN_NAME, VersionError};
use davit_proto::unix::Address;
use parking_lot::RwLock;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Why the versions of a driver are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("Plugin returned an empty list for supported versions")]
    Empty,
    #[error(
        "None of the versions specified [{}] are supported. err={error}",
        quoted(versions)
    )]
    Unsupported {
        versions: Vec<String>,
        error: VersionError,
    },
    #[error(
        "Another driver with the same name is already registered with a higher supported version: \"{0}\""
    )]
    Outdone(CsiVersion),
}

/// A driver that cannot be registered with the versions it announces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{PLUGIN_NAME}: {step} for CSI driver \"{driver}\" failed. {reason}")]
pub struct VersionsRefused {
    step: &'static str,
    driver: String,
    reason: Reason,
}

/// A plugin that wants to be registered and may not.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("validation failed for CSI Driver {driver} at endpoint {endpoint}: {cause}")]
pub struct InvalidDriver {
    driver: String,
    endpoint: String,
    cause: Box<VersionsRefused>,
}

/// An instance that has left the table.
#[derive(Debug)]
pub struct Removed {
    /// The driver's name.
    pub driver: String,
    /// The instance that serves the driver from now on: if there is one, the driver is still registered.
    pub successor: Option<Arc<DriverClient>>,
}

#[derive(Debug)]
struct Registered {
    /// Its socket in the plugin registry.
    socket: PathBuf,
    client: Arc<DriverClient>,
}

/// The drivers that are registered on this node, by the sockets they registered with. A driver can have several instances
/// while one replaces another: the one of the highest version is called.
#[derive(Debug)]
pub struct Drivers {
    limit: Duration,
    /// Below it drivers may write.
    root: Option<PathBuf>,
    /// In the order in which they came.
    table: RwLock<Vec<Registered>>,
}

impl Default for Drivers {
    fn default() -> Self {
        Self::with_call_limit(CALL_LIMIT)
    }
}

impl Drivers {
    /// A table whose calls end after `limit` instead of [`CALL_LIMIT`].
    pub fn with_call_limit(limit: Duration) -> Self {
        Self {
            limit,
            root: None,
            table: RwLock::default(),
        }
    }

    /// The directory below which drivers and others may write: endpoints in it are not reached through links.
    #[must_use]
    pub fn below(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Some(root.into());
        self
    }

    /// Whether a plugin may be registered.
    ///
    /// # Errors
    /// A sentence for the plugin.
    pub fn validate(
        &self,
        name: &str,
        endpoint: &Path,
        socket: &Path,
        versions: &[String],
    ) -> Result<(), InvalidDriver> {
        let table = self.table.read();
        usable(&table, "ValidatePlugin", name, socket, versions)
            .map(|_| ())
            .map_err(|cause| InvalidDriver {
                driver: name.to_owned(),
                endpoint: endpoint.display().to_string(),
                cause: Box::new(cause),
            })
    }

    /// Takes in a driver that serves at `endpoint` and registered with `socket`. When what follows fails, NodeGetInfo or
    /// what is to be written about the node, the caller has to take it out again with [`Drivers::deregister`].
    ///
    /// # Errors
    /// The versions are not spoken, or an instance with another socket has as high a one.
    pub fn register(
        &self,
        name: &str,
        endpoint: PathBuf,
        socket: PathBuf,
        versions: &[String],
    ) -> Result<Arc<DriverClient>, VersionsRefused> {
        let mut table = self.table.write();
        let version = usable(&table, "RegisterPlugin", name, &socket, versions)?;
        let endpoint = match &self.root {
            Some(root) => Address::below(root, endpoint),
            None => endpoint.into(),
        };
        let client = Arc::new(DriverClient::new(name, endpoint, version, self.limit));
        table.retain(|r| r.socket != socket || r.client.name() != name);
        table.push(Registered {
            socket,
            client: client.clone(),
        });
        Ok(client)
    }

    /// Takes out what registered with a socket of the plugin registry, and nothing else. Calls that are under way go on.
    pub fn deregister(&self, socket: &Path) -> Vec<Removed> {
        let mut table = self.table.write();
        let (gone, left) = table.drain(..).partition(|r| r.socket == socket);
        *table = left;
        let gone: Vec<Registered> = gone;
        gone.into_iter()
            .map(|registered| Removed {
                driver: registered.client.name().to_owned(),
                successor: called(&table, registered.client.name()).cloned(),
            })
            .collect()
    }

    /// The instance of a driver to call.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &str) -> Result<Arc<DriverClient>, NotRegistered> {
        called(&self.table.read(), name)
            .cloned()
            .ok_or_else(|| NotRegistered(name.to_owned()))
    }

    /// The names of all registered drivers, each once, in order.
    pub fn names(&self) -> Vec<String> {
        let table = self.table.read();
        let mut names: Vec<String> = table.iter().map(|r| r.client.name().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn called<'a>(table: &'a [Registered], name: &str) -> Option<&'a Arc<DriverClient>> {
    let own = table.iter().filter(|r| r.client.name() == name);
    own.map(|r| &r.client).max_by_key(|c| c.version())
}

fn usable(
    table: &[Registered],
    step: &'static str,
    name: &str,
    socket: &Path,
    versions: &[String],
) -> Result<CsiVersion, VersionsRefused> {
    let refused = |reason| VersionsRefused {
        step,
        driver: name.to_owned(),
        reason,
    };
    if versions.is_empty() {
        return Err(refused(Reason::Empty));
    }
    let version = CsiVersion::highest(versions).map_err(|error| {
        refused(Reason::Unsupported {
            versions: versions.to_vec(),
            error,
        })
    })?;
    let others = table
        .iter()
        .filter(|r| r.socket != socket && r.client.name() == name);
    match others.map(|r| r.client.version()).max() {
        Some(registered) if *registered >= version => {
            Err(refused(Reason::Outdone(registered.clone())))
        }
        _ => Ok(version),
    }
}

fn quoted(texts: &[String]) -> String {
    let all: Vec<String> = texts.iter().map(|t| format!("{t:?}")).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(drivers: &Drivers, socket: &str, versions: &[&str]) -> Result<PathBuf, String> {
        let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
        let endpoint = PathBuf::from(format!("/plugins/{socket}"));
        drivers
            .register("d", endpoint, format!("/reg/{socket}").into(), &versions)
            .map(|client| client.endpoint().to_owned())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn item_074_a_second_driver_needs_a_higher_version_and_ends_alone() {
        let drivers = Drivers::default();
        register(&drivers, "a", &["1.0.0"]).unwrap();
        assert_eq!(
            register(&drivers, "b", &["1.0.0"]).unwrap_err(),
            "kubernetes.io/csi: RegisterPlugin for CSI driver \"d\" failed. Another driver with the same name is already \
             registered with a higher supported version: \"1.0.0\""
        );
        // What was refused has nothing to take out.
        assert!(drivers.deregister(Path::new("/reg/b")).is_empty());
        assert_eq!(
            drivers.get("d").unwrap().endpoint(),
            Path::new("/plugins/a")
        );

        // A new one of a higher version; the old one ends later.
        register(&drivers, "b", &["1.1.0", "1.0.0"]).unwrap();
        assert_eq!(
            drivers.get("d").unwrap().endpoint(),
            Path::new("/plugins/b")
        );
        let removed = drivers.deregister(Path::new("/reg/a"));
        assert_eq!(removed.len(), 1);
        assert!(removed[0].successor.is_some());
        assert_eq!(
            drivers.get("d").unwrap().endpoint(),
            Path::new("/plugins/b")
        );
        assert!(
            drivers.deregister(Path::new("/reg/b"))[0]
                .successor
                .is_none()
        );
        assert_eq!(drivers.get("d").unwrap_err(), NotRegistered("d".to_owned()));
        assert!(drivers.names().is_empty());
    }

    #[test]
    fn a_new_one_that_ends_first_leaves_the_old_one() {
        let drivers = Drivers::default();
        register(&drivers, "a", &["1.0.0"]).unwrap();
        register(&drivers, "b", &["1.1.0"]).unwrap();
        assert_eq!(drivers.names(), ["d"]);
        let removed = drivers.deregister(Path::new("/reg/b"));
        let successor = removed[0].successor.as_ref().unwrap();
        assert_eq!(successor.endpoint(), Path::new("/plugins/a"));
    }

    #[test]
    fn the_same_socket_may_register_again() {
        let drivers = Drivers::default();
        register(&drivers, "a", &["1.0.0"]).unwrap();
        let old = drivers.get("d").unwrap();
        register(&drivers, "a", &["1.0.0"]).unwrap();
        assert!(!Arc::ptr_eq(&old, &drivers.get("d").unwrap()));
        assert_eq!(drivers.deregister(Path::new("/reg/a")).len(), 1);
        assert!(drivers.get("d").is_err());
    }

    #[test]
    fn versions_are_refused_with_the_reason() {
        let drivers = Drivers::default();
        assert_eq!(
            register(&drivers, "a", &[]).unwrap_err(),
            "kubernetes.io/csi: RegisterPlugin for CSI driver \"d\" failed. Plugin returned an empty list for supported \
             versions"
        );
        assert_eq!(
            register(&drivers, "a", &["2.0.0", "0.3.0"]).unwrap_err(),
            "kubernetes.io/csi: RegisterPlugin for CSI driver \"d\" failed. None of the versions specified \
             [\"2.0.0\" \"0.3.0\"] are supported. err=highest supported version reported is 0.3.0, must be v1.x"
        );
        let (endpoint, socket) = (Path::new("/e"), Path::new("/s"));
        let invalid = drivers.validate("d", endpoint, socket, &[]).unwrap_err();
        assert_eq!(
            invalid.to_string(),
            "validation failed for CSI Driver d at endpoint /e: kubernetes.io/csi: ValidatePlugin for CSI driver \"d\" \
             failed. Plugin returned an empty list for supported versions"
        );
    }
}
