//! What goes wrong with a call, and what that means for the volume.

use std::error::Error as _;
use tonic::{Code, Status};

/// What an error says about the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The call failed and nothing goes on: what it was to make is not there.
    Final,
    /// The driver may have done it, or may still do it.
    Uncertain,
    /// The driver was not asked; what was before is still so.
    Transient,
}

/// Nobody serves a driver now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver name {0} not found in the list of registered CSI drivers")]
pub struct NotRegistered(pub String);

/// Why a call on a driver failed. Holds nothing of the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody serves the driver.
    #[error(transparent)]
    NotRegistered(#[from] NotRegistered),
    /// The call was made, or its connection could not be.
    #[error("rpc error: code = {} desc = {message}", go_name(*code))]
    Call {
        /// gRPC code of the driver, or of what happened to the connection.
        code: Code,
        /// The driver's words, or what happened to the connection.
        message: String,
        /// Final or uncertain.
        class: Class,
    },
    /// The request was not complete and was not sent.
    #[error("missing {0}")]
    Missing(&'static str),
    /// A driver answered NodeGetVolumeStats with nothing.
    #[error("failed to get usage from response. usage is nil")]
    NoUsage,
}

impl Error {
    /// What the error says about the volume.
    pub fn class(&self) -> Class {
        match self {
            Self::NotRegistered(_) => Class::Transient,
            Self::Call { class, .. } => *class,
            Self::Missing(_) | Self::NoUsage => Class::Final,
        }
    }

    /// Whether an expansion failed because the volume is in use.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == Code::FailedPrecondition)
    }

    /// Whether an expansion cannot succeed as it was asked for.
    pub fn is_infeasible(&self) -> bool {
        let codes = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound];
        matches!(self, Self::Call { code, .. } if codes.contains(code))
    }

    /// Whether the driver does not have the call at all.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == Code::Unimplemented)
    }

    pub(crate) fn call(code: Code, message: impl Into<String>) -> Self {
        Self::Call {
            code,
            message: message.into(),
            class: class(code),
        }
    }

    pub(crate) fn deadline() -> Self {
        Self::call(Code::DeadlineExceeded, "context deadline exceeded")
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // A status with a source was not sent by the driver but made here, when the connection broke.
        let Some(source) = status.source() else {
            return Self::call(status.code(), status.message());
        };
        let mut cause = source;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Self::call(
            Code::Unavailable,
            format!("error reading from server: {cause}"),
        )
    }
}

fn class(code: Code) -> Class {
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => Class::Uncertain,
        _ => Class::Final,
    }
}

/// The code as Go programs print it.
fn go_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_classes_and_the_names_of_go() {
        let uncertain = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ];
        for code in (1..=16).map(Code::from_i32) {
            let error = Error::from(Status::new(code, "why"));
            let expected = if uncertain.contains(&code) {
                Class::Uncertain
            } else {
                Class::Final
            };
            assert_eq!(error.class(), expected, "{code:?}");
        }
        let text = |code| Error::from(Status::new(code, "why")).to_string();
        assert_eq!(
            text(Code::Cancelled),
            "rpc error: code = Canceled desc = why"
        );
        assert_eq!(
            text(Code::DeadlineExceeded),
            "rpc error: code = DeadlineExceeded desc = why"
        );
        assert_eq!(
            Error::from(NotRegistered("a.b".to_owned())).to_string(),
            "driver name a.b not found in the list of registered CSI drivers"
        );
    }

    #[test]
    fn a_status_made_here_is_a_break() {
        let broken = std::io::Error::other("broken pipe");
        let error = Error::from(Status::from_error(Box::new(broken)));
        assert_eq!(error.class(), Class::Uncertain);
        assert_eq!(
            error.to_string(),
            "rpc error: code = Unavailable desc = error reading from server: broken pipe"
        );
    }
}
