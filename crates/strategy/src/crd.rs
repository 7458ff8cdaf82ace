//! CustomResourceDefinitions: defaults, what may change, and what a definition may say.
//!
//! Where all versions of a definition have the same schema, subresources or columns, the original
//! speaks of them as of one at the top of the spec, and so do the paths of errors here.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use davit_schema::structural::{SchemaCheck, SimplePath, Structural, check_schema, is_selectable};
use serde_json::{Value, json};

use super::json::{at, at_mut, has, list_at, repeats, set, str_at};
use super::{KindInfo, Strategy, access, meta};

mod approval;
mod conversion;

pub use approval::{Approval, approval, is_protected};
pub use conversion::ca_bundle_fault;

const MAX_SELECTABLE: usize = 8;

/// Whether the definition has a condition that is true.
pub fn is_true(definition: &Value, condition: &str) -> bool {
    definition["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == condition && c["status"] == "True")
}

pub(super) struct CustomResourceDefinition(pub(super) KindInfo);

impl Strategy for CustomResourceDefinition {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        if !has(spec, &["conversion"]) {
            set(spec, "conversion", json!({"strategy": "None"}));
        }
        if let Some(names) = at_mut(spec, &["names"]) {
            let kind = str_at(names, &["kind"]).to_owned();
            if !kind.is_empty() {
                if str_at(names, &["singular"]).is_empty() {
                    set(names, "singular", kind.to_lowercase());
                }
                if str_at(names, &["listKind"]).is_empty() {
                    set(names, "listKind", format!("{kind}List"));
                }
            }
        }
        if let Some(service) = at_mut(spec, &["conversion", "webhook", "clientConfig", "service"])
            && !has(service, &["port"])
        {
            set(service, "port", 443);
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        access::first_generation(&self.0, obj);
        let stored = storage_version(obj);
        set(
            obj,
            "status",
            json!({
                "conditions": [], "storedVersions": stored,
                "acceptedNames": {"plural": "", "kind": ""},
            }),
        );
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        access::next_generation(&self.0, new, old);
        // what was ever stored may still be there
        for version in storage_version(new) {
            let stored = list_at(new, &["status", "storedVersions"]);
            if !stored.contains(&version) {
                let mut stored = stored.to_vec();
                stored.push(version);
                if let Some(status) = at_mut(new, &["status"]) {
                    set(status, "storedVersions", stored);
                }
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        name(obj, &mut errors);
        definition(obj, None, &mut errors);
        approval::validate(obj, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        definition(new, Some(old), &mut errors);
        if is_true(old, "Established") {
            meta::immutable_at(new, old, &["spec", "scope"], &mut errors);
            meta::immutable_at(new, old, &["spec", "names", "kind"], &mut errors);
        }
        meta::immutable_at(new, old, &["spec", "group"], &mut errors);
        meta::immutable_at(new, old, &["spec", "names", "plural"], &mut errors);
        approval::validate(new, Some(old), &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("status");
        let accepted = at(new, &["status", "acceptedNames"]);
        check_names(accepted, &path.child("acceptedNames"), &mut errors);
        // which versions are stored is whoever's who migrates them; a write of the definition checks it
        errors
    }
}

fn storage_version(obj: &Value) -> Vec<Value> {
    list_at(obj, &["spec", "versions"])
        .iter()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .take(1)
        .collect()
}

fn name(obj: &Value, errors: &mut ErrorList) {
    let plural = str_at(obj, &["spec", "names", "plural"]);
    let group = str_at(obj, &["spec", "group"]);
    let wanted = format!("{plural}.{group}");
    let why = "must be spec.names.plural+\".\"+spec.group";
    meta::own_rule(obj, errors, |name| (name != wanted).then(|| why.to_owned()));
}

fn definition(obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    group(spec, &path, errors);
    let scope = str_at(spec, &["scope"]);
    one_of(
        scope,
        &["Cluster", "Namespaced"],
        &path.child("scope"),
        errors,
    );
    if spec["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            &path.child("preserveUnknownFields"),
            true,
            why,
        ));
    }
    versions(spec, old.map(|old| at(old, &["spec"])), &path, errors);
    let at_names = path.child("names");
    for key in ["plural", "singular", "kind", "listKind"] {
        if str_at(spec, &["names", key]).is_empty() {
            errors.push(FieldError::required(&at_names.child(key), ""));
        }
    }
    check_names(&spec["names"], &at_names, errors);
    conversion::validate(obj, old, errors);
    let accepted = Path::new("status").child("acceptedNames");
    check_names(at(obj, &["status", "acceptedNames"]), &accepted, errors);
    stored_versions(obj, errors);
}

fn group(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let group = str_at(spec, &["group"]);
    let at = path.child("group");
    if group.is_empty() {
        errors.push(FieldError::required(&at, ""));
        return;
    }
    let faults = names::check_dns1123_subdomain(group);
    if !faults.is_empty() {
        errors.push(FieldError::invalid(&at, group, faults.join(",")));
    } else if !group.contains('.') {
        let why = "should be a domain with at least one dot";
        errors.push(FieldError::invalid(&at, group, why));
    }
}

fn one_of(value: &str, known: &[&str], at: &Path, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if !known.contains(&value) {
        errors.push(FieldError::not_supported(at, value, known));
    }
}

fn check_names(value: &Value, path: &Path, errors: &mut ErrorList) {
    let mut label = |at: Path, text: &str, prefix: &str, checked: &str| {
        let faults = names::check_dns1035_label(checked);
        if !text.is_empty() && !faults.is_empty() {
            let why = format!("{prefix}{}", faults.join(","));
            errors.push(FieldError::invalid(&at, text, why));
        }
    };
    for key in ["plural", "singular"] {
        let text = str_at(value, &[key]);
        label(path.child(key), text, "", text);
    }
    for key in ["kind", "listKind"] {
        let text = str_at(value, &[key]);
        let prefix = "may have mixed case, but should otherwise match: ";
        label(path.child(key), text, prefix, &text.to_lowercase());
    }
    for key in ["shortNames", "categories"] {
        for (i, text) in list_at(value, &[key]).iter().enumerate() {
            let text = text.as_str().unwrap_or_default();
            label(path.child(key).index(i), text, "", text);
        }
    }
    let kind = str_at(value, &["kind"]);
    if !kind.is_empty() && kind == str_at(value, &["listKind"]) {
        let why = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), kind, why));
    }
}

fn stored_versions(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("status").child("storedVersions");
    let stored = list_at(obj, &["status", "storedVersions"]);
    if stored.is_empty() {
        let why = "must have at least one stored version";
        errors.push(FieldError::invalid(&path, stored.to_vec(), why));
        return;
    }
    let versions = list_at(obj, &["spec", "versions"]);
    let there: HashSet<&Value> = stored.iter().collect();
    for version in versions.iter().filter(|version| version["storage"] == true) {
        if !there.contains(&version["name"]) {
            let name = str_at(version, &["name"]);
            let why = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(&path, stored.to_vec(), why));
        }
    }
    let known: HashSet<&Value> = versions.iter().map(|version| &version["name"]).collect();
    for (i, name) in stored.iter().enumerate() {
        if !known.contains(name) {
            let text = name.as_str().unwrap_or_default();
            let why = format!(
                "missing from spec.versions; {text} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains \
                 persisted in {text} and removes {text} from status.storedVersions"
            );
            errors.push(FieldError::invalid(&path.index(i), text, why));
        }
    }
}

/// Whether all versions say the same of something, which the original then calls the definition's.
fn shared<'a>(versions: &'a [Value], key: &str) -> Option<&'a Value> {
    let first = versions.first()?.get(key)?;
    let same = versions
        .iter()
        .all(|version| version.get(key) == Some(first));
    same.then_some(first)
}

fn versions(spec: &Value, old: Option<&Value>, path: &Path, errors: &mut ErrorList) {
    let versions = list_at(spec, &["versions"]);
    let at_versions = path.child("versions");
    for (i, version) in versions.iter().enumerate() {
        if !has(version, &["schema", "openAPIV3Schema"]) {
            let at = at_versions
                .index(i)
                .child("schema")
                .child("openAPIV3Schema");
            errors.push(FieldError::required(&at, ""));
        }
    }
    let has_status = |version: &Value| has(version, &["subresources", "status"]);
    const SHARED: [&str; 4] = [
        "schema",
        "subresources",
        "additionalPrinterColumns",
        "selectableFields",
    ];
    let [schemas, below, printed, selected] = SHARED.map(|key| shared(versions, key).is_none());
    for (i, version) in versions.iter().enumerate() {
        let at = at_versions.index(i);
        let name = str_at(version, &["name"]);
        let faults = names::check_dns1035_label(name);
        if !faults.is_empty() {
            errors.push(FieldError::invalid(
                &at.child("name"),
                name,
                faults.join(","),
            ));
        }
        deprecation(version, &at, errors);
        if schemas {
            let old = old_schema(old, name);
            let status = has_status(version);
            schema(&version["schema"], old, status, &at.child("schema"), errors);
        }
        if below {
            subresources(&version["subresources"], &at.child("subresources"), errors);
        }
        if printed {
            columns(version, &at, errors);
        }
        if selected {
            let schema = &version["schema"]["openAPIV3Schema"];
            selectable(&version["selectableFields"], schema, &at, errors);
        }
    }
    if repeats(versions.iter().map(|v| &v["name"])).contains(&true) {
        let why = "must contain unique version names";
        errors.push(FieldError::invalid(&at_versions, versions.to_vec(), why));
    }
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&at_versions, versions.to_vec(), why));
    }
    let Some(first) = versions.first() else {
        return;
    };
    // the name of the first is that of the definition, too
    let name = str_at(first, &["name"]);
    let faults = names::check_dns1035_label(name);
    if !name.is_empty() && !faults.is_empty() {
        let at = path.child("version");
        errors.push(FieldError::invalid(&at, name, faults.join(",")));
    }
    if let Some(value) = shared(versions, "schema") {
        let old = old_schema(old, str_at(first, &["name"]));
        let status = versions.iter().any(has_status);
        schema(value, old, status, &path.child("validation"), errors);
    }
    if let Some(value) = shared(versions, "subresources") {
        subresources(value, &path.child("subresources"), errors);
    }
    if shared(versions, "additionalPrinterColumns").is_some() {
        columns(first, path, errors);
    }
    if let Some(value) = shared(versions, "selectableFields") {
        selectable(value, &first["schema"]["openAPIV3Schema"], path, errors);
    }
}

fn old_schema<'a>(old: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    let version = list_at(old?, &["versions"])
        .iter()
        .find(|version| version["name"] == name)?;
    version.get("schema")?.get("openAPIV3Schema")
}

fn deprecation(version: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(text) = version["deprecationWarning"].as_str() else {
        return;
    };
    let at = path.child("deprecationWarning");
    let mut refuse = |why: String| errors.push(FieldError::invalid(&at, text, why));
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions".to_owned());
        return;
    }
    if text.len() > 256 {
        refuse("must be <= 256 characters long".to_owned());
    }
    if text.is_empty() {
        refuse("must not be an empty string".to_owned());
    }
    if let Some((index, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        refuse(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index \
             {index}"
        ));
    }
}

fn schema(value: &Value, old: Option<&Value>, status: bool, path: &Path, errors: &mut ErrorList) {
    let Some(schema) = value.get("openAPIV3Schema") else {
        return;
    };
    let path = path.child("openAPIV3Schema");
    let found = check_schema(schema, &path, SchemaCheck { status });
    if found.is_empty() {
        errors.extend(davit_validationrules::check_rules(schema, old, &path));
    }
    errors.extend(found);
}

fn subresources(value: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(scale) = value.get("scale").filter(|scale| scale.is_object()) else {
        return;
    };
    for (key, prefixes, why) in [
        (
            "specReplicasPath",
            &[".spec."][..],
            "should be a json path under .spec",
        ),
        (
            "statusReplicasPath",
            &[".status."][..],
            "should be a json path under .status",
        ),
        (
            "labelSelectorPath",
            &[".spec.", ".status."][..],
            "should be a json path under either .spec or .status",
        ),
    ] {
        let at = path.child("scale").child(key);
        let text = str_at(scale, &[key]);
        if text.is_empty() {
            if key != "labelSelectorPath" {
                errors.push(FieldError::required(&at, ""));
            }
        } else if !simple_path(text, &at, errors) {
            // said already
        } else if !prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            errors.push(FieldError::invalid(&at, text, why));
        }
    }
}

fn simple_path(text: &str, at: &Path, errors: &mut ErrorList) -> bool {
    if text.starts_with('.') {
        return true;
    }
    let why = "must be a simple json path starting with .";
    errors.push(FieldError::invalid(at, text, why));
    false
}

fn columns(version: &Value, path: &Path, errors: &mut ErrorList) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = [
        "byte",
        "date",
        "date-time",
        "double",
        "float",
        "int32",
        "int64",
        "password",
    ];
    let columns = list_at(version, &["additionalPrinterColumns"]);
    for (i, column) in columns.iter().enumerate() {
        let at = path.child("additionalPrinterColumns").index(i);
        if str_at(column, &["name"]).is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        let kind = str_at(column, &["type"]);
        let why = format!("must be one of {}", TYPES.join(","));
        if kind.is_empty() {
            errors.push(FieldError::required(&at.child("type"), why));
        } else if !TYPES.contains(&kind) {
            errors.push(FieldError::invalid(&at.child("type"), kind, why));
        }
        let format = str_at(column, &["format"]);
        if !format.is_empty() && !FORMATS.contains(&format) {
            let why = format!("must be one of {}", FORMATS.join(","));
            errors.push(FieldError::invalid(&at.child("format"), format, why));
        }
        let json_path = str_at(column, &["jsonPath"]);
        let at = at.child("JSONPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else {
            simple_path(json_path, &at, errors);
        }
    }
}

fn selectable(fields: &Value, schema: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("selectableFields");
    let fields = fields.as_array().map_or(&[][..], Vec::as_slice);
    let Ok(schema) = Structural::parse(schema) else {
        return;
    };
    let mut seen: Vec<SimplePath> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let at = path.index(i).child("jsonPath");
        let text = str_at(field, &["jsonPath"]);
        if text.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        let resolved = SimplePath::parse(text)
            .ok_or_else(|| "must be a simple json path starting with .".to_owned())
            .and_then(|simple| {
                simple
                    .resolve(schema.root())
                    .map(|node| (simple.clone(), node))
            });
        let (simple, node) = match resolved {
            Ok(found) => found,
            Err(why) => {
                let why = format!("is an invalid path: {why}");
                errors.push(FieldError::invalid(&at, text, why));
                continue;
            }
        };
        if simple.root() == "metadata" {
            let why = "must not point to fields in metadata";
            errors.push(FieldError::invalid(&at, text, why));
        }
        if !is_selectable(node) {
            let why = "must point to a field of type string, boolean or integer. Enum string \
                       fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&at, text, why));
        }
        if seen.contains(&simple) {
            errors.push(FieldError::duplicate(&at, text));
        } else {
            seen.push(simple);
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(FieldError::too_many(&path, seen.len(), MAX_SELECTABLE));
    }
}
