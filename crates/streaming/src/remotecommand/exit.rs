//! How a process ended, as the error stream tells it.

use serde_json::json;

/// What a session reports at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// The process ended with this code; 0 is success.
    Code(i32),
    /// The process could not be run, or its end is unknown.
    Failed(String),
}

impl ExitStatus {
    /// The text for the error stream: a `Status` for clients of protocol v4 and later, plain text before that (nothing
    /// for success).
    pub(crate) fn message(&self, structured: bool) -> String {
        match (self, structured) {
            (Self::Code(0), true) => json!({ "metadata": {}, "status": "Success" }).to_string(),
            (Self::Code(0), false) => String::new(),
            (Self::Code(code), true) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            })
            .to_string(),
            (Self::Code(code), false) => format!("command terminated with non-zero exit code: exit status {code}"),
            (Self::Failed(why), true) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "InternalError",
                "message": format!("Internal error occurred: {why}"),
                "details": { "causes": [{ "message": why }] },
                "code": 500,
            })
            .to_string(),
            (Self::Failed(why), false) => format!("Internal error occurred: {why}"),
        }
    }
}
