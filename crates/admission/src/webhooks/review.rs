//! `AdmissionReview`: the request that is posted and the response that is believed.
//!
//! Pure, so that whatever a server answers can be tried on it.

use davit_api::field::quote;
use davit_api::status::{Reason, Status};
use davit_registry::ResourceInfo;
use davit_webhook::told;
use serde_json::{Map, Value, json};

use crate::Attributes;

const GROUP: &str = "admission.k8s.io";
const KIND: &str = "AdmissionReview";
/// Bytes of what a denial says beside its message.
const MOST_BESIDE: usize = 64 << 10;

/// What a webhook said.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) allowed: bool,
    /// The status of a denial.
    pub(crate) status: Value,
    /// The JSON patch, decoded from base64.
    pub(crate) patch: Vec<u8>,
    pub(crate) warnings: Vec<String>,
    pub(crate) annotations: Vec<(String, String)>,
}

/// The body of a call.
pub(crate) fn request(
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    version: &str,
    uid: &str,
    object: Value,
    old: Value,
) -> Value {
    let row = &attributes.resource.row;
    let own = attributes.has_own_kind();
    let (kind_group, kind_version, kind) = attributes.kind();
    let request_kind = json!({ "group": kind_group, "version": kind_version, "kind": kind });
    let shown_kind = if own {
        json!({
            "group": resource.row.group, "version": resource.row.version,
            "kind": resource.row.kind,
        })
    } else {
        request_kind.clone()
    };
    let of = |row: &davit_api::kinds::ResourceRow| json!({ "group": row.group, "version": row.version, "resource": row.plural });
    let mut request = Map::new();
    let mut put = |key: &str, value: Value| {
        request.insert(key.to_owned(), value);
    };
    put("uid", json!(uid));
    put("kind", shown_kind);
    put("resource", of(&resource.row));
    if !attributes.subresource.is_empty() {
        put("subResource", json!(attributes.subresource));
    }
    put("requestKind", request_kind);
    put("requestResource", of(row));
    if !attributes.subresource.is_empty() {
        put("requestSubResource", json!(attributes.subresource));
    }
    if !attributes.name.is_empty() {
        put("name", json!(attributes.name));
    }
    let namespace = attributes.request_namespace();
    if !namespace.is_empty() {
        put("namespace", json!(namespace));
    }
    put("operation", json!(attributes.operation.name()));
    put("userInfo", attributes.user.to_value());
    put("object", object);
    put("oldObject", old);
    put("dryRun", json!(attributes.dry_run));
    put(
        "options",
        attributes.warnings.options().unwrap_or(Value::Null),
    );
    json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/{version}"), "request": request,
    })
}

/// Checks and reads an answer to the request `uid` in `version`.
///
/// # Errors
/// What is wrong with it, in the words of kube-apiserver.
pub(crate) fn read(
    answer: &Value,
    version: &str,
    uid: &str,
    mutating: bool,
) -> Result<Response, String> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let wanted = format!("{GROUP}/{version}");
    let (api_version, kind) = (text(answer, "apiVersion"), text(answer, "kind"));
    let strict = version == "v1";
    if (strict || !api_version.is_empty() || !kind.is_empty())
        && (api_version != wanted || kind != KIND)
    {
        return Err(format!(
            "expected webhook response of {wanted}, Kind={KIND}, got {}, Kind={kind}",
            if api_version.is_empty() {
                "/"
            } else {
                &api_version
            }
        ));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let got = text(response, "uid");
    if strict && got != uid {
        return Err(format!(
            "expected response.uid={}, got {}",
            quote(uid),
            quote(&got)
        ));
    }
    let patch = patch(response, strict, mutating)?;
    let Some(allowed) = response["allowed"]
        .as_bool()
        .or_else(|| response["allowed"].is_null().then_some(false))
    else {
        return Err("response.allowed is no boolean".to_owned());
    };
    let warnings = response["warnings"].as_array().into_iter().flatten();
    let annotations = response["auditAnnotations"]
        .as_object()
        .into_iter()
        .flatten();
    Ok(Response {
        allowed,
        status: response["status"].clone(),
        patch,
        warnings: warnings
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        annotations: annotations
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    })
}

fn patch(response: &Value, strict: bool, mutating: bool) -> Result<Vec<u8>, String> {
    use base64::Engine as _;
    let encoded = response["patch"].as_str().unwrap_or_default();
    let kind = response["patchType"].as_str();
    if !response["patch"].is_null() && !response["patch"].is_string() {
        return Err("response.patch is no base64 text".to_owned());
    }
    if !mutating {
        if strict && !encoded.is_empty() {
            return Err("validating webhook may not return response.patch".to_owned());
        }
        if strict && kind.is_some() {
            return Err("validating webhook may not return response.patchType".to_owned());
        }
        return Ok(Vec::new());
    }
    match (encoded.is_empty(), kind) {
        (false, None) if strict => {
            return Err("webhook returned response.patch but not response.patchType".to_owned());
        }
        (true, Some(_)) if strict => {
            return Err("webhook returned response.patchType but not response.patch".to_owned());
        }
        (_, Some(kind)) if kind != "JSONPatch" => {
            return Err(format!(
                "webhook returned invalid response.patchType of {}",
                quote(kind)
            ));
        }
        _ => {}
    }
    base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|error| format!("response.patch is no base64 text: {error}"))
}

/// Whether a status has more beside its message than anybody reads.
fn is_long(given: &Value) -> bool {
    let fields = given.as_object().into_iter().flatten();
    let rest = fields.filter(|(key, _)| *key != "message");
    rest.map(|(_, value)| value.to_string().len())
        .sum::<usize>()
        > MOST_BESIDE
}

/// The refusal of a webhook called `name` with the status it gave.
pub(super) fn denial(name: &str, given: &Value) -> Status {
    let denied = format!("admission webhook {} denied the request", quote(name));
    let text = |key: &str| given[key].as_str().unwrap_or_default();
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {}", told(reason)),
        (message, _) => format!("{denied}: {}", told(message)),
    };
    // Nobody reads more; what is told is kept and written elsewhere.
    let shape = json!({ "code": given["code"] });
    let given = if is_long(given) { &shape } else { given };
    let text = |key: &str| given[key].as_str().unwrap_or_default();
    let reason: Reason = serde_json::from_value(given["reason"].clone()).unwrap_or_default();
    let mut status = Status::failure(reason, message);
    let code = given["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    status.code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    if !matches!(text("status"), "" | "Success") {
        text("status").clone_into(&mut status.status);
    }
    if let Ok(metadata) = serde_json::from_value(given["metadata"].clone()) {
        status.metadata = metadata;
    }
    if let Ok(details) = serde_json::from_value(given["details"].clone()) {
        status.details = details;
    }
    status
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever a server answers is either understood or refused.
        #[test]
        fn any_answer_is_understood_or_refused(
            allowed in any::<Option<bool>>(),
            patch in "[ -~]{0,40}",
            kind in proptest::option::of("[A-Za-z]{0,10}"),
            rest in "\\PC{0,20}",
            mutating in any::<bool>(),
        ) {
            let response = json!({
                "uid": "u", "allowed": allowed, "patch": patch, "patchType": kind,
                "status": rest, "warnings": [rest, 1], "auditAnnotations": { rest.clone(): 1 },
            });
            let review = answer(&response);
            if let Ok(read) = read(&review, "v1", "u", mutating) {
                prop_assert!(mutating || read.patch.is_empty());
                let _ = denial("n", &read.status);
                let _ = davit_schema::patch::JsonPatch::parse(&read.patch);
            }
        }
    }

    fn answer(response: &Value) -> Value {
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": KIND, "response": response })
    }

    #[test]
    fn malformed_answers_are_told_in_the_words_of_kubernetes() {
        let fault = |answer: &Value, mutating| read(answer, "v1", "u", mutating).unwrap_err();
        assert_eq!(
            fault(&json!({}), false),
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
        );
        assert_eq!(
            fault(&answer(&Value::Null), false),
            "webhook response was absent"
        );
        assert_eq!(
            fault(&answer(&json!({ "uid": "x" })), false),
            "expected response.uid=\"u\", got \"x\""
        );
        let patched = json!({ "uid": "u", "allowed": true, "patch": "W10=" });
        assert_eq!(
            fault(&answer(&patched), true),
            "webhook returned response.patch but not response.patchType"
        );
        assert_eq!(
            fault(&answer(&patched), false),
            "validating webhook may not return response.patch"
        );
        let typed = json!({ "uid": "u", "allowed": true, "patchType": "Merge", "patch": "W10=" });
        assert_eq!(
            fault(&answer(&typed), true),
            "webhook returned invalid response.patchType of \"Merge\""
        );
    }

    /// The message is answered, and becomes part of statuses, such as a ReplicaSet's, which must fit into an object.
    #[test]
    fn denials_are_not_longer_than_anybody_reads() {
        let long = "ä".repeat(4 << 20);
        let causes = vec![json!({ "message": "x" }); 100_000];
        let attacks = [
            json!({ "message": long, "code": 403 }),
            json!({ "reason": long, "code": 403 }),
            json!({ "message": "no", "code": 403, "status": long }),
            json!({ "message": "no", "code": 403, "details": { "causes": causes } }),
            json!({ "message": "no", "code": 403, "metadata": { "continue": long } }),
        ];
        for given in attacks {
            let status = denial("h", &given);
            assert_eq!(status.code, 403);
            let length = serde_json::to_string(&status).unwrap().len();
            assert!(length < 100 << 10, "{length}");
        }
    }

    #[test]
    fn the_older_version_is_forgiving() {
        let answer = json!({ "response": { "allowed": true, "patch": "W10=" } });
        let response = read(&answer, "v1beta1", "u", true).unwrap();
        assert!(response.allowed);
        assert_eq!(response.patch, b"[]");
    }

    #[test]
    fn item_171_denials_have_code_and_message() {
        let plain = denial("h.example.com", &Value::Null);
        assert_eq!(
            plain.message,
            "admission webhook \"h.example.com\" denied the request without explanation"
        );
        assert_eq!(plain.code, 400);
        let told = denial(
            "h.example.com",
            &json!({ "message": "no", "reason": "Forbidden", "code": 403 }),
        );
        assert_eq!(
            told.message,
            "admission webhook \"h.example.com\" denied the request: no"
        );
        assert_eq!((told.code, told.reason), (403, Reason::Forbidden));
        assert_eq!(denial("h", &json!({ "code": 200 })).code, 400);
        let own = denial("h", &json!({ "reason": "QuotaTooGreedy" }));
        assert_eq!(own.reason, Reason::Other("QuotaTooGreedy".into()));
        assert!(own.message.ends_with("denied the request: QuotaTooGreedy"));
    }
}
