//! Groups of the Kubernetes project (`*.k8s.io`, `*.kubernetes.io`) need an approval
//! (KEP-1111).

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

const ANNOTATION: &str = "api-approved.kubernetes.io";

/// Whether a group is the project's.
pub fn is_protected(group: &str) -> bool {
    let under = |domain: &str| {
        group == domain
            || group
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    under("k8s.io") || under("kubernetes.io")
}

/// What the annotation says, as the condition tells it.
pub struct Approval {
    /// The status of the condition.
    pub conforms: bool,
    /// The reason of the condition.
    pub reason: &'static str,
    /// The message of the condition.
    pub message: String,
}

/// Judges the annotation of a definition in a protected group.
pub fn approval(obj: &Value) -> Approval {
    let Some(text) = davit_api::meta::annotation(obj, ANNOTATION).filter(|text| !text.is_empty())
    else {
        return Approval {
            conforms: false,
            reason: "MissingAnnotation",
            message: "protected groups must have approval annotation \
                      \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
                .to_owned(),
        };
    };
    if text.starts_with("unapproved") {
        return Approval {
            conforms: true,
            reason: "UnapprovedAnnotation",
            message: format!("not approved: {}", davit_api::field::quote(text)),
        };
    }
    let is_url = text
        .parse::<http::Uri>()
        .is_ok_and(|url| url.host().is_some_and(|host| !host.is_empty()) && url.scheme().is_some());
    if is_url {
        return Approval {
            conforms: true,
            reason: "ApprovedAnnotation",
            message: format!("approved in {text}"),
        };
    }
    Approval {
        conforms: false,
        reason: "InvalidAnnotation",
        message: format!(
            "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or \
             a reason starting with \"unapproved\", see \
             https://github.com/kubernetes/enhancements/pull/1111"
        ),
    }
}

pub(super) fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let group = new["spec"]["group"].as_str().unwrap_or_default();
    if !is_protected(group) {
        return;
    }
    let approval = approval(new);
    // what was let in once may stay as it is
    let unchanged = old.is_some_and(|old| self::approval(old).reason == approval.reason);
    if approval.conforms || unchanged {
        return;
    }
    let path = Path::new("metadata").child("annotations").key(ANNOTATION);
    errors.push(if approval.reason == "MissingAnnotation" {
        FieldError::required(&path, approval.message)
    } else {
        let text = davit_api::meta::annotation(new, ANNOTATION).unwrap_or_default();
        FieldError::invalid(&path, text, approval.message)
    });
}
