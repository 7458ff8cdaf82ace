//! A response's body that keeps its exchange alive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::exchange::{Exchange, Piece};

pin_project! {
    /// A body that is counted as under way until it is dropped, by its bytes, too; of one that is not whole each piece has
    /// to be taken in time.
    #[derive(Debug)]
    pub struct TrackedBody<B> {
        #[pin]
        inner: B,
        exchange: Arc<Exchange>,
        whole: bool,
        piece: Option<Piece>,
    }
}

impl<B: Body<Data = Bytes>> TrackedBody<B> {
    /// The body of the answer to a request.
    pub fn new(inner: B, exchange: Arc<Exchange>) -> Self {
        let whole = inner.size_hint().exact().is_some();
        Self {
            inner,
            exchange,
            whole,
            piece: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        *this.piece = None;
        let frame = this.inner.poll_frame(cx);
        if !*this.whole
            && let Poll::Ready(Some(Ok(frame))) = &frame
        {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            *this.piece = Some(this.exchange.piece(bytes));
        }
        let count = |data| match *this.whole {
            true => this.exchange.whole(data),
            false => this.exchange.part(data),
        };
        frame.map(|next| next.map(|frame| frame.map(|frame| frame.map_data(count))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
