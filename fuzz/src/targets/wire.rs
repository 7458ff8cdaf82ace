//! What comes over sockets: streams, images, answers of plugins.

use davit_store::backup::{BackupEncoder, BackupReader};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_dns::message::{Outcome, respond};
use davit_dns::{Transport, Zone};
use davit_streaming::spdy::Session;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::{Builder, Runtime};

thread_local! {
    /// One thread, so that inputs do not meet.
    static RUNTIME: Option<Runtime> = Builder::new_current_thread().enable_time().build().ok();
    static ZONE: Option<Zone> = zone();
    /// Where images of this thread go.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// Any bytes of a client as a SPDY session: it ends when the client does.
pub fn spdy(data: &[u8]) {
    // As long as a busy machine may keep both ends waiting.
    const LONG: Duration = Duration::from_secs(60);
    let session = async {
        let (client, server) = duplex(1 << 16);
        let mut session = Session::serve(server);
        let (mut answers, mut bytes) = tokio::io::split(client);
        let sent = async {
            // The session may end before all is read.
            let _refused = bytes.write_all(data).await;
            let _refused = bytes.shutdown().await;
        };
        let read = async {
            let mut buffer = vec![0; 4096];
            while matches!(answers.read(&mut buffer).await, Ok(n) if n > 0) {}
        };
        let served = async move {
            let mut streams = tokio::task::JoinSet::new();
            while let Some(stream) = session.accept().await {
                let (mut from, mut to) = stream.split();
                streams.spawn(async move {
                    let _refused = to.write_all(b"x").await;
                    let _ended = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
                });
            }
            streams.join_all().await;
        };
        tokio::join!(sent, served, read);
    };
    RUNTIME.with(|runtime| {
        let Some(runtime) = runtime else { return };
        let ended = runtime.block_on(async { tokio::time::timeout(LONG, session).await });
        assert!(
            ended.is_ok(),
            "the session goes on after its client has ended"
        );
    });
}

/// Any bytes as a question for a name: an answer is no longer than the client takes, and repeats the question's number.
pub fn dns(data: &[u8]) {
    let [connection, message @ ..] = data else {
        return;
    };
    let transport = match connection % 2 {
        0 => Transport::Udp,
        _ => Transport::Tcp,
    };
    let limit = match transport {
        Transport::Udp => 1232,
        Transport::Tcp => 65_535,
    };
    ZONE.with(|zone| {
        let Some(zone) = zone else { return };
        let outcome = respond(message, transport, true, |query| zone.answer(query));
        if let Outcome::Reply(reply) = outcome {
            assert!(reply.bytes.len() <= limit, "longer than the client takes");
            assert_eq!(reply.bytes.get(..2), message.get(..2), "another number");
        }
    });
}

/// A zone with a Service, one of another name, and everything seen.
fn zone() -> Option<Zone> {
    let service = |name: &str, spec: serde_json::Value| -> Option<Service> {
        let object = json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec });
        serde_json::from_value(object).ok()
    };
    let mut zone = Zone::new("cluster.local", 5).ok()?;
    let ports = json!([{ "name": "http", "protocol": "TCP", "port": 80 }]);
    let web = json!({ "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": ports });
    let out = json!({ "type": "ExternalName", "externalName": "web.default.svc.cluster.local" });
    zone.apply_namespace("default");
    zone.apply_service(&service("web", web)?);
    zone.apply_service(&service("pod", out)?);
    zone.set_synced(true);
    Some(zone)
}

/// Any answer of a device plugin: it is taken in without harm, and what is given to a container is not more than it said.
pub fn plugin(data: &[u8]) {
    let [kind, message @ ..] = data else { return };
    if kind % 2 == 0 {
        if let Some(devices) = davit_containermanager::devices::read_list(message) {
            assert!(devices.len() <= message.len(), "more devices than bytes");
        }
    } else if let Some((given, conflicts)) =
        davit_containermanager::devices::read_allocation(message)
    {
        assert!(given + conflicts <= message.len(), "more than was said");
    }
}

/// A store of images beside files that no image may touch.
#[derive(Debug)]
pub(super) struct Place {
    outer: PathBuf,
    pub(super) images: Arc<davit_oci::Images>,
    /// Inputs since the store was made anew.
    used: u32,
}

const UNTOUCHED: &[u8] = b"as it was";
/// Inputs after which a store is made anew.
const MOST: u32 = 200;

impl Place {
    fn make() -> Option<Self> {
        let thread = format!("{:?}", std::thread::current().id());
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let outer = std::env::temp_dir();
        let outer = outer.join(format!("davit-fuzz-{}-{thread}", std::process::id()));
        let _gone = std::fs::remove_dir_all(&outer);
        std::fs::create_dir_all(outer.join("store")).ok()?;
        std::fs::write(outer.join("sentinel"), UNTOUCHED).ok()?;
        let images = Arc::new(davit_oci::Images::open(&outer.join("store"), false).ok()?);
        let used = 0;
        Some(Self {
            outer,
            images,
            used,
        })
    }

    /// A place for one more input: that of the last ones, or a new one.
    pub(super) fn next(slot: &mut Option<Self>) -> Option<&mut Self> {
        if slot.as_ref().is_none_or(|place| place.used >= MOST) {
            // The old one goes before the new one is made in its place.
            *slot = None;
            *slot = Self::make();
        }
        let place = slot.as_mut()?;
        place.used += 1;
        Some(place)
    }

    /// Nothing but the store and the file, and the file as it was.
    pub(super) fn check(&self) {
        let sentinel = self.outer.join("sentinel");
        assert_eq!(std::fs::read(&sentinel).ok().as_deref(), Some(UNTOUCHED));
        let mode = std::fs::symlink_metadata(&sentinel)
            .map(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o7000);
        assert_eq!(mode.ok(), Some(0), "mode of a file outside");
        let entries = std::fs::read_dir(&self.outer).into_iter().flatten();
        let names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        assert!(names.len() <= 3, "made outside: {names:?}");
        assert!(
            !Path::new("/davit-fuzz").exists(),
            "made in the host's root"
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.outer);
    }
}

/// Any archive as an image: layers, documents and names; nothing outside the store changes.
pub fn image(data: &[u8]) {
    PLACE.with_borrow_mut(|slot| {
        let Some(place) = Place::next(slot) else {
            return;
        };
        let archive = place.outer.join("archive");
        if std::fs::write(&archive, data).is_err() {
            return;
        }
        if let Ok(names) = place.images.import(&archive) {
            for name in names {
                let found = place.images.find(&name);
                assert!(matches!(found, Ok(Some(_))), "{name} was imported");
                let _removed = place.images.remove(&name);
            }
        }
        place.check();
    });
}

/// Any file as a backup: one that is whole is written again byte by byte from what was read of it.
pub fn backup(data: &[u8]) {
    let Ok(reader) = BackupReader::new(data) else {
        return;
    };
    let (mut encoder, first) = BackupEncoder::begin(reader.revision());
    let mut written = first.to_vec();
    for pair in reader {
        let Ok(pair) = pair else { return };
        written.extend_from_slice(&encoder.pairs(&[pair]));
    }
    written.extend_from_slice(&encoder.end());
    assert_eq!(written, data);
}
