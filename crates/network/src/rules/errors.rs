//! Errors by ICMP quote a packet, and the kernel calls them related to its connection. They pass all policies, since routers
//! send them, too; but a pod is no router: what it says of a connection of others is no error, but what it likes.

use super::key::{Part, key};
use super::{A, RELATED, has, is_in, jump};
use crate::maps::Map;
use davit_net::nft::{Expression as Do, Transaction, Verdict};
use davit_netplan::Family;

/// The chain of what pods here say about connections.
pub(super) const ERRORS: &str = "errors";

/// The rules before those that let through what is related. A pod is an end of the connection if it has begun it, or if what
/// answers comes from it.
pub(super) fn lay_out(to: &mut Transaction, family: Family, links: &str) {
    for chain in ["policy-leave", "policy-input"] {
        let [bit, set] = has(A, RELATED);
        to.add_rule(
            chain,
            &[
                Do::InputName(A),
                Do::Equal(A, links.into()),
                Do::State(A),
                bit,
                set,
                jump(ERRORS),
            ],
        );
    }
    for end in [Part::Client, Part::Server] {
        let mut rule = key(family, &[Part::Source, end]);
        rule.extend([is_in(Map::Pods, A), Do::Verdict(Verdict::Return)]);
        to.add_rule(ERRORS, &rule);
    }
    to.add_rule(ERRORS, &[Do::Verdict(Verdict::Drop)]);
}
