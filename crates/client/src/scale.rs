//! The scale subresource of objects of any kind, found through discovery.

use crate::path_segment;
use crate::slow_kinds::{SlowKindError, SlowKinds};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::discovery::{ApiResource, Scope};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long what discovery said is believed.
const KNOWN: Duration = Duration::from_secs(300);
const CACHED: usize = 256;

/// Why a scale could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// The reference names no version that can be read.
    #[error("invalid API version in scale target reference: unexpected GroupVersion string: {0}")]
    Version(String),
    /// No such kind is served.
    #[error(
        "unable to determine resource for scale target reference: no matches for kind \"{kind}\" in version \"{version}\""
    )]
    Unknown {
        /// The kind.
        kind: String,
        /// Its group and version.
        version: String,
    },
    /// No object can be called this.
    #[error("invalid name in scale target reference: {0:?}")]
    Name(String),
    /// What the API server said.
    #[error("{}", crate::message_of(.0))]
    Api(#[source] kube::Error),
    /// The server of the kind does not answer in time.
    #[error("{0}")]
    Slow(SlowKindError),
}

impl ScaleError {
    /// The object, or its scale, is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }
}

/// Reads and writes scales.
pub struct Scales {
    client: kube::Client,
    known: Mutex<HashMap<(String, String), (Instant, KnownKind)>>,
    slow: SlowKinds,
}

/// What a server says of a kind.
#[derive(Clone)]
struct KnownKind {
    resource: ApiResource,
    has_scale: bool,
}

/// An object by what references to it say.
#[derive(Debug, Clone, Copy)]
pub struct ScaleTarget<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Group and version.
    pub api_version: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Scales {
    /// Of the cluster that `client` reaches.
    pub fn new(client: kube::Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
            slow: SlowKinds::default(),
        }
    }

    /// The resource of a kind.
    ///
    /// # Errors
    /// When there is no such kind, or the API server cannot be asked.
    pub async fn resource(&self, api_version: &str, kind: &str) -> Result<ApiResource, ScaleError> {
        Ok(self.kind(api_version, kind).await?.resource)
    }

    /// Whether objects of a kind have a scale.
    ///
    /// # Errors
    /// When there is no such kind, or the API server cannot be asked.
    pub async fn has_scale(&self, api_version: &str, kind: &str) -> Result<bool, ScaleError> {
        Ok(self.kind(api_version, kind).await?.has_scale)
    }

    async fn kind(&self, api_version: &str, kind: &str) -> Result<KnownKind, ScaleError> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some((since, known)) = self.known.lock().get(&key)
            && since.elapsed() < KNOWN
        {
            return Ok(known.clone());
        }
        // They stand in paths.
        let plain = |part: &&str| path_segment(part).is_some_and(|segment| segment == **part);
        let parts: Vec<&str> = api_version.split('/').collect();
        let (group, version) = match parts[..] {
            _ if !parts.iter().all(plain) => {
                return Err(ScaleError::Version(api_version.to_owned()));
            }
            [version] => ("", version),
            [group, version] => (group, version),
            _ => return Err(ScaleError::Version(api_version.to_owned())),
        };
        let wanted = kube::core::GroupVersionKind::gvk(group, version, kind);
        let unknown = || ScaleError::Unknown {
            kind: kind.to_owned(),
            version: api_version.to_owned(),
        };
        let found = kube::discovery::pinned_kind(&self.client, &wanted).await;
        let (resource, capabilities) = found.map_err(|error| match error {
            kube::Error::Discovery(_) => unknown(),
            kube::Error::Api(status) if status.code == 404 => unknown(),
            error => ScaleError::Api(error),
        })?;
        if capabilities.scope != Scope::Namespaced {
            return Err(unknown());
        }
        let subresources = &capabilities.subresources;
        let found = KnownKind {
            resource,
            has_scale: subresources.iter().any(|(sub, _)| sub.plural == "scale"),
        };
        let mut known = self.known.lock();
        if known.len() >= CACHED {
            known.clear();
        }
        known.insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }

    async fn path(&self, target: ScaleTarget<'_>) -> Result<(ApiResource, String), ScaleError> {
        let resource = self.resource(target.api_version, target.kind).await?;
        let base = <kube::core::DynamicObject as kube::Resource>::url_path(
            &resource,
            Some(target.namespace),
        );
        let name = path_segment(target.name);
        let name = name.ok_or_else(|| ScaleError::Name(target.name.to_owned()))?;
        Ok((resource, format!("{base}/{name}/scale")))
    }

    /// The scale of an object.
    ///
    /// # Errors
    /// When there is none, or what the API server says.
    pub async fn get(&self, target: ScaleTarget<'_>) -> Result<Scale, ScaleError> {
        let (resource, path) = self.path(target).await?;
        let request = http::Request::get(path).body(Vec::new());
        self.sent(&resource, request).await
    }

    /// Writes the scale of an object.
    ///
    /// # Errors
    /// When there is none, or what the API server says.
    pub async fn put(&self, target: ScaleTarget<'_>, scale: &Scale) -> Result<Scale, ScaleError> {
        let (resource, path) = self.path(target).await?;
        let body = serde_json::to_vec(scale)
            .map_err(|error| ScaleError::Api(kube::Error::SerdeError(error)))?;
        let request = http::Request::put(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body);
        self.sent(&resource, request).await
    }

    async fn sent(
        &self,
        resource: &ApiResource,
        request: Result<http::Request<Vec<u8>>, http::Error>,
    ) -> Result<Scale, ScaleError> {
        let request = request.map_err(|error| ScaleError::Api(kube::Error::HttpError(error)))?;
        let answer = self.slow.ask(resource, self.client.request(request)).await;
        answer.map_err(ScaleError::Slow)?.map_err(ScaleError::Api)
    }
}
