//! Bodies: what comes in (bounded when read) and what goes out (whole or streamed).

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

/// An error of a body's transport.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body, whatever transport it came over.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// Wraps any body as [`RequestBody`].
pub(crate) fn request_body<B>(body: B) -> RequestBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Why a request's body could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// It is longer than the limit.
    TooLarge,
    /// The peer went away or broke the framing.
    Transport(BoxError),
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn read_limited(mut body: RequestBody, limit: usize) -> Result<Bytes, ReadError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ReadError::TooLarge);
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Transport)?.into_data() else {
            continue;
        };
        let held = first.as_ref().map_or(0, Bytes::len) + rest.len();
        if held + data.len() > limit {
            return Err(ReadError::TooLarge);
        }
        if first.is_none() {
            first = Some(data);
        } else {
            rest.extend_from_slice(&data);
        }
    }
    let first = first.unwrap_or_default();
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

enum Content {
    Whole(Option<Bytes>),
    Stream(ByteStream),
}

/// A response's body. Watches and logs stream; everything else is whole.
pub struct ResponseBody(Content);

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Content::Whole(bytes) => {
                write!(
                    f,
                    "ResponseBody({} bytes)",
                    bytes.as_ref().map_or(0, Bytes::len)
                )
            }
            Content::Stream(_) => f.write_str("ResponseBody(stream)"),
        }
    }
}

impl ResponseBody {
    /// No body.
    pub fn empty() -> Self {
        Self(Content::Whole(None))
    }

    /// A body that is sent as it comes.
    pub fn stream<S>(stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    {
        Self(Content::Stream(Box::pin(stream)))
    }

    /// The bytes, when the body is whole.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Content::Whole(bytes) => bytes.as_ref(),
            Content::Stream(_) => None,
        }
    }

    /// Whether the body is sent piece by piece.
    pub fn is_stream(&self) -> bool {
        matches!(self.0, Content::Stream(_))
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self(Content::Whole(Some(bytes)))
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for ResponseBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for ResponseBody {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Content::Whole(bytes) => Poll::Ready(
                bytes
                    .take()
                    .filter(|b| !b.is_empty())
                    .map(|b| Ok(Frame::data(b))),
            ),
            Content::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|item| item.map(|item| item.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Content::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}
