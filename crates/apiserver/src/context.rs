//! What the pipeline knows of a request and the handlers need.

use std::time::Instant;

use davit_access::query::Query;
use davit_access::{RequestInfo, UserInfo, Warnings};
use davit_api::status::Status;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};

use crate::body::ResponseBody;

/// What a handler answers.
pub(crate) type HandlerResult = Result<Response<ResponseBody>, Status>;

/// One request, authenticated and authorized.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) method: Method,
    pub(crate) info: RequestInfo,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) user: UserInfo,
    /// The caller is a component in the same process.
    pub(crate) in_process: bool,
    pub(crate) warnings: Warnings,
    /// When the request is given up; none for long-running requests.
    pub(crate) deadline: Option<Instant>,
    /// Headers the answer gets, whatever it is.
    pub(crate) answer_headers: Vec<(HeaderName, HeaderValue)>,
}

impl Context {
    /// The namespace of the path; empty for cluster-wide requests.
    pub(crate) fn namespace(&self) -> &str {
        self.info.namespace.as_deref().unwrap_or_default()
    }
}
