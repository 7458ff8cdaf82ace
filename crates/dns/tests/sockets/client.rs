//! Asking as a resolver does.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Longer than anything takes that works: reaching it is a failure, not a measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn query(name: &str, kind: RecordType) -> Query {
    Query::query(Name::from_ascii(name).unwrap(), kind)
}

pub(crate) fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(query(name, kind));
    message
}

pub(crate) fn with_edns(mut message: Message) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    message.set_edns(edns);
    message
}

/// A socket that takes answers only from the address it asks.
pub(crate) async fn datagrams(server: SocketAddr, from: &str) -> UdpSocket {
    let socket = UdpSocket::bind((from, 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    socket
}

pub(crate) async fn receive(socket: &UdpSocket) -> Message {
    let mut buffer = vec![0; 65_535];
    let length = timeout(PATIENCE, socket.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

/// Asks by datagram.
pub(crate) async fn udp(server: SocketAddr, message: &Message) -> Message {
    let from = if server.is_ipv4() { "127.0.0.1" } else { "::1" };
    let socket = datagrams(server, from).await;
    socket.send(&message.to_vec().unwrap()).await.unwrap();
    let answer = receive(&socket).await;
    assert_eq!(answer.metadata.id, message.metadata.id);
    answer
}

pub(crate) async fn write(stream: &mut TcpStream, message: &Message) {
    let bytes = message.to_vec().unwrap();
    let mut framed = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    framed.extend(bytes);
    stream.write_all(&framed).await.unwrap();
}

pub(crate) async fn read(stream: &mut TcpStream) -> Message {
    let length = timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap();
    let mut bytes = vec![0; length.into()];
    timeout(PATIENCE, stream.read_exact(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    Message::from_vec(&bytes).unwrap()
}

/// Asks by connection.
pub(crate) async fn tcp(server: SocketAddr, message: &Message) -> Message {
    let mut stream = TcpStream::connect(server).await.unwrap();
    write(&mut stream, message).await;
    read(&mut stream).await
}
