//! IP addresses and blocks of them.

use std::net::IpAddr;

use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::{Cidr, Value};

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("ip", false) => |_, args| {
            let text = text(args)?;
            parse_ip(text).map_or_else(
                |why| {
                    failed(format!(
                        "IP Address {text:?} parse error during conversion from string: {why}"
                    ))
                },
                |ip| Ok(Value::Ip(ip)),
            )
        },
        ("isIP", false) => |_, args| Ok(Value::Bool(parse_ip(text(args)?).is_ok())),
        ("ip.isCanonical", false) => |_, args| {
            let text = text(args)?;
            match parse_ip(text) {
                Ok(ip) => Ok(Value::Bool(ip.to_string() == text)),
                Err(why) => failed(format!(
                    "IP Address {text:?} parse error during conversion from string: {why}"
                )),
            }
        },
        ("cidr", false) => |_, args| {
            let text = text(args)?;
            parse_cidr(text).map_or_else(
                || failed(format!("network address parse error during conversion from string: invalid CIDR {text:?}")),
                |cidr| Ok(Value::Cidr(cidr)),
            )
        },
        ("isCIDR", false) => |_, args| Ok(Value::Bool(parse_cidr(text(args)?).is_some())),
        ("family", true) => {
            |_, args| address(args).map(|ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 }))
        }
        ("isUnspecified", true) => |_, args| address(args).map(|ip| ip.is_unspecified().into()),
        ("isLoopback", true) => |_, args| address(args).map(|ip| ip.is_loopback().into()),
        ("isLinkLocalMulticast", true) => |_, args| {
            address(args).map(|ip| {
                Value::Bool(match ip {
                    IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
                    IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
                })
            })
        },
        ("isLinkLocalUnicast", true) => {
            |_, args| address(args).map(|ip| Value::Bool(link_local(ip)))
        }
        ("isGlobalUnicast", true) => |_, args| {
            address(args).map(|ip| {
                let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
                Value::Bool(
                    !broadcast
                        && !ip.is_unspecified()
                        && !ip.is_loopback()
                        && !ip.is_multicast()
                        && !link_local(ip),
                )
            })
        },
        ("containsIP", true) => |_, args| {
            let cidr = block(args)?;
            match &args[1] {
                Value::Ip(ip) => Ok(Value::Bool(contains(cidr, *ip))),
                Value::String(text) => match parse_ip(text) {
                    Ok(ip) => Ok(Value::Bool(contains(cidr, ip))),
                    Err(why) => failed(format!(
                        "IP Address {text:?} parse error during conversion from string: {why}"
                    )),
                },
                _ => no_overload(),
            }
        },
        ("containsCIDR", true) => |_, args| {
            let cidr = block(args)?;
            let other = match &args[1] {
                Value::Cidr(other) => *other,
                Value::String(text) => match parse_cidr(text) {
                    Some(other) => other,
                    None => {
                        return failed(format!(
                            "network address parse error during conversion from string: invalid CIDR {text:?}"
                        ));
                    }
                },
                _ => return no_overload(),
            };
            Ok(Value::Bool(
                cidr.prefix <= other.prefix && contains(cidr, other.ip),
            ))
        },
        ("ip", true) => |_, args| block(args).map(|cidr| Value::Ip(cidr.ip)),
        ("masked", true) => |_, args| {
            block(args).map(|cidr| {
                Value::Cidr(Cidr {
                    ip: mask(cidr.ip, cidr.prefix),
                    prefix: cidr.prefix,
                })
            })
        },
        ("prefixLength", true) => |_, args| block(args).map(|cidr| i64::from(cidr.prefix).into()),
        _ => return None,
    })
}

fn text(args: &[Value]) -> Result<&str, EvalError> {
    args.first()
        .and_then(Value::as_str)
        .ok_or_else(EvalError::no_overload)
}

fn address(args: &[Value]) -> Result<IpAddr, EvalError> {
    match args.first() {
        Some(Value::Ip(ip)) => Ok(*ip),
        _ => Err(EvalError::no_overload()),
    }
}

fn block(args: &[Value]) -> Result<Cidr, EvalError> {
    match args.first() {
        Some(Value::Cidr(cidr)) => Ok(*cidr),
        _ => Err(EvalError::no_overload()),
    }
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Zones and IPv4 in IPv6 clothes are refused: they are not what a rule expects.
fn parse_ip(text: &str) -> Result<IpAddr, &'static str> {
    if text.contains('%') {
        return Err("IP address with zone value is not allowed");
    }
    let ip: IpAddr = text.parse().map_err(|_| "unable to parse IP")?;
    if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err("IPv4-mapped IPv6 address is not allowed");
    }
    Ok(ip)
}

fn parse_cidr(text: &str) -> Option<Cidr> {
    let (ip, prefix) = text.split_once('/')?;
    let ip = parse_ip(ip).ok()?;
    let plain = prefix.bytes().all(|b| b.is_ascii_digit())
        && (prefix.len() == 1 || !prefix.starts_with('0'));
    let prefix: u8 = prefix.parse().ok().filter(|_| plain)?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= most).then_some(Cidr { ip, prefix })
}

fn mask(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}

fn contains(cidr: Cidr, ip: IpAddr) -> bool {
    cidr.ip.is_ipv4() == ip.is_ipv4() && mask(cidr.ip, cidr.prefix) == mask(ip, cidr.prefix)
}
