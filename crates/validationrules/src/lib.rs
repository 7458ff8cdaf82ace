//! Rules of custom kinds: `x-kubernetes-validations`
//! (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>).

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

use davit_api::field::{ErrorList, FieldError, Path};
use davit_cel::{
    DeclType, Env, EvalError, EvaluationEffort, PatternBudget, Program, Type, Value as Cel,
    decl_type, value_with_schema,
};
use davit_schema::structural::{Rule, SimplePath, Structural};
use serde_json::Value;
use std::collections::HashMap;

mod check;

pub use check::check_rules;

/// What one evaluation may cost.
const CALL_BUDGET: u64 = 1_000_000;
/// What all evaluations for one object may cost.
const OBJECT_BUDGET: u64 = 10_000_000;
/// What all evaluations for one object may take of the machine, beside what they cost.
const OBJECT_EFFORT: u64 = 8 * EvaluationEffort::EVALUATION;
/// Bytes that the regular expressions of all rules of a schema may take, as those of the schema itself.
const PATTERNS: u64 = 128 << 20;
/// Bytes of a message that an expression makes.
const MAX_MESSAGE: usize = 5 * 1024;

/// The rules of one schema, compiled.
#[derive(Debug)]
pub struct Rules(Option<Node>);

/// The rules of one schema and of those below it.
#[derive(Debug)]
struct Node {
    /// The schema by which values become those of expressions; only where rules are.
    schema: Value,
    /// The type as errors show it.
    kind: String,
    is_resource: bool,
    rules: Vec<Compiled>,
    properties: Vec<(String, Node)>,
    additional: Option<Box<Node>>,
    items: Option<Box<Node>>,
    map_keys: Option<Vec<String>>,
    is_atomic: bool,
}

/// One rule.
#[derive(Debug)]
struct Compiled {
    rule: Rule,
    program: Result<Program, String>,
    message: Option<Program>,
    uses_old: bool,
}

impl Rules {
    /// The rules of a schema; `raw` is the schema as it was written.
    pub fn new(schema: &Structural, raw: Option<Value>) -> Self {
        if !schema.root().has_rules() {
            return Self(None);
        }
        let mut room = PatternBudget(PATTERNS);
        Self(raw.and_then(|raw| node(&raw, true, &mut room)))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// What the rules say of an object. With the object as it was before, rules about its change
    /// are asked as well, and what did not change is not held against the writer.
    pub fn check(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let mut run = Run {
            left: OBJECT_BUDGET,
            effort: OBJECT_EFFORT,
            spent: false,
            errors: ErrorList::new(),
        };
        if let Some(root) = &self.0 {
            run.node(root, new, old, &Path::root());
        }
        run.errors
    }
}

/// The type of `self`, and of `oldSelf` beside it.
fn environment(decl: &DeclType, optional: bool) -> Env {
    let old = if optional {
        DeclType::simple(Type::optional(decl.ty.clone()))
    } else {
        decl.clone()
    };
    Env::kubernetes()
        .declare("self", decl.clone())
        .declare("oldSelf", old)
        .build()
}

fn rule_of(value: &Value) -> Rule {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    Rule {
        rule: text("rule"),
        message: text("message"),
        message_expression: text("messageExpression"),
        reason: text("reason"),
        field_path: text("fieldPath"),
        optional_old_self: value["optionalOldSelf"].as_bool(),
    }
}

fn node(schema: &Value, is_resource: bool, room: &mut PatternBudget) -> Option<Node> {
    let embedded = |schema: &Value| schema["x-kubernetes-embedded-resource"] == true;
    let mut inner = |schema: &Value| node(schema, embedded(schema), room);
    let properties: Vec<(String, Node)> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, schema)| Some((name.clone(), inner(schema)?)))
        .collect();
    let mut below = |key: &str| {
        let schema = schema.get(key).filter(|schema| schema.is_object())?;
        inner(schema).map(Box::new)
    };
    let (additional, items) = (below("additionalProperties"), below("items"));
    let own = schema["x-kubernetes-validations"].as_array();
    let own = own.map_or(&[][..], Vec::as_slice);
    if own.is_empty() && properties.is_empty() && additional.is_none() && items.is_none() {
        return None;
    }
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let keys = keys.into_iter().flatten().filter_map(Value::as_str);
    Some(Node {
        kind: schema["type"].as_str().unwrap_or_default().to_owned(),
        is_resource,
        rules: own
            .iter()
            .map(|rule| compiled(rule, schema, is_resource, room))
            .collect(),
        schema: if own.is_empty() {
            Value::Null
        } else {
            schema.clone()
        },
        properties,
        additional,
        items,
        map_keys: (schema["x-kubernetes-list-type"] == "map")
            .then(|| keys.map(str::to_owned).collect()),
        is_atomic: schema["x-kubernetes-map-type"] == "atomic",
    })
}

fn compiled(
    value: &Value,
    schema: &Value,
    is_resource: bool,
    room: &mut PatternBudget,
) -> Compiled {
    let rule = rule_of(value);
    let decl = decl_type(schema, "selfType", is_resource);
    let env = decl.map(|decl| environment(&decl, rule.optional_old_self == Some(true)));
    let program = match &env {
        Some(env) => room
            .compile(|room| env.compile_within(rule.rule.trim(), room))
            .map_err(|errors| davit_cel::join_errors(&errors)),
        None => Err("the schema has no type".to_owned()),
    };
    let source = rule.message_expression.trim();
    let message = env
        .filter(|_| !source.is_empty())
        .and_then(|env| room.compile(|room| env.compile_within(source, room)).ok());
    let uses_old = program.as_ref().is_ok_and(|p| p.uses("oldSelf"));
    Compiled {
        rule,
        program,
        message,
        uses_old,
    }
}

struct Run {
    left: u64,
    effort: u64,
    spent: bool,
    errors: ErrorList,
}

impl Run {
    /// Evaluates, and takes what it has cost.
    fn evaluate(
        &mut self,
        program: &Program,
        variables: &[(&str, Cel); 2],
        budget: u64,
    ) -> Result<Cel, EvalError> {
        let effort = EvaluationEffort::within(self.effort);
        let before = effort.left();
        let (result, cost) = program.run_within(variables, budget, &effort, 0);
        self.left = self.left.saturating_sub(cost);
        self.effort -= before - effort.left();
        result
    }

    fn node(&mut self, node: &Node, new: &Value, old: Option<&Value>, path: &Path) {
        if self.spent || new.is_null() {
            return;
        }
        self.rules(node, new, old, path);
        match new {
            Value::Object(map) => {
                let old = old.filter(|_| !node.is_atomic);
                for (name, inner) in &node.properties {
                    if let Some(value) = map.get(name) {
                        let before = old.and_then(|old| old.get(name));
                        self.node(inner, value, before, &path.child(name));
                    }
                }
                if let Some(inner) = &node.additional {
                    for (key, value) in map {
                        let before = old.and_then(|old| old.get(key));
                        self.node(inner, value, before, &path.key(key));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(inner) = &node.items {
                    let known = Correlated::of(node, old);
                    for (i, value) in items.iter().enumerate() {
                        let before = known.as_ref().and_then(|known| known.find(value));
                        self.node(inner, value, before, &path.index(i));
                    }
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, node: &Node, new: &Value, old: Option<&Value>, path: &Path) {
        if node.rules.is_empty() {
            return;
        }
        let value = |value: &Value| value_with_schema(value, &node.schema, node.is_resource);
        let this = value(new);
        let before = old.filter(|old| !old.is_null()).map(value);
        for compiled in &node.rules {
            let optional = compiled.rule.optional_old_self == Some(true);
            if compiled.uses_old && before.is_none() && !optional {
                continue;
            }
            if !compiled.uses_old && old == Some(new) {
                continue;
            }
            let then = match (&before, optional) {
                (Some(before), true) => Cel::some(before.clone()),
                (Some(before), false) => before.clone(),
                (None, _) => Cel::Optional(None),
            };
            let variables = [("self", this.clone()), ("oldSelf", then)];
            self.rule(compiled, (&node.kind, new), &variables, path);
            if self.spent {
                return;
            }
        }
    }

    fn rule(
        &mut self,
        compiled: &Compiled,
        (kind, value): (&str, &Value),
        variables: &[(&str, Cel); 2],
        path: &Path,
    ) {
        let program = match &compiled.program {
            Ok(program) => program,
            Err(why) => {
                let why = format!("rule compile error: {why}");
                self.errors.push(FieldError::invalid(path, kind, why));
                return;
            }
        };
        let budget = CALL_BUDGET.min(self.left);
        let result = self.evaluate(program, variables, budget);
        let rule = &compiled.rule;
        let shown = if rule.message.is_empty() {
            rule.rule.trim()
        } else {
            rule.message.trim()
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let detail = self.message(compiled, variables);
                // objects and lists are not shown
                let shown = (!matches!(kind, "object" | "array")).then(|| value.clone());
                self.errors.push(blamed(rule, shown, path, detail));
            }
            Err(EvalError::CostLimitExceeded) => {
                self.spent = true;
                let why = if budget < CALL_BUDGET {
                    "validation failed due to running out of cost budget, no further validation \
                     rules will be run"
                        .to_owned()
                } else {
                    format!(
                        "'{}': no further validation rules will be run due to call cost exceeds \
                         limit for rule: {shown}",
                        EvalError::CostLimitExceeded
                    )
                };
                self.errors.push(FieldError::invalid(path, kind, why));
            }
            Err(error) => {
                let text = error.to_string();
                let why = if text.starts_with("no such overload") {
                    format!(
                        "'{text}': call arguments did not match a supported operator, function or \
                         macro signature for rule: {shown}"
                    )
                } else {
                    format!("{text} evaluating rule: {shown}")
                };
                self.errors.push(FieldError::invalid(path, kind, why));
            }
        }
    }

    /// What is said when a rule does not hold.
    fn message(&mut self, compiled: &Compiled, variables: &[(&str, Cel); 2]) -> String {
        if let Some(program) = &compiled.message {
            let result = self.evaluate(program, variables, CALL_BUDGET.min(self.left));
            if let Ok(Cel::String(text)) = result {
                let text = text.trim();
                if !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains(['\n', '\r']) {
                    return text.to_owned();
                }
            }
        }
        let rule = &compiled.rule;
        if rule.message.is_empty() {
            format!("failed rule: {}", rule.rule.trim())
        } else {
            rule.message.trim().to_owned()
        }
    }
}

fn blamed(rule: &Rule, shown: Option<Value>, path: &Path, detail: String) -> FieldError {
    let path = match SimplePath::parse(&rule.field_path) {
        Some(field) => field
            .names()
            .fold(path.clone(), |path, name| path.child(name)),
        None => path.clone(),
    };
    let fault = match rule.reason.as_str() {
        "FieldValueForbidden" => return FieldError::forbidden(&path, detail),
        "FieldValueRequired" => return FieldError::required(&path, detail),
        "FieldValueDuplicate" => FieldError::duplicate(&path, Value::Null),
        _ => FieldError::invalid_unshown(&path, detail),
    };
    FieldError {
        value: shown,
        ..fault
    }
}

/// The elements of a list as it was, by the keys that tell them apart; only lists of the type map have any.
struct Correlated<'a> {
    keys: &'a [String],
    known: HashMap<String, &'a Value>,
}

impl<'a> Correlated<'a> {
    fn of(node: &'a Node, old: Option<&'a Value>) -> Option<Self> {
        let mut all = Self {
            keys: node.map_keys.as_deref()?,
            known: HashMap::new(),
        };
        for item in old?.as_array()? {
            all.known.entry(all.identity(item)).or_insert(item);
        }
        Some(all)
    }

    /// The element that `item` is the new state of.
    fn find(&self, item: &Value) -> Option<&'a Value> {
        self.known.get(&self.identity(item)).copied()
    }

    fn identity(&self, item: &Value) -> String {
        let mut identity = String::new();
        for key in self.keys {
            match item.get(key) {
                Some(value) => identity.push_str(&value.to_string()),
                None => identity.push('-'),
            }
            identity.push(',');
        }
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(schema: &Value) -> Rules {
        Rules::new(&Structural::parse(schema).unwrap(), Some(schema.clone()))
    }

    fn lines(errors: &ErrorList) -> Vec<String> {
        errors
            .iter()
            .map(|e| format!("{}: {}", e.field, e.body()))
            .collect()
    }

    fn spec(rules: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": rules, "properties": {
                "min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string"}}}}})
    }

    #[test]
    fn item_149_rules_say_what_they_were_told_to_say() {
        let schema = spec(json!([
            {"rule": "self.min <= self.max"},
            {"rule": "self.min >= 0", "message": "no less than nothing", "reason": "FieldValueForbidden",
                "fieldPath": ".min"},
            {"rule": "self.max < 10", "messageExpression": "'max is ' + string(self.max)"},
        ]));
        let found = rules(&schema).check(&json!({"spec": {"min": 12, "max": 11}}), None);
        assert_eq!(
            lines(&found),
            [
                "spec: Invalid value: failed rule: self.min <= self.max",
                "spec: Invalid value: max is 11",
            ]
        );
        let found = rules(&schema).check(&json!({"spec": {"min": -1, "max": 1}}), None);
        assert_eq!(lines(&found), ["spec.min: Forbidden: no less than nothing"]);
        let found = rules(&schema).check(&json!({"spec": {}}), None);
        assert_eq!(found.len(), 3);
        assert!(
            found[0]
                .detail
                .starts_with("no such key: min evaluating rule"),
            "{found:?}"
        );
    }

    /// An object has room for a hundred thousand, and each was looked for among all.
    #[test]
    fn elements_of_long_lists_are_found_by_their_keys() {
        let schema = json!({"type": "object", "properties": {"l": {"type": "array",
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
            "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "port": {"type": "integer"}, "v": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "less"}]}}}});
        let rules = rules(&schema);
        let list = |v: i64, count: i64| -> Value {
            let item =
                |n: i64| json!({"name": format!("n{}", n / 2), "port": n % 2, "v": v - n % 2});
            json!({"l": (0..count).map(item).collect::<Vec<_>>()})
        };
        let begun = std::time::Instant::now();
        let (mut new, old) = (list(5, 40_000), list(4, 40_000));
        new["l"].as_array_mut().unwrap().reverse();
        assert!(rules.check(&new, Some(&old)).is_empty());
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
        new["l"][0]["v"] = json!(0);
        assert_eq!(
            lines(&rules.check(&new, Some(&old))),
            ["l[0]: Invalid value: less"]
        );
    }

    #[test]
    fn item_150_152_rules_about_changes() {
        let schema = spec(json!([
            {"rule": "self.name == oldSelf.name", "message": "name is immutable"},
            {"rule": "oldSelf.hasValue() || self.max == 0", "message": "starts at 0", "optionalOldSelf": true},
            {"rule": "self.max < 5", "message": "too much"},
        ]));
        let rules = rules(&schema);
        let old = json!({"spec": {"name": "a", "max": 7}});
        assert_eq!(rules.check(&old, None).len(), 2, "starts at 0, too much");
        assert!(rules.check(&old, Some(&old)).is_empty(), "nothing changed");
        let new = json!({"spec": {"name": "b", "max": 3}});
        assert_eq!(
            lines(&rules.check(&new, Some(&old))),
            ["spec: Invalid value: name is immutable"]
        );
    }

    #[test]
    fn item_151_costs_are_limited_when_written_and_when_run() {
        let path = Path::new("s");
        let list = |most: Value| {
            json!({"type": "object", "properties": {"l": {"type": "array",
            "maxItems": most, "items": {"type": "string", "maxLength": 10000},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y || x.contains(y)))"}]}}})
        };
        let found = check_rules(&list(json!(1_000_000)), None, &path);
        let found = lines(&found);
        assert!(
            found[0].starts_with(
                "s.properties[l].x-kubernetes-validations[0].rule: Forbidden: \
            estimated rule cost exceeds budget by factor of more than 100x (try simplifying"
            ),
            "{found:?}"
        );
        assert!(
            found[1].contains("contributed to estimated rule cost total"),
            "{found:?}"
        );
        assert!(
            found[2].starts_with(
                "s: Forbidden: x-kubernetes-validations estimated rule cost total \
            for entire OpenAPIv3 schema exceeds budget"
            ),
            "{found:?}"
        );
        let mut small = list(json!(5));
        small["properties"]["l"]["items"]["maxLength"] = json!(10);
        assert!(check_rules(&small, None, &path).is_empty());
        let items: Vec<String> = (0..2000).map(|i| i.to_string()).collect();
        let found = rules(&list(json!(1_000_000))).check(&json!({"l": items}), None);
        assert!(
            found[0].detail.contains("cost limit exceeded")
                || found[0].detail.contains("failed rule"),
            "{found:?}"
        );
    }

    #[test]
    fn rules_that_do_not_compile_are_refused() {
        let found = check_rules(
            &spec(json!([{"rule": "self.nope > 1"}, {"rule": "self.min"},
            {"rule": "self.min > 0", "optionalOldSelf": true}])),
            None,
            &Path::new("s"),
        );
        let found = lines(&found);
        assert!(found[0].contains("undefined field 'nope'"), "{found:?}");
        assert!(
            found[1].contains("cel expression must evaluate to a bool"),
            "{found:?}"
        );
        assert!(
            found[2].contains("may not be set if oldSelf is not used in rule"),
            "{found:?}"
        );
        let lists = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 3,
            "items": {"type": "string", "maxLength": 3,
                "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
        let found = lines(&check_rules(&lists, None, &Path::new("s")));
        assert!(
            found[0].ends_with(
                "oldSelf cannot be used on the uncorrelatable portion of the schema \
            within s.properties[l]"
            ),
            "{found:?}"
        );
    }
}
