//! The stream of device lists of one plugin.
//!
//! A plugin may send lists of any length as fast as it can. Messages are counted before they are decoded, only the newest
//! is decoded at all, one at a time on the node, and after one that took long there is a long pause.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::unix::MAX_MESSAGE;
use futures::FutureExt as _;
use http::uri::PathAndQuery;
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::endpoint::go_text;
use super::inventory::{self, List, MAX_DEVICES};

/// After a list was taken in, the next is taken in this much later at the earliest; what comes
/// meanwhile is passed over, only the newest counts.
const PAUSE: Duration = Duration::from_millis(100);
/// And so many times as long as it took.
const PAUSE_FACTOR: u32 = 10;
/// Lists passed over in one pause; a faster plugin is slowed down by flow control.
const SKIP: usize = 16;
/// ListAndWatch by its path.
const METHOD: &str = "/v1beta1.DevicePlugin/ListAndWatch";
/// Field `devices` of its answer.
const DEVICES: u32 = 1;

/// Lists of all plugins are read one after the other.
static READING: Semaphore = Semaphore::const_new(1);

/// The stream of device lists of one plugin.
pub(super) struct Lists {
    stream: Streaming<Bytes>,
    pause: Option<Instant>,
}

impl Lists {
    /// Opens the stream. Many plugins answer only with their first list, so there is no limit.
    pub(super) async fn open(channel: Channel) -> Result<Self, Status> {
        let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let unready = |e| Status::unavailable(format!("the plugin is not ready: {e}"));
        client.ready().await.map_err(unready)?;
        let path = PathAndQuery::from_static(METHOD);
        let request = Request::new(pb::Empty {});
        let answer = client.server_streaming(request, path, Unread).await?;
        Ok(Self {
            stream: answer.into_inner(),
            pause: None,
        })
    }

    /// The next list worth taking in, or why there is none any more.
    pub(super) async fn next(&mut self) -> Result<List, String> {
        if let Some(until) = self.pause {
            tokio::time::sleep_until(until).await;
        }
        let mut newest = self.message().await?;
        for _ in 0..SKIP {
            match self.message().now_or_never() {
                Some(Ok(newer)) => newest = newer,
                // The end is reported by the next call, after this list was taken in.
                Some(Err(_)) | None => break,
            }
        }
        let _turn = READING.acquire().await.map_err(|e| e.to_string())?;
        let began = Instant::now();
        let read = tokio::task::spawn_blocking(move || read(&newest)).await;
        self.pause = Some(Instant::now() + PAUSE);
        self.rest(began.elapsed());
        read.map_err(|e| e.to_string())?
    }

    /// Makes the pause longer, by what a list has cost.
    pub(super) fn rest(&mut self, cost: Duration) {
        let until = Instant::now() + cost * PAUSE_FACTOR;
        self.pause = self.pause.max(Some(until));
    }

    async fn message(&mut self) -> Result<Bytes, String> {
        match self.stream.message().await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err("the plugin has ended its device stream".to_owned()),
            Err(status) => Err(go_text(&status)),
        }
    }
}

/// The list that is in a message.
pub(super) fn read(message: &[u8]) -> Result<List, String> {
    let broken = |e: prost::DecodeError| format!("the plugin's list cannot be read: {e}");
    // A device of two bytes is one of a hundred when it is decoded.
    if count(message).map_err(broken)? > MAX_DEVICES {
        return Err(format!("the plugin lists more than {MAX_DEVICES} devices"));
    }
    inventory::list(&pb::ListAndWatchResponse::decode(message).map_err(broken)?)
}

/// How many devices a message has.
fn count(mut message: &[u8]) -> Result<usize, prost::DecodeError> {
    let mut devices = 0;
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
        devices += usize::from(tag == DEVICES);
    }
    Ok(devices)
}

/// Lists as bytes.
struct Unread;

impl Codec for Unread {
    type Encode = pb::Empty;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Unread {
    type Item = pb::Empty;
    type Error = Status;

    fn encode(&mut self, item: pb::Empty, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item.encode_to_vec().as_slice());
        Ok(())
    }
}

impl Decoder for Unread {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(input.copy_to_bytes(input.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_before_they_are_decoded() {
        let device = |id: &str| pb::Device {
            id: id.to_owned(),
            ..pb::Device::default()
        };
        let message = pb::ListAndWatchResponse {
            devices: vec![device("a"), device("b")],
        };
        let two = message.encode_to_vec();
        assert_eq!((count(&two).unwrap(), read(&two).unwrap().len()), (2, 2));
        // Eight million devices in sixteen megabytes.
        let many = [0x0a, 0x00].repeat(MAX_MESSAGE / 2);
        assert!(read(&many).unwrap_err().contains("more than"));
        assert!(read(&[0x0a]).unwrap_err().contains("cannot be read"));
        let long = pb::ListAndWatchResponse {
            devices: vec![device(&"x".repeat(1 << 20))],
        };
        assert!(read(&long.encode_to_vec()).unwrap_err().len() < 200);
    }
}
