//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: admission by expressions.
//!
//! Policies and their bindings are read from the store at each write (unchanged ones are not
//! compiled again), so that a new one holds for the very next write. A policy without a binding
//! does nothing. <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>

mod matching;
mod mutate;
mod params;
mod policy;
mod validate;

use std::sync::Arc;

use davit_api::status::Status;
use davit_registry::{ResourceInfo, errors, storage};
use davit_store::ListOptions;
use parking_lot::Mutex;
use serde_json::Value;

use self::policy::Policy;
use super::webhooks::{review, versions};
use super::{Attributes, forbidden};
use crate::ServerView;
use crate::cel_conditions::Inputs;

pub(super) use self::mutate::Mutators;
pub(super) use self::validate::Validators;

const GROUP: &str = "admissionregistration.k8s.io";
/// What all expressions of a policy may cost for one parameter of one binding.
const BUDGET: u64 = 10_000_000;

/// The keys and revisions of what was parsed.
type Revisions = Vec<(Arc<str>, u64)>;

/// The policies of one kind with their bindings, compiled.
#[derive(Debug)]
struct Policies {
    policies: &'static str,
    bindings: &'static str,
    compiled: Mutex<(Revisions, Arc<Vec<Policy>>)>,
}

impl Policies {
    fn new(policies: &'static str, bindings: &'static str) -> Self {
        Self {
            policies,
            bindings,
            compiled: Mutex::default(),
        }
    }

    /// The policies of this moment that have a binding, in the order of their names.
    async fn current(&self, server: &dyn ServerView) -> Result<Arc<Vec<Policy>>, Status> {
        let mut revisions = Revisions::new();
        let mut lists = Vec::new();
        for plural in [self.policies, self.bindings] {
            let snapshot = server.registry().snapshot();
            let Some(resource) = snapshot.by_group_resource(GROUP, plural) else {
                return Ok(Arc::default());
            };
            let listing = resource.storage.list(None, ListOptions::default()).await;
            let listing = listing.map_err(|error| errors::storage(error, resource, ""))?;
            if listing.items.is_empty() {
                return Ok(Arc::default());
            }
            let pairs = listing.items.iter();
            revisions.extend(pairs.map(|pair| (Arc::clone(&pair.key), pair.mod_revision)));
            lists.push((Arc::clone(resource), listing));
        }
        {
            let compiled = self.compiled.lock();
            if compiled.0 == revisions {
                return Ok(Arc::clone(&compiled.1));
            }
        }
        let mut values: Vec<Vec<Value>> = Vec::new();
        for (resource, listing) in &lists {
            let decoded = listing.items.iter().map(|pair| {
                storage::decode(pair)
                    .map(|stored| stored.value)
                    .map_err(|error| errors::storage(error, resource, ""))
            });
            values.push(decoded.collect::<Result<_, _>>()?);
        }
        let bindings = values.pop().unwrap_or_default();
        let policies = values.pop().unwrap_or_default();
        let compiled: Vec<Policy> = policies
            .iter()
            .map(|policy| Policy::new(policy, &bindings))
            .filter(|policy| !policy.bindings.is_empty())
            .collect();
        let compiled = Arc::new(compiled);
        *self.compiled.lock() = (revisions, Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// Requests no policy sees: those on policies and bindings, so that a wrong one can be repaired, and reviews, by which the
/// parts of the cluster find out who somebody is and what he may.
fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let row = &attributes.resource.row;
    is_exempt_kind(row.group, row.plural)
}

fn is_exempt_kind(group: &str, plural: &str) -> bool {
    match group {
        GROUP => plural.contains("admissionpolic"),
        "authentication.k8s.io" => matches!(plural, "selfsubjectreviews" | "tokenreviews"),
        "authorization.k8s.io" => matches!(
            plural,
            "localsubjectaccessreviews"
                | "selfsubjectaccessreviews"
                | "selfsubjectrulesreviews"
                | "subjectaccessreviews"
        ),
        _ => false,
    }
}

/// The variables of a request, as a policy that matched `resource` sees them.
async fn inputs<'a>(
    attributes: &Attributes<'a>,
    resource: &ResourceInfo,
    object: Option<&Value>,
) -> Result<Inputs<'a>, Status> {
    let new = versions::shown(attributes, resource, object).await?;
    let old = versions::shown(attributes, resource, attributes.old).await?;
    let review = review::request(attributes, resource, "v1", "", Value::Null, Value::Null);
    let namespace = if attributes.namespace.is_empty() || attributes.about("", "namespaces") {
        None
    } else {
        let server = attributes.server;
        server
            .object("", "namespaces", "", attributes.namespace)
            .await?
    };
    Ok(Inputs::new(
        attributes,
        &review["request"],
        &new,
        &old,
        namespace.as_deref(),
    ))
}

/// A refusal with the reason that a policy gives.
fn refusal(
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    reason: &str,
    message: &str,
) -> Status {
    use davit_api::status::Reason;
    let mut status = forbidden(attributes, object, message);
    let reason = match reason {
        "Unauthorized" => Reason::Unauthorized,
        "Forbidden" => Reason::Forbidden,
        "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
        _ => Reason::Invalid,
    };
    status.code = reason.code();
    status.reason = reason;
    status.with_cause("", message, "")
}
