//! Opaque parameters: what claims and classes say to the driver about its devices.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::answers::{CdiFiles, Device};
use super::cluster::{Config, Source};
use super::{Met, Run};

/// Parameters to try, as in a file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Those that the driver takes.
    #[serde(default)]
    pub valid: Vec<Valid>,
    /// Those that it refuses.
    #[serde(default)]
    pub invalid: Vec<Invalid>,
}

/// Parameters that the driver takes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Valid {
    /// What is in `opaque.parameters` of a claim or class.
    pub parameters: Value,
    /// The device to try them on; without it the first.
    #[serde(default)]
    pub device: Option<String>,
}

/// Parameters that the driver refuses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invalid {
    /// What is in `opaque.parameters` of a claim.
    pub parameters: Value,
    /// The device to try them on; without it the first.
    #[serde(default)]
    pub device: Option<String>,
    /// A part of the error that tells the user what is wrong: the name of the field, or its value.
    pub names: String,
}

/// Parameters that cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum ParametersError {
    /// The file cannot be read.
    #[error("reading parameters {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The file says something else.
    #[error("parameters {path}: {why}")]
    Form {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

impl Parameters {
    /// Reads a file, JSON or YAML.
    ///
    /// # Errors
    /// It cannot be read, is not of this form, or names nothing to try.
    pub fn read(path: &Path) -> Result<Self, ParametersError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ParametersError::Read {
            path: shown.clone(),
            error,
        })?;
        Self::parse(&text).map_err(|why| ParametersError::Form { path: shown, why })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let read: Self = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        if read == Self::default() {
            return Err("there are neither valid nor invalid ones".to_owned());
        }
        let valid = read.valid.iter().enumerate();
        let valid = valid.map(|(i, entry)| (format!("valid[{i}]"), &entry.parameters));
        let invalid = read.invalid.iter().enumerate();
        let invalid = invalid.map(|(i, entry)| (format!("invalid[{i}]"), &entry.parameters));
        for (place, parameters) in valid.chain(invalid) {
            if !parameters.is_object() {
                return Err(format!("{place}.parameters: not an object"));
            }
        }
        if let Some(i) = read.invalid.iter().position(|entry| entry.names.is_empty()) {
            return Err(format!("invalid[{i}].names: empty"));
        }
        Ok(read)
    }
}

/// A driver that is not there: nobody may look at what is meant for it.
const OTHER_DRIVER: &str = "other.lab.davit.dev";

/// The device of this name, or the first.
fn device<'a>(met: &'a Met, name: Option<&str>) -> Result<&'a Device, String> {
    let mut devices = met.devices.iter();
    match name {
        None => devices
            .next()
            .ok_or_else(|| "there are no devices".to_owned()),
        Some(name) => devices
            .find(|device| device.name == name)
            .ok_or_else(|| format!("no device {name} can be allocated without further ado")),
    }
}

impl Run<'_> {
    /// Claims with parameters: for others, valid ones, invalid ones.
    pub(super) async fn parameters(&mut self, met: &Met) {
        let foreign = Config {
            source: Source::Claim,
            driver: OTHER_DRIVER.to_owned(),
            parameters: serde_json::json!({"apiVersion": "lab.davit.dev/v1", "kind": "NotForYou"}),
        };
        let seen = self.taken(met, &met.devices[0], foreign).await;
        self.report.verdict("parameters-foreign", seen);
        let given = &self.options.parameters;
        let (valid, invalid) = (given.valid.clone(), given.invalid.clone());
        for (id, count) in [
            ("parameters-valid", valid.len()),
            ("parameters-invalid", invalid.len()),
        ] {
            if count == 0 {
                self.report.skip(id, "none were given by --parameters");
            }
        }
        for (i, entry) in valid.iter().enumerate() {
            let seen = self.valid(met, entry).await;
            let seen = seen.map_err(|e| format!("valid[{i}]: {e}"));
            self.report.verdict("parameters-valid", seen);
        }
        for (i, entry) in invalid.iter().enumerate() {
            let seen = self.invalid(met, entry).await;
            let seen = seen.map_err(|e| format!("invalid[{i}]: {e}"));
            self.report.verdict("parameters-invalid", seen);
        }
    }

    /// Whether a claim with this configuration is prepared.
    async fn taken(&self, met: &Met, device: &Device, config: Config) -> Result<String, String> {
        let claim = self
            .cluster
            .configured(&met.found.name, device, &[config])
            .await?;
        let prepared = met.driver.prepare_one(&claim).await;
        let undone = met.driver.unprepare_one(&claim).await;
        self.cluster.delete(&claim).await?;
        let prepared = prepared?;
        undone?;
        Ok(format!("{} devices", prepared.len()))
    }

    /// Valid parameters, from a claim and from a class.
    async fn valid(&self, met: &Met, entry: &Valid) -> Result<String, String> {
        let device = device(met, entry.device.as_deref())?;
        for (source, whose) in [(Source::Claim, "claim"), (Source::Class, "class")] {
            let config = Config {
                source,
                driver: met.found.name.clone(),
                parameters: entry.parameters.clone(),
            };
            let taken = self.taken(met, device, config).await;
            taken.map_err(|e| format!("of a {whose}: {e}"))?;
        }
        Ok("taken".to_owned())
    }

    /// Invalid parameters: refused with an error that names them, and nothing stays behind.
    async fn invalid(&self, met: &Met, entry: &Invalid) -> Result<String, String> {
        let device = device(met, entry.device.as_deref())?;
        let config = Config {
            source: Source::Claim,
            driver: met.found.name.clone(),
            parameters: entry.parameters.clone(),
        };
        let made = self
            .cluster
            .configured(&met.found.name, device, &[config])
            .await;
        let claim = match made {
            Ok(claim) => claim,
            // A webhook of the driver may have refused it; what fails otherwise does not name them.
            Err(error) => return named(&error, &entry.names),
        };
        let refusal = met.driver.prepare_one(&claim).await.err();
        let left = CdiFiles::read(&self.place.cdi()).of_claim(&claim.uid);
        let undone = met.driver.unprepare_one(&claim).await;
        self.cluster.delete(&claim).await?;
        let refusal = refusal.ok_or("they were taken")?;
        let said = named(&refusal, &entry.names)?;
        if let Some(left) = left {
            return Err(format!("{left} was left by the refused claim"));
        }
        undone.map_err(|e| format!("undoing the refused claim: {e}"))?;
        // The device is not held by what was refused.
        let plain = self.cluster.allocated(&met.found.name, device).await?;
        let prepared = met.driver.prepare_one(&plain).await;
        let undone = met.driver.unprepare_one(&plain).await;
        self.cluster.delete(&plain).await?;
        prepared.map_err(|e| format!("the next claim of the device, without parameters: {e}"))?;
        undone?;
        Ok(said)
    }
}

/// Whether an error names what it is about.
fn named(error: &str, what: &str) -> Result<String, String> {
    if error.contains(what) {
        Ok(error.to_owned())
    } else {
        Err(format!("the error does not name {what:?}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_parameters() {
        let text = "valid:\n- parameters: {kind: A}\n  device: gpu-0\ninvalid:\n- {parameters: {kind: B}, names: kind}\n";
        let read = Parameters::parse(text).unwrap();
        assert_eq!(read.valid[0].device.as_deref(), Some("gpu-0"));
        assert_eq!(read.invalid[0].names, "kind");
        let json =
            r#"{"valid": [{"parameters": {"kind": "A", "slots": 2, "deep": {"on": true}}}]}"#;
        let read = Parameters::parse(json).unwrap();
        assert_eq!(read.valid[0].parameters["slots"], 2);
        assert_eq!(read.valid[0].parameters["deep"]["on"], true);
        for (bad, why) in [
            ("{}", "neither valid nor invalid"),
            (
                "valid: [{parameters: 3}]",
                "valid[0].parameters: not an object",
            ),
            ("invalid: [{parameters: {}}]", "names"),
            (
                "invalid: [{parameters: {}, names: ''}]",
                "invalid[0].names: empty",
            ),
            ("wrong: []", "wrong"),
        ] {
            let told = Parameters::parse(bad).unwrap_err();
            assert!(told.contains(why), "{bad}: {told}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        assert!(named("spec.mode: unknown", "mode").is_ok());
        let told = named("bad", "mode").unwrap_err();
        assert_eq!(told, "the error does not name \"mode\": bad");
    }
}
