//! Network devices of the host in the network namespaces of pods: moved there before a container starts that names
//! them, as `linux.netDevices` of the OCI configuration says, and given back when the pod ends.
//!
//! All containers of a pod share its namespace: what one of them has moved is there for the others, and when one of
//! them starts again. What was moved is written into the pod's directory before it happens.

use crate::monitor::{read_json, write_atomically};
use davit_net::route::{Link, Netlink};
use davit_net::within;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The file in a pod's directory that says what was moved: names in the pod, with those of the host.
const MOVED: &str = "netdevices.json";

/// A device that cannot be moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("network device {0:?} is not on this machine")]
    Missing(String),
    #[error("network device {host:?}: the pod has another one called {name:?}")]
    Taken { host: String, name: String },
    #[error(
        "network device {host:?} cannot be moved into the pod: it is bound to the host's namespace"
    )]
    Bound { host: String },
    #[error("network device {host:?}: {what}: {error}")]
    Failed {
        host: String,
        what: &'static str,
        error: io::Error,
    },
    #[error("network namespace {path}: {error}")]
    Namespace { path: PathBuf, error: io::Error },
    #[error("record of moved network devices: {0}")]
    Record(io::Error),
}

/// Names in the pod, with those of the host.
type Moved = BTreeMap<String, String>;

/// Whether a network interface can be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let inside = |c: char| !c.is_whitespace() && c != '/' && c != ':' && c != '\0';
    (1..nix::libc::IFNAMSIZ).contains(&name.len())
        && name != "."
        && name != ".."
        && name.chars().all(inside)
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|error| Error::Namespace {
        path: path.to_owned(),
        error,
    })
}

/// Moves devices, host names with those in the pod, into its namespace. Blocks.
///
/// Addresses of global scope are taken along; the devices are up afterwards.
pub(crate) fn give(
    devices: &BTreeMap<String, String>,
    netns: &Path,
    pod_dir: &Path,
) -> Result<(), Error> {
    let file = pod_dir.join(MOVED);
    let mut moved: Moved = read_json(&file).map_err(Error::Record)?.unwrap_or_default();
    let namespace = open(netns)?;
    for (host, name) in devices {
        let failed = |what| failed(host, what);
        let mut route = Netlink::open().map_err(failed("netlink"))?;
        let Some(link) = route.link(host).map_err(failed("look it up"))? else {
            // Another container of the pod, or an earlier life of this one, has moved it.
            let there = || Netlink::open()?.link(name);
            let there = within(&namespace, there).and_then(|r| r);
            let is_ours = moved.get(name) == Some(host);
            if is_ours && there.map_err(failed("look it up in the pod"))?.is_some() {
                continue;
            }
            return Err(Error::Missing(host.clone()));
        };
        moved.insert(name.clone(), host.clone());
        let record = serde_json::to_vec(&moved).map_err(|e| Error::Record(e.into()))?;
        write_atomically(&file, &record).map_err(Error::Record)?;
        send(&mut route, &link, host, name, &namespace)?;
    }
    Ok(())
}

/// What went wrong with a device of the host.
fn failed(host: &str, what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Failed {
        host: host.to_owned(),
        what,
        error,
    }
}

/// Moves one device into a namespace, with its addresses, and has it up there.
fn send(
    route: &mut Netlink,
    link: &Link,
    host: &str,
    name: &str,
    namespace: &File,
) -> Result<(), Error> {
    let failed = |what| failed(host, what);
    let addresses = route
        .addresses(link)
        .map_err(failed("read its addresses"))?;
    let look = || -> io::Result<[bool; 2]> {
        let mut route = Netlink::open()?;
        Ok([route.link(name)?.is_some(), route.link(host)?.is_some()])
    };
    let there = within(namespace, look).and_then(|r| r);
    let [is_taken, has_namesake] = there.map_err(failed("look around in the pod"))?;
    if is_taken {
        return Err(Error::Taken {
            host: host.to_owned(),
            name: name.to_owned(),
        });
    }
    let home = open(Path::new("/proc/thread-self/ns/net"))?;
    let sent = route.send(link, namespace.as_fd(), name);
    sent.map_err(|error| {
        // The kernel moves first and renames then: what could not be renamed is in the pod all the same.
        if !has_namesake {
            let back = || -> Result<(), Error> {
                let mut route = Netlink::open().map_err(failed("netlink"))?;
                match route.link(host).map_err(failed("look it up"))? {
                    Some(link) => send_home(&mut route, &link, host, &home),
                    None => Ok(()),
                }
            };
            if let Ok(Err(error)) = within(namespace, back) {
                tracing::warn!(%error, "network device stays in a pod");
            }
        }
        match error.raw_os_error() {
            Some(nix::libc::EINVAL) => Error::Bound {
                host: host.to_owned(),
            },
            _ => failed("move it")(error),
        }
    })?;
    let arrive = || -> io::Result<()> {
        let mut route = Netlink::open()?;
        let link = route.link(name)?.ok_or(io::ErrorKind::NotFound)?;
        for address in &addresses {
            route.add_address(&link, address)?;
        }
        route.set_up(&link)
    };
    let arrived = within(namespace, arrive).and_then(|r| r);
    arrived.map_err(failed("set it up in the pod"))
}

/// Gives the host back what was moved into a pod, under the old names; what is not in the namespace any more is left
/// alone. Blocks.
pub(crate) fn take_back(netns: &Path, pod_dir: &Path) -> Result<(), Error> {
    let file = pod_dir.join(MOVED);
    let Some(moved) = read_json::<Moved>(&file).map_err(Error::Record)? else {
        return Ok(());
    };
    let namespace = match File::open(netns) {
        Ok(namespace) => namespace,
        // With the namespace the kernel has given back what belongs to a machine.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Error::Namespace {
                path: netns.to_owned(),
                error,
            });
        }
    };
    let home = open(Path::new("/proc/thread-self/ns/net"))?;
    for (name, host) in &moved {
        let back = || -> Result<(), Error> {
            let failed = |what| failed(host, what);
            let mut route = Netlink::open().map_err(failed("netlink"))?;
            match route.link(name).map_err(failed("look it up"))? {
                Some(link) => send_home(&mut route, &link, host, &home),
                None => Ok(()),
            }
        };
        let outcome = within(&namespace, back);
        outcome.map_err(|error| Error::Namespace {
            path: netns.to_owned(),
            error,
        })??;
    }
    std::fs::remove_file(&file).map_err(Error::Record)
}

/// A device goes home as it came but down: whoever configures the host's interfaces does so again.
fn send_home(route: &mut Netlink, link: &Link, host: &str, home: &File) -> Result<(), Error> {
    route
        .send(link, home.as_fd(), host)
        .map_err(failed(host, "give it back to the host"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn ip(args: &str) -> Option<String> {
        let output = Command::new("ip").args(args.split_whitespace()).output();
        let output = output.ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Two ends of a cable and a namespace, all gone when it is dropped.
    struct Bed {
        name: String,
        dir: tempfile::TempDir,
    }

    impl Bed {
        fn new(tag: &str) -> Option<Self> {
            let name = format!("dvt{tag}{}", std::process::id() % 100_000);
            let made = nix::unistd::geteuid().is_root()
                && ip(&format!("netns add {name}")).is_some()
                && ip(&format!("link add {name}a type veth peer name {name}b")).is_some();
            let bed = Self {
                name,
                dir: tempfile::tempdir().unwrap(),
            };
            if !made {
                println!("skipped: no root, no ip, or a kernel without veth");
            }
            made.then_some(bed)
        }

        fn netns(&self) -> PathBuf {
            Path::new("/run/netns").join(&self.name)
        }

        fn inside(&self, args: &str) -> Option<String> {
            ip(&format!("-n {} {args}", self.name))
        }

        fn wish(&self, name: &str) -> BTreeMap<String, String> {
            BTreeMap::from([(format!("{}a", self.name), name.to_owned())])
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _gone = ip(&format!("link del {}b", self.name));
            let _gone = ip(&format!("netns del {}", self.name));
        }
    }

    #[test]
    fn a_device_goes_into_a_pod_and_comes_back() {
        let Some(bed) = Bed::new("m") else { return };
        let host = format!("{}a", bed.name);
        ip(&format!("addr add 192.0.2.7/24 dev {host}")).unwrap();
        ip(&format!(
            "link set {host} mtu 1400 address 02:00:00:00:12:34"
        ))
        .unwrap();
        give(&bed.wish("fast0"), &bed.netns(), bed.dir.path()).unwrap();
        assert!(
            ip(&format!("link show {host}")).is_none(),
            "it left the host"
        );
        let shown = bed.inside("addr show fast0").unwrap();
        for part in ["192.0.2.7/24", "mtu 1400", "02:00:00:00:12:34", ",UP"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        // The next container of the pod finds it there; under another name it would not be the same.
        give(&bed.wish("fast0"), &bed.netns(), bed.dir.path()).unwrap();
        let other = give(&bed.wish("slow0"), &bed.netns(), bed.dir.path()).unwrap_err();
        assert_eq!(
            other.to_string(),
            format!("network device {host:?} is not on this machine")
        );
        take_back(&bed.netns(), bed.dir.path()).unwrap();
        assert!(ip(&format!("link show {host}")).is_some(), "it is back");
        assert!(bed.inside("link show fast0").is_none());
        take_back(&bed.netns(), bed.dir.path()).unwrap();
    }

    #[test]
    fn a_name_that_is_taken_is_told() {
        let Some(bed) = Bed::new("t") else { return };
        let host = format!("{}a", bed.name);
        let taken = give(&bed.wish("lo"), &bed.netns(), bed.dir.path()).unwrap_err();
        assert!(
            matches!(&taken, Error::Taken { name, .. } if name == "lo"),
            "{taken}"
        );
        assert!(ip(&format!("link show {host}")).is_some(), "it has stayed");
        let bound = BTreeMap::from([("lo".to_owned(), "lo1".to_owned())]);
        let bound = give(&bound, &bed.netns(), bed.dir.path()).unwrap_err();
        assert!(matches!(&bound, Error::Bound { .. }), "{bound}");
        let nowhere = give(&bed.wish("x"), Path::new("/run/netns/none"), bed.dir.path());
        assert!(matches!(nowhere, Err(Error::Namespace { .. })));
    }

    #[test]
    fn names_of_interfaces() {
        for good in ["eth0", "a", "abcdefghijklmno", "ens1f0.100"] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "abcdefghijklmnop",
            "a b",
            "a/b",
            "a:b",
            "a\n",
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
