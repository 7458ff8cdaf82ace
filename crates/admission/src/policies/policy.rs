//! Policies and bindings, read and compiled.

use davit_api::labels::Selector;
use davit_cel::policy::{Environments, compile, mutation_types};
use davit_cel::{Env, Program, Type};
use serde_json::Value;

use super::matching::Matching;
use crate::cel_conditions::Conditions;

/// A policy with the bindings that name it.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) ignores_failure: bool,
    /// `apiVersion` and `kind` of the parameters.
    pub(super) param_kind: Option<(String, String)>,
    pub(super) matching: Matching,
    pub(super) conditions: Conditions,
    pub(super) variables: Vec<(String, Result<Program, String>)>,
    pub(super) validations: Vec<Validation>,
    pub(super) annotations: Vec<(String, Expression)>,
    pub(super) mutations: Vec<Mutation>,
    /// Runs again after others changed the object.
    pub(super) repeats: bool,
    pub(super) bindings: Vec<Binding>,
}

/// A compiled expression, or why it does not compile.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) source: String,
    pub(super) program: Result<Program, String>,
}

#[derive(Debug)]
pub(super) struct Validation {
    pub(super) expression: Expression,
    pub(super) message: String,
    pub(super) message_expression: Option<Expression>,
    pub(super) reason: String,
}

#[derive(Debug)]
pub(super) struct Mutation {
    /// A JSON patch; an apply configuration otherwise.
    pub(super) is_patch: bool,
    pub(super) expression: Expression,
}

#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) matching: Option<Matching>,
    pub(super) param: Option<ParamRef>,
    pub(super) actions: Vec<String>,
}

/// Which parameters a binding uses.
#[derive(Debug)]
pub(super) struct ParamRef {
    pub(super) name: String,
    pub(super) namespace: String,
    /// None when the selector makes no sense.
    pub(super) selector: Option<Selector>,
    pub(super) allows_missing: bool,
}

impl Policy {
    pub(super) fn new(policy: &Value, bindings: &[Value]) -> Self {
        let spec = &policy["spec"];
        let name = davit_registry::object::name(policy).to_owned();
        let envs = Environments::of(spec, &Type::Dyn);
        let list = |key: &str| spec[key].as_array().into_iter().flatten();
        let bindings = bindings
            .iter()
            .filter(|binding| binding["spec"]["policyName"] == name.as_str());
        Self {
            ignores_failure: spec["failurePolicy"] == "Ignore",
            param_kind: spec["paramKind"].is_object().then(|| {
                let text = |key: &str| text(&spec["paramKind"], key);
                (text("apiVersion"), text("kind"))
            }),
            matching: Matching::new(&spec["matchConstraints"]),
            conditions: Conditions::new(&spec["matchConditions"], &envs.plain),
            validations: list("validations")
                .map(|validation| Validation {
                    expression: Expression::new(
                        &validation["expression"],
                        &envs.full,
                        &[Type::Bool],
                    ),
                    message: text(validation, "message").trim().to_owned(),
                    message_expression: validation["messageExpression"]
                        .as_str()
                        .filter(|text| !text.is_empty())
                        .map(|_| {
                            let source = &validation["messageExpression"];
                            Expression::new(source, &envs.message, &[Type::String])
                        }),
                    reason: text(validation, "reason"),
                })
                .collect(),
            annotations: list("auditAnnotations")
                .map(|annotation| {
                    let wanted = [Type::String, Type::Null];
                    let source = &annotation["valueExpression"];
                    (
                        text(annotation, "key"),
                        Expression::new(source, &envs.full, &wanted),
                    )
                })
                .collect(),
            mutations: list("mutations")
                .map(|mutation| {
                    let is_patch = mutation["patchType"] == "JSONPatch";
                    let source = if is_patch {
                        &mutation["jsonPatch"]["expression"]
                    } else {
                        &mutation["applyConfiguration"]["expression"]
                    };
                    Mutation {
                        is_patch,
                        expression: Expression::new(source, &envs.full, &mutation_types(is_patch)),
                    }
                })
                .collect(),
            repeats: spec["reinvocationPolicy"] == "IfNeeded",
            variables: envs.variables,
            bindings: bindings.map(Binding::new).collect(),
            name,
        }
    }
}

impl Expression {
    fn new(source: &Value, env: &Env, wanted: &[Type]) -> Self {
        let source = source.as_str().unwrap_or_default();
        Self {
            program: compile(env, source, wanted),
            source: source.trim().to_owned(),
        }
    }
}

impl Binding {
    fn new(binding: &Value) -> Self {
        let spec = &binding["spec"];
        let reference = &spec["paramRef"];
        let resources = &spec["matchResources"];
        let actions = spec["validationActions"].as_array().into_iter().flatten();
        Self {
            name: davit_registry::object::name(binding).to_owned(),
            matching: resources.is_object().then(|| Matching::new(resources)),
            param: reference.is_object().then(|| ParamRef {
                name: text(reference, "name"),
                namespace: text(reference, "namespace"),
                selector: Selector::from_label_selector(Some(&reference["selector"])).ok(),
                allows_missing: reference["parameterNotFoundAction"] == "Allow",
            }),
            actions: actions
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        }
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}
