//! What drivers answer.

use serde::{Deserialize, Deserializer};

/// Longest part of an output that errors show, in characters.
const SHOWN: usize = 256;

/// What a driver can do, as its answer to `init` says; what it does not mention has upstream's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DriverCapabilities {
    /// It attaches volumes to nodes, and mounts them once for all pods of a node.
    pub attach: bool,
    /// Its volumes may be labelled for SELinux.
    pub selinux_relabel: bool,
    /// The space of its volumes can be told by statfs.
    pub supports_metrics: bool,
    /// Its files may be given to a pod's group.
    pub fs_group: bool,
    /// A volume that grows needs its file system to be grown.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
}

impl Default for DriverCapabilities {
    fn default() -> Self {
        Self {
            attach: true,
            selinux_relabel: true,
            supports_metrics: false,
            fs_group: true,
            requires_fs_resize: true,
        }
    }
}

/// An answer with status `Success`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverAnswer {
    /// Device of an attached volume; empty where there is none.
    pub device: String,
    /// Whether a volume is attached.
    pub attached: bool,
    /// What the driver can do; of `init` only.
    pub capabilities: DriverCapabilities,
    /// Size in bytes after growing; 0 where the driver does not tell.
    pub new_size: i64,
}

/// What a driver wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Success(DriverAnswer),
    NotSupported,
    /// Any other status, and the message.
    Failure(String, String),
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    status: String,
    #[serde(default, deserialize_with = "or_default")]
    message: String,
    #[serde(default, deserialize_with = "or_default")]
    device: String,
    #[serde(default, deserialize_with = "or_default")]
    attached: bool,
    #[serde(default, alias = "Capabilities", deserialize_with = "or_default")]
    capabilities: DriverCapabilities,
    #[serde(default, rename = "volumeNewSize", deserialize_with = "or_default")]
    new_size: i64,
}

/// Shell drivers write null for what they do not know.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads what a driver wrote: its standard output, and both outputs one after the other where the first alone is no answer.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(stdout: &[u8], stderr: &[u8]) -> Result<Said, String> {
    match parse(stdout) {
        Err(error) if !stderr.is_empty() => {
            let both = [stdout, stderr].concat();
            parse(&both).or_else(|_| parse(stderr)).map_err(|_| error)
        }
        other => other,
    }
}

fn parse(output: &[u8]) -> Result<Said, String> {
    if output.trim_ascii().is_empty() {
        return Err("nothing was written".to_owned());
    }
    let wire: Wire = serde_json::from_slice(output).map_err(|e| e.to_string())?;
    Ok(match wire.status.as_str() {
        "Success" => Said::Success(DriverAnswer {
            device: wire.device,
            attached: wire.attached,
            capabilities: wire.capabilities,
            new_size: wire.new_size,
        }),
        "Not supported" => Said::NotSupported,
        _ => Said::Failure(wire.status, wire.message),
    })
}

/// The beginning of an output, for errors.
pub(crate) fn shown(stdout: &[u8], stderr: &[u8]) -> String {
    let both = [stdout, stderr].concat();
    String::from_utf8_lossy(&both)
        .trim()
        .chars()
        .take(SHOWN)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(stdout: &str, stderr: &str) -> Result<Said, String> {
        read(stdout.as_bytes(), stderr.as_bytes())
    }

    #[test]
    fn answers_have_defaults() {
        let Ok(Said::Success(answer)) = said(
            r#"{"status":"Success","message":null,"capabilities":{"attach":false}}"#,
            "",
        ) else {
            panic!("not read");
        };
        assert_eq!(
            answer.capabilities,
            DriverCapabilities {
                attach: false,
                ..DriverCapabilities::default()
            }
        );
        assert_eq!(
            said(r#"{"status":"Not supported"}"#, ""),
            Ok(Said::NotSupported)
        );
        assert_eq!(
            said(r#"{"message":"x"}"#, ""),
            Ok(Said::Failure(String::new(), "x".to_owned()))
        );
    }

    #[test]
    fn item_104_noise_beside_the_answer_does_no_harm() {
        let answer = r#"{"status":"Success","device":"/dev/x"}"#;
        for (stdout, stderr) in [(answer, "warning"), ("", answer)] {
            let Ok(Said::Success(read)) = said(stdout, stderr) else {
                panic!("{stdout:?} {stderr:?}");
            };
            assert_eq!(read.device, "/dev/x");
        }
        assert!(said("hello", "world").is_err());
        assert!(said(" ", "").is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_a_driver_writes_is_fatal(
            out in proptest::collection::vec(any::<u8>(), 0..400),
            err in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let _ = read(&out, &err);
            prop_assert!(shown(&out, &err).chars().count() <= SHOWN);
        }

        #[test]
        fn nor_is_any_json(key in "status|message|device|attached|capabilities|volumeNewSize",
            value in "null|true|-1|1e99|\"\"|\"Success\"|\\{\\}|\\[1\\]|\\{\"attach\":null\\}") {
            let _ = said(&format!("{{\"status\":\"Success\",\"{key}\":{value}}}"), "");
        }
    }
}
