//! Addresses and ranges of addresses as text.

use std::net::{IpAddr, Ipv4Addr};

/// An IP address of either family, which every program reads as the same one (KEP-4858).
pub fn check_ip(value: &str) -> Vec<String> {
    let is_v4 = |text: &str| text.parse::<Ipv4Addr>().is_ok();
    let fault = match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        Ok(_) => return Vec::new(),
        // some read the parts as octal numbers
        Err(_) if is_v4(&without_zeros(value)) => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    vec![fault.to_owned()]
}

/// The parts between dots without the zeros that they begin with.
fn without_zeros(value: &str) -> String {
    let part = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    let parts: Vec<String> = value.split('.').map(part).collect();
    parts.join(".")
}

fn range_without_zeros(value: &str) -> String {
    let (address, bits) = value.split_once('/').unwrap_or((value, ""));
    format!("{}/{}", without_zeros(address), without_zeros(bits))
}

/// An IP address in the form that all others are written in.
pub fn check_canonical_ip(value: &str) -> Vec<String> {
    let faults = check_ip(value);
    match value.parse::<IpAddr>() {
        Ok(ip) if faults.is_empty() && ip.to_string() != value => {
            vec![format!("must be in canonical form (\"{ip}\")")]
        }
        _ => faults,
    }
}

/// A range of addresses: its address, and how many bits of it count.
#[must_use]
pub fn parse_cidr(value: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = value.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let digits = bits == "0" || !bits.starts_with('0') && bits.bytes().all(|b| b.is_ascii_digit());
    let bits = bits.parse().ok().filter(|bits| digits && *bits <= most)?;
    Some((address, bits))
}

/// A range of addresses without bits beyond its first ones, which every program reads as the same one.
pub fn check_cidr(value: &str) -> Vec<String> {
    let fault = match parse_cidr(value) {
        None => match parse_cidr(&range_without_zeros(value)) {
            Some(_) => "must not have leading 0s in IP or prefix length",
            None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        },
        Some((IpAddr::V6(ip), _)) if ip.to_ipv4_mapped().is_some() => {
            "must not have an IPv4-mapped IPv6 address"
        }
        Some((address, bits)) if has_bits_beyond(address, bits) => {
            "must not have bits set beyond the prefix length"
        }
        Some(_) => return Vec::new(),
    };
    vec![fault.to_owned()]
}

/// A range of addresses in the form that all others are written in.
pub fn check_canonical_cidr(value: &str) -> Vec<String> {
    let faults = check_cidr(value);
    match parse_cidr(value) {
        Some(range) if faults.is_empty() => canonical_cidr(value, range),
        _ => faults,
    }
}

/// An address together with its network, as interfaces have it, in the form that all others are written in.
pub fn check_interface_address(value: &str) -> Vec<String> {
    let found = parse_cidr(value).or_else(|| parse_cidr(&range_without_zeros(value)));
    let Some(found) = found else {
        let fault = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![fault.to_owned()];
    };
    canonical_cidr(value, found)
}

/// The range that a text says is written as it.
fn canonical_cidr(value: &str, (address, bits): (IpAddr, u32)) -> Vec<String> {
    let plain = match address.to_canonical() {
        // what maps an address of IPv4 has its bits behind 96 others
        plain @ IpAddr::V4(_) if address.is_ipv6() && bits > 32 => {
            format!("{plain}/{}", bits.saturating_sub(96))
        }
        plain => format!("{plain}/{bits}"),
    };
    if plain == value {
        return Vec::new();
    }
    vec![format!("must be in canonical form (\"{plain}\")")]
}

fn has_bits_beyond(address: IpAddr, bits: u32) -> bool {
    match address {
        IpAddr::V4(ip) => ip.to_bits().checked_shl(bits).unwrap_or(0) != 0,
        IpAddr::V6(ip) => ip.to_bits().checked_shl(bits).unwrap_or(0) != 0,
    }
}

/// An address at which others can be met: not one of this machine's or this link's own.
pub fn check_non_special_ip(value: &str) -> Vec<String> {
    let Ok(ip) = value.parse::<IpAddr>() else {
        return vec!["must be a valid IP address".to_owned()];
    };
    let (link_local, multicast) = match ip.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            (v4.is_link_local(), [a, b, c] == [224, 0, 0])
        }
        IpAddr::V6(v6) => (
            v6.is_unicast_link_local(),
            v6.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    let mut faults = Vec::new();
    let mut refuse = |holds: bool, text: String| faults.extend(holds.then_some(text));
    let ip = ip.to_canonical();
    refuse(
        ip.is_unspecified(),
        format!("may not be unspecified ({value})"),
    );
    refuse(
        ip.is_loopback(),
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned(),
    );
    refuse(
        link_local,
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned(),
    );
    refuse(
        multicast,
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
    );
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What programs read as different addresses is none (KEP-4858).
    #[test]
    fn an_address_is_one_for_everybody() {
        for ip in [
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "2001:db8::1",
            "2001:DB8::1",
            "::1.2.3.4",
        ] {
            assert!(check_ip(ip).is_empty(), "{ip}");
        }
        for (ip, fault) in [
            ("10.0.0.010", "must not have leading 0s"),
            ("00.0.0.0", "must not have leading 0s"),
            ("::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
            ("::ffff:a00:1", "must not be an IPv4-mapped IPv6 address"),
            ("10.0.0", "must be a valid IP address"),
            ("10.0.0.256", "must be a valid IP address"),
            ("10.0.0.", "must be a valid IP address"),
            ("fe80::1%eth0", "must be a valid IP address"),
            ("", "must be a valid IP address"),
        ] {
            let faults = check_ip(ip);
            assert!(
                faults.len() == 1 && faults[0].contains(fault),
                "{ip}: {faults:?}"
            );
            assert_eq!(check_canonical_ip(ip), faults);
        }
        let faults = check_canonical_ip("2001:DB8:0::1");
        assert_eq!(faults, ["must be in canonical form (\"2001:db8::1\")"]);
    }

    #[test]
    fn a_range_is_one_for_everybody() {
        for range in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "10.0.0.1/32",
            "2001:DB8::/64",
            "::/0",
        ] {
            assert!(check_cidr(range).is_empty(), "{range}");
        }
        let zeros = "must not have leading 0s in IP or prefix length";
        for (range, fault) in [
            ("10.0.0.0/08", zeros),
            ("010.0.0.0/8", zeros),
            ("0.0.0.0/00", zeros),
            (
                "10.0.0.1/8",
                "must not have bits set beyond the prefix length",
            ),
            (
                "::ffff:10.0.0.0/104",
                "must not have an IPv4-mapped IPv6 address",
            ),
            ("10.0.0.0/33", "must be a valid CIDR value"),
            ("10.0.0.0/+8", "must be a valid CIDR value"),
            ("10.0.0.0/", "must be a valid CIDR value"),
            ("10.0.0.0", "must be a valid CIDR value"),
        ] {
            let faults = check_cidr(range);
            assert!(
                faults.len() == 1 && faults[0].contains(fault),
                "{range}: {faults:?}"
            );
        }
        let faults = check_canonical_cidr("2001:DB8::/64");
        assert_eq!(faults, ["must be in canonical form (\"2001:db8::/64\")"]);
    }

    #[test]
    fn an_address_of_an_interface_is_written_in_one_way() {
        for address in ["10.9.8.7/24", "2001:db8::1/64"] {
            assert!(check_interface_address(address).is_empty(), "{address}");
        }
        for (address, plain) in [
            ("2001:db8:0::1/64", "2001:db8::1/64"),
            ("::ffff:192.168.0.1/120", "192.168.0.1/24"),
            ("10.0.0.1/024", "10.0.0.1/24"),
            ("010.0.0.1/24", "10.0.0.1/24"),
        ] {
            let fault = format!("must be in canonical form (\"{plain}\")");
            assert_eq!(check_interface_address(address), [fault]);
        }
        for odd in ["10.0.0.1", "10.0.0.1/33", "::1/129", "10.0.0.1/"] {
            assert!(
                check_interface_address(odd)[0].contains("valid address in CIDR form"),
                "{odd}"
            );
        }
    }
}
