//! Questions by connection (RFC 7766): several at a time, answered in any order.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::Service;
use super::clients::ClientHold;
use crate::message::{Forward, MAX_REQUEST, Outcome, Reply, Transport};

/// The pause after a connection cannot be accepted, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Questions of one connection that wait for others.
const FORWARDS: usize = 16;

/// Answers that wait until the client reads: few, since they may have 64 KiB each.
const ANSWERS: usize = 2;

/// Accepts connections.
pub(super) async fn serve(service: Arc<Service>, listener: Arc<TcpListener>) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => accept(&service, stream, client),
            Err(error) => {
                tracing::debug!(%error, "cannot accept");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Starts a connection, or closes it when there are too many.
fn accept(service: &Arc<Service>, stream: TcpStream, client: SocketAddr) {
    let Ok(permit) = service.connections.clone().try_acquire_owned() else {
        return;
    };
    let Some(claim) = service
        .clients
        .claim(client.ip(), ClientHold::Connection, Instant::now())
    else {
        return;
    };
    let shared = service.clone();
    service.spawn(async move {
        connection(shared, stream, client).await;
        drop((permit, claim));
    });
}

async fn connection(service: Arc<Service>, stream: TcpStream, client: SocketAddr) {
    // Answers are whole when they are written; waiting for more only delays them.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let (reader, writer) = stream.into_split();
    let (answers, queue) = mpsc::channel(ANSWERS);
    let idle = service.server.limits.idle;
    let mut writing = pin!(write(writer, queue, idle));
    tokio::select! {
        () = &mut writing => return,
        ended = read(&service, reader, client, answers) => {
            if let Err(error) = ended {
                tracing::trace!(%client, %error, "connection ended");
            }
        }
    }
    // A client may close its side and still wait for what it asked.
    writing.await;
}

/// Reads questions until the client is silent, closes, asks too much or does not read its answers.
async fn read(
    service: &Arc<Service>,
    mut reader: OwnedReadHalf,
    client: SocketAddr,
    answers: mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let idle = service.server.limits.idle;
    let forwards = Arc::new(Semaphore::new(FORWARDS));
    loop {
        let length = usize::from(timeout(idle, reader.read_u16()).await??);
        if length == 0 || length > MAX_REQUEST {
            return Ok(());
        }
        let mut bytes = vec![0; length];
        timeout(idle, reader.read_exact(&mut bytes)).await??;
        let started = Instant::now();
        if !service.clients.admit(client.ip(), started) {
            return Ok(());
        }
        let forward = match service.respond(&bytes, Transport::Tcp) {
            Outcome::Nothing => return Ok(()),
            Outcome::Forward(forward) => *forward,
            Outcome::Reply(reply) => {
                service.count(client.ip(), Transport::Tcp, &reply, started);
                queue(&answers, reply, idle).await?;
                continue;
            }
        };
        let Ok(slot) = timeout(idle, forwards.clone().acquire_owned()).await? else {
            return Ok(());
        };
        let (shared, answers) = (service.clone(), answers.clone());
        service.spawn(async move {
            let reply = ask(&shared, forward, client, started).await;
            shared.count(client.ip(), Transport::Tcp, &reply, started);
            // A client that is gone needs no answer.
            let _ = queue(&answers, reply, idle).await;
            drop(slot);
        });
    }
}

/// Asks others, within the share of the client.
async fn ask(
    service: &Arc<Service>,
    forward: Forward,
    client: SocketAddr,
    started: Instant,
) -> Reply {
    let permit = service.forwards.clone().try_acquire_owned();
    let claim = service
        .clients
        .claim(client.ip(), ClientHold::Forward, started);
    if permit.is_err() || claim.is_none() {
        return forward.fail();
    }
    let reply = service.forward(forward).await;
    drop((permit, claim));
    reply
}

/// Hands an answer to the writer, with its length in front (RFC 1035, 4.2.2).
async fn queue(answers: &mpsc::Sender<Vec<u8>>, reply: Reply, idle: Duration) -> io::Result<()> {
    let length = u16::try_from(reply.bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut framed = Vec::with_capacity(reply.bytes.len() + 2);
    framed.extend(length.to_be_bytes());
    framed.extend(reply.bytes);
    let queued = timeout(idle, answers.send(framed)).await?;
    queued.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Writes answers until there are no more, or the client does not read them.
async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>, idle: Duration) {
    while let Some(bytes) = queue.recv().await {
        match timeout(idle, writer.write_all(&bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
