//! The messages by which neighbours find one another (ICMPv6 133 to 137). Without them there is no IPv6, so no policy is asked
//! about them; and so they pass between neighbours only: what is passed on could carry whatever a pod likes, as from whomever
//! it likes.

use super::{A, B, ICMPV6, is_within};
use davit_net::nft::{Expression as Do, Transaction, Verdict};

const KINDS: [u8; 2] = [133, 137];
/// Addresses that mean something on one link only. The kernel passes on nothing that comes from there.
const ON_LINK: &str = "fe80::/10";
/// Of groups. Nothing is passed on to them either.
const GROUPS: &str = "ff00::/8";

fn are_said() -> Vec<Do> {
    let [first, last] = KINDS;
    vec![
        Do::Protocol(A),
        Do::Equal(A, vec![ICMPV6]),
        Do::IcmpType(B),
        Do::AtLeast(B, vec![first]),
        Do::AtMost(B, vec![last]),
    ]
}

/// The rules of the first hook, before sources are looked at, and of the one before what listens here. `devices` are the
/// expressions that a device in `A` is one of pods or of the tunnel.
pub(super) fn lay_out(to: &mut Transaction, devices: &[Do]) {
    let within = [
        (Do::SourceAddress(A), ON_LINK),
        (Do::DestinationAddress(A), GROUPS),
    ];
    for (address, range) in within {
        if let Ok(range) = range.parse() {
            let mut rule = are_said();
            rule.extend(is_within(address, range));
            rule.push(Do::Verdict(Verdict::Accept));
            to.add_rule("sources", &rule);
        }
    }
    let mut here = are_said();
    here.push(Do::Verdict(Verdict::Accept));
    to.add_rule("policy-input", &here);
    // Nobody judges what comes from an address that is no pod's.
    if let Ok(range) = ON_LINK.parse() {
        for device in devices {
            let mut rule = vec![Do::InputName(A), device.clone()];
            rule.extend(is_within(Do::SourceAddress(A), range));
            rule.push(Do::Verdict(Verdict::Drop));
            to.add_rule("sources", &rule);
        }
    }
}
