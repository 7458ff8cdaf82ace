//! What the server says of itself.

use serde_json::{Value, json};

/// The version clients see: the API level, then whose server it is.
pub const GIT_VERSION: &str = "v1.36.0+davit";
/// Major version of the API level.
pub const MAJOR: &str = "1";
/// Minor version of the API level.
pub const MINOR: &str = "36";

/// What the binary was built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The commit, in hexadecimal.
    pub commit: &'static str,
    /// When that was, `2024-01-01T00:00:00Z`.
    pub date: &'static str,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            commit: "unknown",
            date: "1970-01-01T00:00:00Z",
        }
    }
}

/// The document of `/version`.
pub(crate) fn document(build: Build) -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": build.commit,
        "gitTreeState": "clean",
        "buildDate": build.date,
        "goVersion": "none",
        "compiler": "rustc",
        "platform": platform(),
    })
}

/// What the binary runs on, as Go says it.
pub(crate) fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, davit_api::architecture())
}
