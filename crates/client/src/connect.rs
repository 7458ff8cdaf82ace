//! Making clients.

use crate::Error;
use crate::exec_credentials;
use crate::object_paths::ObjectPaths;
use http::{Request, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;
use tower::{BoxError, Layer, Service};

/// How the cluster that the current context of a kubeconfig file names is reached.
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or names missing files.
pub async fn kubeconfig(path: &Path) -> Result<kube::Config, Error> {
    let unusable = |source| Error::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(unusable)
}

/// A client for the cluster that the current context of a kubeconfig file names.
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or names missing files, [`Error::Client`] when its credentials
/// cannot be used.
pub async fn from_kubeconfig(path: &Path) -> Result<kube::Client, Error> {
    from_config(kubeconfig(path).await?).await
}

/// A configuration whose credentials are there: if a program is to say them, it has. For who makes several clients of it
/// that do not live long.
///
/// # Errors
/// [`Error::Plugin`] when that program does not say them.
pub async fn settled(mut config: kube::Config) -> Result<kube::Config, Error> {
    exec_credentials::settle(&mut config.auth_info, true).await?;
    Ok(config)
}

/// A client by its configuration.
///
/// # Errors
/// [`Error::Client`] when its credentials cannot be used, [`Error::Plugin`] when a program does not say them.
pub async fn from_config(mut config: kube::Config) -> Result<kube::Client, Error> {
    let plugin = exec_credentials::settle(&mut config.auth_info, false).await?;
    let server = config.cluster_url.to_string();
    let checks = ObjectPaths;
    let builder = kube::client::ClientBuilder::try_from(config);
    let built = builder.map(|builder| builder.with_layer(&checks).build());
    let client = built.map_err(|source| Error::Client {
        server,
        source: Box::new(source),
    })?;
    Ok(match plugin {
        Some(plugin) => plugin.client(client),
        None => client,
    })
}

/// Puts another client in the place of the one that [`rotating`] was given.
#[derive(Clone)]
pub struct Rotation(Arc<RwLock<kube::Client>>);

impl std::fmt::Debug for Rotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rotation")
    }
}

impl Rotation {
    /// Requests go through `next` from now on; those under way end as they began.
    pub fn replace(&self, next: kube::Client) {
        *self.0.write() = next;
    }
}

/// A client that passes its requests to `first`, until another is put in its place: credentials can be renewed while
/// whoever holds the client goes on.
pub fn rotating(first: kube::Client) -> (kube::Client, Rotation) {
    let namespace = first.default_namespace().to_owned();
    let held = Rotation(Arc::new(RwLock::new(first)));
    let current = held.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = current.0.read().clone();
        async move { client.send(request).await }
    });
    (kube::Client::new(service, namespace), held)
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
    kube::Client::new(ObjectPaths.layer(service), default_namespace)
}
