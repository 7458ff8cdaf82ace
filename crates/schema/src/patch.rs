//! JSON patch, merge patch and strategic merge patch.

use davit_api::status::{Qualified, Status};
use serde_json::Value;

use crate::decode::DecodeError;

mod json;
mod merge;
mod strategic;

pub use json::{JsonPatch, MAX_COPIED_BYTES, MAX_OPERATIONS, MAX_SHIFTED, json_patch_faults};
pub use merge::{diff, merge_patch};
pub use strategic::strategic_merge_patch;

/// Why a patch cannot be applied; texts are those of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch is too large to be applied: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not apply to this object: 422.
    #[error("{0}")]
    Unprocessable(String),
    /// The patch asks for what the original answers with a plain 500.
    #[error("{0}")]
    Failed(String),
}

impl PatchError {
    /// Why the text of a patch cannot be read; `sentence` is made of what its parser says.
    pub fn of_parser(error: DecodeError, sentence: impl FnOnce(&str) -> String) -> Self {
        match error {
            DecodeError::TooLarge(why) => Self::TooLarge(why),
            error => Self::Malformed(sentence(&error.to_string())),
        }
    }

    /// The answer of the API server.
    pub fn status(&self) -> Status {
        match self {
            PatchError::Malformed(text) => Status::bad_request(text),
            PatchError::TooLarge(text) => Status::too_large(text),
            PatchError::Unprocessable(_) => Status::unprocessable(Qualified::new("", ""), "", ""),
            PatchError::Failed(text) => Status::unknown(text),
        }
    }
}

/// The form of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own, which knows the schema.
    StrategicMerge,
}

impl PatchType {
    /// The form of a media type without parameters.
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            "application/json-patch+json" => Some(PatchType::Json),
            "application/merge-patch+json" => Some(PatchType::Merge),
            "application/strategic-merge-patch+json" => Some(PatchType::StrategicMerge),
            _ => None,
        }
    }
}

/// Whether a value counts as set: null does not.
fn is_set(value: &Value) -> bool {
    !value.is_null()
}
