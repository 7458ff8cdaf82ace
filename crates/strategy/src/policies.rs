//! Admission policies and their bindings: expressions must compile.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::labels::validate_label_selector;
use davit_api::names;
use davit_cel::policy::{Environments, mutation_types};
use davit_cel::{Env, Type};
use serde_json::Value;

use super::fields::optional_choice;
use super::json::{at, at_mut, default, has, list_at, repeats, same, str_at};
use super::{KindInfo, Strategy, cluster, fields, meta, status_conditions};
use crate::conditions::{validate_conditions, validate_expression};

/// Of a policy, the expressions of which are compiled when it is written.
pub(super) struct Policy(pub(super) KindInfo);

/// What binds a policy.
pub(super) struct Binding(pub(super) KindInfo);

impl Strategy for Policy {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default(spec, "failurePolicy", "Fail");
        if let Some(constraints) = at_mut(spec, &["matchConstraints"]) {
            cluster::match_defaults(constraints);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        policy(&self.0, obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        // what was accepted stays acceptable, so that other fields can be changed
        if !same(&new["spec"], &old["spec"]) {
            policy(&self.0, new, &mut errors);
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let (status, path) = (at(new, &["status"]), Path::new("status"));
        let at_warnings = path.child("typeChecking").child("expressionWarnings");
        let warnings = list_at(status, &["typeChecking", "expressionWarnings"]);
        for (i, warning) in warnings.iter().enumerate() {
            for key in ["warning", "fieldRef"] {
                if str_at(warning, &[key]).trim().is_empty() {
                    let path = at_warnings.index(i).child(key);
                    errors.push(FieldError::required(&path, ""));
                }
            }
        }
        let conditions = list_at(status, &["conditions"]);
        status_conditions::validate(conditions, &path.child("conditions"), &mut errors);
        errors
    }
}

fn policy(kind: &KindInfo, obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let envs = Environments::of(spec, &Type::Dyn);
    let failure = str_at(spec, &["failurePolicy"]);
    if !matches!(failure, "" | "Fail" | "Ignore") {
        errors.push(FieldError::not_supported(
            &path.child("failurePolicy"),
            failure,
            &["Fail", "Ignore"],
        ));
    }
    if has(spec, &["paramKind"]) {
        let path = path.child("paramKind");
        for field in ["apiVersion", "kind"] {
            if str_at(spec, &["paramKind", field]).is_empty() {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
        param_kind(at(spec, &["paramKind"]), &path, errors);
    }
    match_resources(
        &spec["matchConstraints"],
        &path.child("matchConstraints"),
        true,
        errors,
    );
    errors.extend(validate_conditions(
        &spec["matchConditions"],
        &path.child("matchConditions"),
        &envs.plain,
    ));
    variables(spec, &envs, &path.child("variables"), errors);
    if kind.kind.starts_with("Validating") {
        validations(spec, &envs, &path, errors);
        audit_annotations(obj, &envs, &path, errors);
    } else {
        let constraints = at(spec, &["matchConstraints"]);
        mutable_operations(constraints, &path.child("matchConstraints"), errors);
        mutations(spec, &envs.full, &path, errors);
    }
}

fn param_kind(of: &Value, path: &Path, errors: &mut ErrorList) {
    let text = str_at(of, &["apiVersion"]);
    let at_version = path.child("apiVersion");
    let mut invalid = |value: &str, why: String| {
        errors.push(FieldError::invalid(&at_version, value, why));
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [""] => {}
        ["", ""] => invalid(text, "version must be specified".to_owned()),
        [version] => {
            let faults = names::check_dns1035_label(version);
            if !faults.is_empty() {
                invalid(version, faults.join(","));
            }
        }
        [group, version] => {
            let faults = names::check_dns1123_subdomain(group);
            if !group.is_empty() && !faults.is_empty() {
                invalid(group, faults.join(","));
            }
            let faults = names::check_dns1035_label(version);
            if version.is_empty() {
                invalid(text, "version must be specified".to_owned());
            } else if !faults.is_empty() {
                invalid(version, faults.join(","));
            }
        }
        _ => invalid(text, format!("unexpected GroupVersion string: {text}")),
    }
    let kind = str_at(of, &["kind"]);
    let faults = names::check_dns1035_label(&kind.to_lowercase());
    if !kind.is_empty() && !faults.is_empty() {
        let why = format!(
            "may have mixed case, but should otherwise match: {}",
            faults.join(",")
        );
        errors.push(FieldError::invalid(&path.child("kind"), kind, why));
    }
}

fn variables(spec: &Value, envs: &Environments, path: &Path, errors: &mut ErrorList) {
    for (n, variable) in list_at(spec, &["variables"]).iter().enumerate() {
        let path = path.index(n);
        let name = str_at(variable, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(
                &path.child("name"),
                "name is not specified",
            ));
        } else if davit_cel::escape(name).as_deref() != Some(name) {
            let why = "must be a valid CEL identifier";
            errors.push(FieldError::invalid(&path.child("name"), name, why));
        }
        let expression = str_at(variable, &["expression"]);
        let path = path.child("expression");
        if expression.trim().is_empty() {
            errors.push(FieldError::required(&path, "expression is not specified"));
        } else if let Some((_, Err(why))) = envs.variables.get(n) {
            errors.push(FieldError::invalid(&path, expression, why.clone()));
        }
    }
}

fn validations(spec: &Value, envs: &Environments, path: &Path, errors: &mut ErrorList) {
    let validations = list_at(spec, &["validations"]);
    let annotations = list_at(spec, &["auditAnnotations"]);
    if validations.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&path.child("validations"), why));
        errors.push(FieldError::required(&path.child("auditAnnotations"), why));
    }
    for (n, validation) in validations.iter().enumerate() {
        let path = path.child("validations").index(n);
        let expression = str_at(validation, &["expression"]);
        if expression.trim().is_empty() {
            let why = "expression is not specified";
            errors.push(FieldError::required(&path.child("expression"), why));
        } else {
            errors.extend(validate_expression(
                expression,
                &path.child("expression"),
                &envs.full,
                &[Type::Bool],
            ));
        }
        let message = str_at(validation, &["messageExpression"]);
        if !message.is_empty() {
            errors.extend(validate_expression(
                message,
                &path.child("messageExpression"),
                &envs.message,
                &[Type::String],
            ));
        }
        let text = str_at(validation, &["message"]);
        if text.contains('\n') {
            let why = "message must not contain line breaks";
            errors.push(FieldError::invalid(&path.child("message"), text, why));
        } else if has(validation, &["message"]) && !text.is_empty() && text.trim().is_empty() {
            let why = "message must be non-empty if specified";
            errors.push(FieldError::invalid(&path.child("message"), text, why));
        }
        let reason = str_at(validation, &["reason"]);
        const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
        if !reason.is_empty() && !REASONS.contains(&reason) {
            errors.push(FieldError::not_supported(
                &path.child("reason"),
                reason,
                &REASONS,
            ));
        }
    }
}

fn audit_annotations(obj: &Value, envs: &Environments, path: &Path, errors: &mut ErrorList) {
    let policy = str_at(obj, &["metadata", "name"]);
    let annotations = list_at(obj, &["spec", "auditAnnotations"]);
    let mut seen = HashSet::new();
    for (n, annotation) in annotations.iter().enumerate() {
        let path = path.child("auditAnnotations").index(n);
        let key = str_at(annotation, &["key"]);
        let at_key = path.child("key");
        if policy.is_empty() {
            let why = "requires metadata.name be non-empty";
            errors.push(FieldError::invalid(&at_key, key, why));
        } else {
            let full = format!("{policy}/{key}");
            let faults = names::check_qualified_name(&full);
            errors.extend(invalid_each(&at_key, &full, faults));
        }
        let expression = str_at(annotation, &["valueExpression"]);
        let at_expression = path.child("valueExpression");
        if expression.trim().is_empty() {
            let why = "valueExpression is not specified";
            errors.push(FieldError::required(&at_expression, why));
        } else {
            errors.extend(validate_expression(
                expression,
                &at_expression,
                &envs.full,
                &[Type::String, Type::Null],
            ));
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&at_key, key));
        }
    }
}

fn mutations(spec: &Value, env: &Env, path: &Path, errors: &mut ErrorList) {
    let mutations = list_at(spec, &["mutations"]);
    if mutations.is_empty() {
        let why = "mutations must contain at least one item";
        errors.push(FieldError::required(&path.child("mutations"), why));
    }
    let reinvocation = str_at(spec, &["reinvocationPolicy"]);
    match reinvocation {
        "" => errors.push(FieldError::required(&path.child("reinvocationPolicy"), "")),
        "Never" | "IfNeeded" => {}
        _ => errors.push(FieldError::not_supported(
            &path.child("reinvocationPolicy"),
            reinvocation,
            &["IfNeeded", "Never"],
        )),
    }
    for (n, mutation) in mutations.iter().enumerate() {
        let path = path.child("mutations").index(n);
        let kind = str_at(mutation, &["patchType"]);
        let (field, other) = match kind {
            "JSONPatch" => ("jsonPatch", "applyConfiguration"),
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
            "" => {
                errors.push(FieldError::required(&path.child("patchType"), ""));
                continue;
            }
            _ => {
                errors.push(FieldError::not_supported(
                    &path.child("patchType"),
                    kind,
                    &["ApplyConfiguration", "JSONPatch"],
                ));
                continue;
            }
        };
        if has(mutation, &[other]) {
            let why = format!("must not be specified when patchType is {kind}");
            let value = format!("{{{other}}}");
            errors.push(FieldError::invalid(&path.child(other), value, why));
        }
        if !has(mutation, &[field]) {
            let why = format!("must be specified when patchType is {kind}");
            errors.push(FieldError::required(&path.child(field), why));
            continue;
        }
        errors.extend(validate_expression(
            str_at(mutation, &[field, "expression"]),
            &path.child(field).child("expression"),
            env,
            &mutation_types(kind == "JSONPatch"),
        ));
    }
}

fn match_resources(value: &Value, path: &Path, required: bool, errors: &mut ErrorList) {
    if value.is_null() {
        if required {
            errors.push(FieldError::required(path, ""));
        }
        return;
    }
    if required && list_at(value, &["resourceRules"]).is_empty() {
        errors.push(FieldError::required(&path.child("resourceRules"), ""));
    }
    for key in ["namespaceSelector", "objectSelector"] {
        if has(value, &[key]) {
            errors.extend(validate_label_selector(&value[key], &path.child(key)));
        }
    }
    let policies = ["Equivalent", "Exact"];
    optional_choice(value, "matchPolicy", &policies, path, errors);
    for key in ["resourceRules", "excludeResourceRules"] {
        for (n, rule) in list_at(value, &[key]).iter().enumerate() {
            let path = path.child(key).index(n);
            let objects = list_at(rule, &["resourceNames"]);
            let twins = repeats(objects);
            for ((n, name), is_twin) in objects.iter().enumerate().zip(twins) {
                let path = path.child("resourceNames").index(n);
                let text = name.as_str().unwrap_or_default();
                errors.extend(invalid_each(&path, text, names::check_path_segment(text)));
                if is_twin {
                    errors.push(FieldError::duplicate(&path, text));
                }
            }
            cluster::rule(rule, &path, errors);
        }
    }
}

/// Deletions have nothing to mutate.
fn mutable_operations(value: &Value, path: &Path, errors: &mut ErrorList) {
    const SUPPORTED: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let path = path.child("resourceRules").child("operations");
    for rule in list_at(value, &["resourceRules"]) {
        for operation in list_at(rule, &["operations"]) {
            let operation = operation.as_str().unwrap_or_default();
            if !SUPPORTED.contains(&operation) {
                errors.push(FieldError::not_supported(&path, operation, &SUPPORTED));
            }
        }
    }
}

impl Strategy for Binding {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(resources) = at_mut(obj, &["spec", "matchResources"]) {
            cluster::match_defaults(resources);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        binding(&self.0, obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        binding(&self.0, new, &mut errors);
        errors
    }
}

fn binding(kind: &KindInfo, obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = &obj["spec"];
    let check = names::check_dns1123_subdomain;
    fields::name(spec, "policyName", check, &path, errors);
    if has(spec, &["paramRef"]) {
        let reference = at(spec, &["paramRef"]);
        let path = path.child("paramRef");
        let check = names::check_path_segment;
        fields::optional_name(reference, "name", check, &path, errors);
        let named = !str_at(reference, &["name"]).is_empty();
        let selector = at(reference, &["selector"]);
        if named && !selector.is_null() {
            for key in ["name", "selector"] {
                let why = "name and selector are mutually exclusive";
                errors.push(FieldError::forbidden(&path.child(key), why));
            }
        } else if !named && selector.is_null() {
            let why = "one of name or selector must be specified";
            errors.push(FieldError::required(&path, why));
        }
        errors.extend(validate_label_selector(selector, &path.child("selector")));
        let action = str_at(reference, &["parameterNotFoundAction"]);
        if action.is_empty() {
            errors.push(FieldError::required(
                &path.child("parameterNotFoundAction"),
                "",
            ));
        } else if !matches!(action, "Allow" | "Deny") {
            errors.push(FieldError::not_supported(
                &path.child("parameterNotFoundAction"),
                action,
                &["Deny", "Allow"],
            ));
        }
    }
    match_resources(
        &spec["matchResources"],
        &path.child("matchResources"),
        false,
        errors,
    );
    if kind.kind.starts_with("Validating") {
        actions(spec, &path.child("validationActions"), errors);
    } else {
        let resources = at(spec, &["matchResources"]);
        mutable_operations(resources, &path.child("matchResources"), errors);
    }
}

fn actions(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let actions: Vec<&str> = list_at(spec, &["validationActions"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if actions.is_empty() {
        errors.push(FieldError::required(
            path,
            "at least one validation action is required",
        ));
    }
    for ((n, action), is_twin) in actions.iter().enumerate().zip(repeats(&actions)) {
        if !matches!(*action, "Deny" | "Warn" | "Audit") {
            errors.push(FieldError::not_supported(
                &path.index(n),
                *action,
                &["Audit", "Deny", "Warn"],
            ));
        }
        if is_twin {
            errors.push(FieldError::duplicate(&path.index(n), *action));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure \
                   information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, Value::from(actions), why));
    }
}
