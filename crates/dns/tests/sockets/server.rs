//! The listeners (spec network.md 6.3, 10.10).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use davit_dns::{Forwarder, Limits, Metrics, Server, Upstreams, Zone};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Record, RecordType};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client::{self, PATIENCE, question, with_edns};
use crate::upstream::{Manner, Upstream, nobody, sockets};

const WEB: &str = "web.ns.svc.cluster.local.";
const MANY: &str = "many.ns.svc.cluster.local.";
const OUT: &str = "out.ns.svc.cluster.local.";
const OTHER: &str = "www.example.com.";

fn service(name: &str, spec: ServiceSpec) -> Service {
    Service {
        metadata: ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        ..Service::default()
    }
}

fn cluster_ip(name: &str, address: &str) -> Service {
    let cluster_ips = Some(vec![address.to_owned()]);
    service(
        name,
        ServiceSpec {
            cluster_ips,
            ..ServiceSpec::default()
        },
    )
}

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local", 5).unwrap();
    zone.apply_service(&cluster_ip("web", "10.96.0.1"));
    zone.apply_service(&cluster_ip("many", "None"));
    let alias = ServiceSpec {
        type_: Some("ExternalName".to_owned()),
        external_name: Some("www.example.com".to_owned()),
        ..ServiceSpec::default()
    };
    zone.apply_service(&service("out", alias));
    let endpoints = (0..500).map(|number| Endpoint {
        addresses: vec![format!("10.1.{}.{}", number / 250, number % 250 + 1)],
        ..Endpoint::default()
    });
    let label = ("kubernetes.io/service-name".to_owned(), "many".to_owned());
    zone.apply_slice(&EndpointSlice {
        address_type: "IPv4".to_owned(),
        endpoints: Some(endpoints.collect()),
        metadata: ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some("many-1".to_owned()),
            labels: Some(BTreeMap::from([label])),
            ..ObjectMeta::default()
        },
        ports: None,
    });
    zone.set_synced(true);
    zone
}

struct Running {
    address: SocketAddr,
    zone: Arc<RwLock<Zone>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

fn run(
    listeners: Vec<(UdpSocket, TcpListener)>,
    upstreams: Option<&[SocketAddr]>,
    limits: Limits,
) -> Running {
    let address = listeners[0].0.local_addr().unwrap();
    let zone = Arc::new(RwLock::new(zone()));
    let mut server = Server::new(zone.clone()).with_limits(limits);
    if let Some(servers) = upstreams {
        let upstreams = Upstreams {
            default: servers.to_vec(),
            stubs: HashMap::new(),
        };
        let forwarder = Forwarder::new(&upstreams, vec![address], Metrics::default()).unwrap();
        server = server.with_forwarder(forwarder);
    }
    let cancel = CancellationToken::new();
    let task = tokio::spawn(server.run(listeners, cancel.clone()));
    Running {
        address,
        zone,
        cancel,
        task,
    }
}

async fn start(upstreams: Option<&[SocketAddr]>, limits: Limits) -> Running {
    run(vec![sockets("127.0.0.1").await], upstreams, limits)
}

fn a(name: &str) -> Message {
    question(name, RecordType::A)
}

#[tokio::test]
async fn both_transports_and_families() {
    let mut addresses = vec!["127.0.0.1", "127.0.0.2"];
    // Not every machine that builds has IPv6.
    if UdpSocket::bind("[::1]:0").await.is_ok() {
        addresses.push("::1");
    }
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(sockets(address).await);
    }
    let servers: Vec<SocketAddr> = listeners
        .iter()
        .map(|(udp, _)| udp.local_addr().unwrap())
        .collect();
    let _running = run(listeners, None, Limits::default());
    for server in servers {
        for answer in [
            client::udp(server, &a(WEB)).await,
            client::tcp(server, &a(WEB)).await,
        ] {
            assert_eq!(answer.answers[0].data.to_string(), "10.96.0.1");
            assert!(answer.metadata.authoritative && !answer.metadata.recursion_available);
        }
    }
}

#[tokio::test]
async fn cut_answers_are_whole_by_connection() {
    let server = start(None, Limits::default()).await.address;
    let plain = client::udp(server, &a(MANY)).await;
    assert!(plain.metadata.truncation && plain.answers.len() < 32);
    let more = client::udp(server, &with_edns(a(MANY))).await;
    assert!(more.metadata.truncation && more.answers.len() > plain.answers.len());
    let whole = client::tcp(server, &a(MANY)).await;
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 500);
}

#[tokio::test]
async fn changes_are_answered_at_once() {
    let running = start(None, Limits::default()).await;
    let name = "new.ns.svc.cluster.local.";
    let before = client::udp(running.address, &a(name)).await;
    assert_eq!(before.metadata.response_code, ResponseCode::NXDomain);
    running
        .zone
        .write()
        .apply_service(&cluster_ip("new", "10.96.0.2"));
    assert_eq!(
        client::udp(running.address, &a(name)).await.answers.len(),
        1
    );
    running.zone.write().remove_service("ns", "new");
    running.zone.write().set_synced(false);
    let after = client::udp(running.address, &a(name)).await;
    assert_eq!(after.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn answers_overtake_on_a_connection() {
    let upstream = Upstream::held(Manner::Honest).await;
    let server = start(Some(&[upstream.address]), Limits::default())
        .await
        .address;
    let mut stream = TcpStream::connect(server).await.unwrap();
    let (slow, fast) = (a(OTHER), a(WEB));
    client::write(&mut stream, &slow).await;
    client::write(&mut stream, &fast).await;
    assert_eq!(
        client::read(&mut stream).await.metadata.id,
        fast.metadata.id
    );
    // The client says that it has no more questions; the open one is answered all the same.
    stream.shutdown().await.unwrap();
    upstream.gate.add_permits(1);
    assert_eq!(
        client::read(&mut stream).await.metadata.id,
        slow.metadata.id
    );
    assert!(stream.read_u8().await.is_err());
}

#[tokio::test]
async fn names_of_others() {
    let upstream = Upstream::start(Manner::Honest).await;
    let server = start(Some(&[upstream.address]), Limits::default())
        .await
        .address;
    for name in [OTHER, "wWw.eXample.com.", "7.7.7.10.in-addr.arpa."] {
        let answer = client::udp(server, &a(name)).await;
        assert_eq!(answer.answers[0].name.to_ascii(), name);
        assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
    }
    let alias = client::tcp(server, &a(OUT)).await;
    let types: Vec<RecordType> = alias.answers.iter().map(Record::record_type).collect();
    assert_eq!(types, [RecordType::CNAME, RecordType::A]);
}

#[tokio::test]
async fn upstreams_that_are_down() {
    let server = start(Some(&[nobody().await]), Limits::default())
        .await
        .address;
    let answer = client::udp(server, &a(OTHER)).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    let alias = client::udp(server, &a(OUT)).await;
    assert_eq!(alias.answers[0].record_type(), RecordType::CNAME);
    let alone = start(None, Limits::default()).await.address;
    let refused = client::udp(alone, &a(OTHER)).await;
    assert_eq!(refused.metadata.response_code, ResponseCode::Refused);
}

#[tokio::test]
async fn a_flood_does_not_reach_others() {
    let rate = 5;
    let limits = Limits {
        queries_per_second: rate,
        ..Limits::default()
    };
    let server = start(None, limits).await.address;
    let flood = client::datagrams(server, "127.0.0.1").await;
    let started = Instant::now();
    for _ in 0..100 {
        flood.send(&a(WEB).to_vec().unwrap()).await.unwrap();
    }
    let other = client::datagrams(server, "127.0.0.3").await;
    other.send(&a(WEB).to_vec().unwrap()).await.unwrap();
    assert_eq!(client::receive(&other).await.answers.len(), 1);
    let mut answered = 0;
    let mut buffer = [0; 512];
    while timeout(Duration::from_millis(300), flood.recv(&mut buffer))
        .await
        .is_ok()
    {
        answered += 1;
    }
    // What the time itself gave comes on top, however slow the machine is.
    let allowed = f64::from(rate) * (1.0 + started.elapsed().as_secs_f64()) + 1.0;
    assert!(
        (1.0..=allowed).contains(&f64::from(answered)),
        "{answered} of {allowed}"
    );
}

#[tokio::test]
async fn one_client_has_its_share_of_forwards() {
    let upstream = Upstream::held(Manner::Honest).await;
    let limits = Limits {
        forwards_per_client: 1,
        ..Limits::default()
    };
    let server = start(Some(&[upstream.address]), limits).await.address;
    let socket = client::datagrams(server, "127.0.0.1").await;
    let (first, second) = (a("a.example."), a("b.example."));
    socket.send(&first.to_vec().unwrap()).await.unwrap();
    while upstream.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    socket.send(&second.to_vec().unwrap()).await.unwrap();
    let refused = client::receive(&socket).await;
    assert_eq!(
        (refused.metadata.id, refused.metadata.response_code),
        (second.metadata.id, ResponseCode::ServFail)
    );
    upstream.gate.add_permits(1);
    assert_eq!(
        client::receive(&socket).await.metadata.id,
        first.metadata.id
    );
}

/// Whether the server closes the connection.
async fn closes(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 1];
    let read = timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap();
    matches!(read, Ok(0) | Err(_))
}

#[tokio::test]
async fn connections_are_bounded() {
    let limits = Limits {
        connections: 2,
        connections_per_client: 1,
        ..Limits::default()
    };
    let server = start(None, limits).await.address;
    let mut first = TcpStream::connect(server).await.unwrap();
    client::write(&mut first, &a(WEB)).await;
    client::read(&mut first).await;
    assert!(closes(TcpStream::connect(server).await.unwrap()).await);
    client::write(&mut first, &a(WEB)).await;
    client::read(&mut first).await;
}

#[tokio::test]
async fn silent_connections_are_closed() {
    let limits = Limits {
        idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = start(None, limits).await.address;
    assert!(closes(TcpStream::connect(server).await.unwrap()).await);
    let mut half = TcpStream::connect(server).await.unwrap();
    half.write_all(&[0, 40, 1, 2, 3]).await.unwrap();
    assert!(closes(half).await);
    let mut long = TcpStream::connect(server).await.unwrap();
    long.write_all(&[0xFF, 0xFF]).await.unwrap();
    assert!(closes(long).await);
}

#[tokio::test]
async fn bad_messages_are_answered() {
    let server = start(None, Limits::default()).await.address;
    let socket = client::datagrams(server, "127.0.0.1").await;
    let mut cut = a(WEB).to_vec().unwrap();
    cut.truncate(20);
    socket.send(&cut).await.unwrap();
    assert_eq!(
        client::receive(&socket).await.metadata.response_code,
        ResponseCode::FormErr
    );
    socket.send(&[0; 4]).await.unwrap();
    socket.send(&[0; 8000]).await.unwrap();
    assert_eq!(
        client::receive(&socket).await.metadata.response_code,
        ResponseCode::FormErr
    );
    socket.send(&a(WEB).to_vec().unwrap()).await.unwrap();
    assert_eq!(client::receive(&socket).await.answers.len(), 1);
}

#[tokio::test]
async fn the_end_frees_the_address() {
    let upstream = Upstream::held(Manner::Honest).await;
    let running = start(Some(&[upstream.address]), Limits::default()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    client::write(&mut stream, &a(OTHER)).await;
    while upstream.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.cancel.cancel();
    timeout(PATIENCE, running.task).await.unwrap().unwrap();
    let bound = async {
        // Another test's socket may have the port for a moment.
        while UdpSocket::bind(running.address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, bound).await.unwrap();
    assert!(closes(stream).await);
}
