//! A small plugin on a real socket.

use std::path::Path;

use davit_proto::kms::v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use davit_proto::kms::v2::{DecryptResponse, EncryptResponse, StatusResponse};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::super::{Encryption, Naming, OwnNaming};
use super::*;

const KEY: &str = "/registry/core/secrets/default/s";
const ANNOTATION: &str = "salt.example.com";

/// What the plugin does, changed by tests meanwhile.
#[derive(Debug, Default)]
struct Mood {
    key_id: String,
    healthz: String,
    decrypted: usize,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Mood>>);

/// Encrypts by a mask that the key gives.
fn masked(key_id: &str, bytes: &[u8]) -> Vec<u8> {
    let mask = key_id.bytes().fold(0x5a, |mask, byte| mask ^ byte);
    bytes.iter().map(|byte| byte ^ mask).collect()
}

#[tonic::async_trait]
impl KeyManagementService for Fake {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let mood = self.0.lock();
        Ok(Response::new(StatusResponse {
            version: "v2".to_owned(),
            healthz: mood.healthz.clone(),
            key_id: mood.key_id.clone(),
        }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        let request = request.into_inner();
        if request.annotations.get(ANNOTATION).map(Vec::as_slice) != Some(b"pepper") {
            return Err(Status::invalid_argument("the annotation is missing"));
        }
        self.0.lock().decrypted += 1;
        let plaintext = masked(&request.key_id, &request.ciphertext);
        Ok(Response::new(DecryptResponse { plaintext }))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let key_id = self.0.lock().key_id.clone();
        Ok(Response::new(EncryptResponse {
            ciphertext: masked(&key_id, &request.into_inner().plaintext),
            key_id,
            annotations: [(ANNOTATION.to_owned(), b"pepper".to_vec())].into(),
        }))
    }
}

impl Fake {
    fn new() -> Self {
        let fake = Self::default();
        fake.set("k1", "ok");
        fake
    }

    fn set(&self, key_id: &str, healthz: &str) {
        let mut mood = self.0.lock();
        key_id.clone_into(&mut mood.key_id);
        healthz.clone_into(&mut mood.healthz);
    }

    fn serve(&self, socket: &Path, stop: &CancellationToken) -> tokio::task::JoinHandle<()> {
        let listener = davit_proto::unix::Listener::bind(socket).unwrap();
        let router =
            davit_proto::unix::server().add_service(KeyManagementServiceServer::new(self.clone()));
        let stop = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            davit_proto::unix::serve(listener, router, stop)
                .await
                .unwrap();
        })
    }
}

fn config(socket: &Path) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - kms: {{apiVersion: v2, name: fake, \
         endpoint: 'unix://{}', timeout: 2s}}\n  - identity: {{}}\n",
        socket.display()
    )
}

async fn read(encryption: &Encryption, stored: &Bytes) -> super::super::Plain {
    encryption.unlock(&OwnNaming.named(KEY), stored).await;
    encryption.decrypt(KEY, stored.clone()).unwrap()
}

#[tokio::test]
async fn values_are_written_by_seeds_that_the_plugin_encrypts() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kms.sock");
    let (fake, stop) = (Fake::new(), CancellationToken::new());
    let serving = fake.serve(&socket, &stop);
    let text = config(&socket);
    let encryption = Encryption::parse(&text).unwrap();
    assert!(encryption.has_plugins() && !encryption.faults().is_empty());
    encryption.ready(Duration::from_secs(5)).await.unwrap();
    assert!(encryption.faults().is_empty());

    let plain = Bytes::from_static(b"very secret");
    encryption.prepare(&OwnNaming.named(KEY)).await.unwrap();
    let old = encryption.encrypt(KEY, plain.clone()).unwrap();
    assert!(old.starts_with(b"k8s:enc:kms:v2:fake:"));
    assert!(!String::from_utf8_lossy(&old).contains("secret"));
    let found = read(&encryption, &old).await;
    assert_eq!((found.value, found.stale), (plain.clone(), false));
    // its own seed needs no plugin, another server's one call
    assert_eq!(fake.0.lock().decrypted, 0);
    let other = Encryption::parse(&text).unwrap();
    assert!(other.decrypt(KEY, old.clone()).is_err());
    for _ in 0..2 {
        assert_eq!(read(&other, &old).await.value, plain);
    }
    assert_eq!(fake.0.lock().decrypted, 1);
    // what was there before is read, and is to be written anew
    assert!(read(&encryption, &plain).await.stale);

    // a new key brings a new seed and makes what was written before stale
    fake.set("k2", "ok");
    let [plugin] = &encryption.plugins()[..] else {
        panic!("one plugin is configured")
    };
    plugin.refresh().await.unwrap();
    let found = read(&encryption, &old).await;
    assert_eq!((found.value, found.stale), (plain.clone(), true));
    let new = encryption.encrypt(KEY, plain.clone()).unwrap();
    assert!(!read(&encryption, &new).await.stale);

    // a plugin that is not well is told of; what it gave is used for a time
    fake.set("k2", "the vault is sealed");
    plugin.refresh().await.unwrap_err();
    let faults = encryption.faults();
    assert_eq!(
        faults,
        ["fake: got unexpected healthz status: the vault is sealed"]
    );
    encryption.encrypt(KEY, plain.clone()).unwrap();
    plugin.state.write().good_until = Some(Instant::now() - Duration::from_secs(1));
    let refused = encryption
        .prepare(&OwnNaming.named(KEY))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("has expired"), "{refused}");
    // a configuration whose plugin is not well is not taken over
    encryption.reload(&text).await.unwrap_err();
    fake.set("k2", "ok");
    encryption.reload(&text).await.unwrap();
    assert_eq!(read(&encryption, &new).await.value, plain);
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = Encryption::parse(&config(&dir.path().join("none.sock"))).unwrap();
    let error = encryption.ready(Duration::ZERO).await.unwrap_err();
    assert!(
        error.to_string().starts_with("kms plugin \"fake\": Status"),
        "{error}"
    );
    assert!(encryption.encrypt(KEY, Bytes::from_static(b"x")).is_err());
}

#[test]
fn configurations_with_faults_are_refused() {
    let with = |kms: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [secrets]\n  providers: [{{kms: {{{kms}}}}}]\n"
        );
        Encryption::parse(&text)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let endpoint = "endpoint: 'unix:///a'";
    assert!(with(&format!("name: a, {endpoint}")).contains("kms.apiVersion: must be v2"));
    assert!(with("apiVersion: v2, name: a, endpoint: 'tcp://a'").contains("kms.endpoint"));
    assert!(with(&format!("apiVersion: v2, name: 'a:b', {endpoint}")).contains("kms.name"));
    assert!(with(&format!("apiVersion: v2, name: a, {endpoint}, timeout: 0s")).contains("timeout"));
    assert!(
        with(&format!(
            "apiVersion: v2, name: a, {endpoint}, cachesize: 3"
        ))
        .contains("cachesize")
    );
}

#[test]
fn each_value_has_a_key_of_its_own() {
    let seed = [7; SEED_SIZE];
    let first = seal(&seed, b"key", b"value").unwrap();
    let second = seal(&seed, b"key", b"value").unwrap();
    assert_ne!(first[..INFO_SIZE], second[..INFO_SIZE]);
    assert_eq!(open(&seed, true, b"key", &first).unwrap(), b"value");
    assert!(open(&seed, true, b"other", &first).is_none());
    assert!(open(&[8; SEED_SIZE], true, b"key", &first).is_none());
    assert!(open(&seed, true, b"key", &first[..40]).is_none());
}

#[test]
fn answers_of_plugins_are_checked() {
    let annotations = |name: &str, size| BTreeMap::from([(name.to_owned(), vec![0; size])]);
    check_wrapped(&[1], &annotations("local-kek.kms.kubernetes.io", 10)).unwrap();
    assert!(check_wrapped(&[], &BTreeMap::new()).is_err());
    assert!(check_wrapped(&[0; 1025], &BTreeMap::new()).is_err());
    assert!(check_wrapped(&[1], &annotations("Upper.io", 1)).is_err());
    assert!(check_wrapped(&[1], &annotations("a.io", 32 * 1024)).is_err());
    assert!(check_key_id("").is_err() && check_key_id(&"k".repeat(1025)).is_err());
}
