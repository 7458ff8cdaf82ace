//! `davit features`: which feature gates there are.

use std::io::Write as _;

use davit_api::features::{GateInfo, gates};

use crate::args::{FeaturesArgs, Output};
use crate::table;

pub(crate) fn run(args: &FeaturesArgs) -> anyhow::Result<()> {
    let all: Vec<GateInfo> = gates().collect();
    let text = match args.output {
        Some(Output::Json) => serde_json::to_string_pretty(&all)? + "\n",
        Some(Output::Yaml) => serde_saphyr::to_string(&all)?,
        Some(Output::Wide) | None => {
            let rows: Vec<Vec<String>> = all.iter().map(row).collect();
            table::render(&["NAME", "STAGE", "DEFAULT", "CAN BE SWITCHED"], &rows)
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn row(gate: &GateInfo) -> Vec<String> {
    let switched = if gate.locked { "no" } else { "yes" };
    let default = gate.default.to_string();
    vec![
        gate.name.to_owned(),
        gate.stage.to_owned(),
        default,
        switched.to_owned(),
    ]
}
