//! Serves an empty cluster's API on a port, for trying clients against it:
//! `cargo run -p davit-apiserver --example serve -- DIR [PORT]` prints the kubeconfig's path.

use std::path::PathBuf;
use std::time::Instant;

use davit_access::authn::StaticToken;
use davit_apiserver::{ApiServer, Options};
use davit_pki::{Kubeconfig, write_kubeconfig};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: serve DIR [PORT]")?);
    let port: u16 = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let store = EmbeddedStore::open(dir.join("store"), EmbeddedOptions::default()).await?;
    let opened = started.elapsed();
    let mut options = Options::new(std::sync::Arc::new(store));
    options.data_dir = Some(dir.clone());
    options.static_tokens = vec![StaticToken {
        token: "secret".to_owned(),
        user: "tester".to_owned(),
        uid: String::new(),
        groups: vec!["system:masters".to_owned()],
    }];
    let server = ApiServer::new(options).await?;
    println!(
        "store opened after {opened:?}, server made after {:?}",
        started.elapsed()
    );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("https://{}", listener.local_addr()?);
    let path = dir.join("kubeconfig");
    let pki = server.pki().ok_or("the server has a data directory")?;
    let identity = pki.admin()?;
    let config = Kubeconfig {
        server_name: None,
        cluster: "davit",
        user: "admin",
        server: &url,
        ca: pki.ca_certificate(),
        identity: &identity,
    };
    write_kubeconfig(&path, &config)?;
    println!(
        "ready in {:?}  kubeconfig={}  server={url}",
        started.elapsed(),
        path.display()
    );
    server.serve(listener, CancellationToken::new()).await?;
    Ok(())
}
