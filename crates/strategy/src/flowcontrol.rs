//! FlowSchema and PriorityLevelConfiguration.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::flowcontrol::{MANDATORY, Upkeep, levels, schemas};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{at, at_mut, default_nonzero, default_unset, int_at, list_at, str_at};
use super::{KindInfo, Strategy, fields, meta, status_conditions};

const LOWEST: i64 = 10_000;
const MAX_QUEUES: i64 = 10_000_000;
const MAX_ENTROPY: u32 = 60;
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    if &*info.kind == "FlowSchema" {
        Box::new(FlowSchema(info))
    } else {
        Box::new(PriorityLevel(info))
    }
}

struct FlowSchema(KindInfo);

impl Strategy for FlowSchema {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec"]) {
            default_nonzero(spec, "matchingPrecedence", 1000);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        schema(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        schema(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let conditions = list_at(new, &["status", "conditions"]);
        let path = Path::new("status").child("conditions");
        status_conditions::types(conditions, &path, &mut errors);
        errors
    }
}

fn schema(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let name = str_at(obj, &["metadata", "name"]);
    mandatory(obj, &schemas(), errors);
    let precedence = int_at(spec, &["matchingPrecedence"]).unwrap_or(0);
    let at_precedence = path.child("matchingPrecedence");
    if precedence <= 0 {
        let why = "must be a positive value";
        errors.push(FieldError::invalid(&at_precedence, precedence, why));
    } else if precedence > LOWEST {
        let why = format!("must not be greater than {LOWEST}");
        errors.push(FieldError::invalid(&at_precedence, precedence, why));
    }
    if precedence == 1 && name != "exempt" {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(&at_precedence, precedence, why));
    }
    let method = at(spec, &["distinguisherMethod"]);
    if !method.is_null() {
        let kind = str_at(method, &["type"]);
        let known = ["ByNamespace", "ByUser"];
        if !known.contains(&kind) {
            let at_type = path.child("distinguisherMethod").child("type");
            errors.push(FieldError::not_supported(&at_type, kind, &known));
        }
    }
    let level = str_at(spec, &["priorityLevelConfiguration", "name"]);
    let at_level = path.child("priorityLevelConfiguration").child("name");
    if level.is_empty() {
        let why = "must reference a priority level";
        errors.push(FieldError::required(&at_level, why));
    } else {
        errors.extend(invalid_each(
            &at_level,
            level,
            names::check_dns1123_subdomain(level),
        ));
    }
    for (index, rule) in list_at(spec, &["rules"]).iter().enumerate() {
        self::rule(rule, &path.child("rules").index(index), errors);
    }
}

fn rule(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let subjects = list_at(rule, &["subjects"]);
    let at_subjects = path.child("subjects");
    if subjects.is_empty() {
        let why = "subjects must contain at least one value";
        errors.push(FieldError::required(&at_subjects, why));
    }
    for (index, one) in subjects.iter().enumerate() {
        subject(one, &at_subjects.index(index), errors);
    }
    let (resources, paths) = (
        list_at(rule, &["resourceRules"]),
        list_at(rule, &["nonResourceRules"]),
    );
    if resources.is_empty() && paths.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, why));
    }
    for (index, one) in resources.iter().enumerate() {
        let path = path.child("resourceRules").index(index);
        verbs(one, &path, errors);
        wildcard(one, "apiGroups", "api groups", "api group", &path, errors);
        wildcard(one, "resources", "resources", "resource", &path, errors);
        let namespaces = list_at(one, &["namespaces"]);
        let clustered = at(one, &["clusterScope"]) == &json!(true);
        let at_namespaces = path.child("namespaces");
        if namespaces.is_empty() && !clustered {
            let why =
                "resource rules that are not cluster scoped must supply at least one namespace";
            errors.push(FieldError::required(&at_namespaces, why));
        } else if namespaces.len() > 1 && namespaces.contains(&json!("*")) {
            let why = "if '*' is present, must not specify other namespaces";
            errors.push(FieldError::invalid(
                &at_namespaces,
                namespaces.to_vec(),
                why,
            ));
        } else {
            for (index, namespace) in namespaces.iter().enumerate() {
                let namespace = namespace.as_str().unwrap_or_default();
                if namespace != "*" {
                    errors.extend(invalid_each(
                        &at_namespaces.index(index),
                        namespace,
                        names::check_dns1123_label(namespace),
                    ));
                }
            }
        }
    }
    for (index, one) in paths.iter().enumerate() {
        let path = path.child("nonResourceRules").index(index);
        verbs(one, &path, errors);
        urls(one, &path.child("nonResourceURLs"), errors);
    }
}

fn subject(subject: &Value, path: &Path, errors: &mut ErrorList) {
    const MEMBERS: [(&str, &str); 3] = [
        ("User", "user"),
        ("Group", "group"),
        ("ServiceAccount", "serviceAccount"),
    ];
    let kind = str_at(subject, &["kind"]);
    if !MEMBERS.iter().any(|(known, _)| *known == kind) {
        let known = ["Group", "ServiceAccount", "User"];
        errors.push(FieldError::not_supported(&path.child("kind"), kind, &known));
        return;
    }
    for (of, member) in MEMBERS {
        let given = at(subject, &[member]);
        let path = path.child(member);
        if of != kind {
            if !given.is_null() {
                let why = format!("{member} is forbidden when subject kind is not '{of}'");
                errors.push(FieldError::forbidden(&path, why));
            }
            continue;
        }
        if given.is_null() {
            let why = format!("{member} is required when subject kind is '{of}'");
            errors.push(FieldError::required(&path, why));
            continue;
        }
        if str_at(given, &["name"]).is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if of == "ServiceAccount" {
            let any_or_name: fields::NameCheck = |name| match name {
                "*" => Vec::new(),
                name => names::check_dns1123_subdomain(name),
            };
            fields::optional_name(given, "name", any_or_name, &path, errors);
            let check = names::check_dns1123_label;
            fields::optional_name(given, "namespace", check, &path, errors);
        }
        if of == "ServiceAccount" && str_at(given, &["namespace"]).is_empty() {
            let why = "must specify namespace for service account";
            errors.push(FieldError::required(&path.child("namespace"), why));
        }
    }
}

fn verbs(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let verbs = list_at(rule, &["verbs"]);
    let path = path.child("verbs");
    if verbs.is_empty() {
        let why = "verbs must contain at least one value";
        errors.push(FieldError::required(&path, why));
    } else if verbs.contains(&json!("*")) {
        if verbs.len() > 1 {
            let why = "if '*' is present, must not specify other verbs";
            errors.push(FieldError::invalid(&path, verbs.to_vec(), why));
        }
    } else if !verbs
        .iter()
        .all(|verb| verb.as_str().is_some_and(|verb| VERBS.contains(&verb)))
    {
        errors.push(FieldError::not_supported(&path, verbs.to_vec(), &VERBS));
    }
}

fn wildcard(
    rule: &Value,
    field: &str,
    several: &str,
    one: &str,
    path: &Path,
    errors: &mut ErrorList,
) {
    let values = list_at(rule, &[field]);
    let path = path.child(field);
    if values.is_empty() {
        let why = format!("resource rules must supply at least one {one}");
        errors.push(FieldError::required(&path, why));
    } else if values.len() > 1 && values.contains(&json!("*")) {
        let why = format!("if '*' is present, must not specify other {several}");
        errors.push(FieldError::invalid(&path, values.to_vec(), why));
    }
}

fn urls(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let urls = list_at(rule, &["nonResourceURLs"]);
    if urls.is_empty() {
        let why = "nonResourceURLs must contain at least one value";
        errors.push(FieldError::required(path, why));
    } else if urls.contains(&json!("*")) {
        if urls.len() > 1 {
            let why = "if '*' is present, must not specify other non-resource URLs";
            errors.push(FieldError::invalid(path, urls.to_vec(), why));
        }
        return;
    }
    for (index, url) in urls.iter().enumerate() {
        let url = url.as_str().unwrap_or_default();
        let path = path.index(index);
        let mut fault = |why: &str| errors.push(FieldError::invalid(&path, url, why));
        if !url.starts_with('/') {
            fault("must start with slash");
        } else if url.contains(' ') {
            fault("must not contain white-space");
        } else if url.contains("//") {
            fault("must not contain double slash");
        } else if url.contains('*') && !(url.ends_with("/*") && url.matches('*').count() == 1) {
            fault("wildcard can only do suffix matching");
        }
    }
}

struct PriorityLevel(KindInfo);

impl Strategy for PriorityLevel {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        if let Some(exempt) = at_mut(spec, &["exempt"]) {
            default_unset(exempt, "nominalConcurrencyShares", 0);
            default_unset(exempt, "lendablePercent", 0);
        }
        if let Some(limited) = at_mut(spec, &["limited"]) {
            default_unset(limited, "nominalConcurrencyShares", 30);
            default_unset(limited, "lendablePercent", 0);
            if let Some(queuing) = at_mut(limited, &["limitResponse", "queuing"]) {
                default_nonzero(queuing, "handSize", 8);
                default_nonzero(queuing, "queues", 64);
                default_nonzero(queuing, "queueLengthLimit", 50);
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        level(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        level(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let conditions = list_at(new, &["status", "conditions"]);
        let path = Path::new("status").child("conditions");
        status_conditions::types(conditions, &path, &mut errors);
        errors
    }
}

fn level(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    mandatory(obj, &levels(), errors);
    let (limited, exempt) = (at(spec, &["limited"]), at(spec, &["exempt"]));
    let is_exempt = str_at(spec, &["type"]) == "Exempt";
    if is_exempt != (str_at(obj, &["metadata", "name"]) == "exempt") {
        let fault = "must be 'Exempt' if and only if `name` is 'exempt'";
        let kind = at(spec, &["type"]).clone();
        errors.push(FieldError::invalid(&path.child("type"), kind, fault));
    }
    match str_at(spec, &["type"]) {
        "Exempt" => {
            if !limited.is_null() {
                let why = "must be nil if the type is not Limited";
                errors.push(FieldError::forbidden(&path.child("limited"), why));
            }
            if !exempt.is_null() {
                shares(exempt, &path.child("exempt"), errors);
            }
        }
        "Limited" => {
            if !exempt.is_null() {
                let why = "must be nil if the type is Limited";
                errors.push(FieldError::forbidden(&path.child("exempt"), why));
            }
            if limited.is_null() {
                let why = "must not be empty when type is Limited";
                errors.push(FieldError::required(&path.child("limited"), why));
            } else {
                limits(limited, &path.child("limited"), errors);
            }
        }
        "" => errors.push(FieldError::required(&path.child("type"), "")),
        other => {
            let known = ["Exempt", "Limited"];
            errors.push(FieldError::not_supported(
                &path.child("type"),
                other,
                &known,
            ));
        }
    }
}

fn shares(of: &Value, path: &Path, errors: &mut ErrorList) {
    let mut check = |field: &str, fits: fn(i64) -> bool, why: &str| {
        if let Some(number) = int_at(of, &[field]).filter(|number| !fits(*number)) {
            errors.push(FieldError::invalid(&path.child(field), number, why));
        }
    };
    check(
        "nominalConcurrencyShares",
        |n| n >= 0,
        "must be a non-negative integer",
    );
    check(
        "lendablePercent",
        |n| (0..=100).contains(&n),
        "must be between 0 and 100, inclusive",
    );
    check(
        "borrowingLimitPercent",
        |n| n >= 0,
        "if specified, must be a non-negative integer",
    );
}

fn limits(limited: &Value, path: &Path, errors: &mut ErrorList) {
    shares(limited, path, errors);
    let response = at(limited, &["limitResponse"]);
    let path = path.child("limitResponse");
    let queuing = at(response, &["queuing"]);
    let at_queuing = path.child("queuing");
    match str_at(response, &["type"]) {
        "Reject" => {
            if !queuing.is_null() {
                let why = "must be nil if limited.limitResponse.type is not Limited";
                errors.push(FieldError::forbidden(&at_queuing, why));
            }
        }
        "Queue" if queuing.is_null() => {
            let why = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(&at_queuing, why));
        }
        "Queue" => queues(queuing, &at_queuing, errors),
        "" => errors.push(FieldError::required(
            &path.child("type"),
            "must not be empty",
        )),
        other => {
            let known = ["Queue", "Reject"];
            errors.push(FieldError::not_supported(
                &path.child("type"),
                other,
                &known,
            ));
        }
    }
}

fn queues(queuing: &Value, path: &Path, errors: &mut ErrorList) {
    let number = |field: &str| int_at(queuing, &[field]).unwrap_or(0);
    let (queues, hand) = (number("queues"), number("handSize"));
    let mut fault = |field: &str, value: i64, why: String| {
        errors.push(FieldError::invalid(&path.child(field), value, why));
    };
    if number("queueLengthLimit") <= 0 {
        fault(
            "queueLengthLimit",
            number("queueLengthLimit"),
            "must be positive".to_owned(),
        );
    }
    if queues <= 0 {
        fault("queues", queues, "must be positive".to_owned());
    } else if queues > MAX_QUEUES {
        fault(
            "queues",
            queues,
            format!("must not be greater than {MAX_QUEUES}"),
        );
    }
    if hand <= 0 {
        fault("handSize", hand, "must be positive".to_owned());
    } else if queues > 0 && hand > queues {
        fault(
            "handSize",
            hand,
            format!("should not be greater than queues ({queues})"),
        );
    } else if queues > 0 {
        let bits = entropy_bits(queues.unsigned_abs(), hand.unsigned_abs());
        if bits > MAX_ENTROPY {
            let why = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be \
                 greater than {MAX_ENTROPY}"
            );
            fault("handSize", hand, why);
        }
    }
}

/// The mandatory objects mean what they mean.
fn mandatory(obj: &Value, known: &[(Value, Upkeep)], errors: &mut ErrorList) {
    let name = str_at(obj, &["metadata", "name"]);
    if !MANDATORY.contains(&name) {
        return;
    }
    let wanted = known
        .iter()
        .find(|(wanted, _)| str_at(wanted, &["metadata", "name"]) == name);
    let Some((wanted, _)) = wanted else { return };
    let mut spec = at(obj, &["spec"]).clone();
    // of the exempt level the shares may be chosen
    if name == "exempt"
        && let Some(exempt) = at_mut(&mut spec, &["exempt"])
    {
        *exempt = at(wanted, &["spec", "exempt"]).clone();
    }
    if spec != *at(wanted, &["spec"]) {
        let why = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid(&Path::new("spec"), spec, why));
    }
}

/// The bits of entropy a deal uses: log2 of the number of ways to deal.
fn entropy_bits(deck: u64, hand: u64) -> u32 {
    let ways: f64 = (0..hand)
        .map(|dealt| (deck.saturating_sub(dealt).max(1) as f64).log2())
        .sum();
    // small and positive
    ways.ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::entropy_bits;

    #[test]
    fn the_suggested_decks_fit_a_hash() {
        assert!(entropy_bits(128, 6) <= 60);
        assert!(entropy_bits(512, 8) > 60);
    }
}
