//! Questions by datagram.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::Service;
use super::clients::ClientHold;
use crate::message::{Forward, MAX_REQUEST, Outcome, Reply, Transport};

/// How long an answer may wait for room in the socket's buffer.
const SEND: Duration = Duration::from_secs(1);

/// The pause after a socket fails, lest a fault that stays takes a core.
const PAUSE: Duration = Duration::from_millis(10);

/// Answers datagrams.
pub(super) async fn serve(service: Arc<Service>, socket: Arc<UdpSocket>) {
    // One byte more than is read, by which datagrams that were cut are known.
    let mut buffer = vec![0; MAX_REQUEST + 1];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, client)) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                handle(&service, &socket, bytes, client).await;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot receive");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn handle(service: &Arc<Service>, socket: &Arc<UdpSocket>, bytes: &[u8], client: SocketAddr) {
    let started = Instant::now();
    // Without a word: an answer would go to whoever's address was written on the flood.
    if !service.clients.admit(client.ip(), started) {
        return;
    }
    match service.respond(bytes, Transport::Udp) {
        Outcome::Nothing => {}
        Outcome::Reply(reply) => {
            service.count(client.ip(), Transport::Udp, &reply, started);
            send(socket, &reply, client).await;
        }
        Outcome::Forward(forward) => {
            if let Some(reply) = start(service, socket, *forward, client, started) {
                service.count(client.ip(), Transport::Udp, &reply, started);
                send(socket, &reply, client).await;
            }
        }
    }
}

/// Asks others in a task of its own, or gives the answer that says that too many do.
fn start(
    service: &Arc<Service>,
    socket: &Arc<UdpSocket>,
    forward: Forward,
    client: SocketAddr,
    started: Instant,
) -> Option<Reply> {
    let permit = service.forwards.clone().try_acquire_owned();
    let claim = service
        .clients
        .claim(client.ip(), ClientHold::Forward, started);
    let (Ok(permit), Some(claim)) = (permit, claim) else {
        return Some(forward.fail());
    };
    let (shared, socket) = (service.clone(), socket.clone());
    service.spawn(async move {
        let reply = shared.forward(forward).await;
        shared.count(client.ip(), Transport::Udp, &reply, started);
        send(&socket, &reply, client).await;
        drop((permit, claim));
    });
    None
}

async fn send(socket: &UdpSocket, reply: &Reply, client: SocketAddr) {
    let sent: io::Result<usize> = match socket.try_send_to(&reply.bytes, client) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let sending = timeout(SEND, socket.send_to(&reply.bytes, client)).await;
            sending.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
        }
        sent => sent,
    };
    if let Err(error) = sent {
        tracing::debug!(%client, %error, "cannot send");
    }
}
