//! Name resolution inside pods: `/etc/resolv.conf` by `dnsPolicy`, and `/etc/hosts`.

use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;

/// The cluster's DNS service.
#[derive(Debug, Clone, Default)]
pub struct ClusterDns {
    /// Addresses of the service; empty when the cluster has none.
    pub servers: Vec<String>,
    /// Domain, `cluster.local`.
    pub domain: String,
}

/// Most search domains and name servers the C library takes.
const MAX_SEARCHES: usize = 32;
const MAX_SERVERS: usize = 3;

/// What `/etc/resolv.conf` of a host says.
pub(crate) fn parse_resolv_conf(text: &str) -> cri::DnsConfig {
    let mut out = cri::DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
            Some("search" | "domain") => out.searches = words.map(str::to_owned).collect(),
            Some("options") => out.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    out
}

/// The sandbox's DNS configuration.
pub(crate) fn config(pod: &Pod, cluster: &ClusterDns, host: &cri::DnsConfig) -> cri::DnsConfig {
    let spec = pod.pod_spec();
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster_first = match policy {
        "ClusterFirst" => !pod.host_network(),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let mut out = if policy == "None" {
        cri::DnsConfig::default()
    } else if cluster_first && !cluster.servers.is_empty() {
        let domain = &cluster.domain;
        let mut searches = vec![
            format!("{}.svc.{domain}", pod.ns()),
            format!("svc.{domain}"),
            domain.clone(),
        ];
        searches.extend(host.searches.iter().cloned());
        cri::DnsConfig {
            servers: cluster.servers.clone(),
            searches,
            options: vec!["ndots:5".to_owned()],
        }
    } else {
        host.clone()
    };
    if let Some(own) = &spec.dns_config {
        out.servers
            .extend(own.nameservers.iter().flatten().cloned());
        out.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            out.options.retain(|o| o.split(':').next() != Some(name));
            out.options.push(
                option
                    .value
                    .as_ref()
                    .map_or(name.clone(), |v| format!("{name}:{v}")),
            );
        }
    }
    dedupe(&mut out.servers, MAX_SERVERS);
    dedupe(&mut out.searches, MAX_SEARCHES);
    out
}

fn dedupe(list: &mut Vec<String>, max: usize) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
    list.truncate(max);
}

/// The longest name of a machine that the kernel takes.
const MAX_HOSTNAME: usize = 64;

/// The pod's name in the cluster's domain, if it has a subdomain. A name that overrides all others is the whole name
/// (KEP-4762).
fn full_name(pod: &Pod, cluster_domain: &str) -> Option<String> {
    let spec = pod.pod_spec();
    let subdomain = spec.subdomain.as_deref().filter(|s| !s.is_empty())?;
    let (hostname, namespace) = (pod.hostname(), pod.ns());
    spec.hostname_override
        .is_none()
        .then(|| format!("{hostname}.{subdomain}.{namespace}.svc.{cluster_domain}"))
}

/// What the pod's containers see as the name of their machine: with `setHostnameAsFQDN` the full one.
///
/// # Errors
/// The full name, where it is longer than the kernel takes.
pub(crate) fn machine_name(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let full = pod.pod_spec().set_hostname_as_fqdn == Some(true);
    match full_name(pod, cluster_domain).filter(|_| full) {
        Some(name) if name.len() > MAX_HOSTNAME => Err(name),
        Some(name) => Ok(name),
        None => Ok(pod.hostname()),
    }
}

/// The pod's `/etc/hosts`. `host_file` is the node's own, for pods in the host's network.
pub(crate) fn hosts_file(
    pod: &Pod,
    ips: &[String],
    cluster_domain: &str,
    host_file: Option<&str>,
) -> String {
    let mut out = match host_file {
        Some(text) => format!("# Kubernetes-managed hosts file (host network).\n{text}"),
        None => {
            let mut text = String::from(
                "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
                 fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
            );
            let hostname = pod.hostname();
            let names = match full_name(pod, cluster_domain) {
                Some(full) => format!("{full}\t{hostname}"),
                None => hostname,
            };
            // A pod without address of its own still has to find itself by name.
            let loopback = ["127.0.0.1".to_owned()];
            for ip in if ips.is_empty() { &loopback } else { ips } {
                text.push_str(&format!("{ip}\t{names}\n"));
            }
            text
        }
    };
    let aliases = pod.pod_spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            out.push_str(&format!(
                "{}\t{}\n",
                alias.ip,
                alias.hostnames.as_deref().unwrap_or_default().join("\t")
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "web-0", "namespace": "ns"}, "spec": spec}),
        )
        .unwrap()
    }

    fn cluster() -> ClusterDns {
        ClusterDns {
            servers: vec!["10.96.0.10".into()],
            domain: "cluster.local".into(),
        }
    }

    #[test]
    fn policies() {
        let host =
            parse_resolv_conf("# c\nnameserver 1.1.1.1\nsearch a.b c\noptions ndots:1 edns0\n");
        assert_eq!(host.searches, ["a.b", "c"]);
        let first = config(&pod(json!({"containers": []})), &cluster(), &host);
        assert_eq!(first.servers, ["10.96.0.10"]);
        assert_eq!(
            first.searches,
            [
                "ns.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "a.b",
                "c"
            ]
        );
        assert_eq!(first.options, ["ndots:5"]);
        for spec in [
            json!({"containers": [], "dnsPolicy": "Default"}),
            json!({"containers": [], "hostNetwork": true}),
        ] {
            assert_eq!(config(&pod(spec), &cluster(), &host).servers, ["1.1.1.1"]);
        }
        let none = config(
            &pod(
                json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "options": [{"name": "ndots", "value": "2"}]}}),
            ),
            &cluster(),
            &host,
        );
        assert_eq!(
            (none.servers, none.options),
            (vec!["9.9.9.9".to_owned()], vec!["ndots:2".to_owned()])
        );
    }

    #[test]
    fn hosts_names_the_pod() {
        let p = pod(
            json!({"containers": [], "subdomain": "web", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]}),
        );
        let text = hosts_file(&p, &["10.0.0.3".into()], "cluster.local", None);
        assert!(text.contains("10.0.0.3\tweb-0.web.ns.svc.cluster.local\tweb-0\n"));
        assert!(text.ends_with("# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"));
        let p = pod(json!({"containers": [], "subdomain": "web", "hostnameOverride": "own"}));
        let text = hosts_file(&p, &["10.0.0.3".into()], "cluster.local", None);
        assert!(text.ends_with("10.0.0.3\town\n"), "{text}");
    }

    #[test]
    fn the_machine_is_named_in_full_where_that_is_asked_for() {
        let name = |spec| machine_name(&pod(spec), "cluster.local");
        let short = json!({"containers": [], "subdomain": "web"});
        assert_eq!(name(short).unwrap(), "web-0");
        let full = json!({"containers": [], "subdomain": "web", "setHostnameAsFQDN": true});
        assert_eq!(name(full).unwrap(), "web-0.web.ns.svc.cluster.local");
        let alone = json!({"containers": [], "setHostnameAsFQDN": true});
        assert_eq!(name(alone).unwrap(), "web-0");
        let long = "x".repeat(40);
        let long = json!({"containers": [], "subdomain": long, "setHostnameAsFQDN": true});
        assert!(name(long).unwrap_err().ends_with(".ns.svc.cluster.local"));
    }
}
