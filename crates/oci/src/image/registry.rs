//! The client of a registry (the OCI distribution specification, pulling only).
//!
//! A registry is a stranger: whatever it sends has a limit in size and in time. Credentials go to the registry itself and to
//! the token server it names, over TLS only; redirects are followed without them when they lead to another host.

use super::{Error, MAX_LAYERS, Result, sha256, unpack};
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Of a manifest or an index, as containerd has it; of an image's configuration, too.
const MAX_MANIFEST: u64 = 4 << 20;
const MAX_TOKEN: u64 = 1 << 20;
/// What is read of an answer that says why not.
const MAX_REASON: u64 = 64 << 10;
/// As many as overlayfs takes at most.
const MAX_REDIRECTS: usize = 10;
const CONNECT: Duration = Duration::from_secs(30);
/// Between two pieces of data.
const READ: Duration = Duration::from_secs(60);
/// For a document, all in all.
const DOCUMENT: Duration = Duration::from_secs(120);
/// For all layers of an image together, beside what the slowest rate allows.
const LAYERS: Duration = Duration::from_secs(600);
/// The slowest rate at which a layer is still waited for, bytes a second, over any [`WINDOW`].
const SLOWEST: u64 = 16 << 10;
const WINDOW: Duration = Duration::from_secs(120);
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// What the puller may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// Nothing.
    Anonymous,
    /// User and password.
    Basic(String, String),
    /// A token for the registry itself.
    Bearer(String),
}

/// Registries on this machine speak plain HTTP, as for Docker.
pub(super) fn is_local(registry: &str) -> bool {
    let host = registry
        .strip_prefix('[')
        .and_then(|r| r.split(']').next())
        .unwrap_or_else(|| registry.rsplit_once(':').map_or(registry, |(host, _)| host));
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether a registry may send us there: over TLS anywhere; over plain HTTP a registry on this machine to this machine.
fn may_lead_to(plain: bool, url: &Url) -> bool {
    match url.scheme() {
        "https" => true,
        "http" => plain && url.host_str().is_some_and(is_local),
        _ => false,
    }
}

/// What is at a name.
pub(super) struct Found {
    /// Digest of what the name stands for: of the index where there is one.
    pub(super) digest: String,
    pub(super) manifest: ImageManifest,
    /// The configuration, checked against the manifest.
    pub(super) config: Vec<u8>,
}

/// One repository of a registry.
pub(super) struct Repository {
    client: Client,
    base: String,
    name: String,
    plain: bool,
    credentials: Credentials,
    authorization: Option<HeaderValue>,
    /// How long the layers that are still to come may take.
    patience: Duration,
}

impl Repository {
    pub(super) fn new(registry: &str, name: &str, credentials: Credentials) -> Result<Self> {
        let plain = is_local(registry);
        let scheme = if plain { "http" } else { "https" };
        let host = match registry {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let client = Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(READ)
            // They are followed here: the client would show credentials again at the second one.
            .redirect(redirect::Policy::none())
            .referer(false)
            .build()
            .map_err(|e| Error::Invalid(chain(&e)))?;
        let mut repository = Self {
            client,
            base: format!("{scheme}://{host}/v2/{name}"),
            name: name.to_owned(),
            plain,
            credentials,
            authorization: None,
            patience: DOCUMENT,
        };
        if let Credentials::Bearer(token) = &repository.credentials {
            repository.authorization = Some(secret(&format!("Bearer {token}"))?);
        }
        Ok(repository)
    }

    /// What a tag or digest stands for on this machine's platform.
    pub(super) async fn find(&mut self, tag_or_digest: &str) -> Result<Found> {
        let bytes = self.manifest(tag_or_digest).await?;
        let digest = sha256(&bytes);
        if tag_or_digest.contains(':') {
            verify(tag_or_digest, &digest)?;
        }
        let manifest = match Document::read(&bytes)? {
            Document::Manifest(manifest) => manifest,
            Document::Index(index) => {
                let chosen = ours(&index)?;
                let chosen = chosen.digest().to_string();
                let bytes = self.manifest(&chosen).await?;
                verify(&chosen, &sha256(&bytes))?;
                match Document::read(&bytes)? {
                    Document::Manifest(manifest) => manifest,
                    Document::Index(_) => {
                        return Err(Error::Invalid("an index that lists an index".to_owned()));
                    }
                }
            }
        };
        if manifest.layers().len() > MAX_LAYERS {
            let count = manifest.layers().len();
            return Err(Error::Invalid(format!(
                "image has {count} layers, at most {MAX_LAYERS} can be used"
            )));
        }
        let descriptor = manifest.config();
        if descriptor.size() > MAX_MANIFEST {
            return Err(too_long("image configuration", MAX_MANIFEST));
        }
        let mut config = Vec::new();
        self.blob(descriptor, &mut config).await?;
        let bytes = manifest
            .layers()
            .iter()
            .fold(0_u64, |sum, layer| sum.saturating_add(layer.size()));
        self.patience = LAYERS + Duration::from_secs(bytes / SLOWEST);
        Ok(Found {
            digest,
            manifest: *manifest,
            config,
        })
    }

    async fn manifest(&mut self, tag_or_digest: &str) -> Result<Vec<u8>> {
        let url = format!("{}/manifests/{tag_or_digest}", self.base);
        let work = async {
            let response = self.get(&url, MANIFESTS).await?;
            read(response, "manifest", MAX_MANIFEST).await
        };
        within(DOCUMENT, "manifest", work).await
    }

    /// Writes a blob: as many bytes as its descriptor says, with that digest.
    pub(super) async fn blob(
        &mut self,
        descriptor: &Descriptor,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> Result<()> {
        let digest = descriptor.digest().to_string();
        if !super::reference::is_digest(&digest) {
            return Err(Error::Invalid(format!(
                "digest {digest:?} is not supported"
            )));
        }
        let url = format!("{}/blobs/{digest}", self.base);
        let (began, limit) = (Instant::now(), self.patience);
        let work = async {
            let mut response = self.get(&url, "*/*").await?;
            let (mut hash, mut left) = (Sha256::new(), descriptor.size());
            let mut rate = Rate::new();
            while let Some(piece) = response.chunk().await.map_err(|e| failed(&e))? {
                left = left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| too_long(&digest, descriptor.size()))?;
                rate.count(piece.len() as u64)
                    .map_err(|slow| Error::Invalid(format!("{digest} {slow}")))?;
                hash.update(&piece);
                let written = out.write_all(&piece).await;
                written.map_err(super::io_error(format!("download {digest}")))?;
            }
            let flushed = out.flush().await;
            flushed.map_err(super::io_error(format!("download {digest}")))?;
            if left > 0 {
                return Err(Error::Invalid(format!("{digest} ends {left} bytes early")));
            }
            verify(&digest, &format!("sha256:{}", unpack::hex(hash)))
        };
        let outcome = within(limit, &digest, work).await;
        self.patience = limit.saturating_sub(began.elapsed());
        outcome
    }

    /// Asks once, and again with credentials if the registry wants some. What another host wants, to which it has led, is
    /// nothing: it would name the server that the credentials are shown to.
    async fn get(&mut self, url: &str, accept: &'static str) -> Result<Response> {
        let response = self.send(url, accept).await?;
        if response.status() != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return succeeded(response).await;
        }
        let challenges: Vec<Challenge> = response
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .collect();
        let own = Url::parse(&self.base).is_ok_and(|base| base.origin() == response.url().origin());
        let Some(challenge) = challenges.into_iter().next().filter(|_| own) else {
            return succeeded(response).await;
        };
        drop(response);
        self.authorization = self.authorize(&challenge).await?;
        succeeded(self.send(url, accept).await?).await
    }

    async fn send(&self, url: &str, accept: &'static str) -> Result<Response> {
        let url = Url::parse(url).map_err(|e| Error::Invalid(format!("{url:?}: {e}")))?;
        self.follow(url, accept, self.authorization.as_ref()).await
    }

    /// Asks, and goes where the answer leads to. `shown` is for the first server only: whoever is come to by way of another
    /// does not see it.
    async fn follow(
        &self,
        mut url: Url,
        accept: &'static str,
        mut shown: Option<&HeaderValue>,
    ) -> Result<Response> {
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.client.get(url.clone()).header(ACCEPT, accept);
            if let Some(value) = shown {
                request = request.header(AUTHORIZATION, value.clone());
            }
            let response = request.send().await.map_err(|e| failed(&e))?;
            let leads = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(place) = response.headers().get(LOCATION).filter(|_| leads) else {
                return Ok(response);
            };
            let next = place.to_str().ok().and_then(|place| url.join(place).ok());
            let next = next.ok_or_else(|| Error::Invalid("redirected to no URL".to_owned()))?;
            if !may_lead_to(self.plain, &next) {
                return Err(Error::Invalid("redirected away from TLS".to_owned()));
            }
            if next.origin() != url.origin() {
                shown = None;
            }
            url = next;
        }
        Err(Error::Invalid("too many redirects".to_owned()))
    }

    async fn authorize(&self, challenge: &Challenge) -> Result<Option<HeaderValue>> {
        let basic = |user: &str, password: &str| {
            use base64::Engine;
            let pair = format!("{user}:{password}");
            let text = base64::engine::general_purpose::STANDARD.encode(pair);
            secret(&format!("Basic {text}"))
        };
        let shown = match &self.credentials {
            Credentials::Basic(user, password) => Some(basic(user, password)?),
            _ => None,
        };
        match challenge {
            Challenge::Basic => Ok(shown),
            Challenge::Bearer { realm, service } => {
                let token = self.token(realm, service.as_deref(), shown);
                let token = within(DOCUMENT, "token", token).await?;
                Ok(Some(secret(&format!("Bearer {token}"))?))
            }
        }
    }

    /// A token from the server that the registry names.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        shown: Option<HeaderValue>,
    ) -> Result<String> {
        let mut url = Url::parse(realm)
            .map_err(|e| Error::Invalid(format!("token server {realm:?}: {e}")))?;
        if !may_lead_to(self.plain, &url) {
            return Err(Error::Invalid(format!(
                "token server {realm:?} is not asked: it is not reached over TLS"
            )));
        }
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", &format!("repository:{}:pull", self.name));
        }
        let response = self.follow(url, "*/*", shown.as_ref()).await?;
        let bytes = read(succeeded(response).await?, "token", MAX_TOKEN).await?;
        let answer: TokenAnswer = serde_json::from_slice(&bytes)
            .map_err(|_| Error::Invalid(format!("token server {realm:?}: no token")))?;
        let token = answer.token.or(answer.access_token);
        token.ok_or_else(|| Error::Invalid(format!("token server {realm:?}: no token")))
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// A manifest or a list of them, told apart as containerd does: by what is in it.
enum Document {
    Manifest(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

impl Document {
    fn read(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Probe {
            manifests: Option<serde::de::IgnoredAny>,
            layers: Option<serde::de::IgnoredAny>,
        }
        let wrong = |e: serde_json::Error| Error::Invalid(format!("manifest: {e}"));
        let probe: Probe = serde_json::from_slice(bytes).map_err(wrong)?;
        match (probe.manifests, probe.layers) {
            (Some(_), Some(_)) => Err(Error::Invalid(
                "a manifest that is an index, too".to_owned(),
            )),
            (Some(_), None) => serde_json::from_slice(bytes)
                .map(|index| Self::Index(Box::new(index)))
                .map_err(wrong),
            (None, _) => serde_json::from_slice(bytes)
                .map(|manifest| Self::Manifest(Box::new(manifest)))
                .map_err(wrong),
        }
    }
}

fn ours(index: &ImageIndex) -> Result<&Descriptor> {
    let fits = |entry: &&Descriptor| {
        entry.platform().as_ref().is_some_and(|platform| {
            platform.os().to_string() == "linux"
                && platform.architecture().to_string() == davit_api::architecture()
        })
    };
    index.manifests().iter().find(fits).ok_or_else(|| {
        let architecture = davit_api::architecture();
        Error::Invalid(format!(
            "no match for platform linux/{architecture} in the index"
        ))
    })
}

/// How a registry wants to be asked.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

impl Challenge {
    /// `Bearer realm="…",service="…"` or `Basic …`; nothing else is known.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        let mut rest = rest.trim_start();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_at(after.find(',').unwrap_or(after.len())),
            };
            match key.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                _ => {}
            }
            rest = after.trim_start_matches([',', ' ']);
        }
        realm.map(|realm| Self::Bearer { realm, service })
    }
}

fn secret(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::Invalid("registry credentials do not fit a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn verify(wanted: &str, found: &str) -> Result<()> {
    if wanted == found {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "content of {wanted} has digest {found}"
    )))
}

fn too_long(what: &str, limit: u64) -> Error {
    Error::Invalid(format!("{what} is longer than {limit} bytes"))
}

/// An error with its causes, without the address: that may be signed.
fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn failed(error: &reqwest::Error) -> Error {
    Error::Invalid(chain(error))
}

/// How fast something comes.
struct Rate {
    since: Instant,
    bytes: u64,
}

impl Rate {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
        }
    }

    /// Bytes have come. Fails when too few have over a window: a few of those who dribble would hold all pulls of a node.
    fn count(&mut self, bytes: u64) -> Result<(), String> {
        self.bytes += bytes;
        if self.since.elapsed() < WINDOW {
            return Ok(());
        }
        if self.bytes < SLOWEST * WINDOW.as_secs() {
            return Err(format!("comes at less than {SLOWEST} bytes a second"));
        }
        *self = Self::new();
        Ok(())
    }
}

async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => {
            let seconds = limit.as_secs();
            Err(Error::Invalid(format!(
                "{what} did not come within {seconds} s"
            )))
        }
    }
}

/// A whole body of limited length.
async fn read(mut response: Response, what: &str, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|e| failed(&e))? {
        if (bytes.len() + piece.len()) as u64 > limit {
            return Err(too_long(what, limit));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// The answer, or the registry's words for why there is none.
async fn succeeded(mut response: Response) -> Result<Response> {
    #[derive(Deserialize)]
    struct Reason {
        code: Option<String>,
        message: Option<String>,
    }
    #[derive(Deserialize)]
    struct Reasons {
        errors: Vec<Reason>,
    }
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > MAX_REASON {
            break;
        }
    }
    let reasons: Vec<String> = serde_json::from_slice::<Reasons>(&bytes)
        .map(|reasons| reasons.errors)
        .unwrap_or_default()
        .into_iter()
        .take(4)
        .map(|reason| {
            let parts = [reason.code, reason.message];
            parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
        })
        .collect();
    if status == StatusCode::NOT_FOUND {
        return Err(Error::Invalid(format!("not found: {}", reasons.join(", "))));
    }
    Err(Error::Invalid(format!(
        "unexpected status {status}: {}",
        reasons.join(", ")
    )))
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
