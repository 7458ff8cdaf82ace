//! What the server says of itself.

use serde_json::{Value, json};

/// The version clients see: the API level, then whose server it is.
pub const GIT_VERSION: &str = "v1.36.0+davit";
/// Major version of the API level.
pub const MAJOR: &str = "1";
/// Minor version of the API level.
pub const MINOR: &str = "36";

/// The document of `/version`.
pub(crate) fn document() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": option_env!("DAVIT_GIT_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": option_env!("DAVIT_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
    })
}

/// The architecture by the name Kubernetes uses.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
