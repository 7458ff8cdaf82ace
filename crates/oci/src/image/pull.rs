//! Images from registries.

use super::{
    Error, Image, Images, NewImage, Reference, Result, io_error, layer_name, parse_config,
};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference as Remote};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// Registries on this machine speak plain HTTP, as for Docker.
fn is_local(registry: &str) -> bool {
    let host = registry
        .strip_prefix('[')
        .and_then(|r| r.split(']').next())
        .unwrap_or_else(|| registry.rsplit_once(':').map_or(registry, |(host, _)| host));
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn client(reference: &Reference) -> Client {
    let protocol = if is_local(&reference.registry) {
        ClientProtocol::HttpsExcept(vec![reference.registry.clone()])
    } else {
        ClientProtocol::Https
    };
    let platform = |entries: &[oci_client::manifest::ImageIndexEntry]| {
        let ours = |entry: &&oci_client::manifest::ImageIndexEntry| {
            entry.platform.as_ref().is_some_and(|platform| {
                platform.os.to_string() == "linux"
                    && platform.architecture.to_string() == super::architecture()
            })
        };
        entries.iter().find(ours).map(|entry| entry.digest.clone())
    };
    Client::new(ClientConfig {
        protocol,
        platform_resolver: Some(Box::new(platform)),
        connect_timeout: Some(Duration::from_secs(30)),
        // Between two pieces of data, not for the whole.
        read_timeout: Some(Duration::from_secs(60)),
        ..ClientConfig::default()
    })
}

fn credentials(auth: Option<&davit_proto::cri::v1::AuthConfig>) -> Result<RegistryAuth> {
    use base64::Engine;
    let Some(auth) = auth else {
        return Ok(RegistryAuth::Anonymous);
    };
    if !auth.registry_token.is_empty() {
        return Ok(RegistryAuth::Bearer(auth.registry_token.clone()));
    }
    if !auth.username.is_empty() {
        return Ok(RegistryAuth::Basic(
            auth.username.clone(),
            auth.password.clone(),
        ));
    }
    if !auth.auth.is_empty() {
        let invalid = || {
            Error::Invalid("registry credentials: auth is not base64 of user:password".to_owned())
        };
        let text = base64::engine::general_purpose::STANDARD
            .decode(auth.auth.trim())
            .map_err(|_| invalid())?;
        let text = String::from_utf8(text).map_err(|_| invalid())?;
        let (user, password) = text.split_once(':').ok_or_else(invalid)?;
        return Ok(RegistryAuth::Basic(
            user.to_owned(),
            password.trim_end_matches('\0').to_owned(),
        ));
    }
    Ok(RegistryAuth::Anonymous)
}

impl Images {
    /// Pulls an image from its registry; layers that are there already are not fetched. Dropping the future stops it.
    pub async fn pull(
        self: &Arc<Self>,
        name: &str,
        auth: Option<&davit_proto::cri::v1::AuthConfig>,
    ) -> Result<Image> {
        let reference = Reference::parse(name)?;
        if reference.name() == super::HOST_IMAGE {
            return self.find(name)?.ok_or(Error::HostImageForbidden);
        }
        let registry = |e: oci_client::errors::OciDistributionError| Error::Registry {
            reference: reference.to_string(),
            message: e.to_string(),
        };
        let auth = credentials(auth)?;
        let client = client(&reference);
        let remote = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => Remote::with_digest(
                reference.registry.clone(),
                reference.repository.clone(),
                digest.clone(),
            ),
            (None, tag) => Remote::with_tag(
                reference.registry.clone(),
                reference.repository.clone(),
                tag.clone().unwrap_or_else(|| "latest".to_owned()),
            ),
        };
        let (manifest, digest, json) = client
            .pull_manifest_and_config(&remote, &auth)
            .await
            .map_err(registry)?;
        let (id, config, diff_ids) = parse_config(json.as_bytes())?;
        if id != manifest.config.digest {
            return Err(Error::Invalid(format!(
                "{reference}: configuration {} has other content",
                manifest.config.digest
            )));
        }
        if diff_ids.len() != manifest.layers.len() {
            return Err(Error::Invalid(format!(
                "{reference}: manifest and configuration disagree on the layers"
            )));
        }
        let _in_use = self.layers_in_use()?;
        for (diff_id, layer) in diff_ids.iter().zip(&manifest.layers) {
            if self.has_layer(diff_id) {
                continue;
            }
            let temporary = self.temporary();
            let what = || format!("download layer {}", layer.digest);
            let fetched = async {
                let file = tokio::fs::File::create(&temporary)
                    .await
                    .map_err(io_error(what()))?;
                client
                    .pull_blob(&remote, layer, file)
                    .await
                    .map_err(registry)
            };
            let outcome = match fetched.await {
                Ok(()) => {
                    let (images, diff_id, path) =
                        (self.clone(), diff_id.clone(), temporary.clone());
                    tokio::task::spawn_blocking(move || {
                        let file = fs::File::open(&path).map_err(io_error("read layer"))?;
                        images.add_layer(&diff_id, file)
                    })
                    .await
                    .map_err(|e| Error::Invalid(e.to_string()))?
                }
                Err(error) => Err(error),
            };
            let _ = fs::remove_file(&temporary);
            outcome?;
        }
        let images = self.clone();
        let new = NewImage {
            id,
            reference: Some(reference),
            manifest_digest: Some(digest),
            layers: diff_ids.iter().map(|id| layer_name(id)).collect(),
            config,
        };
        tokio::task::spawn_blocking(move || images.record(new))
            .await
            .map_err(|e| Error::Invalid(e.to_string()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for local in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
        ] {
            assert!(is_local(local), "{local}");
        }
        for remote in ["docker.io", "10.0.0.1:5000", "localhost.example"] {
            assert!(!is_local(remote), "{remote}");
        }
    }

    #[test]
    fn credentials_in_each_form() {
        let auth = |f: fn(&mut davit_proto::cri::v1::AuthConfig)| {
            let mut auth = davit_proto::cri::v1::AuthConfig::default();
            f(&mut auth);
            credentials(Some(&auth)).unwrap()
        };
        assert!(matches!(auth(|_| ()), RegistryAuth::Anonymous));
        assert!(matches!(auth(|a| a.username = "u".into()), RegistryAuth::Basic(u, _) if u == "u"));
        assert!(
            matches!(auth(|a| a.auth = "dTpwOnE=".into()), RegistryAuth::Basic(u, p) if u == "u" && p == "p:q")
        );
        assert!(
            matches!(auth(|a| a.registry_token = "t".into()), RegistryAuth::Bearer(t) if t == "t")
        );
    }

    /// A registry that serves what is in the map, over plain HTTP, one request a connection.
    async fn registry(
        content: std::collections::HashMap<String, (&'static str, Vec<u8>)>,
    ) -> (u16, tokio::task::JoinHandle<()>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap();
                let (status, kind, body) = match content.get(path) {
                    Some((kind, body)) => ("200 OK", *kind, body.clone()),
                    None => (
                        "404 Not Found",
                        "application/json",
                        br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#
                            .to_vec(),
                    ),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&body).await.unwrap();
            }
        };
        (port, tokio::spawn(serve))
    }

    #[tokio::test]
    async fn pulls_from_a_registry() {
        use std::io::Write;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (layer, diff_id) = crate::image::tests::layer_tar();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&layer).unwrap();
        let (layer, blob) = (gzip.finish().unwrap(), "application/octet-stream");
        let arch = crate::image::architecture();
        let config = format!(
            r#"{{"architecture":"{arch}","os":"linux","config":{{"User":"7"}},"rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#
        );
        let digest = |bytes: &[u8]| crate::image::sha256(bytes);
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{kind}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{}","size":{}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{}","size":{}}}]}}"#,
            digest(config.as_bytes()),
            config.len(),
            digest(&layer),
            layer.len()
        );
        let manifest_digest = digest(manifest.as_bytes());
        let content = [
            ("/v2/".to_owned(), ("application/json", b"{}".to_vec())),
            (
                "/v2/team/app/manifests/1".to_owned(),
                (kind, manifest.clone().into_bytes()),
            ),
            (
                format!("/v2/team/app/manifests/{manifest_digest}"),
                (kind, manifest.into_bytes()),
            ),
            (
                format!("/v2/team/app/blobs/{}", digest(config.as_bytes())),
                (blob, config.clone().into_bytes()),
            ),
            (
                format!("/v2/team/app/blobs/{}", digest(&layer)),
                (blob, layer),
            ),
        ];
        let (port, server) = registry(content.into()).await;
        let dir = tempfile::tempdir().unwrap();
        let images = Arc::new(Images::open(dir.path(), false).unwrap());
        let name = format!("localhost:{port}/team/app");
        let image = images.pull(&format!("{name}:1"), None).await.unwrap();
        assert_eq!(
            (image.id.as_str(), image.config.user.as_str()),
            (digest(config.as_bytes()).as_str(), "7")
        );
        assert_eq!(
            fs::read(images.layers_dir().join(&image.layers[0]).join("file")).unwrap(),
            b"hi"
        );
        let by_digest = format!("{name}@{manifest_digest}");
        assert_eq!(images.find(&by_digest).unwrap().unwrap().id, image.id);
        assert_eq!(images.pull(&by_digest, None).await.unwrap().id, image.id);
        let missing = images
            .pull(&format!("{name}:2"), None)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            missing.starts_with(&format!("failed to pull {name}:2: ")),
            "{missing}"
        );
        server.abort();
    }
}
