//! Services and network policies in, what should stand in the kernel's sets, maps and chains out. No I/O and no clock.
//!
//! A Service becomes elements, never chains of its own: the chains that elements lead to are shared by all Services with
//! as many endpoints (spec network.md 3.9). The names of objects reach no rule.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod balance;
mod chain;
mod endpoints;
mod family;
mod network;
mod node;
mod placement;
mod plan;
mod policy;
mod service;
mod service_ranges;

pub use balance::{
    BalanceVerdict, Balanced, BalancerAddress, BalancerAddresses, BalancerPool, BalancerPoolError,
    BalancerPort, Pooled, balance, balance_from, balanced_at, balancer_addresses_of, host_ports,
    is_balanced_by, keeps_to_nodes, nodes_with_endpoints, wants_balancer,
};
pub use chain::{Chain, Choice, Masquerade};
pub use endpoints::{Node, Scope};
pub use family::{Family, number, octets};
pub use network::{Network, NetworkError};
pub use node::{
    ENFORCES_POLICIES, PROXIES_SERVICES, addresses_of, external_addresses_of, leads_elsewhere,
    range_of, ranges_of,
};
pub use placement::{SlicePlacement, place_endpoints, same_ports};
pub use plan::{HealthCheck, Key, Map, Nowhere, Plan, Protocol, Value};
pub use policy::{
    Allowance, CompiledPolicy, Isolation, MAX_COST, NamedPort, NamespaceScope, Peers, PodGroup,
    PodScope, PolicyPod, PolicyWorld, PortRange, RangesByNode, lets_pass,
};
pub use service::plan;
pub use service_ranges::{NodePorts, ServiceRange, ServiceRangeError, ServiceRanges};
