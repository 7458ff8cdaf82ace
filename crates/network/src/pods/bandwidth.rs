//! What a pod receives and sends at most (annotations `kubernetes.io/ingress-bandwidth` and `egress-bandwidth`), as CNI's
//! bandwidth plugin does it.
//!
//! What it receives leaves this machine by the outer end of its link, which has a queue for that. What it sends comes in
//! there, where nothing can wait: it passes a device that stands in for the link, which has the queue. Both are outside of
//! the pod, out of reach of its capabilities. They stay when davit ends, and go with the link.

use super::ends::quiet;
use super::failed;
use davit_net::route::{Link, Netlink};
use davit_net::shaping::ByteLimit;
use davit_oci::network::{Bandwidth, Error};
use std::io::{self, ErrorKind};

/// As much as is sent in this part of a second may go at once.
const BURST: u64 = 100;
/// Never less: the largest packet that a program hands over is cut up afterwards.
const LEAST_BURST: u32 = 64 * 1024;
/// Packets wait for so long at most, or as many of them as may go at once.
const WAIT: u64 = 40;

/// The name of the device that stands in for a pod's link: where the link's own digits begin there is a letter that is none.
pub(super) fn stand_in(links: &str, link: &str) -> String {
    let digits: String = link[links.len()..].chars().skip(1).collect();
    format!("{links}i{digits}")
}

/// The limit of so many bits a second.
fn limit(bits: u64) -> ByteLimit {
    let rate = bits / 8;
    let part = |of: u64| u32::try_from(rate / of).unwrap_or(u32::MAX / 2);
    let burst = part(BURST).clamp(LEAST_BURST, u32::MAX / 2);
    ByteLimit {
        rate,
        burst,
        queue: burst.saturating_add(part(WAIT)),
    }
}

/// Says what of the kernel is missing.
fn lacking(what: &'static str, parts: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::Unsupported => {
            Error(format!("{what}: this machine's kernel lacks {parts}"))
        }
        _ => failed(what)(error),
    }
}

/// Has the pod at the other end of a link keep to it. Before that end is up, so that no packet is too many.
pub(super) fn keep_to(
    here: &mut Netlink,
    link: &Link,
    bandwidth: Bandwidth,
    stand_in: Option<&str>,
    mtu: u32,
) -> Result<(), Error> {
    if let Some(bits) = bandwidth.ingress {
        let limited = here.limit(link, &limit(bits));
        limited.map_err(lacking("ingress bandwidth of the pod", "sch_tbf"))?;
    }
    if let Some((bits, name)) = bandwidth.egress.zip(stand_in) {
        let what = "egress bandwidth of the pod";
        let added = here.add_stand_in(name, mtu);
        added.map_err(lacking(what, "ifb"))?;
        quiet(name, false).map_err(failed(what))?;
        let device = here.link(name).map_err(failed(what))?;
        let device = device.ok_or_else(|| Error(format!("{what}: its device has gone again")))?;
        let limited = here.limit(&device, &limit(bits));
        limited.map_err(lacking(what, "sch_tbf"))?;
        here.set_up(&device).map_err(failed(what))?;
        let passes = here.pass_by(link, &device);
        passes.map_err(lacking(what, "sch_ingress, cls_u32 or act_mirred"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_slow_and_fast_links() {
        let slow = limit(1000);
        assert_eq!((slow.rate, slow.burst), (125, LEAST_BURST));
        assert!(slow.queue >= slow.burst);
        let fast = limit(10_000_000_000);
        assert_eq!((fast.rate, fast.burst), (1_250_000_000, 12_500_000));
        let fastest = limit(1_000_000_000_000_000);
        assert_eq!(
            (fastest.rate, fastest.burst),
            (125_000_000_000_000, u32::MAX / 2)
        );
    }

    #[test]
    fn a_stand_in_is_called_after_its_link() {
        let name = stand_in("dvt00ff", "dvt00ff89abcdef");
        assert_eq!(name, "dvt00ffi9abcdef");
        assert!(name.len() <= 15);
    }
}
