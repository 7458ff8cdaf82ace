//! Images from registries.

use super::registry::{Credentials, Repository};
use super::{
    Error, Image, Images, NewImage, Reference, Result, io_error, layer_name, parse_config,
};
use oci_spec::image::Descriptor;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

fn credentials(auth: Option<&davit_proto::cri::v1::AuthConfig>) -> Result<Credentials> {
    use base64::Engine;
    let Some(auth) = auth else {
        return Ok(Credentials::Anonymous);
    };
    if !auth.registry_token.is_empty() {
        return Ok(Credentials::Bearer(auth.registry_token.clone()));
    }
    if !auth.username.is_empty() {
        return Ok(Credentials::Basic(
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
        return Ok(Credentials::Basic(
            user.to_owned(),
            password.trim_end_matches('\0').to_owned(),
        ));
    }
    Ok(Credentials::Anonymous)
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
        let registry = |error: Error| match error {
            Error::Invalid(message) => Error::Registry {
                reference: reference.to_string(),
                message,
            },
            other => other,
        };
        let auth = credentials(auth)?;
        let wanted = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        };
        let mut repository =
            Repository::new(&reference.registry, &reference.repository, auth).map_err(registry)?;
        let found = repository.find(wanted).await.map_err(registry)?;
        let (id, config, diff_ids) = parse_config(&found.config)?;
        let layers = found.manifest.layers();
        if diff_ids.len() != layers.len() {
            return Err(Error::Invalid(format!(
                "{reference}: manifest and configuration disagree on the layers"
            )));
        }
        let new = NewImage {
            id,
            reference: Some(reference.clone()),
            manifest_digest: Some(found.digest),
            layers: diff_ids.iter().map(|id| layer_name(id)).collect(),
            config,
        };
        let mut fetched = BTreeMap::new();
        for _ in 0..ROUNDS {
            for (diff_id, layer) in diff_ids.iter().zip(layers) {
                if self.has_layer(diff_id) || fetched.contains_key(diff_id) {
                    continue;
                }
                let file = self.fetch(&mut repository, layer).await;
                fetched.insert(diff_id.clone(), file.map_err(registry)?);
            }
            let (images, new, layers) = (self.clone(), new.clone(), std::mem::take(&mut fetched));
            let placed = tokio::task::spawn_blocking(move || images.place(&layers, new));
            if let Some(image) = placed.await.map_err(|e| Error::Invalid(e.to_string()))?? {
                return Ok(image);
            }
        }
        Err(Error::Invalid(format!(
            "{reference}: its layers are removed while it is pulled"
        )))
    }

    /// Downloads a layer. No lock is held meanwhile: a registry may take as long as it likes.
    async fn fetch(&self, repository: &mut Repository, layer: &Descriptor) -> Result<Download> {
        self.room_for(layer.size())?;
        let download = Download(self.temporary());
        let made = tokio::fs::File::create(&download.0).await;
        let what = || format!("download layer {}", layer.digest());
        let mut file = made.map_err(io_error(what()))?;
        repository.blob(layer, &mut file).await?;
        Ok(download)
    }

    /// Puts downloaded layers in place and records the image; nothing when a layer that was there has been collected
    /// meanwhile.
    fn place(&self, fetched: &BTreeMap<String, Download>, new: NewImage) -> Result<Option<Image>> {
        let _in_use = self.layers_in_use()?;
        for (diff_id, download) in fetched {
            let file = fs::File::open(&download.0).map_err(io_error("read layer"))?;
            self.add_layer(diff_id, file)?;
        }
        let is_there = |layer: &String| self.layers.join(layer).is_dir();
        if !new.layers.iter().all(is_there) {
            return Ok(None);
        }
        self.record(new).map(Some)
    }
}

/// How often layers are fetched that were collected while others were.
const ROUNDS: usize = 3;

/// A file that is removed in the end.
struct Download(PathBuf);

impl Drop for Download {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_each_form() {
        let auth = |f: fn(&mut davit_proto::cri::v1::AuthConfig)| {
            let mut auth = davit_proto::cri::v1::AuthConfig::default();
            f(&mut auth);
            credentials(Some(&auth)).unwrap()
        };
        assert!(matches!(auth(|_| ()), Credentials::Anonymous));
        assert!(matches!(auth(|a| a.username = "u".into()), Credentials::Basic(u, _) if u == "u"));
        assert!(
            matches!(auth(|a| a.auth = "dTpwOnE=".into()), Credentials::Basic(u, p) if u == "u" && p == "p:q")
        );
        assert!(
            matches!(auth(|a| a.registry_token = "t".into()), Credentials::Bearer(t) if t == "t")
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
        let arch = davit_api::architecture();
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
