//! `davit image`: the images of the embedded runtime.

use crate::args::{Image, ImageAction, Output};
use crate::{components, paths, table};
use anyhow::{Context, Result};
use davit_oci::Images;

pub(crate) async fn run(args: Image) -> Result<()> {
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    paths::protect_data_dir(&data_dir)?;
    let dir = components::runtime_dir(&data_dir);
    let images =
        Images::open(&dir, false).with_context(|| format!("image store in {}", dir.display()))?;
    tokio::task::spawn_blocking(move || act(&images, args.action))
        .await
        .context("image store")?
}

fn act(images: &Images, action: ImageAction) -> Result<()> {
    match action {
        ImageAction::Import { file } => {
            let names = images
                .import(&file)
                .with_context(|| format!("cannot import {}", file.display()))?;
            for name in names {
                println!("{name}");
            }
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

fn format(images: &[davit_oci::image::Image], output: Option<Output>) -> Result<String> {
    Ok(match output {
        Some(Output::Json) => format!("{}\n", serde_json::to_string_pretty(images)?),
        Some(Output::Yaml) => serde_saphyr::to_string(&images)?,
        Some(Output::Wide) | None => {
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
