//! `davit image`: the images of the embedded runtime.

use crate::args::{Image, ImageAction, Output};
use crate::{components, paths, table};
use anyhow::{Context, Result};
use davit_oci::Images;

pub(crate) async fn run(args: Image) -> Result<()> {
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    let dir = components::runtime_dir(&data_dir);
    let images = Images::open(&dir).with_context(|| format!("image store in {}", dir.display()))?;
    tokio::task::spawn_blocking(move || act(&images, args.action)).await.context("image store")?
}

fn act(images: &Images, action: ImageAction) -> Result<()> {
    match action {
        ImageAction::Import { file, name } => {
            let names = images.import(&file, name.as_deref()).with_context(|| format!("cannot import {}", file.display()))?;
            for name in names {
                println!("{name}");
            }
        }
        ImageAction::List { output } => print!("{}", format(&images.list()?, output)?),
        ImageAction::Rm { images: names } => {
            for name in names {
                images.remove(&name).with_context(|| format!("cannot remove {name}"))?;
                println!("{name}");
            }
        }
    }
    Ok(())
}

fn format(images: &[davit_oci::image::ImageInfo], output: Option<Output>) -> Result<String> {
    Ok(match output {
        Some(Output::Json) => format!("{}\n", serde_json::to_string_pretty(images)?),
        Some(Output::Yaml) => serde_saphyr::to_string(&images)?,
        Some(Output::Wide) | None => {
            let row = |image: &davit_oci::image::ImageInfo| {
                let names = if image.names.is_empty() { "<none>".to_owned() } else { image.names.join(",") };
                vec![names, image.id.clone(), format!("{:.1} MiB", image.size as f64 / f64::from(1 << 20))]
            };
            let rows: Vec<Vec<String>> = images.iter().map(row).collect();
            table::render(&["NAME", "IMAGE ID", "SIZE"], &rows)
        }
    })
}
