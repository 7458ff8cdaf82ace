//! `CredentialProviderConfig`: which plugins there are.

use davit_pods::durations;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const GROUP: &str = "kubelet.config.k8s.io/";
const PROTOCOL: &str = "credentialprovider.kubelet.k8s.io/";

/// Why the plugins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or directory cannot be read.
    #[error(
        "unable to read external registry credential provider configuration from {path:?}: {source}"
    )]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file's content.
    #[error("error decoding config {path:?}: {cause}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// No file in the directory.
    #[error("no configuration files found in directory {0:?}")]
    Empty(PathBuf),
    /// Values that make no sense; all of them.
    #[error("failed to validate config: {0}")]
    Invalid(String),
    /// A program is not there.
    #[error("plugin binary executable {0} did not exist")]
    NoProgram(PathBuf),
}

/// A plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// Its program's file name.
    pub name: String,
    /// Images it is asked for, by patterns.
    pub match_images: Vec<String>,
    /// How long an answer is kept that does not say it itself.
    pub default_cache: Duration,
    /// Version of the protocol (`credentialprovider.kubelet.k8s.io/v1`).
    pub api_version: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables besides the agent's own.
    pub env: Vec<(String, String)>,
    /// What it is told about service accounts.
    pub token_attributes: Option<TokenAttributes>,
}

/// What the answers of a plugin that gets service account tokens are kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum TokenCache {
    /// The account.
    ServiceAccount,
    /// The token.
    Token,
}

/// How a plugin gets service account tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenAttributes {
    /// Audience of the tokens.
    pub service_account_token_audience: String,
    /// What answers are kept by.
    pub cache_type: TokenCache,
    /// Whether the plugin is of use for pods with a service account only.
    pub require_service_account: bool,
    /// Annotations without which the plugin is not asked.
    #[serde(default)]
    pub required_service_account_annotation_keys: Vec<String>,
    /// Annotations it is given where they are there.
    #[serde(default)]
    pub optional_service_account_annotation_keys: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    token_attributes: Option<TokenAttributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

/// Reads a configuration file, or all `.json`, `.yaml` and `.yml` files of a directory in the order of their names, and
/// looks whether the programs are in `bin_dir`.
///
/// # Errors
/// See [`ConfigError`].
pub fn read(path: &Path, bin_dir: &Path) -> Result<Vec<Provider>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let mut files = vec![path.to_owned()];
    if std::fs::metadata(path).map_err(failed)?.is_dir() {
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let known = |file: &PathBuf| {
            let extension = file.extension().and_then(|e| e.to_str());
            file.is_file() && matches!(extension, Some("json" | "yaml" | "yml"))
        };
        files = entries.flatten().map(|e| e.path()).filter(known).collect();
        files.sort();
        if files.is_empty() {
            return Err(ConfigError::Empty(path.to_owned()));
        }
    }
    let mut entries = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(failed)?;
        let decoded = decode(&text);
        entries.extend(decoded.map_err(|cause| ConfigError::Decode { path: file, cause })?);
    }
    let providers = validate(entries).map_err(ConfigError::Invalid)?;
    for provider in &providers {
        let program = bin_dir.join(&provider.name);
        if !program.exists() {
            return Err(ConfigError::NoProgram(program));
        }
    }
    Ok(providers)
}

fn decode(text: &str) -> Result<Vec<Entry>, String> {
    let file: File = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    let version = file.api_version.strip_prefix(GROUP).unwrap_or_default();
    if file.kind != "CredentialProviderConfig" || !known(version) {
        return Err(format!(
            "{:?} {:?} is not CredentialProviderConfig of {GROUP}v1, v1beta1 or v1alpha1",
            file.api_version, file.kind
        ));
    }
    Ok(file.providers)
}

fn known(version: &str) -> bool {
    matches!(version, "v1" | "v1beta1" | "v1alpha1")
}

fn validate(entries: Vec<Entry>) -> Result<Vec<Provider>, String> {
    let mut problems = Vec::new();
    if entries.is_empty() {
        problems
            .push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let (mut names, mut out) = (BTreeSet::new(), Vec::new());
    for entry in entries {
        let mut problem = |field: &str, text: String| {
            problems.push(format!("providers.{field}: {text}"));
        };
        let name = &entry.name;
        if name.is_empty() {
            problem("name", "Required value: name is required".to_owned());
        } else if name.contains(['/', ' ']) || name == "." || name == ".." {
            problem(
                "name",
                format!("Invalid value: {name:?}: name is not a file name"),
            );
        } else if !names.insert(name.clone()) {
            problem("name", format!("Duplicate value: {name:?}"));
        }
        let version = entry.api_version.strip_prefix(PROTOCOL);
        if entry.api_version.is_empty() {
            problem(
                "apiVersion",
                "Required value: apiVersion is required".to_owned(),
            );
        } else if !version.is_some_and(known) {
            problem(
                "apiVersion",
                format!("Unsupported value: {:?}", entry.api_version),
            );
        }
        if entry.match_images.is_empty() {
            let text = "Required value: at least 1 item in matchImages is required";
            problem("matchImages", text.to_owned());
        }
        let duration = entry.default_cache_duration.as_deref();
        let default_cache = match duration.map(durations::parse) {
            Some(Ok(duration)) => duration,
            Some(Err(cause)) => {
                problem("defaultCacheDuration", format!("Invalid value: {cause}"));
                Duration::ZERO
            }
            None => {
                let text = "Required value: defaultCacheDuration is required";
                problem("defaultCacheDuration", text.to_owned());
                Duration::ZERO
            }
        };
        if let Some(attributes) = &entry.token_attributes {
            if version != Some("v1") {
                let text = format!("Forbidden: tokenAttributes is only supported for {PROTOCOL}v1");
                problem("tokenAttributes", text);
            }
            check_token(attributes, &mut problem);
        }
        let env = entry.env.unwrap_or_default();
        out.push(Provider {
            name: entry.name,
            match_images: entry.match_images,
            default_cache,
            api_version: entry.api_version,
            args: entry.args.unwrap_or_default(),
            env: env.into_iter().map(|v| (v.name, v.value)).collect(),
            token_attributes: entry.token_attributes,
        });
    }
    match problems.as_slice() {
        [] => Ok(out),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn check_token(attributes: &TokenAttributes, problem: &mut impl FnMut(&str, String)) {
    if attributes.service_account_token_audience.is_empty() {
        let text = "Required value: serviceAccountTokenAudience is required";
        problem(
            "tokenAttributes.serviceAccountTokenAudience",
            text.to_owned(),
        );
    }
    let required = &attributes.required_service_account_annotation_keys;
    if !required.is_empty() && !attributes.require_service_account {
        let text = "Forbidden: requireServiceAccount must be set to true when requiredServiceAccountAnnotationKeys is set";
        problem(
            "tokenAttributes.requiredServiceAccountAnnotationKeys",
            text.to_owned(),
        );
    }
    let twice = |key: &&String| required.contains(key);
    if let Some(key) = attributes
        .optional_service_account_annotation_keys
        .iter()
        .find(twice)
    {
        let text =
            format!("Invalid value: {key:?}: annotation keys cannot be both required and optional");
        problem("tokenAttributes", text);
    }
}
