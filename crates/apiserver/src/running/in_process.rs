//! Requests of clients in the same process: no TLS, no socket, everything else as on the wire.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use davit_access::UserInfo;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;

use crate::body::{BoxError, RequestBody, ResponseBody, request_body};
use crate::pipeline::{self, Caller};
use crate::server::ApiServer;

impl ApiServer {
    pub(super) fn answer<'a>(
        self: &'a Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'a, Response<ResponseBody>> {
        pipeline::run(self, request, caller).boxed()
    }

    /// Answers a request of `user` inside the process: no TLS, no socket, everything else as on
    /// the wire. Watches and logs stream in the response's body; upgrades need a socket.
    pub async fn call<B>(
        self: &Arc<Self>,
        request: Request<B>,
        user: UserInfo,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.answer(request.map(request_body), Caller::InProcess(user))
            .await
    }

    /// The server as a tower service on behalf of `user`, for clients in the same process.
    pub fn service(self: &Arc<Self>, user: UserInfo) -> InProcess {
        InProcess {
            server: Arc::clone(self),
            user,
        }
    }
}

/// The server as a tower service for clients in the same process.
#[derive(Debug, Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    user: UserInfo,
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _cx: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = Arc::clone(&self.server);
        let user = self.user.clone();
        async move { Ok(server.call(request, user).await) }.boxed()
    }
}
