//! Inputs for what the objects and texts of users become.

use serde_json::{Map, Value, json};

use super::{bytes, damaged};
use crate::Numbers;

const FIELDS: [&str; 20] = [
    "*", "*", "0", "1", "5", "59", "*/5", "1-5", "5-1", "1,2,3", "?", "L", "sun", "MON-fri", "jan",
    "31", "*/0", "1/2", "60", "*-3",
];
const ZONES: [&str; 8] = [
    "",
    "UTC",
    "Europe/Berlin",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Pacific/Apia",
    "../etc/passwd",
];
const WORDS: [&str; 8] = [
    "@hourly",
    "@every 1h",
    "@every 90s",
    "@every -1h",
    "@every 1h30m10s",
    "@yearly",
    "@every 99999999999h",
    "@x",
];

pub(crate) fn schedule(n: &mut Numbers) -> Vec<u8> {
    let text = match n.below(5) {
        0 => (*n.one(&WORDS)).to_owned(),
        _ => {
            let count = if n.once_in(8) { n.below(8) } else { 5 };
            let fields: Vec<String> = (0..count)
                .map(|_| match n.below(4) {
                    0 => format!("{}/{}", n.one(&FIELDS), n.below(70)),
                    1 => format!("{}-{}", n.below(40), n.below(70)),
                    _ => (*n.one(&FIELDS)).to_owned(),
                })
                .collect();
            fields.join(" ")
        }
    };
    format!("{text}\0{}", n.one(&ZONES)).into_bytes()
}

fn address(n: &mut Numbers) -> String {
    const PARTS: [&str; 12] = [
        "10.0.0.1",
        "10.0.0.300",
        "010.1.1.1",
        "::",
        "fd00::1",
        "::ffff:1.2.3.4",
        "fd00:1::",
        "1",
        "0",
        "fe80::1%eth0",
        "::1",
        "255.255.255.255",
    ];
    match n.below(3) {
        0 => format!(
            "{}.{}.{}.{}",
            n.below(260),
            n.below(260),
            n.below(260),
            n.below(260)
        ),
        1 => format!(
            "fd{:x}:{:x}::{:x}",
            n.below(256),
            n.below(70000),
            n.below(70000)
        ),
        _ => (*n.one(&PARTS)).to_owned(),
    }
}

fn range(n: &mut Numbers) -> String {
    format!("{}/{}", address(n), n.below(140))
}

pub(crate) fn addresses(n: &mut Numbers) -> Vec<u8> {
    let text = match n.below(4) {
        0 => range(n),
        1 => format!("[{}]:{}", address(n), n.below(70000)),
        2 => format!("{}:{}", address(n), n.below(70000)),
        _ => address(n),
    };
    text.into_bytes()
}

pub(crate) fn scheduler_config(n: &mut Numbers) -> Vec<u8> {
    const PLUGINS: [&str; 8] = [
        "NodeResourcesFit",
        "InterPodAffinity",
        "PodTopologySpread",
        "VolumeBinding",
        "NodeAffinity",
        "DefaultPreemption",
        "DynamicResources",
        "Mine",
    ];
    let plugins = |n: &mut Numbers| -> Value {
        (0..n.below(4))
            .map(|_| json!({"name": n.one(&PLUGINS), "weight": n.below(5)}))
            .collect()
    };
    let profiles: Vec<Value> = (0..n.below(3))
        .map(|index| {
            let mut points = Map::new();
            for point in ["multiPoint", "filter", "score", "queueSort", "bind"] {
                if n.once_in(3) {
                    let set = json!({"enabled": plugins(n), "disabled": plugins(n)});
                    points.insert(point.to_owned(), set);
                }
            }
            let name = *n.one(&PLUGINS);
            json!({
                "schedulerName": format!("s{index}"),
                "plugins": points,
                "pluginConfig": [{"name": name, "args": {
                    "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": format!("{name}Args"),
                    "hardPodAffinityWeight": n.below(200),
                    "scoringStrategy": {"type": n.one(&["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]),
                        "resources": [{"name": "cpu", "weight": n.below(120)}]},
                }}],
            })
        })
        .collect();
    let whole = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "parallelism": n.below(40), "percentageOfNodesToScore": n.below(120),
        "podInitialBackoffSeconds": n.below(20), "podMaxBackoffSeconds": n.below(20),
        "profiles": profiles,
        "extenders": [{"urlPrefix": "http://[fd00::1]:80/", "filterVerb": "f", "weight": n.below(3), "httpTimeout": "5s"}],
    });
    bytes(&damaged(n, whole))
}

fn port(n: &mut Numbers) -> Value {
    let number = n.below(66000);
    json!({
        "name": format!("p{}", n.below(3)), "protocol": n.one(&["TCP", "UDP", "SCTP", "X"]), "port": number,
        "nodePort": n.below(66000), "targetPort": number, "appProtocol": "x",
    })
}

fn labels(n: &mut Numbers) -> Value {
    let pairs = (0..n.below(3)).map(|_| {
        (
            format!("k{}", n.below(3)),
            json!(format!("v{}", n.below(2))),
        )
    });
    pairs.collect::<Map<_, _>>().into()
}

pub(crate) fn service_plan(n: &mut Numbers) -> Vec<u8> {
    let list = |n: &mut Numbers| -> Vec<String> { (0..n.below(3)).map(|_| address(n)).collect() };
    let ports: Vec<Value> = (0..n.below(4)).map(|_| port(n)).collect();
    let ips = list(n);
    let sources: Vec<String> = (0..n.below(3)).map(|_| range(n)).collect();
    let service = json!({
        "metadata": {"name": n.one(&["s", "kubernetes"]), "namespace": "default", "labels": labels(n)},
        "spec": {
            "type": n.one(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
            "clusterIP": ips.first(), "clusterIPs": ips, "externalIPs": list(n), "ports": ports,
            "loadBalancerSourceRanges": sources, "sessionAffinity": n.one(&["None", "ClientIP"]),
            "externalTrafficPolicy": n.one(&["Cluster", "Local"]),
            "internalTrafficPolicy": n.one(&["Cluster", "Local"]),
            "healthCheckNodePort": n.below(66000), "publishNotReadyAddresses": n.once_in(2),
        },
        "status": {"loadBalancer": {"ingress": [{"ip": address(n), "ipMode": n.one(&["VIP", "Proxy"])}]}},
    });
    let slices: Vec<Value> = (0..n.below(4))
        .map(|index| {
            let endpoints: Vec<Value> = (0..n.below(5))
                .map(|_| json!({
                    "addresses": list(n), "nodeName": n.one(&["n", "m"]),
                    "conditions": {"ready": n.once_in(2), "serving": n.once_in(2), "terminating": n.once_in(3)},
                    "hints": {"forNodes": [{"name": "n"}], "forZones": [{"name": "z"}]},
                }))
                .collect();
            let ports: Vec<Value> = (0..n.below(3)).map(|_| port(n)).collect();
            json!({
                "metadata": {"name": format!("s-{index}"), "labels": {"kubernetes.io/service-name": "s"}},
                "addressType": n.one(&["IPv4", "IPv6", "FQDN"]), "endpoints": endpoints, "ports": ports,
            })
        })
        .collect();
    let node = json!({
        "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}},
        "spec": {"podCIDR": range(n), "podCIDRs": [range(n), range(n)]},
        "status": {"addresses": [{"type": "InternalIP", "address": address(n)}]},
    });
    bytes(&damaged(n, json!([service, slices, node])))
}

pub(crate) fn network_policy(n: &mut Numbers) -> Vec<u8> {
    let selector = |n: &mut Numbers| match n.below(3) {
        0 => json!({}),
        1 => json!({"matchLabels": labels(n)}),
        _ => {
            json!({"matchExpressions": [{"key": "k0", "operator": n.one(&["In", "NotIn", "Exists", "X"]), "values": ["v0"]}]})
        }
    };
    let peers = |n: &mut Numbers| -> Value {
        (0..n.below(3))
            .map(|_| match n.below(3) {
                0 => json!({"ipBlock": {"cidr": range(n), "except": [range(n)]}}),
                1 => json!({"podSelector": selector(n)}),
                _ => json!({"namespaceSelector": selector(n), "podSelector": selector(n)}),
            })
            .collect()
    };
    let ports = |n: &mut Numbers| -> Value {
        (0..n.below(3))
            .map(|_| match n.once_in(3) {
                true => json!({"protocol": "UDP", "port": "web"}),
                false => json!({"port": n.below(66000), "endPort": n.below(66000)}),
            })
            .collect()
    };
    let policies: Vec<Value> = (0..n.below(4))
        .map(|_| {
            json!({
                "metadata": {"name": "p", "namespace": "n"},
                "spec": {
                    "podSelector": selector(n), "policyTypes": [n.one(&["Ingress", "Egress", "X"])],
                    "ingress": [{"from": peers(n), "ports": ports(n)}],
                    "egress": [{"to": peers(n), "ports": ports(n)}, {"to": peers(n)}],
                },
            })
        })
        .collect();
    let pods: Vec<Value> = (0..n.below(5))
        .map(|index| {
            json!({
                "metadata": {"name": format!("p{index}"), "namespace": "n", "labels": labels(n)},
                "spec": {"nodeName": "n", "hostNetwork": n.once_in(5), "containers": [{"name": "c",
                    "ports": [{"name": "web", "containerPort": n.below(66000), "protocol": n.one(&["TCP", "UDP"])}]}]},
                "status": {"podIP": address(n), "podIPs": [{"ip": address(n)}, {"ip": address(n)}]},
            })
        })
        .collect();
    let of_namespace = labels(n);
    bytes(&damaged(n, json!([policies, pods, of_namespace])))
}

pub(crate) fn samples(n: &mut Numbers) -> Vec<u8> {
    const NAMES: [&str; 5] = [
        "container_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "a:b",
        "",
        "#",
    ];
    const VALUES: [&str; 10] = [
        "a", "", "\\n", "\\\"", "\\\\", "x,y=\"z", "}", "é", "\\", "a b",
    ];
    const NUMBERS: [&str; 10] = [
        "1",
        "1.5e3",
        "NaN",
        "+Inf",
        "-Inf",
        "1e400",
        "-0",
        "0x1",
        "9223372036854775808",
        "inf",
    ];
    let lines: Vec<String> = (0..n.below(8))
        .map(|_| {
            let labels: Vec<String> = (0..n.below(10))
                .map(|index| format!("l{index}=\"{}{}\"", n.one(&VALUES), n.one(&VALUES)))
                .collect();
            let labels = match n.once_in(4) {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let time = if n.once_in(2) { *n.one(&NUMBERS) } else { "" };
            format!("{}{labels} {} {time}", n.one(&NAMES), n.one(&NUMBERS))
        })
        .collect();
    lines.join("\n").into_bytes()
}
