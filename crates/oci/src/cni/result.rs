//! Results of plugins, in the forms of all versions.

use serde::Deserialize;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};

/// Addresses of all interfaces together; a pod has at most one of each family.
const MOST: usize = 64;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer {
    interfaces: Vec<Interface>,
    ips: Vec<Address>,
    /// Versions before 0.3.0.
    ip4: Option<OldAddress>,
    ip6: Option<OldAddress>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Interface {
    name: String,
}

#[derive(Deserialize)]
struct Address {
    address: String,
    #[serde(default)]
    interface: Option<i64>,
}

#[derive(Deserialize)]
struct OldAddress {
    ip: String,
}

/// A result without version has that of the configuration.
pub(super) fn complete(result: &mut Value, version: &str) {
    if let Value::Object(result) = result {
        let text = result.entry("cniVersion").or_insert(Value::Null);
        if text.as_str().is_none_or(str::is_empty) {
            *text = json!(version);
        }
    }
}

/// The addresses of the pod's interface without their prefix lengths, the first of IPv4 first.
pub(super) fn addresses(result: &Value, interface: &str) -> Result<Vec<String>, String> {
    let answer = Answer::deserialize(result).map_err(|e| e.to_string())?;
    if answer.ips.len() > MOST {
        return Err(format!("more than {MOST} addresses"));
    }
    let mut own = Vec::new();
    for ip in &answer.ips {
        if let Some(index) = ip.interface {
            let of = usize::try_from(index)
                .ok()
                .and_then(|i| answer.interfaces.get(i));
            let of = of.ok_or_else(|| {
                format!(
                    "invalid interface config: invalid interface index {index} of {}",
                    answer.interfaces.len()
                )
            })?;
            if of.name != interface {
                continue;
            }
        }
        own.push(parse(&ip.address)?);
    }
    for old in [&answer.ip4, &answer.ip6].into_iter().flatten() {
        own.push(parse(&old.ip)?);
    }
    if let Some(first) = own.iter().position(IpAddr::is_ipv4) {
        let primary = own.remove(first);
        own.insert(0, primary);
    }
    Ok(own.iter().map(ToString::to_string).collect())
}

fn parse(text: &str) -> Result<IpAddr, String> {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    let address: IpAddr = address
        .parse()
        .map_err(|_| format!("{text:?} is not an address"))?;
    // Under such an address everything that asks the pod, probes and Services, would ask the node or nobody.
    let address = address.to_canonical();
    let is_nobodys = address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address == Ipv4Addr::BROADCAST;
    if is_nobodys {
        return Err(format!("{text:?} is no address that a pod can have"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_version() {
        for (result, expected) in [
            (
                json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/16"}, "ip6": {"ip": "fd00::2/64"}}),
                vec!["10.1.0.2", "fd00::2"],
            ),
            (
                json!({"cniVersion": "0.4.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}],
                    "ips": [{"version": "6", "interface": 1, "address": "fd00::2/64"},
                            {"version": "4", "interface": 1, "address": "10.1.0.2/16"},
                            {"version": "4", "interface": 0, "address": "10.1.0.1/16"}]}),
                vec!["10.1.0.2", "fd00::2"],
            ),
            (
                json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/16"}]}),
                vec!["10.1.0.2"],
            ),
            (
                json!({"cniVersion": "1.1.0", "interfaces": null}),
                Vec::new(),
            ),
        ] {
            let result = match result {
                Value::Object(mut map) => {
                    map.retain(|_, v| !v.is_null());
                    Value::Object(map)
                }
                other => other,
            };
            assert_eq!(addresses(&result, "eth0").unwrap(), expected, "{result}");
        }
        // Probes and Services would ask the node itself.
        for nobodys in [
            "0.0.0.0/0",
            "127.0.0.1/8",
            "::1/128",
            "::/0",
            "::ffff:127.0.0.1/128",
            "224.0.0.1/4",
            "255.255.255.255/32",
            "ff02::1/64",
        ] {
            let result = json!({"ips": [{"address": nobodys}]});
            addresses(&result, "eth0").unwrap_err();
            let old = json!({"ip4": {"ip": nobodys}});
            addresses(&old, "eth0").unwrap_err();
        }
        let many = json!({"ips": vec![json!({"address": "10.1.0.2/16"}); MOST + 1]});
        addresses(&many, "eth0").unwrap_err();
        let wrong = json!({"ips": [{"interface": 1, "address": "10.1.0.2/16"}]});
        assert!(addresses(&wrong, "eth0").unwrap_err().contains("index 1"));
    }
}
