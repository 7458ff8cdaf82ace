//! The two ends of a pod's link.

use super::{INSIDE, PROTOCOL};
use davit_net::route::{Netlink, Route};
use davit_netplan::Family;
use std::io;
use std::net::IpAddr;

/// The outer end speaks with one neighbour only, and of a family that the pod has no address of not at all: no policy looks at
/// such packets, and this machine's servers may listen for them. Where there is no IPv6 there is nothing to switch off.
pub(crate) fn quiet(link: &str, has_six: bool) -> io::Result<()> {
    if !has_six {
        return write_setting(link, "disable_ipv6", "1");
    }
    // What a pod says of routers is not believed, and nobody else can have the address.
    write_setting(link, "accept_ra", "0")?;
    write_setting(link, "accept_dad", "0")
}

/// A setting of IPv6 of a device of the namespace that the thread is in, unless it is so already.
pub(crate) fn write_setting(link: &str, setting: &str, value: &str) -> io::Result<()> {
    let setting = format!("/proc/sys/net/ipv6/conf/{link}/{setting}");
    match std::fs::read_to_string(&setting) {
        Ok(is) if is.trim() == value => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => std::fs::write(&setting, value),
        Err(error) => Err(error),
    }
}

/// Inside the pod: its addresses, and everything by the gateway of each.
pub(super) fn furnish(ends: &[(IpAddr, IpAddr)]) -> io::Result<()> {
    let mut inside = Netlink::open()?;
    let link = inside.link(INSIDE)?;
    let link = link.ok_or_else(|| io::Error::other("the device has gone again"))?;
    if ends.iter().any(|(address, _)| address.is_ipv6()) {
        // before it is up: nobody is asked whether somebody has the address, which takes a second
        write_setting(INSIDE, "accept_ra", "0")?;
        write_setting(INSIDE, "accept_dad", "0")?;
    }
    inside.set_up(&link)?;
    for (address, gateway) in ends {
        inside.add_host_address(&link, *address)?;
        let family = Family::of(*address);
        let route = |to: IpAddr, bits, via: Option<IpAddr>| Route {
            to,
            bits,
            link: Some(link),
            via,
            source: None,
            protocol: PROTOCOL,
            metric: 0,
            on_link: false,
        };
        inside.set_route(&route(*gateway, family.bits(), None))?;
        inside.set_route(&route(family.unspecified(), 0, Some(*gateway)))?;
    }
    Ok(())
}
