//! A machine that starts before its network is there, gets it, and loses it again: an edge box whose cable is pulled.

use super::{LIMIT, NODE_IP, Net, STEP, fetch_here, own_network, service, web};
use crate::harness::{eventually, run};
use std::process::Command;

fn ip(commands: &[&str]) {
    for command in commands {
        run(Command::new("ip").args(command.split(' ')));
    }
}

fn internal_ip(net: &Net) -> String {
    let address = ".status.addresses[?(@.type==\"InternalIP\")].address";
    net.path("node/node-1", address)
}

/// What is on the machine finds Services, pods find the API server, and the API server the node.
fn works(net: &Net, when: &str) {
    let service = net.path("service/web", ".spec.clusterIP");
    for (what, url) in [
        ("a Service", format!("http://{service}")),
        ("the API server", "-k https://10.96.0.1/version".to_owned()),
    ] {
        eventually(&format!("{what} from the machine {when}"), STEP, || {
            fetch_here(&url).is_ok()
        });
    }
    eventually(&format!("the API server from a pod {when}"), STEP, || {
        let url = format!("{LIMIT} -k https://kubernetes.default.svc/version");
        net.fetch("web", &url).is_ok()
    });
    assert_eq!(net.exec("web", "echo there").as_deref(), Ok("there"));
}

#[test]
fn a_machine_gets_its_network_and_loses_it() {
    if own_network().is_none() {
        return;
    }
    ip(&["link del up0"]);
    let Some(net) = Net::here(&["--bind-address", "0.0.0.0"]) else {
        return;
    };
    assert_eq!(internal_ip(&net), "127.0.0.1");
    net.create(&web("web", "web", ""));
    net.create(&service("web", "ports: [{port: 80, targetPort: 8080}]"));
    net.wait_ready(&["web"]);
    works(&net, "without a network");

    ip(&[
        "link add up0 type veth peer name up1",
        &format!("address add {NODE_IP}/24 dev up0"),
        "link set up0 up",
        "link set up1 up",
        "route add default via 192.0.2.1",
    ]);
    eventually("the node's new address", STEP, || {
        internal_ip(&net) == NODE_IP
    });
    eventually("the API server's new address", STEP, || {
        net.path("endpoints/kubernetes", ".subsets[*].addresses[*].ip") == NODE_IP
    });
    works(&net, "with its network");

    ip(&["link del up0"]);
    eventually("the API server's address that is left", STEP, || {
        net.path("endpoints/kubernetes", ".subsets[*].addresses[*].ip") != NODE_IP
    });
    assert_eq!(internal_ip(&net), NODE_IP, "where it was known last");
    works(&net, "with its cable out");
}
