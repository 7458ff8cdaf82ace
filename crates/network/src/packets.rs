//! Packets through the rules: a machine with pods, in network namespaces of the test's own. Without root nothing is
//! tested.

mod announce;
mod bandwidth;
mod dual;
mod errors;
mod gateway;
mod neighbours;
mod policy;
mod services;
mod tunnel;

use crate::maps::Map;
use crate::node::{self, Seen};
use crate::pods::PodLinks;
use crate::policy::judgement;
use crate::ruleset::{Judged, Ruleset, Update, Wanted};
use crate::tables::Tables;
use crate::{links_of, rules};
use davit_net::nft::IpVersion;
use davit_net::nft::{Data, Verdict};
use davit_netplan::{CompiledPolicy, Family, Node, PolicyPod, PolicyWorld, Value, plan};
use davit_oci::network::PodNetwork;
use davit_proto::cri::v1::PortMapping;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// How long something may take that is not to happen.
const SILENCE: Duration = Duration::from_millis(400);

/// Runs on a thread with a network namespace of its own.
fn alone(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("skipped: no network namespace of one's own: {error}");
            return;
        }
        work();
    });
    thread.join().unwrap();
}

/// A network namespace that a thread keeps.
struct Namespace {
    path: PathBuf,
    _keep: mpsc::Sender<()>,
}

impl Namespace {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        let (keep, kept) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let thread = nix::unistd::gettid();
            tell.send(PathBuf::from(format!("/proc/self/task/{thread}/ns/net")))
                .unwrap();
            // until the namespace is dropped
            let _ = kept.recv();
        });
        Self {
            path: told.recv().unwrap(),
            _keep: keep,
        }
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        davit_net::within(&File::open(&self.path).unwrap(), work).unwrap()
    }
}

struct Pod {
    namespace: Namespace,
    network: PodNetwork,
    /// The first one.
    address: IpAddr,
    addresses: Vec<IpAddr>,
}

/// A machine with the rules in it.
struct Machine {
    dir: tempfile::TempDir,
    tables: Arc<Tables>,
    /// The table of IPv4.
    ruleset: Arc<Ruleset>,
    links: PodLinks,
}

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
const VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 9));

/// Of the cluster, what the machine knows.
fn seen() -> Seen {
    Seen {
        own: vec!["10.244.0.0/24".parse().unwrap()],
        addresses: [OWN].into(),
        services: ["10.96.0.0/16".parse().unwrap()].into(),
        ..Seen::default()
    }
}

impl Machine {
    fn new() -> Self {
        Self::that_sees(&seen())
    }

    fn that_sees(seen: &Seen) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let prefix = links_of(dir.path());
        let tables = Arc::new(Tables::open("davit-packets", &prefix, None).unwrap());
        let links = PodLinks::open(dir.path().join("pods"), tables.clone()).unwrap();
        node::write_sets(&tables, seen).unwrap();
        node::become_gateway(&seen.own, &links).unwrap();
        let mut netlink = davit_net::route::Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().unwrap();
        for address in &seen.addresses {
            netlink.add_host_address(&lo, *address).unwrap();
        }
        // A machine without a way out reaches no Service otherwise. Routes of IPv6 by `lo` lead nowhere.
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        let pair = davit_net::route::Pair {
            name: "way0",
            alias: "the way out",
            peer: "way1",
            namespace: own.as_fd(),
            mtu: 1500,
        };
        netlink.add_pair(&pair).unwrap();
        let [way, end] = ["way0", "way1"].map(|name| netlink.link(name).unwrap().unwrap());
        netlink.set_up(&end).unwrap();
        for range in &seen.services {
            let is_of_family = |address: &&IpAddr| Family::of(**address) == range.family();
            netlink
                .set_route(&davit_net::route::Route {
                    to: range.first(),
                    bits: range.bits(),
                    link: Some(way),
                    via: None,
                    source: seen.addresses.iter().find(is_of_family).copied(),
                    protocol: crate::pods::PROTOCOL,
                    metric: 0,
                    on_link: false,
                })
                .unwrap();
        }
        Self {
            dir,
            ruleset: tables.of(Family::V4).unwrap(),
            tables,
            links,
        }
    }

    fn pod(&self, name: &str, ports: Vec<PortMapping>) -> Pod {
        let pod = self.closed_pod(name, ports);
        self.judge(&[]);
        pod
    }

    /// A pod whose policies nobody has written yet.
    fn closed_pod(&self, name: &str, ports: Vec<PortMapping>) -> Pod {
        let asked = PodNetwork {
            ports,
            ..PodNetwork::default()
        };
        self.asking_pod(name, asked)
    }

    /// A pod that asks for this, and whose policies nobody has written yet.
    fn asking_pod(&self, name: &str, asked: PodNetwork) -> Pod {
        let namespace = Namespace::new();
        let network = PodNetwork {
            sandbox_id: format!("{name}1"),
            name: name.to_owned(),
            namespace: "default".to_owned(),
            netns: namespace.path.clone(),
            ..asked
        };
        let addresses = self.links.attach_here(&network).unwrap();
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let addresses: Vec<IpAddr> = addresses.collect();
        Pod {
            address: addresses[0],
            addresses,
            namespace,
            network,
        }
    }

    /// Has these policies stand, as (namespace `default`) specs; pods are labelled `app` with their names.
    fn judge(&self, policies: &[Json]) {
        let world = self.world(policies);
        for ruleset in self.tables.all() {
            let (family, as_of) = (ruleset.family(), ruleset.pods_changed());
            let pods = self.links.pods(family).unwrap();
            let written = ruleset.judge(as_of, &judgement(&world, family, &pods));
            let Judged::Written(refused) = written.unwrap() else {
                panic!("pods have not changed");
            };
            assert!(refused.is_empty(), "{refused:?}");
        }
    }

    /// Ends the connections that these policies forbid; how many.
    fn end_forbidden(&self, policies: &[Json]) -> usize {
        let world = self.world(policies);
        let mut netlink = davit_net::route::Netlink::open().unwrap();
        let own = netlink.all_addresses().unwrap().into_iter();
        let own = own.map(|(address, _)| address).collect();
        let ended = self.tables.all().into_iter().map(|ruleset| {
            let pods = self.links.pods(ruleset.family()).unwrap();
            let judgement = judgement(&world, ruleset.family(), &pods);
            ruleset.end_forbidden(&judgement, &own).unwrap()
        });
        ended.sum()
    }

    fn world(&self, policies: &[Json]) -> PolicyWorld {
        let mut world = PolicyWorld::default();
        world.set_namespace("default", Some(BTreeMap::new()));
        let mut named: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for family in Family::ALL {
            for (address, pod) in self.links.pods(family).unwrap() {
                named.entry(pod).or_default().push(address);
            }
        }
        for (pod, addresses) in named {
            let (namespace, name) = pod.split_once('/').unwrap();
            let pod = PolicyPod {
                labels: [("app".to_owned(), name.to_owned())].into(),
                addresses,
                ..PolicyPod::default()
            };
            world.set_pod(namespace, name, Some(pod));
        }
        for (number, spec) in policies.iter().enumerate() {
            let policy = json!({ "metadata": { "namespace": "default" }, "spec": spec });
            let policy = CompiledPolicy::new(&serde_json::from_value(policy).unwrap());
            world.set_policy("default", &number.to_string(), Some(policy));
        }
        world
    }

    /// What the proxy would write.
    fn serve(&self, service: Json, endpoints: Json) {
        self.serve_in(&self.ruleset, service, endpoints);
    }

    fn serve_in(&self, ruleset: &Ruleset, service: Json, endpoints: Json) {
        let family = ruleset.family();
        let service: Service = serde_json::from_value(service).unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "addressType": family.name(), "metadata": { "name": "web-1" },
            "ports": [{ "name": "p", "port": 8080, "protocol": "TCP" }],
            "endpoints": endpoints,
        }))
        .unwrap();
        let node = Node {
            name: "n1".to_owned(),
            zone: None,
            ..Node::default()
        };
        let mut update = Update::default();
        for (key, value) in plan(&service, &[&slice], &node, family).entries {
            let wanted = match value {
                Value::Member => Wanted::Member,
                Value::Endpoint(address, port) => {
                    Wanted::Data(Data::Value(Value::endpoint_fields(address, port)))
                }
                Value::Chain(chain) => {
                    update.chains.insert(chain.clone());
                    Wanted::Data(Data::Verdict(Verdict::Goto(chain.name())))
                }
                Value::Refuse => Wanted::Data(Data::Verdict(rules::refuse())),
                Value::Drop => Wanted::Data(Data::Verdict(Verdict::Drop)),
            };
            update.set(key.map.into(), key.bytes, wanted);
        }
        let maps = [
            Map::Endpoints,
            Map::Services,
            Map::NodePorts,
            Map::Refused,
            Map::RefusedNodePorts,
            Map::ClusterAddresses,
            Map::Hairpin,
        ];
        ruleset.replace(&maps, update).unwrap();
    }
}

fn service(more: Json) -> Json {
    let mut spec = json!({
        "type": "NodePort", "clusterIP": VIRTUAL, "clusterIPs": [VIRTUAL],
        "ports": [{ "name": "p", "port": 80, "nodePort": 30080, "protocol": "TCP" }],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": spec })
}

fn on(pods: &[&Pod]) -> Json {
    let of = |pod: &&Pod| json!({ "addresses": [pod.address], "nodeName": "n1", "conditions": { "ready": true } });
    pods.iter().map(of).collect()
}

/// Answers each connection with the server's name and the client's address.
fn listen(pod: &Pod, name: &'static str) {
    listen_at(pod, IpAddr::V4(Ipv4Addr::UNSPECIFIED), name);
}

fn listen_at(pod: &Pod, at: IpAddr, name: &'static str) {
    pod.namespace.within(|| {
        let listener = TcpListener::bind((at, 8080)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (mut stream, peer) = (stream.try_clone().unwrap(), stream.peer_addr().unwrap());
                // a client that has gone reads nothing
                let _ = write!(stream, "{name} {}", peer.ip());
            }
        });
    });
}

fn ask(to: IpAddr, port: u16, patience: Duration) -> Result<(String, String), ErrorKind> {
    let to = SocketAddr::from((to, port));
    let mut stream = TcpStream::connect_timeout(&to, patience).map_err(|e| e.kind())?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| e.kind())?;
    let (server, client) = answer.split_once(' ').unwrap();
    Ok((server.to_owned(), client.to_owned()))
}

fn from(pod: &Pod, to: IpAddr, port: u16) -> Result<(String, String), ErrorKind> {
    pod.namespace.within(|| ask(to, port, PATIENCE))
}

#[test]
fn pods_reach_one_another_and_services() {
    alone(|| {
        let machine = Machine::new();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        listen(&a, "a");
        listen(&b, "b");
        let from_a = a.address.to_string();
        let direct = from(&a, b.address, 8080).unwrap();
        assert_eq!(direct, ("b".to_owned(), from_a.clone()), "the source stays");
        assert_eq!(
            ask(b.address, 8080, PATIENCE).unwrap().0,
            "b",
            "from the machine"
        );

        machine.serve(service(json!({})), on(&[&b]));
        let (server, client) = from(&a, VIRTUAL, 80).unwrap();
        assert_eq!((server, client), ("b".to_owned(), from_a));
        let (server, client) = from(&b, VIRTUAL, 80).unwrap();
        assert_eq!(
            (server.as_str(), client.as_str()),
            ("b", "10.244.0.1"),
            "to itself"
        );
        assert_eq!(ask(VIRTUAL, 80, PATIENCE).unwrap().0, "b");
        assert_eq!(ask(OWN, 30080, PATIENCE).unwrap().0, "b");
        assert_eq!(from(&a, OWN, 30080).unwrap().0, "b");

        // Both, about as often.
        machine.serve(service(json!({})), on(&[&a, &b]));
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..200 {
            *count.entry(from(&a, VIRTUAL, 80).unwrap().0).or_default() += 1;
        }
        assert!(
            count.len() == 2 && count.values().all(|n| *n > 50),
            "{count:?}"
        );

        // Undefined port, nobody behind it, no Service.
        assert_eq!(from(&a, VIRTUAL, 81), Err(ErrorKind::ConnectionRefused));
        machine.serve(service(json!({})), json!([]));
        for (to, port) in [(VIRTUAL, 80), (OWN, 30080)] {
            assert_eq!(from(&a, to, port), Err(ErrorKind::ConnectionRefused));
            assert_eq!(ask(to, port, PATIENCE), Err(ErrorKind::ConnectionRefused));
        }
        let nobody = a
            .namespace
            .within(|| ask("10.96.7.7".parse().unwrap(), 80, SILENCE));
        assert_eq!(nobody, Err(ErrorKind::TimedOut));
    });
}

#[test]
fn clients_keep_their_endpoints() {
    alone(|| {
        let machine = Machine::new();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        let client = machine.pod("c", vec![]);
        listen(&a, "a");
        listen(&b, "b");
        let sticky = service(json!({ "sessionAffinity": "ClientIP" }));
        machine.serve(sticky.clone(), on(&[&a, &b]));
        let first = from(&client, VIRTUAL, 80).unwrap().0;
        for _ in 0..20 {
            assert_eq!(from(&client, VIRTUAL, 80).unwrap().0, first);
        }
        // It survives that somebody else takes the table over.
        let again = Ruleset::open(
            "davit-packets",
            Family::V4,
            &links_of(machine.dir.path()),
            None,
        )
        .unwrap();
        assert_eq!(again.clients().unwrap().len(), 1);
        assert_eq!(from(&client, VIRTUAL, 80).unwrap().0, first);
        again.forget_clients(&again.clients().unwrap());
        assert_eq!(again.clients().unwrap().len(), 0);
    });
}

#[test]
fn ports_of_the_host() {
    alone(|| {
        let machine = Machine::new();
        let mapping = |host_port, host_ip: &str| PortMapping {
            container_port: 8080,
            host_port,
            host_ip: host_ip.to_owned(),
            ..PortMapping::default()
        };
        let ports = vec![mapping(9000, ""), mapping(9001, "127.0.0.1")];
        let (a, b) = (machine.pod("a", ports.clone()), machine.pod("b", vec![]));
        listen(&a, "a");
        assert_eq!(ask(OWN, 9000, PATIENCE).unwrap().0, "a");
        assert_eq!(from(&b, OWN, 9000).unwrap().0, "a");
        assert_eq!(from(&a, OWN, 9000).unwrap().0, "a", "to itself");
        assert_eq!(ask(OWN, 9001, PATIENCE), Err(ErrorKind::ConnectionRefused));
        let twice = PodNetwork {
            sandbox_id: "d1".to_owned(),
            ports,
            ..b.network.clone()
        };
        let error = machine.links.attach_here(&twice).unwrap_err();
        assert!(
            error.to_string().contains("hostPort 9000 is taken"),
            "{error}"
        );
        machine.links.detach_here(&twice).unwrap();
        assert_eq!(ask(OWN, 9000, PATIENCE).unwrap().0, "a", "still");
        machine.links.detach_here(&a.network).unwrap();
        machine.links.detach_here(&a.network).unwrap();
        assert_eq!(ask(OWN, 9000, PATIENCE), Err(ErrorKind::ConnectionRefused));
        assert!(machine.ruleset.places(Map::HostPorts).is_empty());
    });
}

#[test]
fn what_is_left_is_collected() {
    alone(|| {
        let machine = Machine::new();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        listen(&b, "b");
        let living = BTreeSet::from([b.network.sandbox_id.clone()]);
        machine.links.collect_here(&living).unwrap();
        assert!(!machine.links.has(&a.network.sandbox_id));
        assert!(machine.links.has(&b.network.sandbox_id));
        assert_eq!(ask(b.address, 8080, PATIENCE).unwrap().0, "b");
        assert_eq!(machine.ruleset.places(Map::Pods).len(), 1);
    });
}

#[test]
fn datagrams_find_the_new_endpoint() {
    alone(|| {
        let machine = Machine::new();
        let client = machine.pod("c", vec![]);
        // Nobody translates: the kernel remembers where it went.
        let stale = client.namespace.within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(b"x", (OWN, 5353)).unwrap();
            socket.local_addr().unwrap().port()
        });
        let known = davit_net::conntrack::datagrams(IpVersion::Four).unwrap();
        let ours: Vec<_> = known
            .into_iter()
            .filter(|c| c.original.from == (client.address, stale))
            .collect();
        assert_eq!(ours.len(), 1);
        assert_eq!(ours[0].reply.from, (OWN, 5353));
        davit_net::conntrack::forget(&ours).unwrap();
        davit_net::conntrack::forget(&ours).unwrap();
        let known = davit_net::conntrack::datagrams(IpVersion::Four).unwrap();
        assert!(!known.contains(&ours[0]));
    });
}
