//! Network configurations: lists of plugins in files.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Versions of the specification, as far as they differ in what a runtime does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32, u32);

impl Version {
    /// CHECK, and the result at DEL.
    pub(super) const V0_4_0: Self = Self(0, 4, 0);
    /// GC and STATUS.
    pub(super) const V1_1_0: Self = Self(1, 1, 0);

    /// A version of the specification that there is; a missing one stands for the first.
    fn known(text: &str) -> Option<Self> {
        match text {
            "" | "0.1.0" => Some(Self(0, 1, 0)),
            "0.2.0" => Some(Self(0, 2, 0)),
            "0.3.0" => Some(Self(0, 3, 0)),
            "0.3.1" => Some(Self(0, 3, 1)),
            "0.4.0" => Some(Self::V0_4_0),
            "1.0.0" => Some(Self(1, 0, 0)),
            "1.1.0" => Some(Self::V1_1_0),
            _ => None,
        }
    }
}

/// Why there is no network configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The directory has none.
    #[error("cni plugin not initialized")]
    None,
    /// The first one cannot be used.
    #[error("cni plugin not initialized: {0}")]
    Invalid(String),
}

/// A list of plugins.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub(super) name: String,
    pub(super) version: Version,
    /// As written.
    pub(super) version_text: String,
    pub(super) disable_check: bool,
    pub(super) disable_gc: bool,
    /// The plugins' own configurations.
    pub(super) plugins: Vec<Map<String, Value>>,
    /// The list as text, complete in itself.
    pub(super) source: String,
}

/// The first configuration in the order of file names.
pub(super) fn load(dir: &Path) -> Result<List, Error> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::None),
        Err(error) => return Err(Error::Invalid(format!("{}: {error}", dir.display()))),
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && extension(path).is_some())
        .collect();
    files.sort();
    let file = files.first().ok_or(Error::None)?;
    let is_list = extension(file) == Some("conflist");
    let invalid = |cause: String| {
        let kind = if is_list {
            "config list file"
        } else {
            "config file"
        };
        Error::Invalid(format!(
            "failed to load CNI {kind} {}: {cause}",
            file.display()
        ))
    };
    let text = std::fs::read_to_string(file)
        .map_err(|e| invalid(format!("error reading {}: {e}", file.display())))?;
    if is_list {
        parse_list(&text, Some(dir)).map_err(invalid)
    } else {
        let list = wrap(&text).map_err(invalid)?;
        parse_list(&list, None).map_err(invalid)
    }
}

fn extension(path: &Path) -> Option<&str> {
    let extension = path.extension()?.to_str()?;
    ["conf", "conflist", "json"]
        .contains(&extension)
        .then_some(extension)
}

/// A single plugin's configuration as a list of one.
fn wrap(text: &str) -> Result<String, String> {
    let plugin = object(text, "configuration")?;
    if !plugin.get("type").is_some_and(Value::is_string) {
        return Err("error parsing configuration: missing 'type'".to_owned());
    }
    let mut list = Map::new();
    for key in ["name", "cniVersion"] {
        if let Some(value) = plugin.get(key) {
            list.insert(key.to_owned(), value.clone());
        }
    }
    list.insert("plugins".to_owned(), json!([plugin]));
    Ok(Value::Object(list).to_string())
}

fn object(text: &str, what: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("error parsing {what}: not an object")),
        Err(error) => Err(format!("error parsing {what}: {error}")),
    }
}

/// Network and container names become parts of file names.
pub(super) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// A boolean, or its text: both are in use.
fn flag(list: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match list.get(key) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!(
                "error parsing configuration list: invalid {key} value {text:?}"
            )),
        },
        Some(other) => Err(format!(
            "error parsing configuration list: invalid {key} type {other}"
        )),
    }
}

/// The version to use: the newest known one of `cniVersion` and `cniVersions`.
fn version(list: &Map<String, Value>) -> Result<(Version, String), String> {
    let one = match list.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text.as_str(),
        Some(other) => {
            return Err(format!(
                "error parsing configuration list: invalid cniVersion type {other}"
            ));
        }
    };
    let more = list.get("cniVersions").and_then(Value::as_array);
    let all = more.into_iter().flatten().filter_map(Value::as_str);
    let best = all
        .chain([one])
        .filter_map(|text| Some((Version::known(text)?, text.to_owned())))
        .max_by_key(|(version, _)| *version);
    best.ok_or_else(|| format!("error parsing configuration list: unsupported CNI version {one:?}"))
}

/// Reads a list. Plugins that are files of their own are in a directory with the network's name below `dir`.
pub(super) fn parse_list(text: &str, dir: Option<&Path>) -> Result<List, String> {
    let mut list = object(text, "configuration list")?;
    let name = match list.get("name") {
        Some(Value::String(name)) if is_identifier(name) => name.clone(),
        Some(Value::String(name)) if !name.is_empty() => {
            return Err(format!(
                "error parsing configuration list: invalid characters found in network name {name:?}"
            ));
        }
        None | Some(Value::String(_)) => {
            return Err("error parsing configuration list: no name".to_owned());
        }
        Some(other) => {
            return Err(format!(
                "error parsing configuration list: invalid name type {other}"
            ));
        }
    };
    let (version, version_text) = version(&list)?;
    let mut plugins = match list.get("plugins") {
        Some(Value::Array(plugins)) => plugins.clone(),
        Some(other) => {
            return Err(format!(
                "error parsing configuration list: invalid 'plugins' type {other}"
            ));
        }
        None => Vec::new(),
    };
    let inlined_only = flag(&list, "loadOnlyInlinedPlugins")?;
    if let Some(dir) = dir.filter(|_| !inlined_only) {
        plugins.extend(separate(&dir.join(&name))?);
    }
    if plugins.is_empty() {
        return Err("error parsing configuration list: no plugins in list".to_owned());
    }
    let mut parsed = Vec::new();
    for (index, plugin) in plugins.iter().enumerate() {
        let Some(plugin) = plugin.as_object() else {
            return Err(format!(
                "failed to parse plugin config {index}: not an object"
            ));
        };
        match plugin.get("type") {
            Some(Value::String(kind)) if !kind.is_empty() => {}
            _ => {
                return Err(format!(
                    "failed to parse plugin config {index}: error parsing configuration: missing 'type'"
                ));
            }
        }
        parsed.push(plugin.clone());
    }
    let (disable_check, disable_gc) = (flag(&list, "disableCheck")?, flag(&list, "disableGC")?);
    // Everything by value, so that the text alone is the configuration later on.
    list.insert("plugins".to_owned(), Value::Array(plugins));
    list.insert("loadOnlyInlinedPlugins".to_owned(), Value::Bool(true));
    Ok(List {
        name,
        version,
        version_text,
        disable_check,
        disable_gc,
        plugins: parsed,
        source: Value::Object(list).to_string(),
    })
}

/// Plugins' configurations in files of their own.
fn separate(dir: &Path) -> Result<Vec<Value>, String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Ok(Vec::new());
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "conf"))
        .collect();
    files.sort();
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|e| format!("error reading {}: {e}", file.display()))?;
        object(&text, "configuration").map(Value::Object)
    };
    files.iter().map(read).collect()
}
