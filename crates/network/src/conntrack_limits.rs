//! How many connections the kernel remembers and how long, as kube-proxy sets it (spec network.md 3.7, checklist 61).

use std::io;
use std::path::Path;
use std::time::Duration;

/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys/net/netfilter";
/// How many rows the kernel's table of connections has: one for every four connections, as the kernel itself chooses.
const ROWS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const CONNECTIONS_PER_ROW: u64 = 4;
/// The CPUs of the machine, whichever of them davit itself may use.
const CPUS: &str = "/sys/devices/system/cpu/online";
/// However many CPUs there are.
const MOST: u64 = 1 << 20;

/// What kube-proxy sets when nobody says.
const PER_CORE: u32 = 32 * 1024;
const LEAST: u32 = 128 * 1024;
const ESTABLISHED: Duration = Duration::from_secs(24 * 3600);
const CLOSE_WAIT: Duration = Duration::from_secs(3600);

/// Limits of the kernel's memory of connections (KubeProxyConfiguration's `conntrack`). A time of less than a second
/// leaves what the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackLimits {
    /// Connections for each CPU; 0 leaves their number as it is.
    pub max_per_core: u32,
    /// The least number of connections, however few CPUs there are.
    pub min: u32,
    /// Whether somebody has asked for this number. Of its own accord davit makes it larger only.
    pub exact: bool,
    /// Of TCP connections on which nothing is sent.
    pub tcp_established: Duration,
    /// Of those that one side has closed.
    pub tcp_close_wait: Duration,
    /// Packets outside of the window are no invalid ones.
    pub tcp_be_liberal: bool,
    /// Of UDP that was not answered.
    pub udp: Duration,
    /// Of UDP in both directions.
    pub udp_stream: Duration,
}

impl Default for ConntrackLimits {
    fn default() -> Self {
        Self {
            max_per_core: PER_CORE,
            min: LEAST,
            exact: false,
            tcp_established: ESTABLISHED,
            tcp_close_wait: CLOSE_WAIT,
            tcp_be_liberal: false,
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
        }
    }
}

/// The CPUs of this machine.
fn cpus() -> u64 {
    let online = std::fs::read_to_string(CPUS).ok();
    let online = online.and_then(|text| text.trim().parse::<davit_topology::CpuSet>().ok());
    let own = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = online.map_or_else(own, |online| online.len());
    u64::try_from(count.max(1)).unwrap_or(MOST)
}

fn read(file: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(file)?;
    text.trim().parse().map_err(io::Error::other)
}

impl ConntrackLimits {
    /// How many connections there may be on a machine with so many CPUs; `None` to leave it.
    fn connections(&self, cpus: u64) -> Option<u64> {
        let scaled = u64::from(self.max_per_core).saturating_mul(cpus);
        match scaled {
            0 => None,
            many if many > MOST => Some(MOST),
            scaled => Some(scaled.max(self.min.into())),
        }
    }

    /// The other settings, by their names.
    fn settings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let seconds = [
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        let seconds = seconds.map(|(name, time)| (name, time.as_secs()));
        let liberal = ("nf_conntrack_tcp_be_liberal", self.tcp_be_liberal.into());
        let all = seconds.into_iter().chain([liberal]);
        all.filter(|(_, value)| *value > 0)
    }

    /// Has the kernel keep to them, in the network namespace that the thread is in. What cannot be set is said in the log,
    /// once for all; connections come about all the same. Blocks.
    pub(crate) fn set(&self) {
        let refused = self.set_below(Path::new(SETTINGS), Path::new(ROWS), cpus());
        if !refused.is_empty() {
            let refused = refused.join("; ");
            tracing::warn!("limits of conntrack that stay as they are: {refused}");
        }
    }

    /// What could not be set, and why.
    fn set_below(&self, settings: &Path, rows: &Path, cpus: u64) -> Vec<String> {
        let mut refused = Vec::new();
        let mut set = |file: &Path, value: u64, only_more: bool| {
            let done = read(file).and_then(|is| match is == value || (only_more && is > value) {
                true => Ok(false),
                false => std::fs::write(file, value.to_string()).map(|()| true),
            });
            let name = file.file_name().unwrap_or_default().display();
            match done {
                Ok(true) => tracing::info!("{name} is {value}"),
                Ok(false) => {}
                Err(error) => refused.push(format!("{name} to {value}: {error}")),
            }
        };
        if let Some(connections) = self.connections(cpus) {
            set(&settings.join("nf_conntrack_max"), connections, !self.exact);
            set(rows, connections / CONNECTIONS_PER_ROW, true);
        }
        for (name, value) in self.settings() {
            set(&settings.join(name), value, false);
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_as_kube_proxy_does() {
        let limits = |max_per_core, min| ConntrackLimits {
            max_per_core,
            min,
            ..ConntrackLimits::default()
        };
        for (limits, cpus, expected) in [
            (ConntrackLimits::default(), 2, Some(128 * 1024)),
            (ConntrackLimits::default(), 8, Some(256 * 1024)),
            (ConntrackLimits::default(), 256, Some(MOST)),
            (limits(0, 1_000_000), 8, None),
            (limits(10, 0), 3, Some(30)),
            // the bound is that of the product, not of what was asked for
            (limits(10, 2_000_000), 3, Some(2_000_000)),
            (limits(u32::MAX, 0), u64::MAX, Some(MOST)),
        ] {
            assert_eq!(limits.connections(cpus), expected, "{limits:?} {cpus}");
        }
    }

    #[test]
    fn what_is_set_and_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("hashsize");
        let write = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
        let is = |name: &str| read(&dir.path().join(name)).unwrap();
        let most = "nf_conntrack_max";
        let established = "nf_conntrack_tcp_timeout_established";
        let close_wait = "nf_conntrack_tcp_timeout_close_wait";
        let udp = "nf_conntrack_udp_timeout";
        for (name, value) in [
            (most, "262144\n"),
            ("hashsize", "1024\n"),
            (established, "432000\n"),
            (close_wait, "60\n"),
            (udp, "30\n"),
        ] {
            write(name, value);
        }
        let usual = ConntrackLimits::default();
        assert!(usual.set_below(dir.path(), &rows, 2).is_empty());
        assert_eq!(is(most), 262_144, "there are more already");
        assert_eq!(is("hashsize"), 32768);
        assert_eq!((is(established), is(close_wait)), (86400, 3600));
        assert_eq!(is(udp), 30, "nobody has said");

        // Whoever asks for less has less; rows stay.
        let asked = ConntrackLimits {
            exact: true,
            tcp_established: Duration::ZERO,
            tcp_close_wait: Duration::from_millis(999),
            udp: Duration::from_secs(7),
            ..usual
        };
        write(established, "5");
        assert!(asked.set_below(dir.path(), &rows, 2).is_empty());
        assert_eq!((is(most), is("hashsize")), (131_072, 32768));
        assert_eq!(
            (is(established), is(close_wait), is(udp)),
            (5, 3600, 7),
            "0 leaves as is"
        );

        // What is not there is named, all of it, and the rest is set.
        std::fs::remove_file(dir.path().join(most)).unwrap();
        let liberal = ConntrackLimits {
            tcp_be_liberal: true,
            udp: Duration::from_secs(8),
            ..asked
        };
        let refused = liberal.set_below(dir.path(), &rows, 2);
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].starts_with("nf_conntrack_max to 131072: "));
        assert!(refused[1].starts_with("nf_conntrack_tcp_be_liberal to 1: "));
        assert_eq!(is(udp), 8);
    }
}
