//! Servers of others that are slow, lying, truncating or dead (spec network.md 6.7 rule 5).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use davit_dns::message::Response;
use davit_dns::{ForwardError, Forwarder, Metrics, Times, Upstreams};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use tokio::time::timeout;

use crate::client::{PATIENCE, query};
use crate::upstream::{Manner, Upstream, nobody};

fn upstreams(servers: &[SocketAddr]) -> Upstreams {
    Upstreams {
        default: servers.to_vec(),
        stubs: HashMap::new(),
    }
}

/// Patience is short for servers that never answer, and long for those that do.
fn times(attempt: Duration) -> Times {
    Times {
        attempt,
        total: Duration::from_secs(15),
        probe: Duration::from_millis(5),
    }
}

fn forwarder(servers: &[SocketAddr], attempt: Duration) -> Arc<Forwarder> {
    Forwarder::with_times(
        &upstreams(servers),
        Vec::new(),
        Metrics::default(),
        times(attempt),
    )
    .unwrap()
}

async fn resolve(forwarder: &Arc<Forwarder>, name: &str) -> Response {
    let query = query(name, RecordType::A);
    timeout(PATIENCE, forwarder.resolve(&query)).await.unwrap()
}

/// Asks until the bad server has been asked, since which one is asked first is chance.
async fn survives(manner: Manner, attempt: Duration) {
    for _ in 0..64 {
        let (bad, good) = (
            Upstream::start(manner).await,
            Upstream::start(Manner::Honest).await,
        );
        let forwarder = forwarder(&[bad.address, good.address], attempt);
        let response = resolve(&forwarder, "a.example.").await;
        assert_eq!(response.code, ResponseCode::NoError, "{manner:?}");
        assert_eq!(
            response.answers[0].data.to_string(),
            "192.0.2.1",
            "{manner:?}"
        );
        if bad.asked() > 0 {
            return;
        }
    }
    panic!("the bad server was never asked");
}

#[tokio::test]
async fn the_next_server_is_asked() {
    survives(Manner::Silent, Duration::from_millis(500)).await;
    survives(Manner::WrongId, Duration::from_millis(500)).await;
    survives(Manner::WrongQuestion, Duration::from_millis(500)).await;
    // These are known to be bad without waiting.
    survives(Manner::Guessing, Duration::from_secs(10)).await;
    survives(Manner::Broken, Duration::from_secs(10)).await;
    survives(Manner::Failing, Duration::from_secs(10)).await;
    survives(Manner::TruncatingOnly, Duration::from_secs(10)).await;
}

#[tokio::test]
async fn dead_servers_do_not_delay() {
    let good = Upstream::start(Manner::Honest).await;
    let forwarder = forwarder(&[nobody().await, good.address], Duration::from_secs(10));
    for number in 0..20 {
        let response = resolve(&forwarder, &format!("n{number}.example.")).await;
        assert_eq!(response.code, ResponseCode::NoError);
    }
}

#[tokio::test]
async fn when_all_are_down_that_is_said() {
    let dead = forwarder(&[nobody().await, nobody().await], Duration::from_secs(10));
    assert_eq!(
        resolve(&dead, "a.example.").await.code,
        ResponseCode::ServFail
    );
    let silent = Upstream::start(Manner::Silent).await;
    let slow = forwarder(&[silent.address], Duration::from_millis(20));
    assert_eq!(
        resolve(&slow, "a.example.").await.code,
        ResponseCode::ServFail
    );
    assert_eq!(silent.asked(), 2, "a lonely server is asked twice");
    assert_eq!(
        resolve(&slow, "a.example.").await.code,
        ResponseCode::ServFail
    );
    assert!(silent.asked() > 2, "failures are not kept");
    let none = forwarder(&[], Duration::from_secs(10));
    assert_eq!(
        resolve(&none, "a.example.").await.code,
        ResponseCode::Refused
    );
}

#[tokio::test]
async fn failing_servers_are_probed() {
    let silent = Upstream::start(Manner::Silent).await;
    let forwarder = forwarder(&[silent.address], Duration::from_millis(20));
    resolve(&forwarder, "a.example.").await;
    let probed = async {
        while silent.probes.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, probed).await.unwrap();
}

#[tokio::test]
async fn cut_answers_are_asked_for_by_connection() {
    let upstream = Upstream::start(Manner::Truncating).await;
    let forwarder = forwarder(&[upstream.address], Duration::from_secs(10));
    let response = resolve(&forwarder, "a.example.").await;
    assert_eq!(response.answers.len(), 200);
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn old_servers_are_asked_without_edns() {
    let upstream = Upstream::start(Manner::Old).await;
    let forwarder = forwarder(&[upstream.address], Duration::from_secs(10));
    assert_eq!(
        resolve(&forwarder, "a.example.").await.code,
        ResponseCode::NoError
    );
    assert_eq!(upstream.asked(), 2);
}

#[tokio::test]
async fn answers_are_kept() {
    for manner in [Manner::Honest, Manner::Denying] {
        let upstream = Upstream::start(manner).await;
        let forwarder = forwarder(&[upstream.address], Duration::from_secs(10));
        let first = resolve(&forwarder, "a.example.").await;
        let second = resolve(&forwarder, "A.EXAMPLE.").await;
        assert_eq!(first.code, second.code);
        assert_eq!(first.answers.len() + first.authorities.len(), 1);
        assert_eq!(upstream.asked(), 1, "{manner:?}");
        resolve(&forwarder, "b.example.").await;
        assert_eq!(upstream.asked(), 2, "{manner:?}");
    }
}

#[tokio::test]
async fn equal_questions_are_asked_once() {
    let upstream = Upstream::held(Manner::Honest).await;
    let forwarder = forwarder(&[upstream.address], Duration::from_secs(10));
    let ask = |_| {
        let forwarder = forwarder.clone();
        tokio::spawn(async move { resolve(&forwarder, "a.example.").await })
    };
    let askers: Vec<_> = (0..50).map(ask).collect();
    // The first asker goes away; the others still have their answer.
    askers[0].abort();
    upstream.gate.add_permits(1);
    for asker in askers.into_iter().skip(1) {
        assert_eq!(asker.await.unwrap().code, ResponseCode::NoError);
    }
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn stub_domains_have_their_own_servers() {
    let (everyone, corporate) = (
        Upstream::start(Manner::Denying).await,
        Upstream::start(Manner::Honest).await,
    );
    let forwarder = forwarder(&[everyone.address], Duration::from_secs(10));
    assert_eq!(
        resolve(&forwarder, "a.corp.example.").await.code,
        ResponseCode::NXDomain
    );
    let mut changed = upstreams(&[everyone.address]);
    changed
        .stubs
        .insert("corp.example".to_owned(), vec![corporate.address]);
    forwarder.configure(&changed).unwrap();
    assert_eq!(
        resolve(&forwarder, "a.corp.example.").await.code,
        ResponseCode::NoError
    );
    assert_eq!(
        resolve(&forwarder, "a.example.").await.code,
        ResponseCode::NXDomain
    );
}

#[tokio::test]
async fn nobody_asks_himself() {
    let own: SocketAddr = "10.96.0.10:53".parse().unwrap();
    let refused = Forwarder::new(&upstreams(&[own]), vec![own], Metrics::default());
    assert_eq!(refused.unwrap_err(), ForwardError::Loop(own));
    let forwarder = Forwarder::new(&upstreams(&[]), vec![own], Metrics::default()).unwrap();
    let mut stub = upstreams(&[]);
    stub.stubs.insert("corp.example".to_owned(), vec![own]);
    let error = forwarder.configure(&stub).unwrap_err();
    assert_eq!(error, ForwardError::Loop(own));
    assert!(error.to_string().contains("10.96.0.10:53"));
}
