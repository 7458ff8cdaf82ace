//! `davit image`: the images of the embedded runtime.

use crate::args::{Image, ImageAction};
use crate::output::{ListOutput, names};
use crate::{paths, table};
use anyhow::{Context, Result, bail};
use davit_oci::Images;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) async fn run(args: Image) -> Result<()> {
    let data_dir = data_dir(args.data_dir.as_deref())?;
    let dir = paths::runtime_dir(&data_dir);
    let adds = matches!(
        args.action,
        ImageAction::Import { .. } | ImageAction::Pull { .. }
    );
    if args.data_dir.is_none() && !dir.is_dir() {
        let place = data_dir.display();
        if !adds {
            bail!(
                "no davit with the embedded runtime has run in {place}; name its data directory with --data-dir DIR"
            );
        }
        eprintln!("no davit has run in {place} yet: the images are for one that will");
    }
    paths::protect_data_dir(&data_dir)?;
    let images =
        Images::open(&dir, false).with_context(|| format!("image store in {}", dir.display()))?;
    let images = Arc::new(images);
    tokio::task::spawn_blocking(move || act(&images, args.action))
        .await
        .context("image store")?
}

/// The data directory of the cluster that is meant: the one named, or that of the kubeconfig in the environment where it
/// is a davit's of this machine, or the usual one.
fn data_dir(asked: Option<&Path>) -> Result<PathBuf> {
    let kubeconfig = std::env::var_os("KUBECONFIG");
    let of_kubeconfig = kubeconfig.as_deref().and_then(|file| {
        let dir = Path::new(file).parent()?;
        (Path::new(file) == paths::admin_kubeconfig(dir) && paths::runtime_dir(dir).is_dir())
            .then_some(dir)
    });
    paths::data_dir(asked.or(of_kubeconfig))
}

async fn pull(images: &Arc<Images>, names: &[String]) -> Result<()> {
    for name in names {
        let pulled = images.pull(name, None).await;
        let pulled = pulled.with_context(|| format!("cannot pull {name}"))?;
        println!("{name} {}", pulled.id);
    }
    Ok(())
}

fn act(images: &Arc<Images>, action: ImageAction) -> Result<()> {
    match action {
        ImageAction::Import { file } => {
            let names = images
                .import(&file)
                .with_context(|| format!("cannot import {}", file.display()))?;
            for name in names {
                println!("{}", crate::plain::printable(&name));
            }
        }
        ImageAction::Pull { images: names } => {
            tokio::runtime::Handle::current().block_on(pull(images, &names))?;
        }
        ImageAction::List { output } => print!("{}", format(&images.list()?, output)?),
        ImageAction::Rm { images: names } => {
            for name in names {
                let removed = images
                    .remove(&name)
                    .with_context(|| format!("cannot remove {name}"))?;
                anyhow::ensure!(removed, "there is no image {name}");
                println!("{name}");
            }
        }
    }
    Ok(())
}

fn format(images: &[davit_oci::image::Image], output: Option<ListOutput>) -> Result<String> {
    Ok(match output {
        Some(ListOutput::Json) => format!("{}\n", serde_json::to_string_pretty(images)?),
        Some(ListOutput::Yaml) => serde_saphyr::to_string(&images)?,
        // What `davit image rm` takes: an image without a name has its ID.
        Some(ListOutput::Name) => names(images.iter().flat_map(|image| {
            let named = image.tags.iter().chain(&image.digests);
            let id = named.clone().next().is_none().then_some(&image.id);
            named.chain(id).map(String::as_str)
        })),
        Some(ListOutput::Wide) | None => {
            let row = |image: &davit_oci::image::Image| {
                let names: Vec<&str> = image
                    .tags
                    .iter()
                    .chain(&image.digests)
                    .map(String::as_str)
                    .collect();
                let names = if names.is_empty() {
                    "<none>".to_owned()
                } else {
                    names.join(",")
                };
                vec![
                    names,
                    image.id.clone(),
                    format!("{:.1} MiB", image.size as f64 / f64::from(1 << 20)),
                ]
            };
            let rows: Vec<Vec<String>> = images.iter().map(row).collect();
            table::render(&["NAME", "IMAGE ID", "SIZE"], &rows)
        }
    })
}
