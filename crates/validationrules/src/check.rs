//! Rules when a definition is written: they compile, and cannot cost too much.

use davit_api::field::{ErrorList, FieldError, Path};
use davit_cel::{DeclType, PatternBudget, Type, decl_type};
use serde_json::Value;

use super::{PATTERNS, environment, rule_of};

/// Most that one expression may cost by estimate.
const EXPRESSION_LIMIT: u64 = 10_000_000;
/// Most that all expressions of a schema may cost.
const SCHEMA_LIMIT: u64 = 100_000_000;
/// How many expressions are blamed when all of them cost too much.
const BLAMED: usize = 4;
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// What is wrong with the rules of a schema that stands at `path`. `old` is the schema as it was
/// before an update: expressions that were let in once may cost what they cost.
pub fn check_rules(schema: &Value, old: Option<&Value>, path: &Path) -> ErrorList {
    let mut walk = Walk {
        errors: ErrorList::new(),
        total: 0,
        costs: Vec::new(),
        lenient: old == Some(schema),
        room: PatternBudget(PATTERNS),
    };
    let place = RulePosition {
        cardinality: Some(1),
        uncorrelatable: None,
        is_resource: true,
    };
    walk.node(schema, path, &place);
    if walk.total > SCHEMA_LIMIT {
        walk.costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, path) in walk.costs.iter().take(BLAMED) {
            let why = "contributed to estimated rule cost total exceeding cost limit for entire \
                       OpenAPIv3 schema";
            walk.errors.push(FieldError::forbidden(path, why));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let why = too_much(what, walk.total, SCHEMA_LIMIT);
        walk.errors.push(FieldError::forbidden(path, why));
    }
    walk.errors
}

struct Walk {
    errors: ErrorList,
    total: u64,
    costs: Vec<(u64, Path)>,
    lenient: bool,
    room: PatternBudget,
}

/// Where a schema stands.
#[derive(Clone)]
struct RulePosition {
    /// How many values of the schema an object can have; none when nothing bounds it.
    cardinality: Option<u64>,
    /// The place from which on old and new values cannot be told to be the same.
    uncorrelatable: Option<Path>,
    is_resource: bool,
}

impl RulePosition {
    fn many(&self, most: &Value) -> Option<u64> {
        Some(self.cardinality?.saturating_mul(most.as_u64()?))
    }

    fn below(&self, schema: &Value) -> Self {
        Self {
            is_resource: schema["x-kubernetes-embedded-resource"] == true,
            ..self.clone()
        }
    }
}

fn too_much(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding \
         maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

impl Walk {
    fn node(&mut self, schema: &Value, path: &Path, place: &RulePosition) {
        if let Some(additional) = schema.get("additionalProperties").filter(|a| a.is_object()) {
            let inner = RulePosition {
                cardinality: place.many(&schema["maxProperties"]),
                ..place.below(additional)
            };
            self.node(additional, &path.child("additionalProperties"), &inner);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let mut inner = place.below(property);
            if schema["x-kubernetes-map-type"] == "atomic" {
                inner.uncorrelatable.get_or_insert_with(|| path.clone());
            }
            self.node(property, &path.child("properties").key(name), &inner);
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            let mut inner = RulePosition {
                cardinality: place.many(&schema["maxItems"]),
                ..place.below(items)
            };
            if schema["x-kubernetes-list-type"] != "map" {
                inner.uncorrelatable.get_or_insert_with(|| path.clone());
            }
            self.node(items, &path.child("items"), &inner);
        }
        self.rules(schema, path, place);
    }

    fn rules(&mut self, schema: &Value, path: &Path, place: &RulePosition) {
        let Some(rules) = schema["x-kubernetes-validations"].as_array() else {
            return;
        };
        let path = path.child("x-kubernetes-validations");
        let Some(decl) = decl_type(schema, "selfType", place.is_resource) else {
            let why = "internal error: failed to retrieve type information for \
                       x-kubernetes-validations";
            self.errors.push(FieldError::internal(&path, why));
            return;
        };
        for (i, rule) in rules.iter().enumerate() {
            self.rule(rule, &decl, &path.index(i), place);
        }
    }

    fn rule(&mut self, value: &Value, decl: &DeclType, path: &Path, place: &RulePosition) {
        let rule = rule_of(value);
        let env = environment(decl, rule.optional_old_self == Some(true));
        let at = path.child("rule");
        let compile = |room: &_| env.compile_within(rule.rule.trim(), room);
        match self.room.compile(compile) {
            Err(errors) => {
                let why = format!("compilation failed: {}", davit_cel::join_errors(&errors));
                self.errors
                    .push(FieldError::invalid(&at, value.clone(), why));
            }
            Ok(program) if !matches!(program.output_type(), Type::Bool) => {
                let why = "cel expression must evaluate to a bool";
                self.errors
                    .push(FieldError::invalid(&at, value.clone(), why));
            }
            Ok(program) => {
                let times = place
                    .cardinality
                    .unwrap_or(MAX_REQUEST / (decl.min_size + 1));
                let cost = program.cost_estimate().max.saturating_mul(times);
                self.cost("estimated rule cost", cost, &at);
                if program.uses("oldSelf") {
                    if let Some(within) = &place.uncorrelatable {
                        let why = format!(
                            "oldSelf cannot be used on the uncorrelatable portion of the schema \
                             within {within}"
                        );
                        let shown = rule.rule.as_str();
                        self.errors.push(FieldError::invalid(&at, shown, why));
                    }
                } else if let Some(optional) = rule.optional_old_self {
                    let why = "may not be set if oldSelf is not used in rule";
                    let at = path.child("optionalOldSelf");
                    self.errors.push(FieldError::invalid(&at, optional, why));
                }
            }
        }
        let source = rule.message_expression.trim();
        if source.is_empty() {
            return;
        }
        let at = path.child("messageExpression");
        match self.room.compile(|room| env.compile_within(source, room)) {
            Err(errors) => {
                let why = davit_cel::join_errors(&errors);
                let why = format!("messageExpression compilation failed: {why}");
                self.errors
                    .push(FieldError::invalid(&at, value.clone(), why));
            }
            Ok(program) if !matches!(program.output_type(), Type::String) => {
                let why = "messageExpression must evaluate to a string";
                self.errors
                    .push(FieldError::invalid(&at, value.clone(), why));
            }
            Ok(program) => {
                let cost = program.cost_estimate().max;
                self.cost("estimated messageExpression cost", cost, &at);
            }
        }
    }

    fn cost(&mut self, what: &str, cost: u64, path: &Path) {
        if cost > EXPRESSION_LIMIT && !self.lenient {
            let why = too_much(what, cost, EXPRESSION_LIMIT);
            self.errors.push(FieldError::forbidden(path, why));
        }
        self.total = self.total.saturating_add(cost);
        self.costs.push((cost, path.clone()));
    }
}
