//! Clusters of both families of addresses, and of IPv6 alone (spec network.md, checklist 9, 20, 54, 64, 74, 81, 85, 103).

use super::{
    LIMIT, Machine, NODE_IP, Net, STEP, TOKEN, fetch_here, node_tokens, on, own_network, service,
    web, with_token,
};
use crate::harness::{eventually, program, run, temp_dir};
use std::path::Path;
use std::process::Command;

pub(super) const NODE_IP_SIX: &str = "2001:db8::10";

/// A network of one's own with an address of each family.
pub(super) fn own_dual_network() -> Option<()> {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        eprintln!("skipped: no IPv6");
        return None;
    }
    own_network()?;
    for command in [
        &format!("-6 address add {NODE_IP_SIX}/64 dev up0 nodad"),
        "-6 route add default via 2001:db8::1",
    ] {
        run(Command::new("ip").args(command.split(' ')));
    }
    Some(())
}

/// A web server for both families.
pub(super) fn web_of_both(name: &str, app: &str) -> String {
    web(name, app, "").replace("http.server 8080", "http.server --bind :: 8080")
}

/// What a pod finds for a name, in order of the text.
fn resolve(net: &Net, pod: &str, name: &str) -> String {
    let script = format!(
        "python3 -c 'import socket; print(*sorted({{i[4][0] for i in socket.getaddrinfo(\"{name}\", 80)}}))'"
    );
    net.exec(pod, &script).unwrap()
}

#[test]
fn items_20_54_74_services_of_both_families() {
    let Some(()) = own_dual_network() else { return };
    let ranges = "10.96.0.0/16,fd00:10:96::/112";
    let Some(net) = Net::here(&["--service-cluster-ip-range", ranges]) else {
        return;
    };
    net.create(
        &[
            web_of_both("web", "web"),
            web_of_both("client", "client"),
            web_of_both("other", "other"),
        ]
        .concat(),
    );
    let both = "ipFamilyPolicy: RequireDualStack, type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]";
    net.create(&service("web", both));
    net.wait_ready(&["web", "client", "other"]);

    // Node and pods have addresses of both, IPv4 first.
    let node = |path: &str| net.path("node/node-1", path);
    let internal = "{.status.addresses[?(@.type==\"InternalIP\")].address}";
    assert_eq!(
        net.get(&["node", "node-1", "-o", &format!("jsonpath={internal}")])
            .unwrap(),
        format!("{NODE_IP} {NODE_IP_SIX}")
    );
    let pod_cidrs = node(".spec.podCIDRs[*]");
    let (four, six) = pod_cidrs.split_once(' ').unwrap();
    assert!(
        four.starts_with("10.") && six.ends_with("::/64"),
        "{pod_cidrs}"
    );
    let ips = net.path("pod/web", ".status.podIPs[*].ip");
    let (four, six) = ips.split_once(' ').unwrap();
    assert!(!four.contains(':') && six.contains(':'), "{ips}");
    assert_eq!(net.path("pod/web", ".status.podIP"), four);
    let host_ips = net.path("pod/web", ".status.hostIPs[*].ip");
    assert_eq!(host_ips, format!("{NODE_IP} {NODE_IP_SIX}"));
    let hosts = net.exec("web", "cat /etc/hosts").unwrap();
    assert!(hosts.contains(&format!("{six}\tweb")), "{hosts}");

    // Both cluster addresses, by name and by number, and both ports of the node.
    let cluster_ips = net.path("service/web", ".spec.clusterIPs[*]");
    let (v4, v6) = cluster_ips.split_once(' ').unwrap();
    assert_eq!(net.path("service/web", ".spec.ipFamilies[*]"), "IPv4 IPv6");
    assert_eq!(resolve(&net, "client", "web"), cluster_ips);
    for flag in ["-4", "-6"] {
        let url = format!("{flag} http://web");
        eventually(&url, STEP, || {
            net.fetch("client", &url).as_deref() == Ok("web")
        });
    }
    for url in [
        format!("http://{v4}"),
        format!("http://[{v6}]"),
        format!("http://[{six}]:8080"),
        format!("http://[{NODE_IP_SIX}]:30080"),
    ] {
        assert_eq!(net.fetch("client", &url).as_deref(), Ok("web"), "{url}");
        assert_eq!(fetch_here(&url).as_deref(), Ok("web"), "{url}");
    }
    assert_eq!(
        net.fetch("web", "-6 http://web.default.svc").as_deref(),
        Ok("web"),
        "itself"
    );
    // The cable is out, and with it the default routes: what is on the machine finds its Services all the same.
    for command in ["route del default", "-6 route del default"] {
        run(Command::new("ip").args(command.split(' ')));
    }
    for url in [format!("http://{v4}"), format!("http://[{v6}]")] {
        eventually(&format!("{url} without a default route"), STEP, || {
            fetch_here(&url).as_deref() == Ok("web")
        });
    }
    let reverse = format!("python3 -c 'import socket; print(socket.gethostbyaddr(\"{v6}\")[0])'");
    assert_eq!(
        net.exec("client", &reverse).as_deref(),
        Ok("web.default.svc.cluster.local")
    );
    let slices = [
        "endpointslices",
        "-l",
        "kubernetes.io/service-name=web",
        "-o",
    ];
    let types = net
        .get(&[&slices[..], &["jsonpath={.items[*].addressType}"]].concat())
        .unwrap();
    let mut types: Vec<&str> = types.split(' ').collect();
    types.sort_unstable();
    assert_eq!(types, ["IPv4", "IPv6"]);
    // A Service that does not say is of the first family.
    net.create(&service("other", "ports: [{port: 80, targetPort: 8080}]"));
    assert_eq!(net.path("service/other", ".spec.ipFamilies[*]"), "IPv4");
    assert!(
        !net.path("service/other", ".spec.clusterIPs[*]")
            .contains(' ')
    );

    // A policy is one of both.
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}\nspec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}\n";
    net.create(policy);
    for flag in ["-4", "-6"] {
        let url = format!("{flag} --connect-timeout 1 http://web");
        eventually("the others are shut out", STEP, || {
            net.fetch("other", &url).is_err()
        });
        assert_eq!(net.fetch("client", &url).as_deref(), Ok("web"), "{flag}");
    }
    // The second family goes, and its address is free.
    let single = r#"{"spec":{"ipFamilyPolicy":"SingleStack"}}"#;
    run(&mut net.kubectl(&["patch", "service", "web", "-p", single]));
    assert_eq!(net.path("service/web", ".spec.clusterIPs[*]"), v4);
    assert!(net.get(&["ipaddress", v6]).is_err());
    assert!(net.get(&["ipaddress", v4]).is_ok());
    assert_eq!(net.fetch("client", "http://web").as_deref(), Ok("web"));
    let url = format!("--connect-timeout 1 http://[{v6}]");
    eventually("the other address is nobody's", STEP, || {
        net.fetch("client", &url).is_err()
    });
}

#[test]
fn items_9_54_a_cluster_of_ipv6_alone() {
    let Some(()) = own_dual_network() else { return };
    let Some(net) = Net::here(&["--service-cluster-ip-range", "fd00:10:96::/112"]) else {
        return;
    };
    net.create(&[web_of_both("web", "web"), web_of_both("client", "client")].concat());
    net.create(&service(
        "web",
        "type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]",
    ));
    net.wait_ready(&["web", "client"]);
    assert_eq!(
        net.path("service/kubernetes", ".spec.clusterIP"),
        "fd00:10:96::1"
    );
    let ips = net.path("pod/web", ".status.podIPs[*].ip");
    assert!(ips.contains(':') && !ips.contains(' '), "{ips}");
    assert_eq!(net.path("pod/web", ".status.hostIP"), NODE_IP_SIX);
    for server in ["kubernetes.default.svc", "[$KUBERNETES_SERVICE_HOST]"] {
        let call = format!("curl -sS {LIMIT} --cacert {TOKEN}/ca.crt https://{server}/version");
        assert!(
            net.exec("client", &call).unwrap().contains("davit"),
            "{server}"
        );
    }
    assert_eq!(
        resolve(&net, "client", "web"),
        net.path("service/web", ".spec.clusterIP")
    );
    eventually("the service answers", STEP, || {
        net.fetch("client", "http://web").as_deref() == Ok("web")
    });
    assert_eq!(
        net.fetch("web", "http://web.default.svc").as_deref(),
        Ok("web"),
        "itself"
    );
    let url = format!("http://[{NODE_IP_SIX}]:30080");
    assert_eq!(fetch_here(&url).as_deref(), Ok("web"));
}

#[test]
fn items_54_64_pods_of_two_nodes_in_both_families() {
    if program("nsenter").is_none() || own_dual_network().is_none() {
        return;
    }
    let tokens = temp_dir();
    let file = node_tokens(tokens.path());
    let args = [
        "--service-cluster-ip-range",
        "fd00:10:96::/112,10.96.0.0/16",
        "--bind-address",
        "::",
        "--advertise-address",
        NODE_IP_SIX,
        "--token-auth-file",
        &file,
    ];
    let Some(net) = Net::here(&args) else { return };
    let port = net.cluster.server.rsplit(':').next().unwrap();
    let server = format!("https://[{NODE_IP_SIX}]:{port}");
    let kubeconfig = with_token(&net.cluster.kubeconfig, &server, "secret");
    let ways = [
        "-6 address add 2001:db8::11/64 dev up1 nodad",
        "-6 route add default via 2001:db8::1",
    ];
    let _other = Machine::start(&kubeconfig, &ways);
    net.wait_node("node-2");
    // It is ready when it reaches the API server and a pod of the other node, by name.
    let probe = "exec: {command: [sh, -c, 'curl -sSk --max-time 5 https://kubernetes.default.svc/version \
                 && curl -sS -4 --max-time 5 http://near && curl -sS -6 --max-time 5 http://near']}";
    let far = web_of_both("far", "far").replace("httpGet: {path: /, port: 8080}", probe);
    let far = far.replace("periodSeconds: 1", "periodSeconds: 1, timeoutSeconds: 16");
    let both = "ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080}]";
    let all = [
        on(&web_of_both("near", "near"), "node-1"),
        on(&far, "node-2"),
        service("near", both),
        service("far", both),
    ];
    net.create(&all.concat());
    net.wait_ready(&["near", "far"]);
    // The node has asked for the families: it has no flag that says.
    assert_eq!(
        net.path("pod/far", ".status.hostIPs[*].ip"),
        "2001:db8::11 192.0.2.11"
    );
    let ips = net.path("pod/far", ".status.podIPs[*].ip");
    let (six, four) = ips.split_once(' ').unwrap();
    for url in [
        format!("http://[{six}]:8080"),
        format!("http://{four}:8080"),
    ] {
        eventually(&url, STEP, || {
            net.fetch("near", &url).as_deref() == Ok("far")
        });
    }
    for flag in ["-4", "-6"] {
        let url = format!("{flag} http://far");
        eventually(&url, STEP, || {
            net.fetch("near", &url).as_deref() == Ok("far")
        });
    }
}
