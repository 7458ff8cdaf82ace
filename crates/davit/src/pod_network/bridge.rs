//! `--pod-network=CIDR`: a bridge by CNI plugins, without writing a configuration.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Name of the network and of its bridge.
const NETWORK: &str = "davit";
const BRIDGE: &str = "davit0";
/// Without these there is no network.
const NEEDED: [&str; 2] = ["bridge", "host-local"];

/// Writes the configuration and returns its directory.
pub(super) fn write(networks: &[String], bin_dirs: &[PathBuf], data_dir: &Path) -> Result<PathBuf> {
    let has = |plugin: &str| bin_dirs.iter().any(|dir| dir.join(plugin).is_file());
    if let Some(missing) = NEEDED.iter().find(|plugin| !has(plugin)) {
        let dirs: Vec<_> = bin_dirs.iter().map(|d| d.display().to_string()).collect();
        bail!(
            "--pod-network: the CNI plugin {missing:?} is in none of {}; Debian has it in the package \
             containernetworking-plugins, --cni-bin-dir names other directories",
            dirs.join(", ")
        );
    }
    let list = conflist(networks, &data_dir.join("cni/addresses"), has)?;
    let dir = data_dir.join("cni/net.d");
    let file = dir.join("10-davit.conflist");
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(&file, format!("{list:#}\n")))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(dir)
}

fn conflist(networks: &[String], addresses: &Path, has: impl Fn(&str) -> bool) -> Result<Value> {
    let (mut ranges, mut routes) = (Vec::new(), Vec::new());
    for network in networks {
        let family = family(network).with_context(|| {
            format!("--pod-network: {network:?} is not of the form ADDRESS/BITS")
        })?;
        let all = if family.is_ipv4() {
            "0.0.0.0/0"
        } else {
            "::/0"
        };
        let route = json!({"dst": all});
        if routes.contains(&route) {
            bail!("--pod-network: more than one network of the same address family");
        }
        ranges.push(json!([{"subnet": network}]));
        routes.push(route);
    }
    let ipam = json!({
        "type": "host-local",
        "dataDir": addresses,
        "ranges": ranges,
        "routes": routes,
    });
    let mut plugins = vec![json!({
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": true,
        "ipMasq": true,
        "hairpinMode": true,
        "ipam": ipam,
    })];
    if has("portmap") {
        plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    }
    if has("bandwidth") {
        plugins.push(json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}));
    }
    Ok(json!({"cniVersion": "1.0.0", "name": NETWORK, "plugins": plugins}))
}

fn family(network: &str) -> Option<IpAddr> {
    let (address, bits) = network.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 30 } else { 126 };
    (1..=most)
        .contains(&bits.parse::<u8>().ok()?)
        .then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_both_families() {
        let list = |networks: &[&str]| {
            let networks: Vec<String> = networks.iter().map(|n| (*n).to_owned()).collect();
            conflist(&networks, Path::new("/d"), |plugin| plugin != "bandwidth")
        };
        let both = list(&["10.1.0.0/16", "fd01::/64"]).unwrap();
        assert_eq!(both["plugins"].as_array().unwrap().len(), 2);
        let ipam = &both["plugins"][0]["ipam"];
        assert_eq!(ipam["ranges"][1][0]["subnet"], "fd01::/64");
        assert_eq!(
            ipam["routes"],
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])
        );
        for wrong in [
            &["10.1.0.0"][..],
            &["10.1.0.0/31"],
            &["x/8"],
            &["10.1.0.0/16", "10.2.0.0/16"],
        ] {
            list(wrong).unwrap_err();
        }
    }

    #[test]
    fn without_plugins_the_reason_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let bins = [dir.path().join("bin")];
        let error = write(&["10.1.0.0/16".to_owned()], &bins, dir.path()).unwrap_err();
        assert!(error.to_string().contains("\"bridge\""), "{error}");
    }
}
