//! Services, endpoints and networking.k8s.io.

use davit_api::host_port::host_port;
use serde_json::Value;

use super::format::{Row, at, first_three, labels, list_at, non_empty, selector, str_at};
use super::{AGE, Column, DEFAULT, NAME, Printer, SELECTOR};

pub(super) static SERVICE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "How the service is reached"),
        Column::text("Cluster-IP", "Address inside the cluster"),
        Column::text("External-IP", "Addresses outside the cluster"),
        Column::text("Port(s)", "Ports of the service"),
        AGE,
        SELECTOR,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "type"])),
            r.str_or(&["spec", "clusterIP"], "<none>"),
            Value::from(external_ip(r)),
            Value::from(ports(r)),
            r.age(),
            Value::from(labels(r.at(&["spec", "selector"]))),
        ]
    },
};

pub(super) static ENDPOINTS: Printer = Printer {
    columns: &[NAME, Column::text("Endpoints", "Addresses and ports"), AGE],
    cells: |r| vec![r.name(), Value::from(endpoints(r)), r.age()],
};

pub(super) static ENDPOINT_SLICE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("AddressType", "Type of the addresses"),
        Column::text("Ports", "Ports of every endpoint"),
        Column::text("Endpoints", "Addresses"),
        AGE,
    ],
    cells: |r| {
        let ports: Vec<String> = r
            .list(&["ports"])
            .iter()
            .map(|p| match at(p, &["port"]) {
                Value::Number(n) => n.to_string(),
                _ => non_empty(str_at(p, &["name"]), "*").to_owned(),
            })
            .collect();
        let addresses: Vec<String> = r
            .list(&["endpoints"])
            .iter()
            .flat_map(|e| list_at(e, &["addresses"]))
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect();
        vec![
            r.name(),
            Value::from(r.str(&["addressType"])),
            Value::from(first_three(&ports, "<unset>")),
            Value::from(first_three(&addresses, "<unset>")),
            r.age(),
        ]
    },
};

static INGRESS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Class", "Class of the ingress"),
        Column::text("Hosts", "Hosts it serves"),
        Column::text("Address", "Where it is reached"),
        Column::text("Ports", "Ports it serves"),
        AGE,
    ],
    cells: |r| {
        let tls = !r.list(&["spec", "tls"]).is_empty();
        vec![
            r.name(),
            r.str_or(&["spec", "ingressClassName"], "<none>"),
            Value::from(hosts(r)),
            Value::from(load_balancer(r)),
            Value::from(if tls { "80, 443" } else { "80" }),
            r.age(),
        ]
    },
};

const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

static INGRESS_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Controller", "Controller that serves the class"),
        Column::text("Parameters", "Object with further parameters"),
        AGE,
    ],
    cells: |r| {
        let parameters = r.at(&["spec", "parameters"]);
        let text = if parameters.is_null() {
            "<none>".to_owned()
        } else {
            let kind = str_at(parameters, &["kind"]);
            let name = str_at(parameters, &["name"]);
            match str_at(parameters, &["apiGroup"]) {
                "" => format!("{kind}/{name}"),
                group => format!("{kind}.{group}/{name}"),
            }
        };
        let mut name = r.str(&["metadata", "name"]).to_owned();
        if r.str(&["metadata", "annotations", DEFAULT_CLASS]) == "true" {
            name.push_str(" (default)");
        }
        vec![
            Value::from(name),
            Value::from(r.str(&["spec", "controller"])),
            Value::from(text),
            r.age(),
        ]
    },
};

static NETWORK_POLICY: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Pod-Selector", "Pods the policy applies to"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(selector(r.at(&["spec", "podSelector"]))),
            r.age(),
        ]
    },
};

static SERVICE_CIDR: Printer = Printer {
    columns: &[NAME, Column::text("CIDRs", "Address ranges"), AGE],
    cells: |r| {
        let cidrs: Vec<&str> = r
            .list(&["spec", "cidrs"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        vec![r.name(), Value::from(cidrs.join(",")), r.age()]
    },
};

static IP_ADDRESS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("ParentRef", "Object the address belongs to"),
    ],
    cells: |r| {
        let parent = |key| r.str(&["spec", "parentRef", key]);
        let mut text = parent("resource").to_owned();
        if !parent("group").is_empty() {
            text = format!("{text}.{}", parent("group"));
        }
        for part in [parent("namespace"), parent("name")] {
            if !part.is_empty() {
                text = format!("{text}/{part}");
            }
        }
        vec![r.name(), Value::from(non_empty(&text, "<none>"))]
    },
};

pub(super) fn networking(kind: &str) -> &'static Printer {
    match kind {
        "Ingress" => &INGRESS,
        "IngressClass" => &INGRESS_CLASS,
        "NetworkPolicy" => &NETWORK_POLICY,
        "ServiceCIDR" => &SERVICE_CIDR,
        "IPAddress" => &IP_ADDRESS,
        _ => &DEFAULT,
    }
}

/// Addresses of the load balancer: sorted, each once.
fn load_balancer(row: &Row<'_>) -> String {
    let mut all: Vec<&str> = row
        .list(&["status", "loadBalancer", "ingress"])
        .iter()
        .map(|i| non_empty(str_at(i, &["ip"]), str_at(i, &["hostname"])))
        .filter(|a| !a.is_empty())
        .collect();
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

fn external_ip(row: &Row<'_>) -> String {
    let fixed: Vec<&str> = row
        .list(&["spec", "externalIPs"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match row.str(&["spec", "type"]) {
        "ClusterIP" | "NodePort" => non_empty(&fixed.join(","), "<none>").to_owned(),
        "LoadBalancer" => {
            let balancer = load_balancer(row);
            let all: Vec<&str> = std::iter::once(&*balancer)
                .chain(fixed)
                .filter(|a| !a.is_empty())
                .collect();
            non_empty(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => row.str(&["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(row: &Row<'_>) -> String {
    let ports: Vec<String> = row
        .list(&["spec", "ports"])
        .iter()
        .map(|p| {
            let number = |key| at(p, &[key]).as_i64().unwrap_or(0);
            let protocol = str_at(p, &["protocol"]);
            match number("nodePort") {
                0 => format!("{}/{protocol}", number("port")),
                node => format!("{}:{node}/{protocol}", number("port")),
            }
        })
        .collect();
    non_empty(&ports.join(","), "<none>").to_owned()
}

fn endpoints(row: &Row<'_>) -> String {
    let mut all = Vec::new();
    for subset in row.list(&["subsets"]) {
        let addresses = || {
            list_at(subset, &["addresses"])
                .iter()
                .map(|a| str_at(a, &["ip"]))
        };
        let ports = list_at(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let port = at(port, &["port"]).as_i64().unwrap_or(0);
            all.extend(addresses().map(|ip| host_port(ip, port)));
        }
    }
    first_three(&all, "<none>")
}

fn hosts(row: &Row<'_>) -> String {
    let rules = row.list(&["spec", "rules"]);
    let hosts: Vec<String> = rules
        .iter()
        .map(|r| str_at(r, &["host"]).to_owned())
        .filter(|h| !h.is_empty())
        .collect();
    first_three(&hosts, "*")
}
