//! Images from files: OCI layouts and Docker archives, as directories or (compressed) tar files.

use super::room::{Bounded, room};
use super::unpack::decompress;
use super::{
    Error, Images, NewImage, Reference, Result, io_error, layer_name, parse_config, sha256,
};
use davit_beneath::{Links, Root};
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

/// List of a Docker archive.
const DOCKER: &str = "manifest.json";
/// List of an OCI layout.
const OCI: &str = "index.json";
/// Lists, manifests and configurations are read into memory; registries take none above 4 MiB either.
const LIST_LIMIT: u64 = 4 * 1024 * 1024;

/// Names of images in an archive at most: for each the records of all are written anew.
const MAX_NAMES: usize = 1000;

/// Annotation with the full name of an image in an OCI index, written by containerd's tools.
const FULL_NAME: &str = "io.containerd.image.name";
/// Annotation with its tag, or its name, by the OCI specification.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// One image of a Docker archive's `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn import(images: &Images, path: &Path) -> Result<Vec<String>> {
    let open = |dir: &Path| Root::open(dir, Links::Inside).map_err(below("image archive"));
    if path.is_dir() {
        return import_dir(images, &open(path)?, path);
    }
    let temporary = images.temporary();
    let what = || format!("unpack {}", path.display());
    fs::create_dir(&temporary).map_err(io_error(what()))?;
    let imported = File::open(path)
        .and_then(decompress)
        .and_then(|source| Ok(Bounded::new(source, room(&temporary)?)))
        .and_then(|source| super::unpack::plain(source, &temporary))
        .map_err(io_error(what()))
        .and_then(|()| import_dir(images, &open(&temporary)?, path));
    let _ = davit_beneath::remove_tree(&temporary);
    imported
}

fn below(what: impl std::fmt::Display) -> impl FnOnce(davit_beneath::Error) -> Error {
    move |e| io_error(what.to_string())(e.into())
}

fn read_list(dir: &Root, name: &str) -> Result<Vec<u8>> {
    dir.read_limited(name, LIST_LIMIT)
        .map_err(below(format_args!("read {name}")))
}

fn read<T: serde::de::DeserializeOwned>(dir: &Root, name: &str) -> Result<T> {
    serde_json::from_slice(&read_list(dir, name)?)
        .map_err(|e| Error::Invalid(format!("{name}: {e}")))
}

/// A file of the archive by a name that the archive gives.
fn open(dir: &Root, name: &str) -> Result<File> {
    dir.open_file(name)
        .map_err(below(format_args!("read {name}")))
}

fn import_dir(images: &Images, dir: &Root, source: &Path) -> Result<Vec<String>> {
    // An archive may be both; Docker's list has the names in full.
    let names = if dir.entry(DOCKER).is_ok() {
        import_docker(images, dir, source)?
    } else if dir.entry(OCI).is_ok() {
        import_oci(images, dir, &read(dir, OCI)?, source)?
    } else {
        return Err(Error::Invalid(format!(
            "{}: neither an OCI layout (index.json) nor a Docker archive (manifest.json)",
            source.display()
        )));
    };
    if names.is_empty() {
        return Err(Error::Invalid(format!(
            "{}: no image for {}",
            source.display(),
            davit_api::architecture()
        )));
    }
    Ok(names)
}

/// A name for an image that came without one: the file's, with the tag if there is one.
fn name_from_file(source: &Path, tag: Option<&str>) -> Result<Reference> {
    let stem = source
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let stem = stem.split(['.', ':', '@']).next().unwrap_or_default();
    Ok(Reference::parse(&format!(
        "{stem}:{}",
        tag.unwrap_or("latest")
    ))?)
}

fn import_docker(images: &Images, dir: &Root, source: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for manifest in read::<Vec<DockerManifest>>(dir, DOCKER)? {
        let json = read_list(dir, &manifest.config)?;
        let (id, config, diff_ids) = parse_config(&json)?;
        if diff_ids.len() != manifest.layers.len() {
            return Err(Error::Invalid(
                "manifest.json and image configuration disagree on the layers".to_owned(),
            ));
        }
        let _in_use = images.layers_in_use()?;
        for (diff_id, layer) in diff_ids.iter().zip(&manifest.layers) {
            images.add_layer(diff_id, open(dir, layer)?)?;
        }
        let mut references = Vec::new();
        for tag in manifest.repo_tags.iter().flatten() {
            references.push(Reference::parse(tag)?);
        }
        if references.is_empty() {
            references.push(name_from_file(source, None)?);
        }
        for reference in references {
            push_name(&mut names, &reference)?;
            images.record(NewImage {
                id: id.clone(),
                reference: Some(reference),
                manifest_digest: None,
                layers: diff_ids.iter().map(|id| layer_name(id)).collect(),
                config: config.clone(),
            })?;
        }
    }
    Ok(names)
}

fn push_name(names: &mut Vec<String>, name: &Reference) -> Result<()> {
    if names.len() == MAX_NAMES {
        return Err(Error::Invalid(format!(
            "the archive names more than {MAX_NAMES} images"
        )));
    }
    names.push(name.to_string());
    Ok(())
}

fn blob(digest: &str) -> Result<String> {
    match digest.split_once(':') {
        Some(("sha256", hex)) if super::reference::is_digest(digest) => {
            Ok(format!("blobs/sha256/{hex}"))
        }
        _ => Err(Error::Invalid(format!(
            "digest {digest:?} is not supported"
        ))),
    }
}

/// The bytes of a blob, checked against its digest.
fn read_blob(dir: &Root, digest: &str) -> Result<Vec<u8>> {
    let bytes = read_list(dir, &blob(digest)?)?;
    if sha256(&bytes) == digest {
        Ok(bytes)
    } else {
        Err(Error::Invalid(format!("blob {digest} has other content")))
    }
}

fn import_oci(
    images: &Images,
    dir: &Root,
    index: &ImageIndex,
    source: &Path,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for descriptor in index.manifests() {
        let none = BTreeMap::new();
        let annotations: BTreeMap<_, _> = descriptor
            .annotations()
            .as_ref()
            .map_or(none, |map| map.iter().collect());
        let text = |key: &str| annotations.get(&key.to_owned()).map(|value| value.as_str());
        let reference = match (text(FULL_NAME), text(REF_NAME)) {
            (Some(name), _) => Reference::parse(name)?,
            (None, Some(name)) if name.contains([':', '/']) => Reference::parse(name)?,
            (None, tag) => name_from_file(source, tag)?,
        };
        let Some((digest, manifest)) = manifest(dir, descriptor, 0)? else {
            continue;
        };
        let json = read_blob(dir, manifest.config().digest().as_ref())?;
        let (id, config, diff_ids) = parse_config(&json)?;
        if diff_ids.len() != manifest.layers().len() {
            return Err(Error::Invalid(
                "manifest and image configuration disagree on the layers".to_owned(),
            ));
        }
        let _in_use = images.layers_in_use()?;
        for (diff_id, layer) in diff_ids.iter().zip(manifest.layers()) {
            // Uncompressed content is checked; it has the digest that the (checked) configuration names.
            images.add_layer(diff_id, open(dir, &blob(layer.digest().as_ref())?)?)?;
        }
        push_name(&mut names, &reference)?;
        images.record(NewImage {
            id,
            reference: Some(reference),
            manifest_digest: Some(digest),
            layers: diff_ids.iter().map(|id| layer_name(id)).collect(),
            config,
        })?;
    }
    Ok(names)
}

fn is_ours(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_none_or(|platform| {
        platform.os().to_string() == "linux"
            && platform.architecture().to_string() == davit_api::architecture()
    })
}

/// The image manifest behind a descriptor: itself, or this machine's entry of an index. `None` for other machines'.
fn manifest(
    dir: &Root,
    descriptor: &Descriptor,
    depth: u8,
) -> Result<Option<(String, ImageManifest)>> {
    const MAX_DEPTH: u8 = 4;
    if !is_ours(descriptor) {
        return Ok(None);
    }
    let digest = descriptor.digest().to_string();
    let bytes = read_blob(dir, &digest)?;
    let invalid = |e: serde_json::Error| Error::Invalid(format!("manifest {digest}: {e}"));
    let is_index = match descriptor.media_type() {
        MediaType::ImageIndex => true,
        MediaType::Other(kind) => kind.contains("manifest.list"),
        _ => false,
    };
    if !is_index {
        return Ok(Some((
            digest.clone(),
            serde_json::from_slice(&bytes).map_err(invalid)?,
        )));
    }
    if depth >= MAX_DEPTH {
        return Err(Error::Invalid(
            "image index is nested too deeply".to_owned(),
        ));
    }
    let index: ImageIndex = serde_json::from_slice(&bytes).map_err(invalid)?;
    for entry in index.manifests() {
        if let Some((_, found)) = manifest(dir, entry, depth + 1)? {
            return Ok(Some((digest, found)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An OCI layout with an image for this machine and one for another, behind an index.
    fn layout(dir: &Path, annotations: &serde_json::Value) {
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let put = |bytes: &[u8], kind: &str| {
            let digest = sha256(bytes);
            fs::write(blobs.join(&digest[7..]), bytes).unwrap();
            json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len()})
        };
        let (tar, diff_id) = crate::image::tests::layer_tar();
        let config = json!({"architecture": davit_api::architecture(), "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [diff_id]}});
        let manifest = json!({"schemaVersion": 2,
            "config": put(config.to_string().as_bytes(), "config.v1+json"), "layers": [put(&tar, "layer.v1.tar")]});
        let mut ours = put(manifest.to_string().as_bytes(), "manifest.v1+json");
        let mut other = ours.clone();
        ours["platform"] = json!({"os": "linux", "architecture": davit_api::architecture()});
        other["platform"] = json!({"os": "linux", "architecture": "s390x"});
        other["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
        let index = json!({"schemaVersion": 2, "manifests": [other, ours]});
        let mut top = put(index.to_string().as_bytes(), "index.v1+json");
        top["annotations"] = annotations.clone();
        fs::write(
            dir.join("index.json"),
            json!({"schemaVersion": 2, "manifests": [top]}).to_string(),
        )
        .unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    #[test]
    fn oci_layouts() {
        let dir = tempfile::tempdir().unwrap();
        for (annotations, name) in [
            (json!({FULL_NAME: "quay.io/a/b:2"}), "quay.io/a/b:2"),
            (json!({REF_NAME: "ghcr.io/a/b:3"}), "ghcr.io/a/b:3"),
            (json!({REF_NAME: "v4"}), "docker.io/library/my-app:v4"),
            (json!({}), "docker.io/library/my-app:latest"),
        ] {
            let source = dir.path().join("My-App");
            layout(&source, &annotations);
            let images = Images::open(&dir.path().join("store"), false).unwrap();
            assert_eq!(images.import(&source).unwrap(), [name]);
            let image = images.find(name).unwrap().unwrap();
            assert_eq!(
                fs::read(images.layers_dir().join(&image.layers[0]).join("file")).unwrap(),
                b"hi"
            );
            assert!(!image.digests.is_empty());
        }
    }

    #[test]
    fn layouts_in_tar_files() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("layout");
        layout(&source, &json!({REF_NAME: "a.io/x:1"}));
        let file = dir.path().join("x.tar.gz");
        let gzip = flate2::write::GzEncoder::new(
            File::create(&file).unwrap(),
            flate2::Compression::fast(),
        );
        let mut builder = tar::Builder::new(gzip);
        builder.append_dir_all(".", &source).unwrap();
        builder.into_inner().unwrap().finish().unwrap();
        let images = Images::open(&dir.path().join("store"), false).unwrap();
        assert_eq!(images.import(&file).unwrap(), ["a.io/x:1"]);
        fs::write(&file, "no archive").unwrap();
        assert!(images.import(&file).is_err());
        assert!(images.import(&dir.path().join("missing")).is_err());
        assert_eq!(
            fs::read_dir(dir.path().join("store/images/tmp"))
                .unwrap()
                .count(),
            0
        );
    }

    /// A list of four megabytes has room for hundreds of thousands, and each is written with all before it.
    #[test]
    fn names_have_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("many");
        let (tar, diff_id) = crate::image::tests::layer_tar();
        let config = json!({"architecture": davit_api::architecture(), "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [diff_id]}});
        fs::create_dir(&source).unwrap();
        fs::write(source.join("c"), config.to_string()).unwrap();
        fs::write(source.join("l"), tar).unwrap();
        let images = Images::open(&dir.path().join("store"), false).unwrap();
        // The same name again costs nothing, but counts.
        let list =
            json!([{"Config": "c", "RepoTags": vec!["a:1"; MAX_NAMES + 1], "Layers": ["l"]}]);
        fs::write(source.join(DOCKER), list.to_string()).unwrap();
        let refused = images.import(&source).unwrap_err().to_string();
        assert!(refused.contains("names more than 1000 images"), "{refused}");
    }

    #[test]
    fn changed_blobs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("layout");
        layout(&source, &json!({}));
        for blob in fs::read_dir(source.join("blobs/sha256")).unwrap().flatten() {
            let good = fs::read(blob.path()).unwrap();
            let mut bad = good.clone();
            bad.extend_from_slice(b" ");
            fs::write(blob.path(), &bad).unwrap();
            let store = tempfile::tempdir().unwrap();
            assert!(
                Images::open(store.path(), false)
                    .unwrap()
                    .import(&source)
                    .is_err(),
                "{:?}",
                blob.path()
            );
            fs::write(blob.path(), good).unwrap();
        }
    }
}
