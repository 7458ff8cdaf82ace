//! Reading a file strictly: every field must be known, and stand there once.

use davit_api::config_shape::ConfigShape;
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Options};

use super::args::{PluginArgs, WITH_ARGS};
use super::shapes::{CONFIGURATION, args_shape};
use super::types::KubeSchedulerConfiguration;
use super::{API_VERSION, ConfigurationError, KIND};

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 120;

/// What is said of the fields that nobody reads.
fn unknown(value: &Value, shape: &ConfigShape) -> impl Iterator<Item = String> {
    let fields = shape.unknown_fields(value);
    fields.map(|path| format!("unknown field {path:?}"))
}

/// What is read, and the sentence about a repeated field, if one is.
fn read(text: &str) -> Result<(Value, Option<String>), ConfigurationError> {
    let parse = |duplicates| {
        let mut options = Options::default();
        options.duplicate_keys = duplicates;
        options.strict_booleans = true;
        if let Some(budget) = &mut options.budget {
            budget.max_depth = MAX_DEPTH;
        }
        serde_saphyr::from_str_with_options::<Value>(text, options)
    };
    let first = match parse(DuplicateKeyPolicy::Error) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let repeated = match first.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => Some(format!(
            "yaml: unmarshal errors:\n  line {}: key {:?} already set in map",
            location.line(),
            key.as_deref().unwrap_or_default()
        )),
        _ => None,
    };
    let value = parse(DuplicateKeyPolicy::LastWins);
    let value = value.map_err(|error| {
        let text = error.to_string();
        ConfigurationError::Syntax(format!("yaml: {}", text.lines().next().unwrap_or_default()))
    })?;
    Ok((value, repeated))
}

/// Takes out what is null: it is as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        _ => {}
    }
}

/// Reads a file; defaults are not filled in yet.
pub(super) fn decode(text: &str) -> Result<KubeSchedulerConfiguration, ConfigurationError> {
    let (mut value, repeated) = read(text)?;
    let word = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if kind.is_empty() {
        return Err(ConfigurationError::Missing { field: "Kind" });
    }
    if version.is_empty() {
        return Err(ConfigurationError::Missing {
            field: "apiVersion",
        });
    }
    if version != API_VERSION || !is_registered(&kind) {
        return Err(ConfigurationError::NotRegistered { kind, version });
    }
    if kind != KIND {
        return Err(ConfigurationError::Kind { kind, version });
    }
    let mut faults: Vec<String> = repeated.into_iter().collect();
    faults.extend(unknown(&value, &CONFIGURATION));
    let profiles = value["profiles"].as_array_mut().into_iter().flatten();
    for (i, profile) in profiles.enumerate() {
        let entries = profile["pluginConfig"].as_array().into_iter().flatten();
        for (j, entry) in entries.enumerate() {
            let name = entry["name"].as_str().unwrap_or_default();
            check_args(i, j, name, &entry["args"], &mut faults)?;
        }
    }
    if !faults.is_empty() {
        return Err(ConfigurationError::Strict(faults));
    }
    let opaque = take_opaque(&mut value);
    drop_nulls(&mut value);
    put_opaque(&mut value, opaque);
    serde_json::from_value(value).map_err(|e| ConfigurationError::Syntax(e.to_string()))
}

/// Whether the group has such a kind.
fn is_registered(kind: &str) -> bool {
    kind == KIND
        || kind
            .strip_suffix("Args")
            .is_some_and(|plugin| WITH_ARGS.contains(&plugin))
}

/// Judges one entry of `pluginConfig`.
fn check_args(
    profile: usize,
    entry: usize,
    plugin: &str,
    args: &Value,
    faults: &mut Vec<String>,
) -> Result<(), ConfigurationError> {
    if !WITH_ARGS.contains(&plugin) {
        return Ok(());
    }
    let failed = |cause: String| ConfigurationError::Args {
        profile,
        entry,
        plugin: plugin.to_owned(),
        cause,
    };
    let own = format!("{plugin}Args");
    let kind = args["kind"].as_str().unwrap_or(&own);
    let version = args["apiVersion"].as_str().unwrap_or(API_VERSION);
    if version != API_VERSION || !is_registered(kind) {
        let (kind, version) = (kind.to_owned(), version.to_owned());
        return Err(failed(
            ConfigurationError::NotRegistered { kind, version }.to_string(),
        ));
    }
    if kind != own {
        return Err(ConfigurationError::ArgsKind {
            profile,
            entry,
            plugin: plugin.to_owned(),
            kind: format!("{kind}.kubescheduler.config.k8s.io"),
        });
    }
    let found: Vec<String> = unknown(args, &args_shape(plugin)).collect();
    if !found.is_empty() {
        // Strictness is said at each level, as in the original.
        faults.push(format!(
            "decoding .profiles[{profile}].pluginConfig[{entry}]: strict decoding error: decoding args for plugin \
             {plugin}: strict decoding error: {}",
            found.join(", ")
        ));
    }
    let mut args = args.clone();
    drop_nulls(&mut args);
    PluginArgs::decode(plugin, args).map(drop).map_err(failed)
}

/// Takes the arguments of plugins of others out, in which a null may have a meaning.
fn take_opaque(value: &mut Value) -> Vec<(usize, usize, Value)> {
    let mut taken = Vec::new();
    let profiles = value["profiles"].as_array_mut().into_iter().flatten();
    for (i, profile) in profiles.enumerate() {
        let entries = profile
            .get_mut("pluginConfig")
            .and_then(Value::as_array_mut);
        let entries = entries.into_iter().flatten();
        for (j, entry) in entries.enumerate() {
            let known = entry["name"]
                .as_str()
                .is_some_and(|n| WITH_ARGS.contains(&n));
            let fields: Option<&mut Map<String, Value>> = entry.as_object_mut();
            if let Some(args) = fields.filter(|_| !known).and_then(|f| f.remove("args")) {
                taken.push((i, j, args));
            }
        }
    }
    taken
}

fn put_opaque(value: &mut Value, taken: Vec<(usize, usize, Value)>) {
    for (i, j, args) in taken {
        value["profiles"][i]["pluginConfig"][j]["args"] = args;
    }
}
