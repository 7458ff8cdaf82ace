//! One destination: connections, credentials, one call.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use davit_api::field::quote;
use davit_api::json_values::JsonValues;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::TokioTimer;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tasks;
use super::credentials::Credentials;
use super::dial::{Connector, Dial, WithinLimits};
use super::interim::answered;
use crate::tls::{ShownIdentity, Trust, client_config};

const IDLE: Duration = Duration::from_secs(90);
const MAX_IDLE: usize = 32;
const ERROR_TEXT: usize = 1024;
/// Values of an answer, beside four for each of the question: read, each takes up to two hundred bytes.
const VALUES: usize = 250_000;
/// Bytes of an answer for which there is always room, and how many longer ones of a destination are read at a time.
const SHORT: usize = 256 << 10;
const LONG_ANSWERS: usize = 4;
/// Calls at a time; the others wait within their own time. Who has shown nothing but a token that nobody knows has it asked about.
const CALLS: usize = 512;
const AGENT: &str = concat!("davit/", env!("CARGO_PKG_VERSION"));

/// Where calls go and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Scheme, authority and path; shown in errors.
    pub base: Uri,
    /// Which address is dialled.
    pub dial: Dial,
    /// Whose serving certificates are believed.
    pub trust: Trust,
    /// The name the certificate must have, if it is not the authority's.
    pub server_name: Option<String>,
    /// What the client shows.
    pub credentials: Credentials,
}

/// One call.
#[derive(Debug)]
pub struct Call {
    /// POST for webhooks, GET for availability checks.
    pub method: Method,
    /// Replaces the path and query of the settings.
    pub path: Option<String>,
    /// Appended to the query (`timeout=10s`).
    pub query: Option<String>,
    /// Further headers.
    pub headers: HeaderMap,
    /// The body; JSON.
    pub body: Bytes,
    /// The whole call, connecting and reading included.
    pub timeout: Duration,
    /// Longest body of an answer, bytes.
    pub limit: usize,
}

impl Call {
    /// Longest answer unless a call says otherwise: an object of the largest size the API takes,
    /// base64 inside JSON, with room to spare.
    pub const LIMIT: usize = 16 * 1024 * 1024;

    /// A POST of JSON.
    pub fn post(body: Bytes, timeout: Duration) -> Self {
        Self {
            method: Method::POST,
            path: None,
            query: None,
            headers: HeaderMap::new(),
            body,
            timeout,
            limit: Self::LIMIT,
        }
    }

    /// A GET.
    pub fn get(path: &str, timeout: Duration) -> Self {
        Self {
            method: Method::GET,
            path: Some(path.to_owned()),
            body: Bytes::new(),
            ..Self::post(Bytes::new(), timeout)
        }
    }

    /// The same call with `?timeout=Ns`, by which servers learn how long the caller waits.
    #[must_use]
    pub fn with_timeout_query(mut self) -> Self {
        self.query = Some(format!("timeout={}", go_duration(self.timeout)));
        self
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// A long answer's room, until it is read.
    _room: Option<OwnedSemaphorePermit>,
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// No answer came.
    #[error("{method} {url}: {cause}")]
    Transport {
        /// As Go prints it: `Post`.
        method: &'static str,
        /// The quoted URL.
        url: String,
        /// Why.
        cause: String,
        /// The time was up.
        timeout: bool,
    },
    /// An answer that is not a success.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Words for it.
        message: String,
        /// Seconds from `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The answer is longer than allowed.
    #[error("response of {url} is longer than {limit} bytes")]
    TooLong {
        /// The quoted URL.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// The answer has more values than there is memory for.
    #[error("response of {url} has more than {limit} values")]
    TooMany {
        /// The quoted URL.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// The answer is not JSON.
    #[error("{0}")]
    Malformed(String),
}

impl CallError {
    /// The HTTP code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A destination with its open connections.
pub struct Client {
    inner: legacy::Client<WithinLimits, Full<Bytes>>,
    settings: Settings,
    /// For answers that are long.
    room: Arc<Semaphore>,
    /// For calls, each of which has a connection.
    calls: Semaphore,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.settings.base)
    }
}

impl Client {
    /// A client; nothing is connected yet.
    ///
    /// # Errors
    /// When the trust or the client certificate cannot be used.
    pub fn new(settings: Settings, tasks: Tasks) -> Result<Self, CallError> {
        let tls = if settings.base.scheme_str() == Some("https") {
            let identity = settings.credentials.identity.as_ref();
            let config = identity
                .map(ShownIdentity::new)
                .transpose()
                .and_then(|shown| client_config(&settings.trust, shown))
                .map_err(|error| CallError::Config(error.to_string()))?;
            Some(Arc::new(config))
        } else {
            None
        };
        let connector = Connector::new(settings.dial.clone(), tls, settings.server_name.clone());
        let inner = legacy::Client::builder(tasks)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector.within_limits());
        Ok(Self {
            inner,
            settings,
            room: Arc::new(Semaphore::new(LONG_ANSWERS)),
            calls: Semaphore::new(CALLS),
        })
    }

    /// Makes a call; any HTTP status is an answer.
    ///
    /// # Errors
    /// When no whole answer came in time or it is too long.
    pub async fn send(&self, call: Call) -> Result<Answer, CallError> {
        let uri = self.uri(&call)?;
        let url = quote(&uri.to_string());
        let method = go_method(&call.method);
        let failed = |cause: String, timeout: bool| CallError::Transport {
            method,
            url: url.clone(),
            cause,
            timeout,
        };
        let request = self.request(&call, uri)?;
        let answered = async {
            let turn = self.calls.acquire().await;
            let _turn = turn.map_err(|error| failed(error.to_string(), false))?;
            let response = answered(request, |request| self.inner.request(request))
                .await
                .map_err(|error| failed(error.to_string(), false))?
                .map_err(|error| failed(root_cause(&error), false))?;
            let (parts, body) = response.into_parts();
            let long = || CallError::TooLong {
                url: url.clone(),
                limit: call.limit,
            };
            let (body, room) = self.read(body, call.limit).await.map_err(|error| {
                match error.is::<http_body_util::LengthLimitError>() {
                    true => long(),
                    false => failed(error.to_string(), false),
                }
            })?;
            let limit = VALUES + 4 * JsonValues::of(&call.body);
            if body.len() > VALUES && JsonValues::of(&body) > limit {
                let url = url.clone();
                return Err(CallError::TooMany { url, limit });
            }
            Ok(Answer {
                status: parts.status,
                headers: parts.headers,
                body,
                _room: room,
            })
        };
        match tokio::time::timeout(call.timeout, answered).await {
            Ok(result) => result,
            Err(_) => Err(failed("context deadline exceeded".to_owned(), true)),
        }
    }

    /// A whole body; of those that are long a few are read at a time.
    async fn read(
        &self,
        body: hyper::body::Incoming,
        limit: usize,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Box<dyn std::error::Error + Send + Sync>>
    {
        let mut body = Limited::new(body, limit);
        let mut read = BytesMut::new();
        let mut room = None;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            if room.is_none() && read.len() + data.len() > SHORT {
                room = Some(Arc::clone(&self.room).acquire_owned().await?);
            }
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), room))
    }

    /// Makes a call whose answer is JSON; a status that is no success is an error.
    ///
    /// # Errors
    /// As [`Client::send`], and when the answer is a refusal or not JSON.
    pub async fn json(&self, call: Call) -> Result<Value, CallError> {
        let answer = self.send(call).await?;
        parse(&answer)
    }

    fn uri(&self, call: &Call) -> Result<Uri, CallError> {
        let base = &self.settings.base;
        let mut path = match &call.path {
            Some(path) => path.clone(),
            None => base
                .path_and_query()
                .map_or_else(|| "/".to_owned(), ToString::to_string),
        };
        if let Some(query) = &call.query {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(query);
        }
        Uri::builder()
            .scheme(base.scheme_str().unwrap_or("https"))
            .authority(base.authority().map_or("", |authority| authority.as_str()))
            .path_and_query(path)
            .build()
            .map_err(|error| CallError::Config(error.to_string()))
    }

    fn request(&self, call: &Call, uri: Uri) -> Result<Request<Full<Bytes>>, CallError> {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.extend(call.headers.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if call.method != Method::GET {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(value) = authorization(&self.settings.credentials)? {
            headers.insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>, CallError> {
    let text = if let Some(token) = credentials
        .bearer()
        .map_err(|error| CallError::Config(format!("reading the token file: {error}")))?
    {
        format!("Bearer {token}")
    } else if let Some((user, password)) = &credentials.basic {
        let text = format!("{user}:{password}");
        format!(
            "Basic {}",
            base64::engine::general_purpose::STANDARD.encode(text)
        )
    } else {
        return Ok(None);
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| CallError::Config("credentials do not fit a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Bytes of a message that are told on.
const MOST_TOLD: usize = 32 << 10;

/// What a webhook says in words, as far as anybody reads it: its message is answered to whoever asked, and written into
/// statuses, which would not be taken with one of megabytes.
pub fn told(message: &str) -> std::borrow::Cow<'_, str> {
    if message.len() <= MOST_TOLD {
        return message.into();
    }
    let end = message.floor_char_boundary(MOST_TOLD);
    format!("{}...", &message[..end]).into()
}

/// The JSON of a successful answer; the words of client-go for any other.
pub fn parse(answer: &Answer) -> Result<Value, CallError> {
    let code = answer.status.as_u16();
    if !(200..=206).contains(&code) {
        return Err(refused(answer));
    }
    serde_json::from_slice(&answer.body).map_err(|error| {
        CallError::Malformed(format!("couldn't decode the answer as JSON: {error}"))
    })
}

fn refused(answer: &Answer) -> CallError {
    let code = answer.status.as_u16();
    let retry_after = answer
        .headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok());
    let status: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let told = status
        .as_ref()
        .filter(|status| status["kind"] == "Status")
        .and_then(|status| status["message"].as_str())
        .filter(|message| !message.is_empty());
    let message = match told {
        Some(message) => self::told(message).into_owned(),
        None => words_for(code, &answer.body),
    };
    CallError::Refused {
        code,
        message,
        retry_after,
    }
}

fn words_for(code: u16, body: &[u8]) -> String {
    let end = body.len().min(ERROR_TEXT);
    let text = String::from_utf8_lossy(&body[..end]);
    let text = text.trim();
    let fixed = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 if text.is_empty() => "forbidden",
        403 => return format!("forbidden: {text}"),
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 => "the server was unable to respond with a content type that the client supports",
        409 => "the server reported a conflict",
        410 => "the server reported that the requested resource has expired",
        413 => "the request was too large for the server",
        415 => "the server was not able to accept the content type of the request",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        code if code >= 500 => {
            let text = quote(if text.is_empty() { "unknown" } else { text });
            return format!(
                "an error on the server ({text}) has prevented the request from succeeding"
            );
        }
        code => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    fixed.to_owned()
}

/// The innermost reason in the words of Go's network stack.
pub fn root_cause(error: &legacy::Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    let mut text = error.to_string();
    while let Some(inner) = cause.source() {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return super::dial::go_text(io);
        }
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>()
            && hyper.is_incomplete_message()
        {
            return "EOF".to_owned();
        }
        text = inner.to_string();
        cause = inner;
    }
    text
}

fn go_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "Get",
        Method::PUT => "Put",
        _ => "Post",
    }
}

/// `10s`, `1m0s`, as Go prints durations of whole seconds.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_millis() > 0 {
        return format!("{}s", duration.as_secs_f64());
    }
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    #[test]
    fn durations_read_as_in_go() {
        assert_eq!(go_duration(Duration::from_secs(10)), "10s");
        assert_eq!(go_duration(Duration::from_secs(60)), "1m0s");
        assert_eq!(go_duration(Duration::from_millis(1500)), "1.5s");
    }

    #[test]
    fn refusals_have_the_words_of_client_go() {
        let answer = |code: u16, body: &'static str| Answer {
            status: StatusCode::from_u16(code).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
            _room: None,
        };
        let text = |code, body| parse(&answer(code, body)).unwrap_err().to_string();
        assert_eq!(
            text(500, "boom\n"),
            "an error on the server (\"boom\") has prevented the request from succeeding"
        );
        assert_eq!(
            text(404, "x"),
            "the server could not find the requested resource"
        );
        assert_eq!(text(403, r#"{"kind":"Status","message":"no"}"#), "no");
        assert_eq!(
            text(302, ""),
            "the server responded with the status code 302 but did not return more information"
        );
        assert!(parse(&answer(200, "[1]")).is_ok());
        assert!(parse(&answer(200, "x")).is_err());
    }

    fn client(server: &TcpListener) -> Client {
        let base = format!("http://{}/", server.local_addr().unwrap());
        let settings = Settings {
            base: base.parse().unwrap(),
            dial: Dial::Direct,
            server_name: None,
            trust: Trust::Any,
            credentials: Credentials::default(),
        };
        Client::new(settings, Tasks::new(CancellationToken::new())).unwrap()
    }

    #[tokio::test]
    async fn interim_answers_without_end_are_no_answer() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&server);
        let floods = async {
            let (mut stream, _) = server.accept().await.unwrap();
            let _asked = stream.read(&mut [0; 4096]).await.unwrap();
            let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
            while stream.write_all(&interim).await.is_ok() {}
        };
        let call = client.send(Call::get("/", Duration::from_secs(600)));
        let (answer, ()) = tokio::join!(call, floods);
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("interim"), "{error}");
    }

    /// Strangers' tokens are asked about before anything is counted.
    #[tokio::test]
    async fn calls_have_an_end() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&server);
        let mut accepted = Vec::new();
        let calls = (0..CALLS + 100).map(|_| client.send(Call::get("/", Duration::from_secs(60))));
        let accepts = async {
            while let Ok((stream, _)) = server.accept().await {
                accepted.push(stream);
            }
        };
        tokio::select! {
            () = accepts => {}
            answers = futures::future::join_all(calls) => panic!("{answers:?}"),
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
        assert_eq!(accepted.len(), CALLS);
    }

    /// A connection with something left to be written stays by itself, however long its call has been over.
    #[tokio::test]
    async fn a_server_that_takes_nothing_is_given_up() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&server);
        let body = Bytes::from(vec![b' '; 32 << 20]);
        let call = client.send(Call::post(body, Duration::from_millis(500)));
        let (answer, accepted) = tokio::join!(call, server.accept());
        let Err(CallError::Transport { timeout, .. }) = answer else {
            panic!("{answer:?}");
        };
        assert!(timeout);
        let (mut stream, _) = accepted.unwrap();
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(70)).await;
        tokio::time::resume();
        // what was sent before, and the end
        let mut asked = vec![0; 1 << 20];
        let until_end = async { while let Ok(1..) = stream.read(&mut asked).await {} };
        let ended = tokio::time::timeout(Duration::from_secs(10), until_end);
        ended.await.expect("it is still open");
    }
}
