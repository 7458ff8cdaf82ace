//! What pods receive and send at most. Only that it is not faster is measured: a busy machine is slower.

use super::*;
use davit_net::route::Netlink;
use std::time::Instant;

const RATE: &str = "8M";
/// At 8 Mbit a second this takes a second, less what may go at once.
const MUCH: usize = 1 << 20;
const AT_LEAST: Duration = Duration::from_millis(700);

fn pod(machine: &Machine, name: &str, annotations: &[(&str, &str)]) -> Pod {
    let annotations = annotations.iter();
    let asked = PodNetwork {
        annotations: annotations
            .map(|(key, value)| {
                (
                    format!("kubernetes.io/{key}-bandwidth"),
                    (*value).to_owned(),
                )
            })
            .collect(),
        ..PodNetwork::default()
    };
    let pod = machine.asking_pod(name, asked);
    machine.judge(&[]);
    pod
}

/// How long it takes until one pod has received what another has sent.
fn sending(sender: &Pod, receiver: &Pod) -> Duration {
    let listener = receiver
        .namespace
        .within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let to = SocketAddr::new(receiver.address, listener.local_addr().unwrap().port());
    let mut stream = sender
        .namespace
        .within(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (mut received, _) = listener.accept().unwrap();
    received
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let began = Instant::now();
    let sender = std::thread::spawn(move || stream.write_all(&vec![7; MUCH]).unwrap());
    let mut all = Vec::new();
    received.read_to_end(&mut all).unwrap();
    sender.join().unwrap();
    assert_eq!(all.len(), MUCH);
    began.elapsed()
}

fn devices(machine: &Machine) -> usize {
    let links = Netlink::open().unwrap().links().unwrap();
    let ours = links_of(machine.dir.path());
    links
        .iter()
        .filter(|link| link.name.starts_with(&ours))
        .count()
}

#[test]
fn pods_receive_and_send_no_more_than_they_may() {
    alone(|| {
        let machine = Machine::new();
        let free = pod(&machine, "free", &[]);
        let limited = pod(&machine, "limited", &[("ingress", RATE), ("egress", RATE)]);
        assert_eq!(devices(&machine), 3, "one stands in for the link");
        assert!(sending(&limited, &free) > AT_LEAST);
        assert!(sending(&free, &limited) > AT_LEAST);

        // The next run finds it as it is, and the sandbox of a pod that has gone leaves nothing.
        let links =
            PodLinks::open(machine.dir.path().join("pods"), machine.tables.clone()).unwrap();
        let living = ["free1", "limited1"].map(str::to_owned).into();
        links.collect_here(&living).unwrap();
        assert_eq!(devices(&machine), 3);
        machine.judge(&[]);
        assert!(sending(&limited, &free) > AT_LEAST);
        links.collect_here(&["free1".to_owned()].into()).unwrap();
        assert_eq!(devices(&machine), 1);

        let again = pod(&machine, "limited", &[("egress", RATE)]);
        assert_eq!(devices(&machine), 3);
        machine.links.detach_here(&again.network).unwrap();
        assert_eq!(devices(&machine), 1);
    });
}

#[test]
fn what_a_pod_cannot_have_is_refused() {
    alone(|| {
        let machine = Machine::new();
        let namespace = Namespace::new();
        let with = |key: &str, value: &str| PodNetwork {
            sandbox_id: "a1".to_owned(),
            netns: namespace.path.clone(),
            annotations: [(key.to_owned(), value.to_owned())].into(),
            ..PodNetwork::default()
        };
        for (key, value, words) in [
            (
                "kubernetes.io/egress-bandwidth",
                "999",
                "failed to get bandwidth info from annotations: resource is unreasonably small (< 1kbit)",
            ),
            (
                "davit.dev/pod-ips",
                "10.0.0.7",
                "annotation davit.dev/pod-ips: pods choose no addresses on this node, whose network is no CNI plugin's",
            ),
        ] {
            let refused = machine.links.attach_here(&with(key, value)).unwrap_err();
            assert_eq!(refused.to_string(), words);
            assert_eq!(devices(&machine), 0);
        }
    });
}
