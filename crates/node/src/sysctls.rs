//! Which sysctls pods may set: the safe ones, and those that the administrator lets them (`allowedUnsafeSysctls`).

/// Sysctls that are a pod's own and cannot harm others.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// A namespace of the kernel's that a pod has for itself, unless it uses the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// The namespace that a sysctl belongs to; `None` for those of the whole machine.
fn namespace(name: &str) -> Option<Namespace> {
    const IPC: [&str; 3] = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || IPC.iter().any(|prefix| name.starts_with(prefix)) {
        Some(Namespace::Ipc)
    } else if name.starts_with("net.") {
        Some(Namespace::Net)
    } else {
        None
    }
}

/// The name with dots between its parts. It may have been written with slashes, and a slash then stands for a dot within
/// a part (`net/ipv4/conf/eth0.1/rp_filter`).
pub(crate) fn dotted(name: &str) -> String {
    let first = name.find(['.', '/']).and_then(|at| name.get(at..=at));
    if first != Some("/") {
        return name.to_owned();
    }
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// What pods may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowlist {
    /// Names, or the beginnings of names with a `*`.
    unsafe_: Vec<String>,
}

impl Allowlist {
    /// The safe sysctls and those of these patterns: names, or beginnings of names that end in `*`.
    ///
    /// # Errors
    /// A pattern that is none, or that is about more than the namespaces of a pod.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        let mut unsafe_ = Vec::new();
        for pattern in patterns {
            let name = dotted(pattern);
            let (begin, rest) = name.split_at(name.find('*').unwrap_or(name.len()));
            let known = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            if begin.is_empty() || !begin.chars().all(known) || !matches!(rest, "" | "*") {
                return Err(format!(
                    "{pattern:?} is neither a sysctl nor the beginning of one with a *"
                ));
            }
            if namespace(begin).is_none() {
                return Err(format!(
                    "the sysctls {begin:?} are not known to be namespaced"
                ));
            }
            unsafe_.push(name);
        }
        Ok(Self { unsafe_ })
    }

    /// The patterns of those that are not safe.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.unsafe_
    }

    /// Whether a pod may set the sysctl, by whether it uses the host's network and IPC namespaces.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, name: &str, host_network: bool, host_ipc: bool) -> Result<(), String> {
        let name = dotted(name);
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => *pattern == name,
        };
        if !SAFE.contains(&name.as_str()) && !self.unsafe_.iter().any(matches) {
            return Err(format!("{name:?} not allowlisted"));
        }
        let shared = match namespace(&name) {
            Some(Namespace::Net) if host_network => "Net",
            Some(Namespace::Ipc) if host_ipc => "IPC",
            _ => return Ok(()),
        };
        Err(format!("{name:?} not allowed with host {shared} enabled"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowlist(patterns: &[&str]) -> Result<Allowlist, String> {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Allowlist::new(&patterns)
    }

    #[test]
    fn unsafe_ones_need_the_administrators_word() {
        let none = Allowlist::default();
        assert_eq!(none.check("net.ipv4.tcp_syncookies", false, false), Ok(()));
        assert_eq!(none.check("net/ipv4/tcp_syncookies", false, false), Ok(()));
        assert!(none.check("kernel.msgmax", false, false).is_err());
        let some = allowlist(&["kernel.msg*", "net/core/somaxconn"]).unwrap();
        assert_eq!(some.check("kernel.msgmax", true, false), Ok(()));
        assert_eq!(some.check("net.core.somaxconn", false, true), Ok(()));
        assert!(some.check("net.core.somaxconn2", false, false).is_err());
        assert!(some.check("kernel.msgmax", false, true).is_err());
        assert!(some.check("net.core.somaxconn", true, false).is_err());
    }

    #[test]
    fn what_is_the_machines_is_not_given_away() {
        for pattern in ["kernel.*", "vm.swappiness", "*", "net.*.x", "", "net.a b"] {
            assert!(allowlist(&[pattern]).is_err(), "{pattern}");
        }
        assert!(allowlist(&["net.*"]).is_ok());
    }

    #[test]
    fn slashes_and_dots_change_places() {
        assert_eq!(
            dotted("net.ipv4.conf.eth0/1.rp_filter"),
            "net.ipv4.conf.eth0/1.rp_filter"
        );
        assert_eq!(
            dotted("net/ipv4/conf/eth0.1/rp_filter"),
            "net.ipv4.conf.eth0/1.rp_filter"
        );
    }
}
