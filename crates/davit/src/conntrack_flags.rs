//! Flags of the limits of the kernel's memory of connections, under kube-proxy's names.

use crate::protection::duration;
use davit_network::ConntrackLimits;
use std::time::Duration;

#[derive(Debug, Clone, Default, clap::Args)]
#[group(id = "conntrack")]
pub(crate) struct ConntrackFlags {
    /// Connections that the kernel remembers, for each CPU; 0 leaves their number as it is
    /// [default: 32768, which makes the number larger only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    conntrack_max_per_core: Option<u32>,
    /// The least number of connections that the kernel remembers, however few CPUs there are [default: 131072]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    conntrack_min: Option<u32>,
    /// How long the kernel remembers a TCP connection on which nothing is sent; 0 leaves that as it is [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    conntrack_tcp_timeout_established: Option<Duration>,
    /// How long it remembers one that one side has closed; 0 leaves that as it is [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// Packets outside of a connection's window are no invalid ones
    #[arg(long)]
    conntrack_tcp_be_liberal: bool,
    /// How long the kernel remembers UDP that was not answered [default: as it is]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    conntrack_udp_timeout: Option<Duration>,
    /// How long it remembers UDP in both directions [default: as it is]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    conntrack_udp_timeout_stream: Option<Duration>,
}

impl ConntrackFlags {
    /// The flags that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        [
            (
                "--conntrack-max-per-core",
                self.conntrack_max_per_core.is_some(),
            ),
            ("--conntrack-min", self.conntrack_min.is_some()),
            (
                "--conntrack-tcp-timeout-established",
                self.conntrack_tcp_timeout_established.is_some(),
            ),
            (
                "--conntrack-tcp-timeout-close-wait",
                self.conntrack_tcp_timeout_close_wait.is_some(),
            ),
            ("--conntrack-tcp-be-liberal", self.conntrack_tcp_be_liberal),
            (
                "--conntrack-udp-timeout",
                self.conntrack_udp_timeout.is_some(),
            ),
            (
                "--conntrack-udp-timeout-stream",
                self.conntrack_udp_timeout_stream.is_some(),
            ),
        ]
        .into_iter()
        .filter_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// What they say.
    pub(crate) fn limits(&self) -> ConntrackLimits {
        let usual = ConntrackLimits::default();
        ConntrackLimits {
            max_per_core: self.conntrack_max_per_core.unwrap_or(usual.max_per_core),
            min: self.conntrack_min.unwrap_or(usual.min),
            exact: self.conntrack_max_per_core.is_some() || self.conntrack_min.is_some(),
            tcp_established: self
                .conntrack_tcp_timeout_established
                .unwrap_or(usual.tcp_established),
            tcp_close_wait: self
                .conntrack_tcp_timeout_close_wait
                .unwrap_or(usual.tcp_close_wait),
            tcp_be_liberal: self.conntrack_tcp_be_liberal,
            udp: self.conntrack_udp_timeout.unwrap_or(usual.udp),
            udp_stream: self
                .conntrack_udp_timeout_stream
                .unwrap_or(usual.udp_stream),
        }
    }
}
