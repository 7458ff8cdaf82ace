//! Part of `cargo xtask layers`: which names of types stand in more than one crate.
//!
//! Who reads a name should know at once what it is of. Looked at are the types that a crate shows to others (`pub`), without
//! tests and generated code.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::modules::{GENERATED, crates};
use crate::paths::sources;
use crate::source::read;

/// Names that stand in several crates, and in how many. A row is lowered when one of them is named by what it is, and goes
/// with the last.
const SHARED: &[(&str, usize)] = &[
    ("Action", 3),
    ("Address", 2),
    ("Allocation", 2),
    ("Amounts", 2),
    ("Answer", 3),
    ("Attributes", 2),
    ("Authorizer", 2),
    ("Cache", 2),
    ("CacheError", 2),
    ("Call", 2),
    ("Cause", 3),
    ("Chain", 3),
    ("Change", 4),
    ("Check", 2),
    ("Choice", 2),
    ("ClaimName", 2),
    ("Claims", 2),
    ("Class", 2),
    ("Client", 2),
    ("ClusterOptions", 2),
    ("Condition", 2),
    ("Config", 3),
    ("ConfigError", 3),
    ("Conflict", 2),
    ("Decision", 2),
    ("Device", 4),
    ("DeviceId", 2),
    ("Devices", 2),
    ("Effect", 2),
    ("EmbeddedOptions", 2),
    ("Ended", 2),
    ("Error", 19),
    ("Failure", 2),
    ("Faults", 2),
    ("Features", 2),
    ("Field", 2),
    ("Filter", 3),
    ("Group", 2),
    ("Header", 2),
    ("Hook", 2),
    ("Image", 2),
    ("Invalid", 2),
    ("Inventory", 2),
    ("Key", 2),
    ("Kubeconfig", 2),
    ("Limits", 3),
    ("Loopback", 2),
    ("Map", 2),
    ("Metrics", 2),
    ("Moment", 2),
    ("Mount", 2),
    ("Named", 2),
    ("Network", 2),
    ("Node", 4),
    ("NodePorts", 2),
    ("Object", 2),
    ("Objects", 2),
    ("Operation", 3),
    ("Options", 5),
    ("Outcome", 3),
    ("Parameters", 2),
    ("Path", 2),
    ("Plan", 2),
    ("Plugin", 2),
    ("Policy", 3),
    ("PolicyError", 2),
    ("PreparedDevice", 2),
    ("Process", 2),
    ("Profile", 2),
    ("Reader", 2),
    ("Reason", 2),
    ("Record", 2),
    ("Refusal", 3),
    ("Request", 3),
    ("Resources", 2),
    ("Result", 3),
    ("Route", 2),
    ("Rule", 2),
    ("Rules", 3),
    ("Scope", 3),
    ("Selector", 2),
    ("Set", 2),
    ("Settings", 2),
    ("Slot", 2),
    ("Snapshot", 4),
    ("Stage", 2),
    ("State", 2),
    ("Status", 2),
    ("Step", 3),
    ("Stream", 2),
    ("Subject", 2),
    ("Table", 2),
    ("Taint", 2),
    ("Target", 2),
    ("Tasks", 2),
    ("TerminalSize", 2),
    ("TlsError", 2),
    ("Token", 2),
    ("Usage", 2),
    ("Value", 3),
    ("Versions", 2),
    ("VolumeRecord", 2),
    ("Watched", 3),
    ("Writer", 2),
];

/// The crates in which a type of each name is made.
type Names = BTreeMap<String, BTreeSet<String>>;

/// Checks all crates; the error lists the names that stand in too many of them.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut names = Names::new();
    for name in crates(root)? {
        let folder = root.join("crates").join(&name).join("src");
        for file in sources(&folder)? {
            if file.iter().any(|part| part == GENERATED) {
                continue;
            }
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let source = read(&text).with_context(|| file.display().to_string())?;
            for made in source.types {
                names.entry(made).or_default().insert(name.clone());
            }
        }
    }
    let wrong = objections(&names, SHARED);
    if wrong.is_empty() {
        println!("names: {} types in order", names.len());
        return Ok(());
    }
    bail!(
        "names of types in several crates (those that were there before stand in xtask/src/names.rs):\n  {}",
        wrong.join("\n  ")
    )
}

fn objections(names: &Names, shared: &[(&str, usize)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, crates) in names {
        let known = shared.iter().find(|(known, _)| known == name);
        let most = known.map_or(1, |(_, most)| *most);
        if crates.len() > most {
            let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
            let crates = crates.join(" ");
            wrong.push(format!(
                "{name} is made in more crates than {most}: {crates}: name it by what it is"
            ));
        }
    }
    for (name, most) in shared {
        let count = names.get(*name).map_or(0, BTreeSet::len);
        if count < *most {
            wrong.push(format!(
                "{name} is made in {count} crates: its row ({most}) can be lowered or go"
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[(&str, &str)]) -> Names {
        let mut names = Names::new();
        for (of, text) in texts {
            for made in read(text).unwrap().types {
                names.entry(made).or_default().insert((*of).to_owned());
            }
        }
        names
    }

    #[test]
    fn a_name_stands_for_one_type_of_the_house() {
        let names = names(&[
            ("a", "pub struct Plan; mod inner { pub enum Error {} }"),
            ("b", "pub trait Plan {} pub type Error = u8;"),
            (
                "c",
                "struct Plan; pub(crate) struct Error; #[cfg(test)] mod tests { pub struct Plan; }",
            ),
        ]);
        assert_eq!(objections(&names, &[("Error", 2), ("Plan", 2)]), [""; 0]);
        let wrong = objections(&names, &[("Error", 3), ("Other", 2)]).join("\n");
        assert!(
            wrong.contains("Plan is made in more crates than 1: a b"),
            "{wrong}"
        );
        assert!(wrong.contains("Error is made in 2 crates"), "{wrong}");
        assert!(wrong.contains("Other is made in 0 crates"), "{wrong}");
    }
}
