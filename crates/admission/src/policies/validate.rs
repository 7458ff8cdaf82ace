//! ValidatingAdmissionPolicy.

use std::collections::BTreeMap;

use davit_api::status::Status;
use davit_cel::Value as Cel;
use serde_json::{Value, json};

use super::params::params;
use super::policy::{Binding, Policy, Validation};
use super::{BUDGET, Policies, inputs, is_exempt, refusal};
use crate::cel_conditions::{Inputs, Variables};
use crate::{Attributes, Validating};

/// The longest message an expression can make, in bytes.
const MESSAGE_MAX: usize = 5 * 1024;
/// The longest value of an audit annotation, in bytes.
const ANNOTATION_MAX: usize = 10 * 1024;

/// The plugin.
#[derive(Debug)]
pub(crate) struct Validators(Policies);

impl Validators {
    pub(crate) fn new() -> Self {
        Self(Policies::new(
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ))
    }
}

/// Why a request does not pass one validation.
struct Denial {
    message: String,
    reason: String,
    /// The validation's place in its policy.
    index: usize,
}

impl Denial {
    fn fault(message: String, index: usize) -> Self {
        Self {
            message,
            reason: String::new(),
            index,
        }
    }
}

impl Validating for Validators {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        if is_exempt(attributes) {
            return Ok(());
        }
        let policies = self.0.current(attributes.server).await?;
        let mut denied: Option<(String, String)> = None;
        for policy in policies.iter() {
            let found = one(policy, attributes, object).await?;
            if denied.is_none() {
                denied = found;
            }
        }
        match denied {
            None => Ok(()),
            Some((reason, message)) => Err(refusal(attributes, object, &reason, &message)),
        }
    }
}

/// Runs one policy with all its bindings; the reason and message of the first refusal.
async fn one(
    policy: &Policy,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<(String, String)>, Status> {
    let resource = policy.matching.resource(attributes, object, false).await?;
    let Some(resource) = resource else {
        return Ok(None);
    };
    let mut inputs = inputs(attributes, &resource, object).await?;
    let mut refused: Option<(String, String)> = None;
    let mut published: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for binding in &policy.bindings {
        if let Some(matching) = &binding.matching
            && matching.resource(attributes, object, true).await?.is_none()
        {
            continue;
        }
        let deny = |message: &str| {
            format!(
                "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {message}",
                policy.name, binding.name
            )
        };
        let params = match params(policy, binding, attributes).await? {
            Ok(params) => params,
            Err(_) if policy.ignores_failure => continue,
            Err(why) => {
                let message = deny(&format!("failed to configure binding: {why}"));
                refused.get_or_insert((String::new(), message));
                continue;
            }
        };
        for param in &params {
            inputs.set_params(param.as_ref());
            let (denials, faults) = decide(policy, &inputs, &mut published).await;
            for denial in denials {
                act(policy, binding, attributes, &denial);
                if binding.actions.iter().any(|action| action == "Deny") {
                    refused.get_or_insert((denial.reason, deny(&denial.message)));
                }
            }
            for fault in faults {
                refused.get_or_insert((String::new(), deny(&fault)));
            }
        }
    }
    for (key, values) in published {
        attributes.annotate(format!("{}/{key}", policy.name), values.join(", "));
    }
    Ok(refused)
}

/// Warns and records, as the binding wants.
fn act(policy: &Policy, binding: &Binding, attributes: &Attributes<'_>, denial: &Denial) {
    for action in &binding.actions {
        match action.as_str() {
            "Warn" => attributes.warn(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                policy.name, binding.name, denial.message
            )),
            "Audit" => {
                let record = json!([{
                    "message": denial.message, "policy": policy.name, "binding": binding.name,
                    "expressionIndex": denial.index, "validationActions": binding.actions,
                }]);
                attributes.annotate(
                    "validation.policy.admission.k8s.io/validation_failure",
                    record.to_string(),
                );
            }
            _ => {}
        }
    }
}

/// What the policy says to a request with one parameter: refusals, and faults of audit
/// annotations, which refuse whatever the binding's actions.
async fn decide<'p>(
    policy: &'p Policy,
    inputs: &Inputs<'_>,
    published: &mut BTreeMap<&'p str, Vec<String>>,
) -> (Vec<Denial>, Vec<String>) {
    let variables = Variables::new(&policy.variables);
    let keep = |denial: Denial| (!policy.ignores_failure).then_some(denial);
    match policy.conditions.hold(inputs, &variables).await {
        Ok(true) => {}
        Ok(false) => return (Vec::new(), Vec::new()),
        Err(why) => {
            return (
                keep(Denial::fault(why, 0)).into_iter().collect(),
                Vec::new(),
            );
        }
    }
    let mut budget = BUDGET;
    let mut denials = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        let expression = &validation.expression;
        let result = match &expression.program {
            Ok(program) => {
                inputs
                    .eval(program, &expression.source, &variables, &mut budget)
                    .await
            }
            Err(why) => Err(format!("compilation error: {why}")),
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let message = message(validation, inputs, &variables, &mut budget).await;
                denials.push(Denial {
                    message,
                    reason: validation.reason.clone(),
                    index,
                });
            }
            Err(why) => denials.extend(keep(Denial::fault(why, index))),
        }
        if budget == 0 {
            break;
        }
    }
    let mut faults = Vec::new();
    let mut budget = BUDGET;
    for (key, expression) in &policy.annotations {
        let result = match &expression.program {
            Ok(program) => {
                inputs
                    .eval(program, &expression.source, &variables, &mut budget)
                    .await
            }
            Err(why) => Err(format!("compilation error: {why}")),
        };
        match result {
            Ok(Cel::String(text)) => {
                let text = cut(text.trim(), ANNOTATION_MAX).to_owned();
                let values = published.entry(key).or_default();
                if !text.is_empty() && !values.contains(&text) {
                    values.push(text);
                }
            }
            Ok(Cel::Null) => {}
            _ if policy.ignores_failure => {}
            Ok(other) => faults.push(format!(
                "valueExpression '{}' resulted in unsupported return type: {}. Return type must \
                 be either string or null.",
                expression.source,
                other.type_of()
            )),
            Err(why) => faults.push(why),
        }
    }
    published.retain(|_, values| !values.is_empty());
    (denials, faults)
}

/// The text of a refusal: the message expression's, the message, or the expression itself.
async fn message(
    validation: &Validation,
    inputs: &Inputs<'_>,
    variables: &Variables<'_>,
    budget: &mut u64,
) -> String {
    if let Some(expression) = &validation.message_expression
        && let Ok(program) = &expression.program
    {
        let result = inputs
            .eval(program, &expression.source, variables, budget)
            .await;
        if let Ok(Cel::String(text)) = result {
            let text = text.trim();
            if !text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n') {
                return text.to_owned();
            }
        }
    }
    if validation.message.is_empty() {
        format!("failed expression: {}", validation.expression.source)
    } else {
        validation.message.clone()
    }
}

fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
