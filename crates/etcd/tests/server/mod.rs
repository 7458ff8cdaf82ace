//! A real etcd of one member or of several, built by .ci/run from its public module.

#![allow(dead_code, reason = "each test program uses a part")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use davit_etcd::EndpointUrl;
use tempfile::TempDir;

const START: Duration = Duration::from_secs(20);

/// One member; killed and removed with the value.
pub(crate) struct Server {
    child: Option<Child>,
    dir: TempDir,
    name: String,
    /// All members, as etcd takes them.
    members: String,
    client: SocketAddr,
    peer: SocketAddr,
    /// Certificate, key and the authority of clients, where it speaks TLS.
    tls: Option<[PathBuf; 3]>,
}

/// The binary; without one a printed skip, or a failure where the part may not be missing.
fn binary() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("tests/.cache/etcd-3.6");
    if path.is_file() {
        return Some(path);
    }
    let required = std::env::var("DAVIT_REQUIRED_PARTS").unwrap_or_default();
    assert!(
        !required.split_whitespace().any(|part| part == "etcd-3.6"),
        "etcd-3.6 is missing"
    );
    eprintln!("skipped: etcd-3.6 is missing");
    None
}

/// A port that nobody has, below those that the kernel gives out by itself: the member comes back to it.
fn free() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = u16::try_from(std::process::id() % 900).unwrap_or(0) * 13;
        let address = SocketAddr::from(([127, 0, 0, 1], 20_000 + (own + step) % 12_000));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

impl Server {
    pub(crate) fn start() -> Option<Self> {
        Self::with(None)
    }

    /// One that speaks TLS and asks for certificates.
    pub(crate) fn with_tls(certificate: &Path, key: &Path, clients: &Path) -> Option<Self> {
        let files = [certificate, key, clients];
        Self::with(Some(files.map(Path::to_owned)))
    }

    fn with(tls: Option<[PathBuf; 3]>) -> Option<Self> {
        binary()?;
        let mut server = Self::member("one".to_owned(), tls);
        server.members = format!("one=http://{}", server.peer);
        server.run();
        Some(server)
    }

    /// Several that are one etcd.
    pub(crate) fn cluster(count: usize) -> Option<Vec<Self>> {
        binary()?;
        let names = (0..count).map(|number| format!("m{number}"));
        let mut servers: Vec<Self> = names.map(|name| Self::member(name, None)).collect();
        let members = servers
            .iter()
            .map(|one| format!("{}=http://{}", one.name, one.peer));
        let members = members.collect::<Vec<_>>().join(",");
        for server in &mut servers {
            server.members.clone_from(&members);
            server.begin();
        }
        for server in &mut servers {
            server.wait();
        }
        Some(servers)
    }

    fn member(name: String, tls: Option<[PathBuf; 3]>) -> Self {
        Self {
            child: None,
            dir: tempfile::tempdir().unwrap(),
            name,
            members: String::new(),
            client: free(),
            peer: free(),
            tls,
        }
    }

    /// Starts the member on what is in its directory.
    pub(crate) fn run(&mut self) {
        self.begin();
        self.wait();
    }

    fn begin(&mut self) {
        let (client, peer) = (self.client, self.peer);
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let scheme = self.scheme();
        let mut command = Command::new(binary().unwrap());
        if let Some([certificate, key, clients]) = &self.tls {
            command.arg("--cert-file").arg(certificate);
            command.arg("--key-file").arg(key);
            command.arg("--trusted-ca-file").arg(clients);
            command.arg("--client-cert-auth");
        }
        let child = command
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args([
                "--name",
                &self.name,
                "--unsafe-no-fsync",
                "--log-level",
                "error",
            ])
            .arg(format!("--listen-client-urls={scheme}://{client}"))
            .arg(format!("--advertise-client-urls={scheme}://{client}"))
            .arg(format!("--listen-peer-urls=http://{peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
            .arg(format!("--initial-cluster={}", self.members))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    fn wait(&mut self) {
        let child = self.child.as_mut().unwrap();
        let deadline = Instant::now() + START;
        while TcpStream::connect(self.client).is_err() {
            assert!(Instant::now() < deadline, "etcd does not start");
            assert_eq!(child.try_wait().unwrap(), None, "etcd ended");
            sleep(Duration::from_millis(20));
        }
    }

    /// Ends the member as a power cut does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }

    /// Its process, while there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.client
    }

    pub(crate) fn url(&self) -> EndpointUrl {
        let text = format!("{}://{}", self.scheme(), self.client);
        text.parse().unwrap()
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(10).collect();
            eprintln!("--- end of etcd's log");
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
        self.kill();
    }
}
