//! Bodies that have an end: `kube` reads a list, or the line that is an event of a watch, of any length.

use bytes::Bytes;
use davit_api::json_values::JsonValues;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower::BoxError;

/// A body whose lines have a length.
#[derive(Debug)]
pub(crate) struct Lines<B> {
    body: Pin<Box<B>>,
    longest: usize,
    /// Of the line that has not ended.
    length: usize,
    /// Values that a line has at most.
    most: usize,
    values: JsonValues,
}

impl<B> Lines<B> {
    /// Of bytes and values a line has so many.
    pub(crate) fn new(body: B, longest: usize, most: usize) -> Self {
        Self {
            body: Box::pin(body),
            longest,
            length: 0,
            most,
            values: JsonValues::default(),
        }
    }
}

impl<B> Body for Lines<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(self.body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
        };
        if let Some(data) = frame.data_ref().filter(|_| self.longest < usize::MAX) {
            self.length = match data.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => data.len() - end - 1,
                None => self.length.saturating_add(data.len()),
            };
            if self.length > self.longest {
                return Poll::Ready(Some(Err("an event of a watch is too long".into())));
            }
        }
        let counted = frame.data_ref().filter(|_| self.most < usize::MAX);
        if let Some(data) = counted.cloned() {
            for line in data.split_inclusive(|byte| *byte == b'\n') {
                self.values.read(line);
                if self.values.count() > self.most {
                    return Poll::Ready(Some(Err("an answer has too many values".into())));
                }
                // A list may have many lines: it is one text.
                if self.longest < usize::MAX && line.ends_with(b"\n") {
                    self.values = JsonValues::default();
                }
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
