//! `cargo xtask docs`: the links of README and docs lead somewhere, and every page is in the book. `cargo xtask reference`: the
//! page of all commands is what the program says.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Pages at the top that are checked with those of `docs/`.
const TOP: [&str; 4] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];
/// The page that is made of the program.
const REFERENCE: &str = "docs/reference.md";

/// Checks links and the book's list of pages.
pub(crate) fn run(root: &Path) -> Result<()> {
    let faults = faults(root)?;
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("docs: every link leads somewhere, every page is in the book");
    Ok(())
}

/// Writes the reference page, or says that it is not what the program says.
pub(crate) fn reference(root: &Path, binary: &Path, checks: bool) -> Result<()> {
    let output = Command::new(binary)
        .arg("reference")
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let file = root.join(REFERENCE);
    if !checks {
        return std::fs::write(&file, output.stdout)
            .with_context(|| format!("cannot write {}", file.display()));
    }
    let stands = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    if stands != output.stdout {
        bail!("{REFERENCE} is not what the program says; `cargo xtask reference` writes it anew");
    }
    Ok(())
}

/// Everything that is wrong, a sentence each.
fn faults(root: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = TOP.iter().map(PathBuf::from).collect();
    let docs = std::fs::read_dir(root.join("docs")).context("docs")?;
    for entry in docs {
        let name = entry.context("docs")?.file_name();
        if Path::new(&name).extension().is_some_and(|e| e == "md") {
            files.push(Path::new("docs").join(name));
        }
    }
    files.sort();
    let mut pages = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(root.join(&file));
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        pages.insert(file, text);
    }
    let mut faults = Vec::new();
    for (file, text) in &pages {
        for link in links(text) {
            if let Some(fault) = fault(root, file, &link, &pages) {
                faults.push(format!("{}: {link}: {fault}", file.display()));
            }
        }
    }
    let summary = pages.get(Path::new("docs/SUMMARY.md"));
    let listed: BTreeSet<String> = summary.into_iter().flat_map(|text| links(text)).collect();
    for file in pages.keys().filter(|file| file.starts_with("docs")) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name != "SUMMARY.md" && !listed.contains(name.as_ref()) {
            faults.push(format!("docs/SUMMARY.md: {name} is not in it"));
        }
    }
    Ok(faults)
}

/// What is wrong with a link, if anything is.
fn fault(
    root: &Path,
    file: &Path,
    link: &str,
    pages: &BTreeMap<PathBuf, String>,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => file.to_owned(),
        _ => resolved(file.parent().unwrap_or(Path::new("")), path)?,
    };
    if file.starts_with("docs") && !target.starts_with("docs") {
        return Some("the book has no page of what is outside of docs".to_owned());
    }
    if !root.join(&target).exists() {
        return Some("there is no such file".to_owned());
    }
    if anchor.is_empty() {
        return None;
    }
    let Some(text) = pages.get(&target) else {
        return Some("anchors are checked in docs only".to_owned());
    };
    (!anchors(text).contains(anchor)).then(|| "there is no such heading".to_owned())
}

/// The path without `..`; none if it leaves the tree.
fn resolved(from: &Path, link: &str) -> Option<PathBuf> {
    let mut out = from.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(part) => out.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(out)
}

/// The lines that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return false;
        }
        !is_code
    })
}

/// A text without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Where inline links lead.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let prose: Vec<&str> = prose(text).collect();
    // A link's text may be broken over lines, its target is not.
    let prose = without_code(&prose.join("\n"));
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        let Some(end) = rest.find(')') else { break };
        found.push(rest[..end].trim().to_owned());
    }
    found
}

/// The anchors of headings, as GitHub and mdBook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        kept.collect::<String>()
    };
    headings
        .map(|line| {
            let anchor = anchor(line);
            let number = seen.entry(anchor.clone()).or_default();
            *number += 1;
            match *number {
                1 => anchor,
                number => format!("{anchor}-{}", number - 1),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_of_the_docs_lead_somewhere() {
        let root = crate::workspace_root().unwrap();
        let faults = faults(&root).unwrap();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn links_in_code_are_none() {
        let text = "[a](b.md#c) `[x](y)`\n```\n[d](e)\n```\n[long\ntext](f.md)";
        assert_eq!(links(text), ["b.md#c", "f.md"]);
    }

    #[test]
    fn broken_links_are_found() {
        let root = crate::workspace_root().unwrap();
        // A page that is there, with another text.
        let page = PathBuf::from("docs/etcd.md");
        let pages = BTreeMap::from([(page.clone(), "# A b: `c`!\n# A b: c".to_owned())]);
        let told = |link: &str| fault(&root, &page, link, &pages).is_some();
        assert!(!told("#a-b-c") && !told("#a-b-c-1") && told("#a-b-c-2"));
        assert!(told("nowhere.md") && told("#nothing"));
        assert!(told("../README.md"), "no page of the book");
        assert!(!told("etcd.md") && !told("https://example.com/x#y"));
    }

    #[test]
    fn anchors_are_those_of_github() {
        let all = anchors("# What a `davit up --demo` does, and why\n## A\n## A\n```\n# no\n```");
        let expected = ["a", "a-1", "what-a-davit-up---demo-does-and-why"];
        assert_eq!(all, expected.map(str::to_owned).into());
    }
}
