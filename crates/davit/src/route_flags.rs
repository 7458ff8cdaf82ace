//! Flags of the ways to the pods of other nodes, where davit connects pods.

use davit_network::{NodeRoutes, WayOptions};

/// By what the pods of other nodes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NodeRoutesFlag {
    /// By their nodes as routers where these share a network with this one, else by VXLAN
    Auto,
    /// By their nodes as routers only
    HostGw,
    /// By VXLAN only
    Vxlan,
    /// By nothing: routes are somebody else's matter
    None,
}

impl From<NodeRoutesFlag> for NodeRoutes {
    fn from(flag: NodeRoutesFlag) -> Self {
        match flag {
            NodeRoutesFlag::Auto => Self::Auto,
            NodeRoutesFlag::HostGw => Self::HostGateway,
            NodeRoutesFlag::Vxlan => Self::Vxlan,
            NodeRoutesFlag::None => Self::None,
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RouteFlags {
    /// How the pods of other nodes are reached: `host-gw` (their nodes are routers, on a network that they share with this
    /// one), `vxlan` (packets in packets of UDP), `none` (routes are somebody else's matter), or `auto`, the first where it
    /// can be and else the second [default: auto]
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
    node_routes: Option<NodeRoutesFlag>,
    /// Number of the network in VXLAN, the same on all nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..0x0100_0000))]
    vxlan_vni: Option<u32>,
    /// Port of UDP at which nodes receive VXLAN, the same on all nodes [default: 8472]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    vxlan_port: Option<u16>,
}

impl RouteFlags {
    /// The flags that were given, for a node that makes no ways.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("--node-routes", self.node_routes.is_some()),
            ("--vxlan-vni", self.vxlan_vni.is_some()),
            ("--vxlan-port", self.vxlan_port.is_some()),
        ];
        let given = flags.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(flag, _)| flag).collect()
    }

    /// What they say.
    pub(crate) fn options(&self) -> WayOptions {
        let usual = WayOptions::default();
        WayOptions {
            routes: self.node_routes.map_or(usual.routes, NodeRoutes::from),
            number: self.vxlan_vni.unwrap_or(usual.number),
            port: self.vxlan_port.unwrap_or(usual.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: RouteFlags,
    }

    #[test]
    fn what_flags_say_of_ways() {
        let flags = |words: &[&str]| {
            let line = Line::try_parse_from(std::iter::once(&"davit").chain(words));
            line.map(|line| line.flags)
        };
        let usual = flags(&[]).unwrap();
        assert_eq!(usual.options(), WayOptions::default());
        assert!(usual.given().is_empty());
        let all = [
            "--node-routes=host-gw",
            "--vxlan-vni=4096",
            "--vxlan-port=4789",
        ];
        let all = flags(&all).unwrap();
        let options = WayOptions {
            routes: NodeRoutes::HostGateway,
            number: 4096,
            port: 4789,
        };
        assert_eq!(all.options(), options);
        assert_eq!(all.given().len(), 3);
        for wrong in [
            "--vxlan-vni=0",
            "--vxlan-vni=16777216",
            "--vxlan-port=0",
            "--node-routes=ipip",
        ] {
            assert!(flags(&[wrong]).is_err(), "{wrong}");
        }
    }
}
