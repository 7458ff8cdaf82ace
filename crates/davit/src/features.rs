//! `davit features`: which feature gates there are; and what is said of those that were set.

use std::io::Write as _;

use davit_api::features::{Effect, Features, GateInfo, gates};

use crate::output::{ListOutput, names};
use crate::table;

/// Flags of `davit features`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FeaturesArgs {
    /// Output format
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<ListOutput>,
}

/// The gates of a command that has no configuration file for them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GateFlags {
    /// Feature gates, by Kubernetes' names (`davit features` lists them); those of fields are the API server's
    #[arg(
        long,
        value_name = "K=V,...",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) feature_gates: Features,
}

pub(crate) fn run(args: &FeaturesArgs) -> anyhow::Result<()> {
    let all: Vec<GateInfo> = gates().collect();
    let text = match args.output {
        Some(ListOutput::Json) => serde_json::to_string_pretty(&all)? + "\n",
        Some(ListOutput::Yaml) => serde_saphyr::to_string(&all)?,
        Some(ListOutput::Name) => names(all.iter().map(|gate| gate.name)),
        Some(ListOutput::Wide) | None => {
            let rows: Vec<Vec<String>> = all.iter().map(row).collect();
            table::render(&["NAME", "STAGE", "DEFAULT", "EFFECT"], &rows)
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn row(gate: &GateInfo) -> Vec<String> {
    let effect = match gate.effect {
        Effect::Switched => "switches the feature",
        Effect::Always => "always on",
        Effect::NotBuilt => "not built",
        Effect::None => "none here",
    };
    let default = gate.default.to_string();
    vec![
        gate.name.to_owned(),
        gate.stage.to_owned(),
        default,
        effect.to_owned(),
    ]
}

/// Tells of the gates that were set and do nothing.
pub(crate) fn remark(features: &Features) {
    for remark in features.remarks() {
        tracing::warn!("{remark}");
    }
}
