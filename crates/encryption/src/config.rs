//! `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_schema::decode::{Encoding, parse as parse_text};
use serde::Deserialize;
use serde_json::Value;

use super::EncryptionError;
use super::ciphers::{Cipher, Keyed, Provider};
use super::kms::Plugin;

/// Resources and the providers for them; the first writes, all read.
#[derive(Debug)]
pub(super) struct Rule {
    resources: Vec<Pattern>,
    pub(super) providers: Vec<Provider>,
}

impl Rule {
    /// The plugins among the providers.
    pub(super) fn plugins(&self) -> impl Iterator<Item = &Arc<Plugin>> {
        self.providers.iter().filter_map(|provider| match provider {
            Provider::Kms(plugin) => Some(plugin),
            Provider::Identity | Provider::Keyed(_) => None,
        })
    }

    pub(super) fn covers(&self, group: &str, plural: &str) -> bool {
        self.resources.iter().any(|p| p.covers(group, plural))
    }
}

/// `secrets`, `deployments.apps`, `*.apps`, `*.` (the core group), `*.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// None for any.
    plural: Option<String>,
    group: Option<String>,
}

impl Pattern {
    fn covers(&self, group: &str, plural: &str) -> bool {
        self.plural.as_deref().is_none_or(|p| p == plural)
            && self.group.as_deref().is_none_or(|g| g == group)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<Resources>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<Providers>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Providers {
    aesgcm: Option<Keys>,
    aescbc: Option<Keys>,
    secretbox: Option<Keys>,
    identity: Option<Value>,
    kms: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    keys: Vec<Key>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    secret: String,
}

pub(super) fn parse(text: &str) -> Result<Vec<Rule>, EncryptionError> {
    let fault = |detail: String| EncryptionError::Config(detail);
    let value = parse_text(text.as_bytes(), Encoding::Yaml).map_err(|e| fault(e.to_string()))?;
    let document: Document = serde_json::from_value(value).map_err(|e| fault(e.to_string()))?;
    if document.kind != "EncryptionConfiguration"
        || !matches!(
            document.api_version.as_str(),
            "apiserver.config.k8s.io/v1" | "v1"
        )
    {
        return Err(fault(format!(
            "{} {} is not apiserver.config.k8s.io/v1 EncryptionConfiguration",
            document.api_version, document.kind
        )));
    }
    if document.resources.is_empty() {
        return Err(fault("resources: at least one entry is needed".to_owned()));
    }
    let mut seen: Vec<Pattern> = Vec::new();
    let mut rules = Vec::new();
    for (index, entry) in document.resources.into_iter().enumerate() {
        let at = format!("resources[{index}]");
        let resources = patterns(&at, &entry.resources, &mut seen).map_err(fault)?;
        if entry.providers.is_empty() {
            return Err(fault(format!("{at}.providers: at least one is needed")));
        }
        let mut providers = Vec::new();
        for (index, entry) in entry.providers.into_iter().enumerate() {
            let at = format!("{at}.providers[{index}]");
            providers.push(provider(&at, entry).map_err(fault)?);
        }
        rules.push(Rule {
            resources,
            providers,
        });
    }
    let mut names = BTreeSet::new();
    for plugin in rules.iter().flat_map(Rule::plugins) {
        if !names.insert(plugin.name().to_owned()) {
            return Err(fault(format!(
                "kms: the name {:?} is used twice; each plugin needs one of its own",
                plugin.name()
            )));
        }
    }
    Ok(rules)
}

fn patterns(at: &str, texts: &[String], seen: &mut Vec<Pattern>) -> Result<Vec<Pattern>, String> {
    if texts.is_empty() {
        return Err(format!("{at}.resources: at least one is needed"));
    }
    let mut here: Vec<Pattern> = Vec::new();
    for text in texts {
        let pattern = pattern(text).map_err(|why| format!("{at}.resources: {text:?}: {why}"))?;
        if here.contains(&pattern) || seen.contains(&pattern) {
            return Err(format!("{at}.resources: {text:?} is named twice"));
        }
        // within one list a wildcard would hide what it covers
        let hides = here.iter().any(|held| {
            let covered = |wide: &Pattern, narrow: &Pattern| {
                (wide.plural.is_none() || wide.plural == narrow.plural)
                    && (wide.group.is_none() || wide.group == narrow.group)
            };
            covered(held, &pattern) || covered(&pattern, held)
        });
        if hides {
            return Err(format!(
                "{at}.resources: {text:?} overlaps another entry of the same list"
            ));
        }
        here.push(pattern);
    }
    seen.extend(here.iter().cloned());
    Ok(here)
}

fn pattern(text: &str) -> Result<Pattern, &'static str> {
    if text.chars().any(|c| c.is_ascii_uppercase() || c == '/') {
        return Err("resources are lower case and without subresources");
    }
    let (plural, group) = text.split_once('.').unwrap_or((text, ""));
    match (plural, group) {
        ("", _) => Err("is empty"),
        ("*", "") if !text.contains('.') => Err("use \"*.\" for the core group or \"*.*\" for all"),
        ("*", "*") => Ok(Pattern {
            plural: None,
            group: None,
        }),
        ("*", group) => Ok(Pattern {
            plural: None,
            group: Some(group.to_owned()),
        }),
        (_, "*") => Err("a resource of all groups cannot be named"),
        (plural, _) if plural.contains('*') => Err("a wildcard stands for the whole name"),
        (_, group) if group.contains('*') => Err("a wildcard stands for the whole group"),
        (plural, group) => Ok(Pattern {
            plural: Some(plural.to_owned()),
            group: Some(group.to_owned()),
        }),
    }
}

fn provider(at: &str, entry: Providers) -> Result<Provider, String> {
    let keyed = [
        (Cipher::AesGcm, entry.aesgcm),
        (Cipher::AesCbc, entry.aescbc),
        (Cipher::Secretbox, entry.secretbox),
    ];
    let mut given: Vec<(Cipher, Keys)> = keyed
        .into_iter()
        .filter_map(|(cipher, keys)| keys.map(|keys| (cipher, keys)))
        .collect();
    match (given.pop(), given.is_empty(), entry.identity, entry.kms) {
        (None, true, Some(_), None) => Ok(Provider::Identity),
        (None, true, None, Some(kms)) => Ok(Provider::Kms(Arc::new(plugin(at, kms)?))),
        (Some((cipher, keys)), true, None, None) => {
            Ok(Provider::Keyed(keyed_provider(at, cipher, keys)?))
        }
        (None, _, None, None) => Err(format!("{at}: names no provider")),
        _ => Err(format!("{at}: names more than one provider")),
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kms {
    #[serde(default)]
    api_version: String,
    name: String,
    endpoint: String,
    timeout: Option<String>,
    cachesize: Option<i64>,
}

/// How long a call of a plugin may take unless configured otherwise.
const KMS_TIMEOUT: Duration = Duration::from_secs(3);

fn plugin(at: &str, value: Value) -> Result<Plugin, String> {
    let at = format!("{at}.kms");
    let kms: Kms = serde_json::from_value(value).map_err(|error| format!("{at}: {error}"))?;
    if kms.api_version != "v2" {
        return Err(format!(
            "{at}.apiVersion: must be v2 (v1 is deprecated and off in Kubernetes, too)"
        ));
    }
    if kms.name.is_empty() || kms.name.contains(':') {
        return Err(format!("{at}.name: must not be empty or hold a colon"));
    }
    if kms.cachesize.is_some() {
        return Err(format!("{at}.cachesize: is not supported by v2"));
    }
    let socket = kms.endpoint.strip_prefix("unix://");
    let Some(socket) = socket.filter(|path| path.starts_with(['/', '@']) && path.len() > 1) else {
        return Err(format!(
            "{at}.endpoint: {:?} is not unix:// and the path of a socket",
            kms.endpoint
        ));
    };
    if socket.starts_with('@') {
        return Err(format!("{at}.endpoint: abstract sockets are not supported"));
    }
    let timeout = match kms.timeout {
        None => KMS_TIMEOUT,
        Some(text) => {
            let nanos = davit_api::time::parse_duration(&text)
                .map_err(|error| format!("{at}.timeout: {error}"))?;
            u64::try_from(nanos)
                .ok()
                .filter(|nanos| *nanos > 0)
                .map(Duration::from_nanos)
                .ok_or_else(|| format!("{at}.timeout: must be greater than zero"))?
        }
    };
    Ok(Plugin::new(kms.name, PathBuf::from(socket), timeout))
}

fn keyed_provider(at: &str, cipher: Cipher, keys: Keys) -> Result<Keyed, String> {
    let at = format!("{at}.{}", cipher.name());
    if keys.keys.is_empty() {
        return Err(format!("{at}.keys: at least one is needed"));
    }
    let mut names = BTreeSet::new();
    let mut parsed = Vec::new();
    for (index, key) in keys.keys.into_iter().enumerate() {
        let at = format!("{at}.keys[{index}]");
        if key.name.is_empty() || key.name.contains(':') {
            return Err(format!("{at}.name: must not be empty or hold a colon"));
        }
        if !names.insert(key.name.clone()) {
            return Err(format!("{at}.name: {:?} is named twice", key.name));
        }
        let secret = STANDARD
            .decode(key.secret.trim())
            .map_err(|_| format!("{at}.secret: is not base64"))?;
        let sizes = cipher.key_sizes();
        if !sizes.contains(&secret.len()) {
            return Err(format!(
                "{at}.secret: has {} bytes, {} takes {sizes:?}",
                secret.len(),
                cipher.name()
            ));
        }
        parsed.push((key.name, secret));
    }
    Ok(Keyed::new(cipher, parsed))
}
