//! Which plugins run and how: `--enable-admission-plugins`, `--disable-admission-plugins`,
//! `--admission-control-config-file`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::config_shapes::{FILE, PLUGINS};
use davit_schema::decode::{self, Encoding};
use davit_webhook::KubeconfigError;
use serde_json::Value;

const GROUP: &str = "apiserver.config.k8s.io/v1";

/// What is configured.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Plugins to switch on.
    pub enable: Vec<String>,
    /// Plugins to switch off.
    pub disable: Vec<String>,
    /// Configurations by plugin.
    pub(super) plugins: BTreeMap<String, PluginConfig>,
}

#[derive(Debug, Clone)]
pub(super) struct PluginConfig {
    value: Value,
    /// Paths in the configuration are relative to it.
    dir: PathBuf,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A name that is no plugin.
    #[error("{flag} plugin \"{name}\" is unknown")]
    UnknownPlugin {
        /// `enable-admission-plugins` or `disable-admission-plugins`.
        flag: &'static str,
        /// The name.
        name: String,
    },
    /// A plugin is switched on and off.
    #[error("{0} in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
    /// A file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not say what it should.
    #[error("{path}: {detail}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A plugin's own configuration.
    #[error("configuration of {plugin}: {detail}")]
    Plugin {
        /// The plugin.
        plugin: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// A kubeconfig named by a configuration.
    #[error("configuration of {plugin}: {source}")]
    Kubeconfig {
        /// The plugin.
        plugin: &'static str,
        /// What is wrong.
        source: KubeconfigError,
    },
}

impl Config {
    /// Those switched on and off.
    pub fn switched(enable: Vec<String>, disable: Vec<String>) -> Self {
        Self {
            enable,
            disable,
            plugins: BTreeMap::new(),
        }
    }

    /// Reads an `AdmissionConfiguration` file: configurations of plugins, inline or by path.
    ///
    /// # Errors
    /// When files cannot be read or are of another kind.
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let value = read(path)?;
        let fault = |detail: String| ConfigError::Content {
            path: path.to_owned(),
            detail,
        };
        let (version, kind) = (value["apiVersion"].as_str(), value["kind"].as_str());
        if version != Some(GROUP) || kind != Some("AdmissionConfiguration") {
            return Err(fault(format!(
                "expected an AdmissionConfiguration of {GROUP}"
            )));
        }
        FILE.check(&value)
            .map_err(|error| fault(error.to_string()))?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        for plugin in value["plugins"].as_array().into_iter().flatten() {
            let name = plugin["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                return Err(fault("a plugin has no name".to_owned()));
            }
            let inline = plugin.get("configuration").filter(|value| !value.is_null());
            let (value, dir) = match (inline, plugin["path"].as_str()) {
                (Some(value), _) => (value.clone(), dir.clone()),
                (None, Some(file)) if !file.is_empty() => {
                    let file = dir.join(file);
                    let value = read(&file)?;
                    (value, file.parent().unwrap_or(Path::new("")).to_owned())
                }
                _ => continue,
            };
            let shape = PLUGINS.iter().find(|(known, _)| *known == name);
            let (_, shape) = shape.ok_or_else(|| {
                fault(format!(
                    "plugin {name:?} is not known, or takes no configuration"
                ))
            })?;
            let checked = shape.check(&value);
            checked.map_err(|error| fault(format!("configuration of {name}: {error}")))?;
            self.plugins
                .insert(name.to_owned(), PluginConfig { value, dir });
        }
        Ok(())
    }

    /// The configuration of a plugin.
    pub(super) fn of(&self, plugin: &str) -> Option<&Value> {
        self.plugins.get(plugin).map(|config| &config.value)
    }

    /// A path in the configuration of a plugin.
    pub(super) fn path(&self, plugin: &str, file: &str) -> PathBuf {
        match self.plugins.get(plugin) {
            Some(config) => config.dir.join(file),
            None => PathBuf::from(file),
        }
    }

    pub(super) fn is_on(&self, plugin: &str, default: bool) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == plugin);
        (default || named(&self.enable)) && !named(&self.disable)
    }

    pub(super) fn check_names(&self, known: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
        for (flag, list) in [
            ("enable-admission-plugins", &self.enable),
            ("disable-admission-plugins", &self.disable),
        ] {
            if let Some(name) = list.iter().find(|name| !known(name)) {
                let name = name.clone();
                return Err(ConfigError::UnknownPlugin { flag, name });
            }
        }
        let both: Vec<&str> = self
            .enable
            .iter()
            .filter(|name| self.disable.contains(name))
            .map(String::as_str)
            .collect();
        if both.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Overlap(format!("[{}]", both.join(" "))))
        }
    }
}

fn read(path: &Path) -> Result<Value, ConfigError> {
    let bytes = std::fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    decode::parse(&bytes, Encoding::Yaml).map_err(|error| ConfigError::Content {
        path: path.to_owned(),
        detail: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_configured_inline_or_by_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("image.yaml"), "imagePolicy: {allowTTL: 5}").unwrap();
        let file = dir.path().join("admission.yaml");
        std::fs::write(
            &file,
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
             - name: ImagePolicyWebhook\n  path: image.yaml\n\
             - name: PodSecurity\n  configuration: {defaults: {enforce: baseline}}\n",
        )
        .unwrap();
        let mut config = Config::default();
        config.read_file(&file).unwrap();
        let of = |plugin| config.of(plugin).cloned().unwrap_or_default();
        assert_eq!(of("ImagePolicyWebhook")["imagePolicy"]["allowTTL"], 5);
        assert_eq!(of("PodSecurity")["defaults"]["enforce"], "baseline");
        assert!(config.read_file(&dir.path().join("image.yaml")).is_err());
        // What is misspelt would be a level or a limit that does not hold.
        for (plugin, why) in [
            (
                "{name: PodSecurity, configuration: {default: {enforce: restricted}}}",
                "configuration of PodSecurity: default: unknown field",
            ),
            (
                "{name: PodSecurity, configuration: {defaults: {enforced: restricted}}}",
                "configuration of PodSecurity: defaults.enforced: unknown field",
            ),
            (
                "{name: ResourceQuota, configuration: {limitedResources: {resource: pods}}}",
                "configuration of ResourceQuota: limitedResources: must be a list",
            ),
            (
                "{name: PodSecurityPolicy, configuration: {}}",
                "plugin \"PodSecurityPolicy\" is not known, or takes no configuration",
            ),
            (
                "{name: PodSecurity, config: {}}",
                "plugins[0].config: unknown field",
            ),
        ] {
            let text = format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- {plugin}\n"
            );
            std::fs::write(&file, text).unwrap();
            let error = Config::default().read_file(&file).unwrap_err().to_string();
            assert!(error.ends_with(why), "{error}");
        }
    }
}
