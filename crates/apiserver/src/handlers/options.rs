//! Query parameters of writes and lists, checked as Kubernetes checks them.

use davit_access::RequestInfo;
use davit_access::query::no_number;
use davit_api::field::{ErrorList, FieldError, Path, quote};
use davit_api::fields::{FieldSelector, FieldTerm};
use davit_api::status::{Qualified, Status};
use serde_json::{Value, json};

use crate::context::Context;

/// The field by which an object is selected alone.
const NAME: &str = "metadata.name";

/// What happens to fields nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validation {
    Ignore,
    Warn,
    Strict,
}

/// The options of a create, update or patch.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) validation: Validation,
    /// An apply takes over what others own.
    pub(crate) force: bool,
}

impl WriteOptions {
    /// `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`.
    pub(crate) fn parse(context: &Context, kind: &str, is_apply: bool) -> Result<Self, Status> {
        let query = &context.query;
        let mut faults: ErrorList = Vec::new();
        if !is_apply && query.get("force").is_some() {
            let why = "may not be specified for non-apply patch";
            faults.push(FieldError::forbidden(&Path::new("force"), why));
        }
        check_manager(query.text("fieldManager"), is_apply, &mut faults);
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        if dry_run.iter().any(|value| *value != "All") {
            let shown: Vec<Value> = dry_run.iter().map(|value| Value::from(*value)).collect();
            faults.push(FieldError::not_supported(
                &Path::new("dryRun"),
                shown,
                &["All"],
            ));
        }
        let validation = match query.text("fieldValidation") {
            None | Some("Warn") => Validation::Warn,
            Some("Ignore") => Validation::Ignore,
            Some("Strict") => Validation::Strict,
            Some(other) => {
                let known = ["", "Ignore", "Strict", "Warn"];
                faults.push(FieldError::not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &known,
                ));
                Validation::Warn
            }
        };
        if !faults.is_empty() {
            let kind = Qualified::new("meta.k8s.io", kind);
            return Err(Status::invalid(kind, "", &faults));
        }
        context
            .warnings
            .set_options(shown(context, kind, !dry_run.is_empty()));
        Ok(Self {
            dry_run: !dry_run.is_empty(),
            validation,
            force: query.flag("force"),
        })
    }
}

/// The options in the form in which webhooks see them.
fn shown(context: &Context, kind: &str, dry_run: bool) -> Value {
    let mut options = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    for key in ["fieldManager", "fieldValidation"] {
        if let Some(value) = context.query.text(key) {
            options[key] = json!(value);
        }
    }
    if context.query.flag("force") {
        options["force"] = json!(true);
    }
    options
}

fn check_manager(manager: Option<&str>, is_apply: bool, faults: &mut ErrorList) {
    let path = Path::new("fieldManager");
    match manager {
        None if is_apply => {
            faults.push(FieldError::required(&path, "is required for apply patch"));
        }
        None => {}
        Some(name) => davit_strategy::manager_name(name, &path, faults),
    }
}

/// The field selector of a request. One that was authorized for an object by its name selects no
/// other.
fn fields(info: &RequestInfo) -> Result<FieldSelector, Status> {
    let fields = FieldSelector::parse(&info.field_selector)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    if info.name.is_empty() || fields.requires_exact_match(NAME) == Some(&info.name) {
        return Ok(fields);
    }
    if !fields.is_empty() {
        return Err(Status::bad_request(
            "fieldSelector metadata.name doesn't match requested name",
        ));
    }
    Ok(FieldSelector::new(vec![FieldTerm {
        field: NAME.to_owned(),
        value: info.name.clone(),
        equal: true,
    }]))
}

/// How exactly a list's resourceVersion is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Unset,
    Exact,
    NotOlderThan,
}

/// Conditions of the selectors of a request: each object is asked for each of them, while others wait. How many values a
/// condition has costs next to nothing.
const MOST_CONDITIONS: usize = 1000;

/// The options of a list or watch.
#[derive(Debug, Clone)]
pub(crate) struct ListQuery {
    pub(crate) labels: davit_api::labels::Selector,
    pub(crate) fields: FieldSelector,
    pub(crate) limit: Option<usize>,
    pub(crate) continue_token: Option<String>,
    /// None when unset; `Some(0)` means any.
    pub(crate) resource_version: Option<u64>,
    pub(crate) version_match: VersionMatch,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_seconds: Option<u64>,
}

impl ListQuery {
    pub(crate) fn parse(context: &Context, watch: bool) -> Result<Self, Status> {
        let query = &context.query;
        let labels = davit_api::labels::Selector::parse(&context.info.label_selector)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = fields(&context.info)?;
        let conditions = labels.requirements().len() + fields.terms().len();
        if conditions > MOST_CONDITIONS {
            return Err(Status::bad_request(format!(
                "the selectors have {conditions} conditions, {MOST_CONDITIONS} are the most"
            )));
        }
        let number = |name: &str| query.number(name).map_err(Status::bad_request);
        let limit = number("limit")?.filter(|limit| *limit > 0);
        let timeout = number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        let continue_token = query.text("continue").map(str::to_owned);
        let raw_version = query.text("resourceVersion");
        let resource_version = raw_version
            .map(|text| {
                text.parse::<u64>().map_err(|error| {
                    let (shown, why) = (quote(text), no_number("ParseUint", text, &error));
                    let place = "invalid resource version: resourceVersion: Invalid value";
                    Status::bad_request(format!("{place}: {shown}: {why}"))
                })
            })
            .transpose()?;
        let parsed = Self {
            labels,
            fields,
            limit: limit.and_then(|limit| usize::try_from(limit).ok()),
            continue_token,
            resource_version,
            version_match: VersionMatch::Unset,
            send_initial_events: query.optional_flag("sendInitialEvents"),
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout_seconds: timeout.and_then(|seconds| u64::try_from(seconds).ok()),
        };
        parsed.check(query.text("resourceVersionMatch"), watch)
    }

    fn check(mut self, version_match: Option<&str>, watch: bool) -> Result<Self, Status> {
        let mut faults = Vec::new();
        let match_path = Path::new("resourceVersionMatch");
        let initial_path = Path::new("sendInitialEvents");
        let forbid = |path: &Path, why: &str| FieldError::forbidden(path, why);
        if watch {
            const WANTED: &str = "NotOlderThan";
            let other = version_match.filter(|given| *given != WANTED);
            if version_match.is_some() && self.send_initial_events.is_none() {
                faults.push(forbid(&match_path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
            } else if version_match != Some(WANTED) && self.send_initial_events.is_some() {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                faults.push(forbid(&match_path, why));
            }
            let fault = |other| FieldError::not_supported(&match_path, other, &[WANTED]);
            faults.extend(other.map(fault));
            if self.continue_token.is_some() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                faults.push(forbid(&match_path, why));
            }
        } else {
            if self.send_initial_events.is_some() {
                faults.push(forbid(
                    &initial_path,
                    "sendInitialEvents is forbidden for list",
                ));
            }
            if let Some(wanted) = version_match {
                if self.resource_version.is_none() {
                    faults.push(forbid(
                        &match_path,
                        "resourceVersionMatch is forbidden unless resourceVersion is provided",
                    ));
                }
                if self.continue_token.is_some() {
                    faults.push(forbid(
                        &match_path,
                        "resourceVersionMatch is forbidden when continue is provided",
                    ));
                }
                self.version_match = match wanted {
                    "Exact" => VersionMatch::Exact,
                    "NotOlderThan" => VersionMatch::NotOlderThan,
                    other => {
                        let known = ["Exact", "NotOlderThan", ""];
                        faults.push(FieldError::not_supported(&match_path, other, &known));
                        VersionMatch::Unset
                    }
                };
                if self.version_match == VersionMatch::Exact && self.resource_version == Some(0) {
                    faults.push(forbid(
                        &match_path,
                        "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                    ));
                }
            }
        }
        if !faults.is_empty() {
            return Err(invalid(faults));
        }
        if self.continue_token.is_some() && self.resource_version.is_some_and(|version| version > 0)
        {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(self)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "made where it is called")]
fn invalid(faults: ErrorList) -> Status {
    Status::invalid(Qualified::new("meta.k8s.io", "ListOptions"), "", &faults)
}
