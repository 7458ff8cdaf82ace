//! davit under the names of the programs that envtest starts, `kube-apiserver` and `etcd` (docs/envtest.md).
//!
//! What has the name of etcd keeps no objects: it owns the directory for them and says where it is. The API server, told
//! to use an etcd at a loopback address, asks there first and opens its embedded store in that directory.

use crate::shutdown::{STOPPING, Signals};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use davit_etcd::EndpointUrl;
use davit_listen::{ConnectionLimits, Connections, HttpLimits, Lease, Socket};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The names under which this binary is started, and the commands that they stand for.
const NAMES: [(&str, &str); 2] = [("kube-apiserver", "server"), ("etcd", "etcd")];
/// Where a stand-in says where its directory is. etcd has nothing there.
const STORE: &str = "/davit.dev/store";
/// How long a stand-in may take to answer: it is on this machine.
const ANSWER: Duration = Duration::from_secs(2);
/// Its answer is short.
const MAX_ANSWER: usize = 64 << 10;
/// Tests ask for its health, and API servers for its directory.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 0,
    loopback: 256,
    known: 256,
    first_request: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    long_running: 1,
    sessions: 1,
    session_idle: Duration::from_secs(60),
    unsent: 1 << 20,
};

/// The name of the file that was started, where it is one of [`NAMES`], and its command.
fn name() -> Option<(&'static str, &'static str)> {
    let program = std::env::args_os().next()?;
    let name = Path::new(&program).file_name()?.to_str()?.to_owned();
    NAMES.into_iter().find(|(known, _)| *known == name)
}

/// Whether this process was started as kube-apiserver.
pub(crate) fn is_kube_apiserver() -> bool {
    name().is_some_and(|(_, command)| command == "server")
}

/// The command line that a process stands for which was started under one of the names.
pub(crate) fn command_line() -> Option<Vec<OsString>> {
    let (_, command) = name()?;
    let words = ["davit", command].into_iter().map(OsString::from);
    Some(words.chain(std::env::args_os().skip(1)).collect())
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TestAssets {
    /// The folder, for KUBEBUILDER_ASSETS; it is made
    dir: PathBuf,
}

/// Makes the folder that envtest looks into.
pub(crate) fn run(args: &TestAssets) -> Result<()> {
    let dir = std::path::absolute(&args.dir).context("the folder's path")?;
    let at = || dir.display().to_string();
    std::fs::create_dir_all(&dir).with_context(at)?;
    let binary = std::env::current_exe().context("finding this binary")?;
    let mut links = NAMES.map(|(name, _)| (name, binary.clone())).to_vec();
    match on_path("kubectl") {
        Some(kubectl) => links.push(("kubectl", kubectl)),
        None => eprintln!("no kubectl on the PATH: the folder has none, which few tests need"),
    }
    for (name, target) in links {
        link(&dir.join(name), &target)?;
    }
    println!("export KUBEBUILDER_ASSETS='{}'", dir.display());
    Ok(())
}

/// Makes a link, in the place of an older link. Programs that are no links are somebody's.
fn link(path: &Path, target: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            std::fs::remove_file(path).with_context(|| path.display().to_string())?;
        }
        Ok(_) => bail!(
            "{} is there and no link; name another folder",
            path.display()
        ),
        Err(_) => {}
    }
    std::os::unix::fs::symlink(target, path).with_context(|| path.display().to_string())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(program));
    found.find(|file| file.is_file())
}

/// The flags of etcd that envtest gives.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Etcd {
    /// Where the API server keeps its objects
    #[arg(long, value_name = "DIR", default_value = "default.etcd")]
    data_dir: PathBuf,
    /// Where to answer; loopback addresses only
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    listen_client_urls: Vec<EndpointUrl>,
    /// As for etcd; there are no other clients here
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    advertise_client_urls: Vec<String>,
    /// As for etcd; there are no peers here
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    listen_peer_urls: Vec<String>,
    /// Do not wait for the disk: what was written is lost with the machine, not with the process
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    unsafe_no_fsync: bool,
}

/// What a stand-in says of its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreDir {
    pub(crate) directory: PathBuf,
    /// Writes wait for the disk.
    pub(crate) fsync: bool,
}

/// Stands in for etcd until a signal.
pub(crate) async fn etcd(args: Etcd) -> Result<()> {
    let mut signals = Signals::new()?;
    let data_dir = std::path::absolute(&args.data_dir).context("data directory")?;
    davit_beneath::private_dir(&data_dir, 0o700)
        .with_context(|| format!("data directory {}", data_dir.display()))?;
    let store = StoreDir {
        directory: data_dir.join("davit"),
        fsync: !args.unsafe_no_fsync,
    };
    let store = Bytes::from(serde_json::to_vec(&store)?);
    let (mut serving, cancel) = (JoinSet::new(), CancellationToken::new());
    for url in &args.listen_client_urls {
        for listener in listen(url).await? {
            let (store, cancel) = (store.clone(), cancel.clone());
            serving.spawn(async move { serve(&listener, &store, &cancel).await });
        }
    }
    tokio::select! {
        () = signals.recv() => {}
        _ = serving.join_next() => bail!("nothing is listened to any more"),
    }
    cancel.cancel();
    let ended = async {
        while serving.join_next().await.is_some() {}
        Ok(())
    };
    signals.stop_within(STOPPING, ended).await
}

async fn listen(url: &EndpointUrl) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in loopback(url).await? {
        let listener = TcpListener::bind(address).await;
        listeners.push(listener.with_context(|| format!("cannot listen on {address}"))?);
    }
    if listeners.is_empty() {
        bail!(
            "{url}: this stands in for etcd in tests, and listens at plain loopback addresses only"
        );
    }
    Ok(listeners)
}

/// The loopback addresses of a plain URL.
async fn loopback(url: &EndpointUrl) -> Result<Vec<SocketAddr>> {
    let uri: Uri = url.to_string().parse().context("URL of etcd")?;
    if uri.scheme_str() != Some("http") {
        return Ok(Vec::new());
    }
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let found = tokio::net::lookup_host(&authority).await;
    let found = found.with_context(|| url.to_string())?;
    Ok(found.filter(|address| address.ip().is_loopback()).collect())
}

async fn serve(listener: &TcpListener, store: &Bytes, cancel: &CancellationToken) {
    let mut tasks = JoinSet::new();
    let connections = Connections::new(CONNECTIONS);
    let connected = |socket: Socket, lease: Lease| {
        let store = store.clone();
        async move {
            let of_requests = lease.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                let _exchange = of_requests.begin();
                let response = answer(request.uri().path(), &store);
                async move { Ok::<_, Infallible>(response) }
            });
            let http = davit_listen::http(HttpLimits { streams: 16 });
            let serving = http.serve_connection(TokioIo::new(socket), answer);
            if let Err(error) = serving.await {
                tracing::debug!(peer = %lease.peer(), error, "connection ended");
            }
        }
    };
    davit_listen::accept(listener, &connections, &mut tasks, cancel, connected).await;
}

fn answer(path: &str, store: &Bytes) -> Response<Full<Bytes>> {
    let body = match path {
        "/health" => Bytes::from_static(br#"{"health":"true","reason":""}"#),
        STORE => store.clone(),
        _ => {
            let mut missing = Response::new(Full::from("404 page not found\n"));
            *missing.status_mut() = StatusCode::NOT_FOUND;
            return missing;
        }
    };
    Response::new(Full::new(body))
}

/// The directory of the stand-in behind the URLs of etcd; none when it is etcd itself.
pub(crate) async fn store_of(servers: &[EndpointUrl]) -> Option<StoreDir> {
    let [server] = servers else { return None };
    let asked = tokio::time::timeout(ANSWER, ask(server)).await.ok()?;
    asked
        .inspect_err(|error| tracing::debug!(error = format!("{error:#}"), "no stand-in of etcd"))
        .ok()
        .flatten()
}

async fn ask(server: &EndpointUrl) -> Result<Option<StoreDir>> {
    let Some(address) = loopback(server).await?.into_iter().next() else {
        return Ok(None);
    };
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(STORE).header("host", address.to_string());
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    if response.status() != StatusCode::OK {
        return Ok(None);
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await;
    let body = body.map_err(|error| {
        anyhow::anyhow!(Arc::<dyn std::error::Error + Send + Sync>::from(error))
    })?;
    let store: StoreDir = serde_json::from_slice(&body.to_bytes())?;
    if !store.directory.is_absolute() {
        return Ok(None);
    }
    check_own(&store.directory)?;
    Ok(Some(store))
}

/// Whoever listens there may be any account of this machine; a directory that only this one can shape is made by none but a
/// stand-in of its own.
fn check_own(directory: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let above = directory.parent().unwrap_or(directory);
    let found = std::fs::symlink_metadata(above).with_context(|| above.display().to_string())?;
    let own = found.uid() == nix::unistd::geteuid().as_raw();
    if !found.is_dir() || !own || found.mode() & 0o077 != 0 {
        bail!(
            "{} is not a directory of this account alone",
            above.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stand_in_says_where_its_directory_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: EndpointUrl = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("etcd");
        davit_beneath::private_dir(&data_dir, 0o700).unwrap();
        let told = StoreDir {
            directory: data_dir.join("davit"),
            fsync: false,
        };
        let body = Bytes::from(serde_json::to_vec(&told).unwrap());
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let serving = tokio::spawn(async move { serve(&listener, &body, &stop).await });
        assert_eq!(store_of(std::slice::from_ref(&url)).await, Some(told));
        assert_eq!(store_of(&[url.clone(), url.clone()]).await, None);
        cancel.cancel();
        serving.await.unwrap();
        assert_eq!(store_of(&[url]).await, None);
    }

    #[test]
    fn a_directory_that_others_can_shape_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("own/davit");
        assert!(check_own(&at).is_err(), "nothing is there");
        std::fs::create_dir(dir.path().join("own")).unwrap();
        for (mode, fits) in [(0o700, true), (0o755, false), (0o770, false)] {
            let own = dir.path().join("own");
            std::fs::set_permissions(&own, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(check_own(&at).is_ok(), fits, "{mode:o}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(check_own(&link.join("davit")).is_err(), "a link");
        assert!(check_own(Path::new("/tmp/davit")).is_err());
    }

    #[tokio::test]
    async fn it_is_for_this_machine_only() {
        for url in ["https://127.0.0.1:1", "http://192.0.2.1:1"] {
            assert!(listen(&url.parse().unwrap()).await.is_err(), "{url}");
        }
    }

    #[test]
    fn only_links_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd");
        link(&path, Path::new("/a")).unwrap();
        link(&path, Path::new("/b")).unwrap();
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("/b"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "etcd").unwrap();
        assert!(link(&path, Path::new("/a")).is_err());
    }
}
