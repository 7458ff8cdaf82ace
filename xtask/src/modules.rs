//! Part of `cargo xtask layers`: how big crates are, and which of their modules import one another in a circle.
//!
//! Looked at are the sources of `crates/` without their tests and without generated code. Modules that stand side by side
//! are taken with all that is below them; that a module uses what stands in the one above it is its own matter. A name
//! that a module only passes on is followed to where it is made.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::paths::sources;
use crate::source::{Source, read};

/// Most lines of a crate.
const LINES: usize = 20_000;

/// Crates that are bigger, and how many lines they may have. A row is lowered when its crate shrinks.
const BIGGER: &[(&str, usize)] = &[("controllers", 20_300)];

/// How far above its crate a row of [`BIGGER`] may be.
const ROOM: usize = 2_000;

/// Most modules of a circle.
const CIRCLE: usize = 5;

/// Circles that are bigger: the crate, the module below which they are (none for the crate's root), of how many modules.
/// A row is lowered when its circle shrinks, and goes with it.
const CIRCLES: &[(&str, &str, usize)] = &[];

/// What is not written by hand.
pub(crate) const GENERATED: &str = "generated";

/// A module by the names on its path; the crate's root has none.
type Name = Vec<String>;

/// The modules of one crate.
type Modules = BTreeMap<Name, Source>;

/// Which modules use which, and by what: the path below the crate's root of who does, and what it names.
type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Modules that import one another.
struct Circle {
    /// The module below which they are.
    at: Name,
    members: BTreeSet<String>,
    /// The imports that make the circle, a line for each pair.
    imports: Vec<String>,
}

/// Checks all crates; the error lists those that are too big and the circles of too many modules.
pub(crate) fn run(root: &Path) -> Result<()> {
    let crates = crates(root)?;
    let mut wrong = Vec::new();
    for name in &crates {
        let modules = modules(&root.join("crates").join(name).join("src"))?;
        let lines = modules.values().map(|module| module.lines).sum();
        wrong.extend(size_objection(name, lines));
        wrong.extend(circle_objections(name, &circles(&modules)));
    }
    if wrong.is_empty() {
        println!("modules: {} crates in order", crates.len());
        return Ok(());
    }
    bail!(
        "sizes and circles of imports (exceptions stand in xtask/src/modules.rs):\n  {}",
        wrong.join("\n  ")
    )
}

/// The names of the folders below `crates`, in order.
pub(crate) fn crates(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("crates");
    let mut crates = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        crates.push(entry?.file_name().to_string_lossy().into_owned());
    }
    crates.sort();
    Ok(crates)
}

/// The modules of a crate by name.
fn modules(folder: &Path) -> Result<Modules> {
    let mut modules = Modules::new();
    for file in sources(folder)? {
        let below = file.strip_prefix(folder)?.with_extension("");
        let mut name: Name = below
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if name.iter().any(|part| part == GENERATED) {
            continue;
        }
        if name.len() == 1 && matches!(&*name[0], "lib" | "main") {
            name.clear();
        }
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let source = read(&text).with_context(|| file.display().to_string())?;
        modules.insert(name, source);
    }
    Ok(modules)
}

fn size_objection(name: &str, lines: usize) -> Option<String> {
    match BIGGER.iter().find(|(of, _)| *of == name) {
        None => (lines > LINES).then(|| format!("{name} has {lines} lines, more than {LINES}")),
        Some((_, most)) if lines > *most => {
            Some(format!("{name} has {lines} lines, more than its {most}"))
        }
        Some((_, most)) => (lines + ROOM < *most)
            .then(|| format!("{name} has {lines} lines: its row ({most}) can be lowered")),
    }
}

fn circle_objections(name: &str, circles: &[Circle]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Circle {
        at,
        members,
        imports,
    } in circles
    {
        let place = at.join("::");
        let known = CIRCLES
            .iter()
            .find(|(of, below, _)| (*of, *below) == (name, &*place));
        let most = known.map_or(CIRCLE, |(_, _, most)| *most);
        let count = members.len();
        if count > most {
            let members: Vec<&str> = members.iter().map(String::as_str).collect();
            wrong.push(format!(
                "{name} {place}: {count} modules import one another in a circle, more than {most}: {}\n    {}",
                members.join(" "),
                imports.join("\n    ")
            ));
        }
    }
    for (_, below, most) in CIRCLES.iter().filter(|(of, _, _)| *of == name) {
        let here = circles
            .iter()
            .filter(|circle| circle.at.join("::") == *below);
        let count = here.map(|circle| circle.members.len()).max().unwrap_or(0);
        if count < *most {
            wrong.push(format!(
                "{name} {below}: the circle of {most} modules is one of {count}: its row can be lowered or go"
            ));
        }
    }
    wrong
}

/// All circles.
fn circles(modules: &Modules) -> Vec<Circle> {
    let mut edges: BTreeMap<Name, Edges> = BTreeMap::new();
    for (user, source) in modules {
        for path in &source.paths {
            let Some(used) = resolve(modules, user, path, 0) else {
                continue;
            };
            let common = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (user.get(common), used.get(common)) {
                let here = edges.entry(user[..common].to_vec()).or_default();
                let pair = here.entry(from.clone()).or_default();
                let names = pair.entry(to.clone()).or_default();
                let name = path.last().map_or("", String::as_str);
                names.insert(format!("{}: {name}", user.join("::")));
            }
        }
    }
    edges
        .into_iter()
        .flat_map(|(at, edges)| {
            let found = components(&edges).into_iter();
            found.map(move |members| Circle {
                at: at.clone(),
                imports: imports(&edges, &members),
                members,
            })
        })
        .collect()
}

/// What the members of a circle use of one another.
fn imports(edges: &Edges, members: &BTreeSet<String>) -> Vec<String> {
    let within = edges.iter().filter(|(from, _)| members.contains(*from));
    within
        .flat_map(|(from, used)| {
            let used = used.iter().filter(|(to, _)| members.contains(*to));
            used.map(move |(to, names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{from} -> {to} ({})", names.join(", "))
            })
        })
        .collect()
}

/// The module in which the last name of a path that `user` writes is made; none if it is not of this crate.
fn resolve(modules: &Modules, user: &Name, path: &[String], passed: usize) -> Option<Name> {
    // names are passed on a few times at most, unless in a circle
    const PASSED: usize = 8;
    let (first, mut rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => Name::new(),
        "self" => user.clone(),
        "super" => user[..user.len().checked_sub(1)?].to_vec(),
        _ => {
            rest = path;
            user.clone()
        }
    };
    let mut moved = first == "crate" || first == "super" || first == "self";
    while let Some((name, after)) = rest.split_first() {
        if name == "super" {
            at.pop()?;
            rest = after;
            continue;
        }
        let below = [at.as_slice(), std::slice::from_ref(name)].concat();
        if modules.contains_key(&below) {
            at = below;
            moved = true;
            rest = after;
            continue;
        }
        let imported = modules.get(&at).and_then(|module| module.imports.get(name));
        if let Some(import) = imported.filter(|_| moved && passed < PASSED) {
            let whole = [import.as_slice(), after].concat();
            return resolve(modules, &at, &whole, passed + 1).or(Some(at));
        }
        break;
    }
    moved.then_some(at)
}

/// The sets of more than one node in which every node reaches every other.
fn components(edges: &Edges) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = edges
        .keys()
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut next = vec![from];
            while let Some(node) = next.pop() {
                for to in edges.get(node).into_iter().flat_map(BTreeMap::keys) {
                    if seen.insert(to) {
                        next.push(to);
                    }
                }
            }
            (from, seen)
        })
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, seen) in &reach {
        if !seen.contains(from) || found.iter().any(|set| set.contains(*from)) {
            continue;
        }
        let both = seen
            .iter()
            .filter(|to| reach.get(*to).is_some_and(|back| back.contains(from)));
        let set: BTreeSet<String> = both.map(|to| (*to).clone()).collect();
        if set.len() > 1 {
            found.push(set);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Modules {
        let named = files.iter().map(|(name, text)| {
            let name: Name = name.split_terminator("::").map(str::to_owned).collect();
            (name, read(text).unwrap())
        });
        named.collect()
    }

    fn found(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let found = circles(&crate_of(files)).into_iter();
        found
            .map(|found| (found.at.join("::"), found.members.into_iter().collect()))
            .collect()
    }

    fn circle(at: &str, members: &[&str]) -> Vec<(String, Vec<String>)> {
        let members = members.iter().map(|m| (*m).to_owned()).collect();
        vec![(at.to_owned(), members)]
    }

    #[test]
    fn modules_side_by_side_are_taken_with_what_is_below_them() {
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "mod inner;"),
            ("a::inner", "use crate::b::{B, more::{self, C as D}};"),
            ("b", "fn f() { super::c::g(); }"),
            ("c", "fn g() { tokio::select! { _ = crate::a::f() => {} } }"),
        ];
        assert_eq!(found(&files), circle("", &["a", "b", "c"]));
    }

    #[test]
    fn what_stands_above_is_a_modules_own_matter() {
        let files = [
            ("", "mod a; use a::f;"),
            ("a", "mod x; mod y; use x::X; use crate::Root;"),
            ("a::x", "use super::A;"),
            ("a::y", "use super::x::X; use std::a::b;"),
        ];
        assert_eq!(found(&files), []);
    }

    #[test]
    fn names_that_are_passed_on_are_followed() {
        let files = [
            ("", "mod a; mod b; mod c; pub use b::Thing;"),
            ("a", "use crate::Thing;"),
            ("b", "pub use super::c::Other as Thing;"),
            ("c", "use super::a;"),
        ];
        assert_eq!(found(&files), circle("", &["a", "c"]));
    }

    #[test]
    fn tests_import_what_they_like() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "use crate::b;"),
            (
                "b",
                "#[cfg(test)] mod tests { use crate::a; }\n#[cfg(test)] use crate::a;",
            ),
        ];
        assert_eq!(found(&files), []);
    }
}
