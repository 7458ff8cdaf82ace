//! The error body of the API and the constructors of every error that the API answers with.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::field::{self, FieldError, quote};

/// Faults of one request that are told. Bodies have room for thousands of times as many, which are not looked for, either, where
/// there are lists without end.
pub const MOST_CAUSES: usize = 1000;
/// Bytes of them that are told, save that the first is told whole: each may show a part of the body.
const MOST_TOLD: usize = 1 << 20;

/// Machine-readable class of an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the reasons of the API")]
pub enum Reason {
    #[default]
    #[serde(rename = "")]
    Unknown,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StorageReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
    /// A reason of somebody else's, such as an admission webhook may give.
    #[serde(untagged)]
    Other(Box<str>),
}

impl Reason {
    /// The HTTP status code that goes with the reason; 500 for those that the API does not know.
    pub fn code(&self) -> u16 {
        match self {
            Reason::BadRequest => 400,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Gone | Reason::Expired => 410,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::Invalid => 422,
            Reason::TooManyRequests => 429,
            Reason::Unknown
            | Reason::ServerTimeout
            | Reason::StorageReadError
            | Reason::InternalError
            | Reason::Other(_) => 500,
            Reason::ServiceUnavailable => 503,
            Reason::Timeout => 504,
        }
    }
}

/// `Status` of API version `v1`: the body of every error and of some successes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `Status`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Always `v1`.
    #[serde(default = "version")]
    pub api_version: String,
    /// List metadata.
    #[serde(default)]
    pub metadata: ListMeta,
    /// `Success` or `Failure`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// For humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Class of the error.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub reason: Reason,
    /// What the error is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    /// HTTP status code; 0 says nothing.
    #[serde(default, skip_serializing_if = "has_none")]
    pub code: u16,
}

/// List metadata of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// Revision of the collection.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Token with which an expired list can go on.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
}

/// What an error is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Resource (plural), or kind for [`Reason::Invalid`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Single faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// After how many seconds a retry makes sense; 0 says nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Class, e.g. `FieldValueInvalid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn kind() -> String {
    "Status".to_owned()
}

fn version() -> String {
    "v1".to_owned()
}

fn is_unknown(reason: &Reason) -> bool {
    *reason == Reason::Unknown
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "signature of serde")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "signature of serde")]
fn has_none(code: &u16) -> bool {
    *code == 0
}

/// A resource or kind and its group, printed as in messages: `pods`, `deployments.apps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Resource (`pods`) or kind (`Pod`).
    pub name: &'a str,
}

impl<'a> Qualified<'a> {
    /// A name in a group.
    pub fn new(group: &'a str, name: &'a str) -> Self {
        Qualified { group, name }
    }
}

impl fmt::Display for Qualified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    /// A failure of a class, with the code that goes with it.
    pub fn failure(reason: Reason, message: impl Into<String>) -> Self {
        Status {
            kind: kind(),
            api_version: version(),
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: message.into(),
            code: reason.code(),
            reason,
            details: None,
        }
    }

    /// A success about an object, as DELETE answers with.
    pub fn success(resource: Qualified<'_>, name: &str, uid: &str) -> Self {
        Status {
            status: "Success".to_owned(),
            code: 0,
            ..Status::failure(Reason::Unknown, "")
        }
        .with_object(resource, name)
        .with_uid(uid)
    }

    /// A success with a code and nothing else (`201` of a binding).
    pub fn success_code(code: u16) -> Self {
        Status {
            status: "Success".to_owned(),
            code,
            ..Status::failure(Reason::Unknown, "")
        }
    }

    /// The details, made when missing.
    pub fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_with(Box::default)
    }

    fn with_object(mut self, resource: Qualified<'_>, name: &str) -> Self {
        let details = self.details_mut();
        details.group = resource.group.to_owned();
        details.kind = resource.name.to_owned();
        details.name = name.to_owned();
        self
    }

    /// Names the UID of the object.
    #[must_use]
    pub fn with_uid(mut self, uid: &str) -> Self {
        self.details_mut().uid = uid.to_owned();
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        self.details_mut().causes.push(Cause {
            reason: reason.to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        });
        self
    }

    /// Says after how many seconds a retry makes sense.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details_mut().retry_after_seconds = seconds;
        self
    }

    /// 400 with a free text.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::failure(Reason::BadRequest, message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Status::failure(Reason::Unauthorized, "Unauthorized")
    }

    /// 403 for a resource, with an object name or an empty one.
    pub fn forbidden(resource: Qualified<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = match (resource.name.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{resource} is forbidden: {why}"),
            (false, false) => format!("{resource} {} is forbidden: {why}", quote(name)),
        };
        Status::failure(Reason::Forbidden, message).with_object(resource, name)
    }

    /// 404 for an object.
    pub fn not_found(resource: Qualified<'_>, name: &str) -> Self {
        let message = format!("{resource} {} not found", quote(name));
        Status::failure(Reason::NotFound, message).with_object(resource, name)
    }

    /// 500 of a list in which objects cannot be read from the store; causes name them.
    pub fn storage_read_error(resource: Qualified<'_>) -> Self {
        let message = format!("failed to read one or more {resource} from the storage");
        Status::failure(Reason::StorageReadError, message).with_object(resource, "list")
    }

    /// 404 for a path that serves nothing.
    pub fn unknown_path() -> Self {
        let mut status = Status::failure(
            Reason::NotFound,
            "the server could not find the requested resource",
        );
        status.details_mut();
        status
    }

    /// 405 of a path.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Status::failure(Reason::MethodNotAllowed, message);
        status.details_mut();
        status
    }

    /// 405 of a kind.
    pub fn method_not_supported(resource: Qualified<'_>, verb: &str) -> Self {
        let kind = quote(&resource.to_string());
        let message = format!("{verb} is not supported on resources of kind {kind}");
        Status::failure(Reason::MethodNotAllowed, message).with_object(resource, "")
    }

    /// 406.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        Status::failure(
            Reason::NotAcceptable,
            format!("only the following media types are accepted: {list}"),
        )
    }

    /// 406 of a path that knows no form of the media types that are accepted.
    pub fn no_representation(available: &[&str]) -> Self {
        let list = available.join(", ");
        let message = format!("406: Not Acceptable\n\nAvailable representations: {list}");
        let mut status = Status::failure(Reason::NotAcceptable, message);
        status.details_mut();
        status
    }

    /// 409 for a name that is taken.
    pub fn already_exists(resource: Qualified<'_>, name: &str) -> Self {
        let message = format!("{resource} {} already exists", quote(name));
        Status::failure(Reason::AlreadyExists, message).with_object(resource, name)
    }

    /// 409 for a name that is taken by an object that is being deleted.
    pub fn already_exists_deleting(resource: Qualified<'_>, name: &str) -> Self {
        let mut status = Status::already_exists(resource, name);
        status.message = format!("object is being deleted: {}", status.message);
        status
    }

    /// 409 after every generated name was taken.
    pub fn generate_name_conflict(resource: Qualified<'_>, name: &str) -> Self {
        let mut status = Status::already_exists(resource, name);
        status
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        status.with_retry_after(1)
    }

    /// 409 with a free reason.
    pub fn conflict(resource: Qualified<'_>, name: &str, why: impl fmt::Display) -> Self {
        let name_q = quote(name);
        let message = format!("Operation cannot be fulfilled on {resource} {name_q}: {why}");
        Status::failure(Reason::Conflict, message).with_object(resource, name)
    }

    /// 409 for an object that was changed in between.
    pub fn conflict_modified(resource: Qualified<'_>, name: &str) -> Self {
        Status::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 for a UID precondition.
    pub fn uid_precondition(resource: Qualified<'_>, name: &str, want: &str, have: &str) -> Self {
        let why =
            format!("Precondition failed: UID in precondition: {want}, UID in object meta: {have}");
        Status::conflict(resource, name, why)
    }

    /// 409 for a resourceVersion precondition.
    pub fn version_precondition(
        resource: Qualified<'_>,
        name: &str,
        want: &str,
        have: &str,
    ) -> Self {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {want}, ResourceVersion in object meta: {have}"
        );
        Status::conflict(resource, name, why)
    }

    /// 409 for the UID that a deletion names.
    pub fn other_uid(kind: Qualified<'_>, name: &str, want: &str, have: &str) -> Self {
        let why = format!(
            "the UID in the precondition ({want}) does not match the UID in record ({have}). The object might have been deleted and then recreated"
        );
        Status::conflict(kind, name, why)
    }

    /// 409 for the resourceVersion that a deletion names.
    pub fn other_version(kind: Qualified<'_>, name: &str, want: &str, have: &str) -> Self {
        let why = format!(
            "the ResourceVersion in the precondition ({want}) does not match the ResourceVersion in record ({have}). The object might have been modified"
        );
        Status::conflict(kind, name, why)
    }

    /// 410 with a free text: a revision that is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Status::failure(Reason::Expired, message)
    }

    /// 410 of a watch.
    pub fn too_old_resource_version(requested: u64, oldest: u64) -> Self {
        Status::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// 413 for a body above `limit` bytes.
    pub fn request_entity_too_large(limit: usize) -> Self {
        Status::too_large(&format!("limit is {limit}"))
    }

    /// 413 with a free text after `Request entity too large: `.
    pub fn too_large(why: &str) -> Self {
        Status::failure(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {why}"),
        )
    }

    /// 415.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        Status::failure(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {list}"
            ),
        )
    }

    /// 415 of a path that takes no body of the media type.
    pub fn no_such_media_type() -> Self {
        let mut status =
            Status::failure(Reason::UnsupportedMediaType, "415: Unsupported Media Type");
        status.details_mut();
        status
    }

    /// 422 for an object with faults, of which no more are told than anybody reads.
    pub fn invalid(kind: Qualified<'_>, name: &str, errors: &[FieldError]) -> Self {
        let (mut causes, mut bytes): (Vec<Cause>, usize) = (Vec::new(), 0);
        for error in errors.iter().take(MOST_CAUSES) {
            let cause = Cause {
                reason: error.error_type.reason().to_owned(),
                message: error.body(),
                field: error.field.clone(),
            };
            bytes += cause.message.len() + cause.field.len();
            if bytes > MOST_TOLD && !causes.is_empty() {
                break;
            }
            causes.push(cause);
        }
        let mut message = format!("{kind} {} is invalid", quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&field::aggregate(&errors[..causes.len()]));
        }
        if causes.len() < errors.len() {
            message.push_str(" and more");
        }
        let mut status = Status::failure(Reason::Invalid, message).with_object(kind, name);
        status.details_mut().causes = causes;
        status
    }

    /// 422 for a request that makes sense in form only, such as a JSON patch that does not apply.
    pub fn unprocessable(resource: Qualified<'_>, name: &str, message: &str) -> Self {
        let text = if message.is_empty() {
            "the server rejected our request due to an error in our request"
        } else {
            message
        };
        Status::failure(Reason::Invalid, text).with_object(resource, name)
    }

    /// 429 with a free text.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Status::failure(Reason::TooManyRequests, message).with_retry_after(retry_after_seconds)
    }

    /// 500 for a fault of the server.
    pub fn internal(error: impl fmt::Display) -> Self {
        let text = error.to_string();
        Status::failure(
            Reason::InternalError,
            format!("Internal error occurred: {text}"),
        )
        .with_cause("", &text, "")
    }

    /// 500 without a reason, with a raw text.
    pub fn unknown(message: impl Into<String>) -> Self {
        Status::failure(Reason::Unknown, message)
    }

    /// 500 for an operation that can be tried again.
    pub fn server_timeout(resource: Qualified<'_>, operation: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Status::failure(Reason::ServerTimeout, message)
            .with_object(resource, operation)
            .with_retry_after(retry_after)
    }

    /// 503 with a free text.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Status::failure(Reason::ServiceUnavailable, message)
    }

    /// 504 with a text after `Timeout: `.
    pub fn timeout(message: impl fmt::Display, retry_after_seconds: u32) -> Self {
        Status::failure(Reason::Timeout, format!("Timeout: {message}"))
            .with_retry_after(retry_after_seconds)
    }

    /// 504 for a revision that does not exist yet.
    pub fn too_large_resource_version(requested: u64, current: u64) -> Self {
        Status::timeout(
            format!("Too large resource version: {requested}, current: {current}"),
            1,
        )
        .with_cause("ResourceVersionTooLarge", "Too large resource version", "")
    }

    /// 403 for creating in a namespace that is being deleted.
    pub fn namespace_terminating(resource: Qualified<'_>, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Status::forbidden(resource, name, why).with_cause(
            "NamespaceTerminating",
            &format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use serde_json::json;

    #[test]
    fn not_found_body() {
        let s = Status::not_found(Qualified::new("apps", "deployments"), "web");
        assert_eq!(
            serde_json::to_value(&s).unwrap(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "deployments.apps \"web\" not found", "reason": "NotFound",
                "details": {"name": "web", "group": "apps", "kind": "deployments"}, "code": 404
            })
        );
    }

    /// A body of three megabytes had an answer of nineteen, and where each fault shows a list of more than there is memory for.
    #[test]
    fn no_more_faults_are_told_than_anybody_reads() {
        let kind = Qualified::new("", "Pod");
        let path = Path::new("spec").child("x");
        let many: Vec<FieldError> = (0..30_000)
            .map(|n| FieldError::required(&path.index(n), ""))
            .collect();
        let status = Status::invalid(kind, "p", &many);
        assert_eq!(status.details.unwrap().causes.len(), MOST_CAUSES);
        assert!(status.message.ends_with("Required value] and more"));
        let large = FieldError::invalid(&path, "v".repeat(3 << 20), "bad");
        let status = Status::invalid(kind, "p", &[large.clone(), large.clone(), large]);
        assert_eq!(status.details.unwrap().causes.len(), 1);
        assert!(status.message.ends_with(": bad and more"));
    }

    #[test]
    fn invalid_has_one_cause_a_fault() {
        let errors = [
            FieldError::required(&Path::new("spec").child("a"), ""),
            FieldError::invalid(&Path::new("spec").child("b"), "x", "bad"),
        ];
        let s = Status::invalid(Qualified::new("", "Pod"), "p", &errors);
        assert_eq!(
            s.message,
            "Pod \"p\" is invalid: [spec.a: Required value, spec.b: Invalid value: \"x\": bad]"
        );
        let d = s.details.unwrap();
        assert_eq!(d.kind, "Pod");
        assert_eq!(d.causes[1].reason, "FieldValueInvalid");
        assert_eq!(d.causes[1].message, "Invalid value: \"x\": bad");
        assert_eq!(d.causes[1].field, "spec.b");
        assert_eq!(s.code, 422);
    }

    #[test]
    fn reasons_of_others_are_kept() {
        let text = r#"{"reason":"QuotaTooGreedy","code":418}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.reason, Reason::Other("QuotaTooGreedy".into()));
        let back = serde_json::to_value(&status).unwrap();
        assert_eq!(back["reason"], "QuotaTooGreedy");
        for (text, reason) in [("", Reason::Unknown), ("Gone", Reason::Gone)] {
            let read: Reason = serde_json::from_value(json!(text)).unwrap();
            assert_eq!(read, reason);
            assert_eq!(serde_json::to_value(&reason).unwrap(), json!(text));
        }
        assert!(serde_json::from_value::<Reason>(json!(7)).is_err());
    }

    #[test]
    fn catalogue() {
        let pods = Qualified::new("", "pods");
        for (s, code, message) in [
            (
                Status::forbidden(pods, "", "no"),
                403,
                "pods is forbidden: no",
            ),
            (
                Status::method_not_supported(pods, "create"),
                405,
                "create is not supported on resources of kind \"pods\"",
            ),
            (
                Status::too_old_resource_version(1, 5),
                410,
                "too old resource version: 1 (5)",
            ),
            (
                Status::request_entity_too_large(3_145_728),
                413,
                "Request entity too large: limit is 3145728",
            ),
            (
                Status::internal("boom"),
                500,
                "Internal error occurred: boom",
            ),
            (
                Status::too_large_resource_version(9, 3),
                504,
                "Timeout: Too large resource version: 9, current: 3",
            ),
            (
                Status::server_timeout(pods, "create", 1),
                500,
                "The create operation against pods could not be completed at this time, please try again.",
            ),
        ] {
            assert_eq!((s.code, s.message.as_str()), (code, message));
            let json = serde_json::to_string(&s).unwrap();
            let back: Status = serde_json::from_str(&json).unwrap();
            assert_eq!(back, s);
        }
    }
}
