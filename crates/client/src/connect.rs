//! Making clients.

use crate::Error;
use http::{Request, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::Path;
use tower::{BoxError, Service};

/// A client for the cluster that the current context of a kubeconfig file names.
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or names missing files, [`Error::Client`] when its credentials
/// cannot be used.
pub async fn from_kubeconfig(path: &Path) -> Result<kube::Client, Error> {
    let unusable = |source| Error::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(unusable)?;
    let server = config.cluster_url.to_string();
    kube::Client::try_from(config).map_err(|source| Error::Client {
        server,
        source: Box::new(source),
    })
}

/// A client whose transport is a tower service in this process: no socket, no TLS, no client-side rate limit.
pub fn in_process<S, B>(service: S, default_namespace: &str) -> kube::Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    kube::Client::new(service, default_namespace)
}
