//! `authorizer.group('').resource('pods').namespace('x').check('get').allowed()`.

use std::fmt;
use std::sync::Arc;

use super::strings::text;
use super::{Native, no_overload};
use crate::error::EvalError;
use crate::value::Value;

/// What an expression asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// Another user than the requester: namespace and name of a service account.
    pub service_account: Option<(String, String)>,
    /// A path instead of a resource.
    pub path: Option<String>,
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty.
    pub name: String,
    /// The verb.
    pub verb: String,
    /// As written in the expression.
    pub field_selector: String,
    /// As written in the expression.
    pub label_selector: String,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why, or empty.
    pub reason: String,
    /// What went wrong, or empty.
    pub error: String,
}

/// Answers questions about rights while an expression runs.
pub trait Authorizer: Send + Sync {
    /// Decides. May block for as long as it takes to look into memory, not longer.
    fn check(&self, check: &Check) -> Decision;
}

/// A value of the authorizer library.
#[derive(Clone)]
pub struct Handle {
    authorizer: Arc<dyn Authorizer>,
    stage: Stage,
    check: Arc<Check>,
    decision: Option<Arc<Decision>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
    Decision,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("stage", &self.stage)
            .field("check", &self.check)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl Handle {
    /// The variable `authorizer`.
    pub fn new(authorizer: Arc<dyn Authorizer>) -> Self {
        Self {
            authorizer,
            stage: Stage::Authorizer,
            check: Arc::default(),
            decision: None,
        }
    }

    /// The variable `authorizer.requestResource`: a check of the request's own resource.
    pub fn for_resource(authorizer: Arc<dyn Authorizer>, check: Check) -> Self {
        Self {
            authorizer,
            stage: Stage::Resource,
            check: Arc::new(check),
            decision: None,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
            Stage::Decision => "kubernetes.authorization.Decision",
        }
    }

    fn next(&self, stage: Stage, change: impl FnOnce(&mut Check)) -> Result<Value, EvalError> {
        let mut next = self.clone();
        next.stage = stage;
        change(Arc::make_mut(&mut next.check));
        Ok(Value::Authorizer(next))
    }
}

fn handle(args: &[Value], stage: Stage) -> Result<&Handle, EvalError> {
    match args.first() {
        Some(Value::Authorizer(handle)) if handle.stage == stage => Ok(handle),
        _ => Err(EvalError::no_overload()),
    }
}

fn refine(args: &[Value], change: fn(&mut Check, String)) -> Result<Value, EvalError> {
    let value = text(args, 1)?.to_owned();
    handle(args, Stage::Resource)?.next(Stage::Resource, |check| change(check, value))
}

fn decided(args: &[Value], of: fn(&Decision) -> Value) -> Result<Value, EvalError> {
    let handle = handle(args, Stage::Decision)?;
    handle
        .decision
        .as_ref()
        .map_or_else(no_overload, |decision| Ok(of(decision)))
}

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        return None;
    }
    Some(match name {
        "path" => |_, args| {
            let path = text(args, 1)?.to_owned();
            handle(args, Stage::Authorizer)?.next(Stage::Path, |check| check.path = Some(path))
        },
        "group" => |_, args| {
            let group = text(args, 1)?.to_owned();
            handle(args, Stage::Authorizer)?.next(Stage::Group, |check| check.group = group)
        },
        "serviceAccount" => |_, args| {
            let account = (text(args, 1)?.to_owned(), text(args, 2)?.to_owned());
            handle(args, Stage::Authorizer)?.next(Stage::Authorizer, |check| {
                check.service_account = Some(account);
            })
        },
        "resource" => |_, args| {
            let resource = text(args, 1)?.to_owned();
            handle(args, Stage::Group)?.next(Stage::Resource, |check| check.resource = resource)
        },
        "subresource" => |_, args| refine(args, |check, value| check.subresource = value),
        "namespace" => |_, args| refine(args, |check, value| check.namespace = value),
        "name" => |_, args| refine(args, |check, value| check.name = value),
        "fieldSelector" => |_, args| refine(args, |check, value| check.field_selector = value),
        "labelSelector" => |_, args| refine(args, |check, value| check.label_selector = value),
        "check" => |_, args| {
            let verb = text(args, 1)?.to_owned();
            let Some(Value::Authorizer(handle)) = args.first() else {
                return no_overload();
            };
            if !matches!(handle.stage, Stage::Path | Stage::Resource) {
                return no_overload();
            }
            let mut next = handle.clone();
            Arc::make_mut(&mut next.check).verb = verb;
            next.stage = Stage::Decision;
            next.decision = Some(Arc::new(next.authorizer.check(&next.check)));
            Ok(Value::Authorizer(next))
        },
        "allowed" => |_, args| decided(args, |d| d.allowed.into()),
        "reason" => |_, args| decided(args, |d| d.reason.as_str().into()),
        "error" => |_, args| decided(args, |d| d.error.as_str().into()),
        "errored" => |_, args| decided(args, |d| (!d.error.is_empty()).into()),
        _ => return None,
    })
}
