//! Flags of the ranges of pods' addresses, with the names that kube-controller-manager gives them.

use anyhow::{Result, bail};
use davit_apiserver::{ServiceRange, ServiceRanges};
use davit_controllers::{ClusterRange, NodeRanges};
use davit_netplan::{Family, Network};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Bits of a node's range unless flags say.
const BITS: [(Family, u8); 2] = [(Family::V4, 24), (Family::V6, 64)];
/// A node's range has at least an address for a pod.
const MOST_BITS: [(Family, u8); 2] = [(Family::V4, 30), (Family::V6, 126)];

fn of(table: [(Family, u8); 2], family: Family) -> u8 {
    let mut found = table.into_iter().filter(|(of, _)| *of == family);
    found.next().map_or(0, |(_, bits)| bits)
}

/// One range, or one of each family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterCidrs(pub(crate) Vec<Network>);

impl FromStr for ClusterCidrs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranges = text.split(',').map(|range| range.trim().parse::<Network>());
        let ranges: Vec<Network> = ranges
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        match ranges[..] {
            [_] => Ok(Self(ranges)),
            [one, other] if one.family() != other.family() => Ok(Self(ranges)),
            [_, _] => Err("two ranges are of different IP families".to_owned()),
            _ => Err("one range, or one of each IP family".to_owned()),
        }
    }
}

impl fmt::Display for ClusterCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

/// How large the part of a node is.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct NodeSizes {
    /// Bits of the part of a node, in a cluster of one family [default: 24, of IPv6 64]
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size: Option<u8>,
    /// Bits of the part of a node of the IPv4 range [default: 24]
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// Bits of the part of a node of the IPv6 range [default: 64]
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv6: Option<u8>,
}

impl NodeSizes {
    /// The bits for each of the ranges.
    fn bits(&self, cluster: &[Network]) -> Result<Vec<u8>> {
        let given = [
            (Family::V4, self.node_cidr_mask_size_ipv4),
            (Family::V6, self.node_cidr_mask_size_ipv6),
        ];
        match (self.node_cidr_mask_size, cluster) {
            (Some(_), [_, _, ..]) => {
                bail!("usage of --node-cidr-mask-size is not allowed with dual-stack clusters");
            }
            (Some(_), _) if given.iter().any(|(_, bits)| bits.is_some()) => bail!(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is \
                 set. For dual-stack clusters please unset it and use IPFamily specific flags"
            ),
            _ => {}
        }
        for (family, bits) in given {
            if bits.is_some() && cluster.iter().all(|range| range.family() != family) {
                let (name, other) = (family.name(), family.other());
                let flag = name.to_lowercase();
                bail!(
                    "usage of --node-cidr-mask-size-{flag} is not allowed for a single-stack {other} cluster"
                );
            }
        }
        let bits = |range: &Network| {
            let of_family = given.iter().find(|(family, _)| *family == range.family());
            let own = of_family.and_then(|(_, bits)| *bits);
            own.or(self.node_cidr_mask_size)
                .unwrap_or(of(BITS, range.family()))
        };
        Ok(cluster.iter().map(bits).collect())
    }

    /// The ranges of nodes' pods.
    ///
    /// # Errors
    /// A flag that does not fit, parts that are no parts, and ranges that overlap those of Services.
    pub(crate) fn ranges(
        &self,
        cluster: &[Network],
        services: ServiceRanges,
    ) -> Result<NodeRanges> {
        let services: Vec<Network> = services.all().map(ServiceRange::network).collect();
        let mut ranges = Vec::new();
        for (network, bits) in cluster.iter().zip(self.bits(cluster)?) {
            if bits <= network.bits() || bits > of(MOST_BITS, network.family()) {
                bail!(
                    "--node-cidr-mask-size: {network} has no parts of {bits} bits that pods fit into"
                );
            }
            if let Some(services) = services.iter().find(|range| range.overlaps(*network)) {
                bail!("--cluster-cidr: {network} overlaps {services}, the addresses of Services");
            }
            ranges.push(ClusterRange {
                network: *network,
                bits,
            });
        }
        Ok(NodeRanges {
            cluster: ranges,
            services,
        })
    }
}

/// Below the data directory: the ranges of Services that the cluster had last.
const SERVICES: &str = "network/service-cluster-ip-range";
/// How long the cluster may take to say.
const PATIENCE: Duration = Duration::from_secs(5);

/// The addresses of Services as the cluster of a node says, or as it has said before; else those that clusters have unless
/// told otherwise.
pub(crate) async fn services_of(client: kube::Client, data_dir: &Path) -> ServiceRanges {
    let file = data_dir.join(SERVICES);
    match tokio::time::timeout(PATIENCE, asked_for(client)).await {
        Ok(Some(ranges)) => {
            let written = std::fs::create_dir_all(data_dir.join("network"))
                .and_then(|()| std::fs::write(&file, format!("{ranges}\n")));
            if let Err(error) = written {
                tracing::warn!(file = %file.display(), %error, "the ranges of Services are not kept");
            }
            ranges
        }
        _ => {
            let before = std::fs::read_to_string(&file).ok();
            let before = before.and_then(|text| text.trim().parse().ok());
            before.unwrap_or_default()
        }
    }
}

/// What the object of the cluster's own ranges has.
async fn asked_for(client: kube::Client) -> Option<ServiceRanges> {
    let ranges: kube::Api<ServiceCIDR> = kube::Api::all(client);
    // nodes may list them all
    let listed = ranges.list(&ListParams::default()).await.ok()?;
    let is_own = |range: &ServiceCIDR| range.metadata.name.as_deref() == Some("kubernetes");
    let own = listed.items.into_iter().find(is_own)?;
    own.spec?.cidrs?.join(",").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_the_families() {
        let sizes = |all, four, six| NodeSizes {
            node_cidr_mask_size: all,
            node_cidr_mask_size_ipv4: four,
            node_cidr_mask_size_ipv6: six,
        };
        let bits = |sizes: NodeSizes, cluster: &str| {
            let cluster: ClusterCidrs = cluster.parse().unwrap();
            let ranges = sizes.ranges(&cluster.0, ServiceRanges::default());
            let ranges = ranges.map_err(|error| error.to_string())?;
            Ok::<_, String>(
                ranges
                    .cluster
                    .iter()
                    .map(|range| range.bits)
                    .collect::<Vec<_>>(),
            )
        };
        let (four, both) = ("10.244.0.0/16", "fd00:10:244::/56,10.244.0.0/16");
        assert_eq!(bits(sizes(None, None, None), both), Ok(vec![64, 24]));
        assert_eq!(
            bits(sizes(None, Some(25), Some(66)), both),
            Ok(vec![66, 25])
        );
        assert_eq!(bits(sizes(Some(26), None, None), four), Ok(vec![26]));
        assert_eq!(
            bits(sizes(Some(72), None, None), "fd00:10:244::/56"),
            Ok(vec![72])
        );
        for (sizes, cluster, why) in [
            (
                sizes(Some(24), None, None),
                both,
                "is not allowed with dual-stack clusters",
            ),
            (sizes(Some(24), Some(24), None), four, "please unset it"),
            (
                sizes(None, None, Some(64)),
                four,
                "--node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            ),
            (
                sizes(None, Some(24), None),
                "fd00::/56",
                "is not allowed for a single-stack IPv6 cluster",
            ),
            (sizes(Some(31), None, None), four, "no parts of 31 bits"),
            (
                sizes(Some(56), None, None),
                "fd00::/56",
                "no parts of 56 bits",
            ),
            (
                sizes(None, None, None),
                "10.96.0.0/12",
                "overlaps 10.96.0.0/16",
            ),
        ] {
            let error = bits(sizes, cluster).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for wrong in [
            "",
            "10.0.0.0/8,10.1.0.0/16",
            "10.0.0.0/8,fd00::/8,fd01::/16",
            "x",
        ] {
            assert!(wrong.parse::<ClusterCidrs>().is_err(), "{wrong}");
        }
    }
}
