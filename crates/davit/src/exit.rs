//! Ends that are no failures, and not 0 either.

/// An end with this code, about which all is said.
#[derive(Debug)]
pub(crate) struct ExitWith(pub(crate) u8);

impl std::fmt::Display for ExitWith {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for ExitWith {}
