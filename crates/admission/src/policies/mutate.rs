//! MutatingAdmissionPolicy.

use davit_api::status::Status;
use davit_cel::Value as Cel;
use davit_registry::ResourceInfo;
use davit_schema::patch::JsonPatch;
use serde_json::{Map, Value, json};

use super::params::params;
use super::policy::{Mutation, Policy};
use super::{BUDGET, Policies, inputs, is_exempt, refusal};
use crate::cel_conditions::{Inputs, Variables};
use crate::webhooks::versions;
use crate::{Attributes, Mutating, Operation};

const NAME: &str = "MutatingAdmissionPolicy";

/// The plugin.
#[derive(Debug)]
pub(crate) struct Mutators(Policies);

impl Mutators {
    pub(crate) fn new() -> Self {
        Self(Policies::new(
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ))
    }
}

impl Mutating for Mutators {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else {
            return Ok(());
        };
        if is_exempt(attributes) || attributes.operation == Operation::Connect {
            return Ok(());
        }
        let policies = self.0.current(attributes.server).await?;
        if policies.is_empty() {
            return Ok(());
        }
        let rounds = &attributes.reinvocation;
        if rounds.is_second_round() {
            rounds.of(NAME, |state| {
                // built-in plugins or webhooks changed what policies have seen
                if state.is_changed(Some(object)) {
                    state.repeat_previous();
                }
            });
        }
        for policy in policies.iter() {
            one(policy, attributes, object).await?;
        }
        rounds.of(NAME, |state| state.leave(Some(object)));
        Ok(())
    }
}

/// Runs one policy with all its bindings.
async fn one(
    policy: &Policy,
    attributes: &Attributes<'_>,
    object: &mut Value,
) -> Result<(), Status> {
    let resource = policy
        .matching
        .resource(attributes, Some(object), false)
        .await?;
    let Some(resource) = resource else {
        return Ok(());
    };
    for binding in &policy.bindings {
        if let Some(matching) = &binding.matching
            && matching
                .resource(attributes, Some(object), true)
                .await?
                .is_none()
        {
            continue;
        }
        let fail = |object: &Value, why: &str| {
            let message = format!(
                "policy '{}' with binding '{}' denied request: {why}",
                policy.name, binding.name
            );
            if policy.ignores_failure {
                tracing::warn!(message, "mutating admission policy failed, failing open");
                return Ok(());
            }
            Err(refusal(attributes, Some(object), "", &message))
        };
        let params = match params(policy, binding, attributes).await? {
            Ok(params) => params,
            Err(why) => {
                fail(object, &format!("failed to configure binding: {why}"))?;
                continue;
            }
        };
        for (index, param) in params.iter().enumerate() {
            let id = format!("{}/{}/{index}", policy.name, binding.name);
            let rounds = &attributes.reinvocation;
            if rounds.is_second_round() && !rounds.of(NAME, |state| state.repeats(&id)) {
                continue;
            }
            let outcome = invoke(policy, attributes, &resource, param.as_ref(), object).await?;
            match outcome {
                Err(why) => fail(object, &why)?,
                Ok(None) => {}
                Ok(Some(changed)) => {
                    if changed {
                        rounds.of(NAME, crate::reinvocation::Rounds::repeat_previous);
                        rounds.want_second_round();
                    }
                    if policy.repeats {
                        rounds.of(NAME, |state| state.ran(&id));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Runs the mutations with one parameter. Whether they changed the object; none when the match
/// conditions do not hold. The inner error is one on which the failure policy decides.
async fn invoke(
    policy: &Policy,
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    param: Option<&Value>,
    object: &mut Value,
) -> Result<Result<Option<bool>, String>, Status> {
    let mut inputs = inputs(attributes, resource, Some(object)).await?;
    inputs.set_params(param);
    let mut variables = Variables::new(&policy.variables);
    match policy.conditions.hold(&inputs, &variables).await {
        Ok(true) => {}
        Ok(false) => return Ok(Ok(None)),
        Err(why) => return Ok(Err(why)),
    }
    let before = object.clone();
    let mut budget = BUDGET;
    for mutation in &policy.mutations {
        let shown = versions::shown(attributes, resource, Some(object)).await?;
        inputs.set_object(&shown);
        let patched =
            match mutate(mutation, resource, &inputs, &variables, &mut budget, &shown).await {
                Ok(patched) => patched,
                Err(why) => {
                    *object = before;
                    return Ok(Err(why));
                }
            };
        if patched != shown {
            *object = versions::taken(attributes, resource, patched).await?;
        }
        // later mutations see variables of the changed object
        variables = Variables::new(&policy.variables);
    }
    Ok(Ok(Some(before != *object)))
}

/// The object after one mutation, in the version it was shown in.
async fn mutate(
    mutation: &Mutation,
    resource: &ResourceInfo,
    inputs: &Inputs<'_>,
    variables: &Variables<'_>,
    budget: &mut u64,
    object: &Value,
) -> Result<Value, String> {
    let expression = &mutation.expression;
    let program = expression
        .program
        .as_ref()
        .map_err(|why| format!("compilation error: {why}"))?;
    let result = inputs
        .eval(program, &expression.source, variables, budget)
        .await?;
    if mutation.is_patch {
        json_patch(&result, object)
    } else {
        apply(&result, resource, object)
    }
}

fn json_patch(result: &Cel, object: &Value) -> Result<Value, String> {
    let Cel::List(list) = result else {
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to array, got {}",
            result.type_of()
        ));
    };
    let mut operations = Vec::new();
    let effort = davit_cel::EvaluationEffort::default();
    for item in &list.items {
        let text = |name: &str| {
            item.get(name)
                .and_then(Cel::as_str)
                .filter(|t| !t.is_empty())
        };
        let mut operation = Map::new();
        for name in ["op", "path", "from"] {
            if let Some(text) = text(name) {
                operation.insert(name.to_owned(), json!(text));
            }
        }
        if let Some(value) = item.get("value") {
            let value = davit_cel::to_json_within(value, &effort)
                .ok_or_else(|| "JSONPatch value cannot be represented in JSON".to_owned())?;
            operation.insert("value".to_owned(), value);
        }
        operations.push(Value::Object(operation));
    }
    let body = Value::Array(operations).to_string();
    let patch = JsonPatch::parse(body.as_bytes()).map_err(|e| e.to_string())?;
    let patched = patch
        .apply(object)
        .map_err(|error| format!("JSON Patch: {error}"))?;
    keeps_identity(object, &patched)?;
    Ok(patched)
}

fn apply(result: &Cel, resource: &ResourceInfo, object: &Value) -> Result<Value, String> {
    let (Cel::Map(_), Some(configuration)) = (result, davit_cel::to_json(result)) else {
        return Err(format!(
            "unsupported return type from ApplyConfiguration expression: {}",
            result.type_of()
        ));
    };
    for field in ["apiVersion", "kind"] {
        if let Some(given) = configuration.get(field)
            && given != &object[field]
        {
            return Err(format!(
                "error applying patch: invalid ApplyConfiguration: may not mutate {field}"
            ));
        }
    }
    let schema = resource.apply_schema();
    let merged = schema.merge(object, &configuration);
    keeps_identity(object, &merged)?;
    Ok(merged)
}

/// A mutation may not turn the object into another one.
fn keeps_identity(before: &Value, after: &Value) -> Result<(), String> {
    for pointer in [
        "/apiVersion",
        "/kind",
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/uid",
    ] {
        if before.pointer(pointer) != after.pointer(pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            return Err(format!("invalid patch: may not mutate {field}"));
        }
    }
    Ok(())
}
