//! CEL expressions about a write: their environments, their variables, `matchConditions`.
//!
//! Webhooks and policies evaluate the same way: [`Inputs`] holds what the variables are for one
//! request, [`Conditions`] the compiled `matchConditions` of one configuration. Expressions may ask
//! the authorizer; as asking can take a call to a webhook while evaluation never waits, an
//! expression that asks is evaluated again once the answer is there.

use std::collections::HashMap;
use std::sync::Arc;

use davit_access::{RequestInfo, UserInfo, authz};
use davit_api::status::Status;
use davit_cel::policy::compile;
use davit_cel::{
    Activation, Authorizer, AuthorizerHandle, Check, Decision, Env, EvalError, EvaluationEffort,
    Program, Type, Value as Cel,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Attributes, ServerView};

/// What one expression may cost.
pub(crate) const CALL_LIMIT: u64 = 1_000_000;
/// What all `matchConditions` of one webhook or policy may cost together.
const CONDITIONS_BUDGET: u64 = 2_500_000;
/// How often an expression is evaluated, once more for each question to the authorizer: the cost limit allows
/// two questions, and what comes before the one that is new is the same each time.
const EVALUATIONS_MAX: usize = 4;

pub(crate) const OUT_OF_BUDGET: &str = "validation failed due to running out of cost budget, no \
                                        further validation rules will be run";

/// The values of the variables for one request.
pub(crate) struct Inputs<'a> {
    server: &'a dyn ServerView,
    user: &'a UserInfo,
    variables: HashMap<&'static str, Cel>,
    answers: Arc<Answers>,
}

impl<'a> Inputs<'a> {
    /// `object` and `old` as the webhook or policy is shown them (null when there is none),
    /// `request` as in an AdmissionReview, `namespace` the object of the request's namespace.
    pub(crate) fn new(
        attributes: &Attributes<'a>,
        request: &Value,
        object: &Value,
        old: &Value,
        namespace: Option<&Value>,
    ) -> Self {
        let answers = Arc::new(Answers::default());
        let authorizer: Arc<dyn Authorizer> = Arc::<Answers>::clone(&answers);
        let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
        let resource = &request["requestResource"];
        let check = Check {
            group: resource["group"].as_str().unwrap_or_default().to_owned(),
            resource: resource["resource"].as_str().unwrap_or_default().to_owned(),
            subresource: text("requestSubResource"),
            namespace: text("namespace"),
            name: text("name"),
            ..Check::default()
        };
        let mut request = request.clone();
        if let Some(fields) = request.as_object_mut() {
            for hidden in ["object", "oldObject", "uid"] {
                fields.remove(hidden);
            }
        }
        let variables = HashMap::from([
            ("object", davit_cel::value(object)),
            ("oldObject", davit_cel::value(old)),
            ("request", davit_cel::value(&request)),
            (
                "namespaceObject",
                namespace.map_or(Cel::Null, |held| davit_cel::value(&shown_namespace(held))),
            ),
            ("params", Cel::Null),
            (
                "authorizer",
                Cel::Authorizer(AuthorizerHandle::new(Arc::clone(&authorizer))),
            ),
            (
                "authorizer.requestResource",
                Cel::Authorizer(AuthorizerHandle::for_resource(authorizer, check)),
            ),
        ]);
        Self {
            server: attributes.server,
            user: attributes.user,
            variables,
            answers,
        }
    }

    /// Sets `params`.
    pub(crate) fn set_params(&mut self, params: Option<&Value>) {
        let value = params.map_or(Cel::Null, davit_cel::value);
        self.variables.insert("params", value);
    }

    /// Sets `object`, which a mutation changed.
    pub(crate) fn set_object(&mut self, object: &Value) {
        self.variables.insert("object", davit_cel::value(object));
    }

    /// Evaluates within `budget`, of which the cost is taken.
    ///
    /// # Errors
    /// The text of the failure.
    pub(crate) async fn eval(
        &self,
        program: &Program,
        expression: &str,
        variables: &Variables<'_>,
        budget: &mut u64,
    ) -> Result<Cel, String> {
        for _ in 0..EVALUATIONS_MAX {
            let (result, cost) = {
                let limit = CALL_LIMIT.min(*budget);
                let activation = With {
                    known: &self.variables,
                    variables,
                    left: Mutex::new(limit),
                };
                program.run(&activation, limit)
            };
            if let Some(question) = self.answers.take_question() {
                let answer = self.ask(&question).await;
                self.answers.learn(question, answer);
                variables.forget();
                continue;
            }
            if result == Err(EvalError::CostLimitExceeded) && CALL_LIMIT >= *budget {
                *budget = 0;
                return Err(OUT_OF_BUDGET.to_owned());
            }
            *budget = budget.saturating_sub(cost);
            return result
                .map_err(|error| format!("expression '{expression}' resulted in error: {error}"));
        }
        Err(format!(
            "expression '{expression}' resulted in error: too many authorization checks"
        ))
    }

    async fn ask(&self, check: &Check) -> Decision {
        let account = check
            .service_account
            .as_ref()
            .map(|(namespace, name)| UserInfo::service_account(namespace, name));
        let request = match &check.path {
            Some(path) => RequestInfo {
                path: path.clone(),
                verb: check.verb.clone(),
                ..RequestInfo::default()
            },
            None => RequestInfo {
                is_resource: true,
                verb: check.verb.clone(),
                group: check.group.clone(),
                version: "*".to_owned(),
                resource: check.resource.clone(),
                subresource: check.subresource.clone(),
                namespace: Some(check.namespace.clone()).filter(|n| !n.is_empty()),
                name: check.name.clone(),
                ..RequestInfo::default()
            },
        };
        let decision = self
            .server
            .authorizer()
            .decide(&authz::Attributes {
                user: account.as_ref().unwrap_or(self.user),
                request: &request,
            })
            .await;
        let (allowed, reason) = match decision {
            authz::Decision::Allow(reason) => (true, reason),
            authz::Decision::Deny(reason) | authz::Decision::NoOpinion(reason) => (false, reason),
        };
        Decision {
            allowed,
            reason,
            error: String::new(),
        }
    }
}

/// What `namespaceObject` shows of a namespace.
fn shown_namespace(namespace: &Value) -> Value {
    let mut metadata = namespace["metadata"].clone();
    if let Some(fields) = metadata.as_object_mut() {
        for hidden in ["managedFields", "ownerReferences", "selfLink"] {
            fields.remove(hidden);
        }
    }
    let mut shown = json!({ "metadata": metadata, "spec": {}, "status": {} });
    if let Some(finalizers) = namespace.pointer("/spec/finalizers") {
        shown["spec"]["finalizers"] = finalizers.clone();
    }
    if let Some(phase) = namespace.pointer("/status/phase") {
        shown["status"]["phase"] = phase.clone();
    }
    shown
}

/// The authorizer's answers so far, and the question an expression stopped at.
#[derive(Debug, Default)]
struct Answers {
    known: Mutex<Vec<(Check, Decision)>>,
    question: Mutex<Option<Check>>,
}

impl Answers {
    fn take_question(&self) -> Option<Check> {
        self.question.lock().take()
    }

    fn learn(&self, check: Check, decision: Decision) {
        self.known.lock().push((check, decision));
    }
}

impl Authorizer for Answers {
    fn check(&self, check: &Check) -> Decision {
        let known = self.known.lock();
        if let Some((_, decision)) = known.iter().find(|(asked, _)| asked == check) {
            return decision.clone();
        }
        // the evaluation that gets this goes on to its end, but nobody looks at its result
        self.question.lock().get_or_insert_with(|| check.clone());
        Decision::default()
    }
}

/// A policy's `variables`: evaluated when first used, once for each evaluation of the policy.
#[derive(Default)]
pub(crate) struct Variables<'a> {
    programs: &'a [(String, Result<Program, String>)],
    values: Mutex<HashMap<String, Result<Cel, EvalError>>>,
    /// What all values may take: they are kept as long as the policy is evaluated.
    effort: EvaluationEffort,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(programs: &'a [(String, Result<Program, String>)]) -> Self {
        Self {
            programs,
            values: Mutex::default(),
            effort: EvaluationEffort::default(),
        }
    }

    fn forget(&self) {
        self.values.lock().clear();
        self.effort.renew();
    }
}

/// The variables of a request together with those of a policy.
struct With<'a> {
    known: &'a HashMap<&'static str, Cel>,
    variables: &'a Variables<'a>,
    /// What the policy's variables may still cost, those that fail included: an expression may go on without them.
    left: Mutex<u64>,
}

impl Activation for With<'_> {
    fn variable(&self, name: &str) -> Option<Result<Cel, EvalError>> {
        self.known.get(name).cloned().map(Ok)
    }

    fn member(
        &self,
        name: &str,
        field: &str,
        depth: usize,
    ) -> Option<Result<(Cel, u64), EvalError>> {
        if name != "variables" {
            return None;
        }
        if let Some(known) = self.variables.values.lock().get(field) {
            return Some(known.clone().map(|value| (value, 0)));
        }
        let (_, program) = self
            .variables
            .programs
            .iter()
            .find(|(known, _)| known == field)?;
        let left = *self.left.lock();
        let (result, cost) = match program {
            Ok(program) => program.run_within(self, left, &self.variables.effort, depth),
            Err(why) => (Err(EvalError::Failed(why.clone())), 0),
        };
        // the variables that this one uses have taken theirs, which is part of its own
        let mut after = self.left.lock();
        *after = left.saturating_sub(cost).min(*after);
        drop(after);
        let result = result.map_err(|error| match error {
            EvalError::Failed(why) => EvalError::Failed(format!(
                "composited variable \"{field}\" fails to evaluate: {why}"
            )),
            other => other,
        });
        self.variables
            .values
            .lock()
            .insert(field.to_owned(), result.clone());
        Some(result.map(|value| (value, cost)))
    }
}

/// The `matchConditions` of a webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Condition>);

#[derive(Debug)]
struct Condition {
    expression: String,
    program: Result<Program, String>,
}

impl Conditions {
    /// Compiles; what does not compile fails when it is evaluated.
    pub(crate) fn new(list: &Value, env: &Env) -> Self {
        let list = list.as_array().into_iter().flatten();
        Self(
            list.map(|condition| {
                let expression = condition["expression"].as_str().unwrap_or_default();
                Condition {
                    expression: expression.trim().to_owned(),
                    program: compile(env, expression, &[Type::Bool]),
                }
            })
            .collect(),
        )
    }

    /// Whether all conditions hold. A single false one decides, whatever the others do.
    ///
    /// # Errors
    /// The texts of the failures, when none was false.
    pub(crate) async fn hold(
        &self,
        inputs: &Inputs<'_>,
        variables: &Variables<'_>,
    ) -> Result<bool, String> {
        let mut budget = CONDITIONS_BUDGET;
        let mut faults = Vec::new();
        for condition in &self.0 {
            let result = match &condition.program {
                Ok(program) => {
                    inputs
                        .eval(program, &condition.expression, variables, &mut budget)
                        .await
                }
                Err(why) => Err(format!("compilation error: {why}")),
            };
            match result {
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(Cel::Bool(true)) => {}
                Ok(_) => faults.push(format!(
                    "expression '{}' resulted in no bool",
                    condition.expression
                )),
                Err(why) => faults.push(why),
            }
        }
        match faults.len() {
            0 => Ok(true),
            1 => Err(faults.remove(0)),
            _ => Err(format!("[{}]", faults.join(", "))),
        }
    }

    /// Whether a webhook with these conditions is to be called. `request` is the `request` of its
    /// AdmissionReview, with the object and the old object in it.
    ///
    /// # Errors
    /// 403 when the conditions cannot be evaluated, unless failures are ignored.
    pub(crate) async fn want_call(
        &self,
        attributes: &Attributes<'_>,
        request: &Value,
        ignores_failure: bool,
    ) -> Result<bool, Status> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let object = &request["object"];
        let inputs = Inputs::new(attributes, request, object, &request["oldObject"], None);
        match self.hold(&inputs, &Variables::default()).await {
            Ok(wanted) => Ok(wanted),
            Err(_) if ignores_failure => Ok(false),
            Err(why) => Err(Status::forbidden(
                attributes.resource.qualified(),
                attributes.name,
                why,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_cel::policy::Environments;

    /// An expression may go on where a variable fails: what that one has cost is spent all the same.
    #[test]
    fn variables_that_fail_are_within_the_limit() {
        const COUNT: usize = 20;
        let names: Vec<String> = (0..COUNT).map(|n| format!("v{n}")).collect();
        // a few hundred thousand each, and then a field that is not there
        let source = "object.l.all(x, object.l.all(y, x + y >= 0)) && object.missing";
        let variables: Vec<Value> = names
            .iter()
            .map(|name| json!({ "name": name, "expression": source }))
            .collect();
        let envs = Environments::of(&json!({ "variables": variables }), &Type::Dyn);
        let any: Vec<String> = names
            .iter()
            .map(|name| format!("variables.{name}"))
            .collect();
        let program = compile(&envs.full, &any.join(" || "), &[Type::Bool]).unwrap();
        let numbers: Vec<usize> = (0..200).collect();
        let object = davit_cel::value(&json!({ "l": numbers }));
        let variables = Variables::new(&envs.variables);
        let activation = With {
            known: &HashMap::from([("object", object)]),
            variables: &variables,
            left: Mutex::new(CALL_LIMIT),
        };
        let (result, _) = program.run(&activation, CALL_LIMIT);
        assert!(result.is_err());
        let values = variables.values.lock();
        let reached = values
            .values()
            .filter(|value| matches!(value, Err(EvalError::Failed(_))));
        let reached = reached.count();
        assert!((2..COUNT / 2).contains(&reached), "{reached} to their ends");
    }

    fn evaluated(variables: &[String], expression: &str) -> Result<Cel, EvalError> {
        let variables: Vec<Value> = variables
            .iter()
            .enumerate()
            .map(|(n, source)| json!({ "name": format!("v{n}"), "expression": source }))
            .collect();
        let envs = Environments::of(&json!({ "variables": variables }), &Type::Dyn);
        let program = compile(&envs.full, expression, &[Type::Bool]).unwrap();
        let variables = Variables::new(&envs.variables);
        let known = HashMap::from([("object", davit_cel::value(&json!({"a": 1})))]);
        let activation = With {
            known: &known,
            variables: &variables,
            left: Mutex::new(CALL_LIMIT),
        };
        program.run(&activation, CALL_LIMIT).0
    }

    /// Those that a policy has are kept until it has been evaluated, and stand in one another.
    #[test]
    fn variables_have_the_memory_and_the_stack_that_there_is() {
        let chain = |first: &str, next: &dyn Fn(usize) -> String, count: usize| {
            let next = (1..count).map(|n| next(n - 1));
            std::iter::once(first.to_owned())
                .chain(next)
                .collect::<Vec<_>>()
        };
        let lists = chain(
            "[1, 1]",
            &|n| format!("variables.v{n} + variables.v{n}"),
            40,
        );
        let found = evaluated(&lists, "size(variables.v39) > 0");
        assert_eq!(found, Err(EvalError::CostLimitExceeded));
        let deep = |n| format!("variables.v{n}{}", " + 1".repeat(200));
        let deep = chain("1", &deep, 200);
        let found = evaluated(&deep, "variables.v199 > 0");
        assert_eq!(found, Err(EvalError::CostLimitExceeded));
        assert_eq!(evaluated(&deep, "variables.v2 == 401"), Ok(Cel::Bool(true)));
        let few = chain("object.a", &|n| format!("variables.v{n} + 1"), 50);
        assert_eq!(evaluated(&few, "variables.v49 == 50"), Ok(Cel::Bool(true)));
    }
}
