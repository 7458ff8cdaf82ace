//! What listens for pods at their gateway, and who reaches it.

use super::services::outside;
use super::*;

const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));
const NODE_PORT: u16 = 30080;

/// Answers at the gateway, as the API server does that listens for its own machine only.
fn serve() {
    let listener = TcpListener::bind((GATEWAY, 8080)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let peer = stream.peer_addr().unwrap().ip();
            // a client that has gone reads nothing
            let _ = write!(stream, "gateway {peer}");
        }
    });
}

#[test]
fn the_gateway_is_for_pods() {
    alone(|| {
        let machine = Machine::new();
        let a = machine.pod("a", vec![]);
        serve();
        let endpoint =
            json!([{ "addresses": [GATEWAY], "nodeName": "n1", "conditions": { "ready": true } }]);
        machine.serve(service(json!({})), endpoint);
        let stranger = outside();
        let answer = |to, port| a.namespace.within(|| ask(to, port, PATIENCE).map(|a| a.0));
        let strange = |to, port, patience| stranger.within(|| ask(to, port, patience).map(|a| a.0));
        let here = |to, port| ask(to, port, PATIENCE).map(|answer| answer.0);
        let found = || Ok("gateway".to_owned());
        for (to, port) in [(GATEWAY, 8080), (VIRTUAL, 80), (OWN, NODE_PORT)] {
            assert_eq!(answer(to, port), found(), "a pod at {to}");
            assert_eq!(here(to, port), found(), "the machine at {to}");
        }
        let silence = Err(ErrorKind::TimedOut);
        assert_eq!(strange(GATEWAY, 8080, SILENCE), silence);
        assert_eq!(strange(VIRTUAL, 80, SILENCE), silence);
        assert_eq!(
            strange(OWN, NODE_PORT, PATIENCE),
            found(),
            "a port of the node"
        );
        // Nodes are not strangers.
        let known = Seen {
            others: [("10.244.1.0/24".parse().unwrap(), services::CLIENT)].into(),
            ..seen()
        };
        node::write_sets(&machine.tables, &known).unwrap();
        assert_eq!(strange(GATEWAY, 8080, PATIENCE), found());
        // As soon as CNI connects pods nobody knows by which links they come.
        node::write_sets(&machine.tables, &seen()).unwrap();
        assert_eq!(strange(GATEWAY, 8080, SILENCE), silence);
        machine.links.set_beside_cni_here(true);
        assert_eq!(strange(GATEWAY, 8080, PATIENCE), found());
    });
}
