use super::*;
use crate::exchange::{AnswerKind, Busy};
use bytes::Bytes;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpListener;

const LIMITS: ConnectionLimits = ConnectionLimits {
    strangers: 8,
    loopback: 8,
    known: 8,
    first_request: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    long_running: 8,
    sessions: 8,
    session_idle: Duration::from_secs(4 * 3600),
    unsent: 1 << 20,
};

/// Connects as if from an address, whose end stays with the test.
async fn from(connections: &Arc<Connections>, address: [u8; 4]) -> (Socket, Lease, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap());
    let (far, near) = tokio::join!(far, listener.accept());
    let peer = SocketAddr::from((Ipv4Addr::from(address), 1));
    let (socket, lease) = connections.admit(near.unwrap().0, peer);
    (socket, lease, far.unwrap())
}

const A: [u8; 4] = [192, 0, 2, 1];
const B: [u8; 4] = [192, 0, 2, 2];
const HERE: [u8; 4] = [127, 0, 0, 1];

#[tokio::test]
async fn an_address_that_takes_all_loses_its_own() {
    let connections = Connections::new(LIMITS);
    let mut greedy = Vec::new();
    for _ in 0..20 {
        greedy.push(from(&connections, A).await);
    }
    assert_eq!(connections.count(), 4);
    let other = from(&connections, B).await;
    let local = from(&connections, HERE).await;
    assert_eq!(connections.count(), 6);
    let open = |lease: &Lease| !lease.entry.closed.is_cancelled();
    assert!(open(&other.1) && open(&local.1));
    assert_eq!(greedy.iter().filter(|(_, lease, _)| open(lease)).count(), 4);
    // the newest are those that stay
    assert!(greedy[16..].iter().all(|(_, lease, _)| open(lease)));
    drop(greedy);
    assert_eq!(connections.count(), 2);
}

#[tokio::test]
async fn addresses_that_take_all_leave_room_for_another() {
    let connections = Connections::new(LIMITS);
    let mut crowd = Vec::new();
    for n in 0..20 {
        crowd.push(from(&connections, [192, 0, 2, n]).await);
    }
    assert_eq!(connections.count(), 8);
    let late = from(&connections, [198, 51, 100, 1]).await;
    assert!(!late.1.entry.closed.is_cancelled());
    assert_eq!(connections.count(), 8);
}

#[tokio::test]
async fn connections_with_requests_stay_longest() {
    let connections = Connections::new(LIMITS);
    let busy = from(&connections, A).await;
    let _under_way = busy.1.begin();
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(from(&connections, A).await);
    }
    assert!(!busy.1.entry.closed.is_cancelled());
}

#[tokio::test]
async fn who_is_known_does_not_share_with_strangers() {
    let connections = Connections::new(LIMITS);
    let known = from(&connections, A).await;
    known.1.identified("system:node:a");
    known.1.identified("somebody else");
    let mut flood = Vec::new();
    for n in 0..20 {
        flood.push(from(&connections, A).await);
        flood.push(from(&connections, [192, 0, 2, n]).await);
    }
    assert!(!known.1.entry.closed.is_cancelled());
    assert_eq!((connections.known(), connections.count()), (1, 9));
    drop(known);
    assert_eq!(connections.known(), 0);
    // one that gave way is not counted again
    let gone = flood
        .iter()
        .find(|(_, lease, _)| lease.entry.closed.is_cancelled());
    gone.unwrap().1.identified("late");
    assert_eq!(connections.known(), 0);
}

#[tokio::test]
async fn time_runs_out() {
    use tokio::io::AsyncReadExt;
    let connections = Connections::new(LIMITS);
    let (mut socket, silent, _far) = from(&connections, A).await;
    let (_socket, asked, _far) = from(&connections, A).await;
    drop(asked.begin());
    let (_socket, upgraded, _far) = from(&connections, A).await;
    upgraded.begin().upgraded();
    let (_socket, working, _far) = from(&connections, A).await;
    let _request = working.begin();
    let now = Instant::now();
    let state = |lease: &Lease| {
        let entry = &lease.entry;
        (entry.draining.is_cancelled(), entry.closed.is_cancelled())
    };
    connections.sweep(now + Duration::from_secs(9));
    assert_eq!(state(&silent), (false, false));
    connections.sweep(now + Duration::from_secs(11));
    assert_eq!(state(&silent), (false, true));
    assert_eq!(
        socket.read_u8().await.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionAborted
    );
    assert_eq!(state(&asked), (false, false));
    connections.sweep(now + Duration::from_secs(95));
    assert_eq!(state(&asked), (true, false));
    connections.sweep(now + Duration::from_secs(105));
    assert_eq!(state(&asked), (true, true));
    for lasting in [&upgraded, &working] {
        assert_eq!(state(lasting), (false, false));
    }
    connections.sweep(now + Duration::from_secs(4 * 3600 + 1));
    assert_eq!(state(&upgraded), (false, true));
    assert_eq!(state(&working), (false, false));
}

#[tokio::test]
async fn bytes_keep_a_session() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let connections = Connections::new(LIMITS);
    let (mut socket, used, mut far) = from(&connections, A).await;
    let (_socket, idle, _far) = from(&connections, A).await;
    for lease in [&used, &idle] {
        lease.begin().upgraded();
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let before = Instant::now();
    far.write_all(b"a").await.unwrap();
    socket.read_u8().await.unwrap();
    connections.sweep(before + LIMITS.session_idle - Duration::from_millis(2));
    assert!(idle.entry.closed.is_cancelled());
    assert!(!used.entry.closed.is_cancelled());
}

/// A stream of one piece after another, in no hurry to end.
fn endless() -> impl http_body::Body<Data = Bytes, Error = std::convert::Infallible> + Unpin {
    let event = Bytes::from(vec![b'e'; 2000]);
    let pieces = futures::stream::repeat_with(move || Ok(http_body::Frame::data(event.clone())));
    http_body_util::StreamBody::new(pieces)
}

#[tokio::test]
async fn streams_that_nobody_takes_end() {
    use http_body_util::BodyExt;
    let connections = Connections::new(LIMITS);
    let mut opened = Vec::new();
    for kind in [AnswerKind::Watch, AnswerKind::Stream] {
        let (socket, lease, far) = from(&connections, A).await;
        let exchange = lease.begin();
        exchange.may_begin(kind).unwrap();
        let mut body = crate::TrackedBody::new(endless(), exchange);
        body.frame().await.unwrap().unwrap();
        opened.push((lease, body, socket, far));
    }
    let closed = |n: usize, opened: &[(Lease, _, _, _)]| opened[n].0.entry.closed.is_cancelled();
    let now = Instant::now();
    connections.sweep(now + Duration::from_secs(59));
    assert!(!closed(0, &opened));
    opened[0].1.frame().await.unwrap().unwrap();
    connections.sweep(now + Duration::from_secs(62));
    assert!(closed(0, &opened), "nobody asked for the piece after");
    assert!(!closed(1, &opened), "a pager may take its time");
    connections.sweep(now + Duration::from_secs(4 * 3600 + 1));
    assert!(closed(1, &opened));
}

#[tokio::test]
async fn a_stream_without_events_is_waited_for() {
    let connections = Connections::new(LIMITS);
    let (_socket, lease, _far) = from(&connections, A).await;
    let exchange = lease.begin();
    exchange.may_begin(AnswerKind::Watch).unwrap();
    let mut piece = Some(exchange.piece(5));
    connections.sweep(Instant::now() + Duration::from_secs(59));
    piece.take();
    connections.sweep(Instant::now() + Duration::from_secs(3600));
    assert!(!lease.entry.closed.is_cancelled());
}

#[tokio::test]
async fn sessions_are_shared_as_long_as_they_last() {
    let connections = Connections::new(LIMITS);
    let mut open = Vec::new();
    for _ in 0..4 {
        let (socket, lease, far) = from(&connections, A).await;
        lease.identified("typist");
        let exchange = lease.begin();
        exchange.may_begin(AnswerKind::Session).unwrap();
        exchange.upgraded();
        open.push((socket, far));
    }
    let (_socket, lease, _far) = from(&connections, A).await;
    lease.identified("typist");
    assert_eq!(lease.begin().may_begin(AnswerKind::Session), Err(Busy));
    assert_eq!(lease.begin().may_pass_on(), Err(Busy));
    assert_eq!(lease.begin().may_begin(AnswerKind::Watch), Ok(()));
    open.pop();
    let passed_on = lease.begin();
    assert_eq!(passed_on.may_pass_on(), Ok(()));
    assert_eq!(lease.begin().may_begin(AnswerKind::Session), Err(Busy));
    drop(passed_on);
    assert_eq!(lease.begin().may_begin(AnswerKind::Session), Ok(()));
}

#[tokio::test]
async fn answers_that_nobody_takes_are_counted_and_end() {
    let connections = Connections::new(LIMITS);
    let (_socket, lease, _far) = from(&connections, A).await;
    lease.identified("reader");
    let (_other, innocent, _far2) = from(&connections, B).await;
    innocent.identified("innocent");
    let exchange = lease.begin();
    let mut waiting = Vec::new();
    while exchange.may_begin(AnswerKind::Whole).is_ok() {
        waiting.push(exchange.whole(Bytes::from(vec![0; 128 * 1024])));
    }
    assert_eq!(waiting.len(), 4);
    assert_eq!(connections.unsent(), 512 * 1024);
    assert_eq!(innocent.begin().may_begin(AnswerKind::Whole), Ok(()));
    let part = waiting.pop().map(|mut whole| whole.split_to(10));
    assert_eq!(connections.unsent(), 512 * 1024, "a part holds the whole");
    drop(part);
    assert_eq!(exchange.may_begin(AnswerKind::Whole), Ok(()));
    connections.sweep(Instant::now() + Duration::from_secs(61));
    assert!(!lease.entry.closed.is_cancelled());
    connections.sweep(Instant::now() + Duration::from_secs(63));
    assert!(lease.entry.closed.is_cancelled());
    drop(waiting);
    assert_eq!(connections.unsent(), 0);
}

#[tokio::test]
async fn answers_asked_for_at_once_are_counted_before_they_are_sent() {
    let connections = Connections::new(LIMITS);
    let (_socket, lease, _far) = from(&connections, A).await;
    let asked: Vec<_> = (0..20).map(|_| lease.begin()).collect();
    assert!(
        asked
            .iter()
            .all(|exchange| exchange.may_begin(AnswerKind::Whole).is_ok())
    );
    let large = 128 * 1024;
    let answered = asked
        .iter()
        .filter(|exchange| exchange.may_answer(large).is_ok());
    assert_eq!(answered.count(), 4);
    let sent = asked[0].whole(Bytes::from(vec![0; large]));
    assert_eq!(connections.unsent(), 4 * large, "what is sent was reserved");
    asked[9].exempt();
    assert_eq!(asked[9].may_answer(large), Ok(()));
    drop(asked);
    assert_eq!(connections.unsent(), large);
    drop(sent);
    assert_eq!(connections.unsent(), 0);
}

#[tokio::test]
async fn requests_that_last_are_shared() {
    let connections = Connections::new(LIMITS);
    let (_socket, lease, _far) = from(&connections, A).await;
    lease.identified("watcher");
    let held: Vec<_> = (0..4).map(|_| lease.begin()).collect();
    assert!(
        held.iter()
            .all(|exchange| exchange.may_begin(AnswerKind::Watch).is_ok())
    );
    assert_eq!(lease.begin().may_begin(AnswerKind::Watch), Err(Busy));
    let (_other, innocent, _far2) = from(&connections, B).await;
    assert!(innocent.begin().may_begin(AnswerKind::Watch).is_ok());
    drop(held);
    assert!(lease.begin().may_begin(AnswerKind::Watch).is_ok());
}

#[tokio::test]
async fn limits_shrink_to_the_files_there_are() {
    let wide = ConnectionLimits {
        strangers: 1 << 40,
        ..LIMITS
    };
    let fitted = wide.within_files(1, 2);
    assert!(fitted.strangers < 1 << 30 && fitted.known >= 1);
    assert_eq!(LIMITS.within_files(1, 2).known, LIMITS.known);
}

#[tokio::test]
async fn watches_that_nobody_reads_are_counted_by_their_bytes() {
    use http_body_util::BodyExt;
    let connections = Connections::new(LIMITS);
    let (_other, innocent, _far) = from(&connections, B).await;
    innocent.identified("innocent");
    let exchange = innocent.begin();
    exchange.may_begin(AnswerKind::Watch).unwrap();
    let mut quick = crate::TrackedBody::new(endless(), exchange);
    let (_socket, lease, _far) = from(&connections, A).await;
    lease.identified("watcher");
    let mut watches = Vec::new();
    for _ in 0..4 {
        let exchange = lease.begin();
        exchange.may_begin(AnswerKind::Watch).unwrap();
        watches.push(crate::TrackedBody::new(endless(), exchange));
    }
    // Written out at once: nothing of it is counted.
    for _ in 0..100 {
        drop(quick.frame().await.unwrap().unwrap());
    }
    assert_eq!(connections.unsent(), 0);
    // Kept by connections that nobody reads from.
    let mut kept = Vec::new();
    while !lease.entry.closed.is_cancelled() {
        for watch in &mut watches {
            kept.push(watch.frame().await.unwrap().unwrap());
        }
        assert!(connections.unsent() < LIMITS.unsent);
    }
    assert!(connections.unsent() >= LIMITS.unsent / 4);
    let sent = quick.frame().await.unwrap().unwrap();
    assert!(!sent.into_data().unwrap().is_empty() && !innocent.entry.closed.is_cancelled());
    drop(kept);
    assert_eq!(connections.unsent(), 0);
}
