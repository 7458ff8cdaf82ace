//! Item 12.1.20: TLS with client certificates, and files that cannot be used.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_etcd::{EtcdOptions, EtcdStore, TlsFiles};
use davit_store::{Store, Write};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use server::Server;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(file: &Path) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let made = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(file, made.pem()).unwrap();
    made
}

/// Certificate and key of a name, in files.
fn identity(dir: &Path, name: &str, authority: &Authority) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), name.to_owned()];
    let params = CertificateParams::new(names).unwrap();
    let made = params.signed_by(&key, authority).unwrap();
    let files = (
        dir.join(format!("{name}.pem")),
        dir.join(format!("{name}.key")),
    );
    std::fs::write(&files.0, made.pem()).unwrap();
    std::fs::write(&files.1, key.serialize_pem()).unwrap();
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_both_sides_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let trusted = authority(&ca);
    let (certificate, key) = identity(dir.path(), "server", &trusted);
    let Some(server) = Server::with_tls(&certificate, &key, &ca) else {
        return;
    };
    let client = identity(dir.path(), "client", &trusted);
    let open = async |tls: TlsFiles| {
        let mut options = EtcdOptions::new(vec![server.url()], "tls");
        options.tls = tls;
        options.patience = Duration::from_secs(1);
        EtcdStore::open(options).await
    };
    let good = TlsFiles {
        ca: Some(ca.clone()),
        identity: Some(client.clone()),
    };
    let store = open(good.clone()).await.unwrap();
    store.commit(Write::create("/a", "x")).await.unwrap();

    // Renewed files are used by the next connection: the store is opened with them in the same place.
    let _renewed = identity(dir.path(), "client", &trusted);
    let again = open(good.clone()).await.unwrap();
    assert_eq!(again.get("/a").await.unwrap().unwrap().value, "x");

    let other = dir.path().join("other.pem");
    let stranger = identity(dir.path(), "stranger", &authority(&other));
    for (tls, why) in [
        (
            TlsFiles {
                ca: Some(other.clone()),
                ..good.clone()
            },
            "invalid peer certificate",
        ),
        (
            TlsFiles {
                identity: Some(stranger),
                ..good.clone()
            },
            "",
        ),
        (
            TlsFiles {
                identity: None,
                ..good.clone()
            },
            "",
        ),
        (
            TlsFiles {
                ca: Some(dir.path().join("none.pem")),
                ..good.clone()
            },
            "none.pem",
        ),
    ] {
        let error = open(tls).await.err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}
