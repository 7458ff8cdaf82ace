//! The environments of admission: match conditions of webhooks, admission policies of both kinds.
//!
//! What the API server evaluates and what a controller only checks against the types of the kinds
//! is compiled here, in the same way.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use davit_api::kinds::{FieldType, TypeBody, TypeId, TypeTable, builtin};
use serde_json::Value as Json;

use crate::{DeclType, Env, EnvBuilder, Library, Program, Type, join_errors};

/// Which variables expressions see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope {
    /// `params`
    pub params: bool,
    /// `authorizer`, `authorizer.requestResource`
    pub authorizer: bool,
    /// `Object{}`, `JSONPatch{}` can be made.
    pub patches: bool,
}

impl Scope {
    /// What `matchConditions` of webhooks see.
    pub const WEBHOOK: Scope = Scope {
        params: false,
        authorizer: true,
        patches: false,
    };
}

/// The environment of a scope, where `object` and `oldObject` are of any type.
pub fn environment(scope: Scope) -> Env {
    static BUILT: LazyLock<Mutex<HashMap<Scope, Env>>> = LazyLock::new(Mutex::default);
    // what a panic left behind is as good as what is there without one: entries are only added
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(scope).or_insert_with(|| build(scope)).clone()
}

fn build(scope: Scope) -> Env {
    let mut env: EnvBuilder = Env::kubernetes()
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .declare("request", request_type())
        .declare("namespaceObject", namespace_type());
    if scope.params {
        env = env.variable("params", Type::Dyn);
    }
    if scope.authorizer {
        env = env
            .library(Library::Authorizer)
            .variable(
                "authorizer",
                Type::opaque("kubernetes.authorization.Authorizer"),
            )
            .variable(
                "authorizer.requestResource",
                Type::opaque("kubernetes.authorization.ResourceCheck"),
            );
    }
    if scope.patches {
        env = env
            .library(Library::JsonPatch)
            .constructible(&patch_type())
            .open_objects();
    }
    env.build()
}

fn object_type(name: &str, fields: &[(&str, Type)]) -> DeclType {
    let fields = fields
        .iter()
        .map(|(name, ty)| (Arc::from(*name), DeclType::simple(ty.clone())));
    DeclType::object(name, fields)
}

fn patch_type() -> DeclType {
    object_type(
        "JSONPatch",
        &[
            ("op", Type::String),
            ("path", Type::String),
            ("from", Type::String),
            ("value", Type::Dyn),
        ],
    )
}

fn request_type() -> DeclType {
    let text = Type::String;
    let kind = object_type(
        "kubernetes.GroupVersionKind",
        &[
            ("group", text.clone()),
            ("version", text.clone()),
            ("kind", text.clone()),
        ],
    );
    let resource = object_type(
        "kubernetes.GroupVersionResource",
        &[
            ("group", text.clone()),
            ("version", text.clone()),
            ("resource", text.clone()),
        ],
    );
    let user = object_type(
        "kubernetes.UserInfo",
        &[
            ("username", text.clone()),
            ("uid", text.clone()),
            ("groups", Type::list(text.clone())),
            ("extra", Type::map(text.clone(), Type::list(text.clone()))),
        ],
    );
    object_type(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.ty.clone()),
            ("resource", resource.ty.clone()),
            ("subResource", text.clone()),
            ("requestKind", kind.ty),
            ("requestResource", resource.ty),
            ("requestSubResource", text.clone()),
            ("name", text.clone()),
            ("namespace", text.clone()),
            ("operation", text),
            ("userInfo", user.ty),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace_type() -> DeclType {
    let text = Type::String;
    let texts = Type::map(text.clone(), text.clone());
    let metadata = object_type(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text.clone()),
            ("generateName", text.clone()),
            ("namespace", text.clone()),
            ("labels", texts.clone()),
            ("annotations", texts),
            ("uid", text.clone()),
            ("resourceVersion", text.clone()),
            ("generation", Type::Int),
            ("creationTimestamp", text.clone()),
            ("deletionTimestamp", text.clone()),
            ("deletionGracePeriodSeconds", Type::Int),
            ("finalizers", Type::list(text.clone())),
        ],
    );
    let spec = object_type(
        "kubernetes.NamespaceSpec",
        &[("finalizers", Type::list(text.clone()))],
    );
    let status = object_type("kubernetes.NamespaceStatus", &[("phase", text)]);
    object_type(
        "kubernetes.Namespace",
        &[
            ("metadata", metadata.ty),
            ("spec", spec.ty),
            ("status", status.ty),
        ],
    )
}

/// Compiles an expression whose result is to be of one of the types given (or `dyn`).
///
/// # Errors
/// The text of the refusal.
pub fn compile(env: &Env, expression: &str, wanted: &[Type]) -> Result<Program, String> {
    let program = env
        .compile(expression)
        .map_err(|errors| format!("compilation failed: {}", join_errors(&errors)))?;
    let found = program.output_type();
    if wanted.is_empty() || matches!(found, Type::Dyn) || wanted.contains(found) {
        return Ok(program);
    }
    let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    Err(match names.as_slice() {
        [one] => format!("must evaluate to {one}"),
        several => format!("must evaluate to one of [{}]", several.join(" ")),
    })
}

/// What the expression of a mutation evaluates to.
pub fn mutation_types(is_patch: bool) -> Vec<Type> {
    let object = |name: &str| DeclType::object(name, []).ty;
    vec![if is_patch {
        Type::list(object("JSONPatch"))
    } else {
        object("Object")
    }]
}

/// The environments of a policy's expressions.
pub struct Environments {
    /// Of match conditions, which see no `variables`.
    pub plain: Env,
    /// Of validations, mutations and audit annotations.
    pub full: Env,
    /// Of message expressions, which do not see the authorizer.
    pub message: Env,
    /// The policy's variables in their order; the error says why one does not compile.
    pub variables: Vec<(String, Result<Program, String>)>,
}

impl Environments {
    /// For the `spec` of a policy of either kind; `object` is the type of the objects it sees.
    pub fn of(spec: &Json, object: &Type) -> Self {
        let scope = Scope {
            params: spec["paramKind"].is_object(),
            authorizer: true,
            patches: spec["mutations"].is_array(),
        };
        let typed = |env: Env| match object {
            Type::Dyn => env,
            known => env
                .with_variable("object", DeclType::simple(known.clone()))
                .with_variable("oldObject", DeclType::simple(known.clone())),
        };
        let plain = typed(environment(scope));
        let message = typed(environment(Scope {
            authorizer: false,
            ..scope
        }));
        let declared = |env: &Env, fields: &[(Arc<str>, DeclType)]| {
            let decl = DeclType::object("kubernetes.variables", fields.iter().cloned());
            env.with_variable("variables", decl)
        };
        let mut fields: Vec<(Arc<str>, DeclType)> = Vec::new();
        let mut variables = Vec::new();
        for variable in spec["variables"].as_array().into_iter().flatten() {
            let name = text(variable, "name");
            let expression = text(variable, "expression");
            let program = compile(&declared(&plain, &fields), &expression, &[]);
            let ty = program
                .as_ref()
                .map_or(Type::Dyn, |program| program.output_type().clone());
            fields.push((name.as_str().into(), DeclType::simple(ty)));
            variables.push((name, program));
        }
        Self {
            full: declared(&plain, &fields),
            message: declared(&message, &fields),
            plain,
            variables,
        }
    }
}

fn text(value: &Json, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// The type of a kind of the kinds table. Scalars with several forms, and types inside themselves,
/// are `dyn`.
pub fn kind_type(types: &TypeTable, id: TypeId) -> Type {
    Kinds {
        types,
        known: HashMap::new(),
    }
    .named(id)
}

struct Kinds<'a> {
    types: &'a TypeTable,
    known: HashMap<TypeId, Type>,
}

impl Kinds<'_> {
    fn named(&mut self, id: TypeId) -> Type {
        let id = self.types.resolve(id);
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        match &self.types.get(id).body {
            TypeBody::Alias { of, .. } => self.field(of),
            TypeBody::Struct { .. } => {
                self.known.insert(id, Type::Dyn);
                let types = self.types;
                let mut fields: Vec<(Arc<str>, DeclType)> = Vec::new();
                for field in types.fields(id) {
                    if let Some(name) = crate::escape(&field.name) {
                        let ty = self.field(&field.ty);
                        fields.push((name.into(), DeclType::simple(ty)));
                    }
                }
                let ty = DeclType::object(&*types.get(id).name, fields).ty;
                self.known.insert(id, ty.clone());
                ty
            }
            _ => Type::Dyn,
        }
    }

    fn field(&mut self, ty: &FieldType) -> Type {
        match ty {
            FieldType::Bool => Type::Bool,
            FieldType::Int32 | FieldType::Int64 => Type::Int,
            FieldType::Float64 => Type::Double,
            FieldType::String => Type::String,
            FieldType::List(elem) => Type::list(self.field(elem)),
            FieldType::Map(value) => Type::map(Type::String, self.field(value)),
            FieldType::Named(id) => self.named(*id),
            _ => Type::Dyn,
        }
    }
}

/// A fault of an expression against the types of the kinds that a policy is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionWarning {
    /// The path of the expression, such as `spec.validations[0].expression`.
    pub field: String,
    /// Kinds and what is wrong with each.
    pub warning: String,
}

/// Most kinds that a policy is checked against.
const MAX_KINDS: usize = 10;

/// Checks the expressions of a ValidatingAdmissionPolicy against the built-in kinds its rules name
/// without wildcards.
pub fn type_check(spec: &Json) -> Vec<ExpressionWarning> {
    let kinds = matched_kinds(spec);
    let mut found: Vec<ExpressionWarning> = Vec::new();
    for (group, version, kind) in kinds {
        let Some(id) = builtin().kind_type(group, version, kind) else {
            continue;
        };
        let envs = Environments::of(spec, &kind_type(&builtin().types, id));
        let shown = match group {
            "" => format!("{version}, Kind={kind}"),
            group => format!("{group}/{version}, Kind={kind}"),
        };
        let mut check = |field: String, env: &Env, expression: &Json| {
            let source = expression.as_str().filter(|source| !source.is_empty());
            let Some(Err(errors)) = source.map(|source| env.compile(source)) else {
                return;
            };
            let text = format!("{shown}: {}\n", join_errors(&errors));
            match found.iter_mut().find(|known| known.field == field) {
                Some(known) => known.warning.push_str(&text),
                None => found.push(ExpressionWarning {
                    field,
                    warning: text,
                }),
            }
        };
        let list = |key: &str| spec[key].as_array().map_or(&[][..], Vec::as_slice);
        for (n, validation) in list("validations").iter().enumerate() {
            let at = |field: &str| format!("spec.validations[{n}].{field}");
            check(at("expression"), &envs.full, &validation["expression"]);
            let message = &validation["messageExpression"];
            check(at("messageExpression"), &envs.message, message);
        }
        for (n, condition) in list("matchConditions").iter().enumerate() {
            let field = format!("spec.matchConditions[{n}].expression");
            check(field, &envs.plain, &condition["expression"]);
        }
        for (n, annotation) in list("auditAnnotations").iter().enumerate() {
            let field = format!("spec.auditAnnotations[{n}].valueExpression");
            check(field, &envs.full, &annotation["valueExpression"]);
        }
    }
    found
}

/// Group, version and kind of what the rules name.
fn matched_kinds(spec: &Json) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut kinds = Vec::new();
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    for rule in rules.into_iter().flatten() {
        let names = |key: &str, value: &str| {
            let list = rule[key].as_array().into_iter().flatten();
            list.filter_map(Json::as_str).any(|name| name == value)
        };
        for row in &builtin().resources {
            let kind = (row.group, row.version, row.kind);
            if names("apiGroups", row.group)
                && names("apiVersions", row.version)
                && names("resources", row.plural)
                && !kinds.contains(&kind)
                && kinds.len() < MAX_KINDS
            {
                kinds.push(kind);
            }
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_checked_against_the_kinds_of_the_rules() {
        let mut spec = json!({
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["deployments"],
            }]},
            "variables": [{"name": "n", "expression": "object.spec.replicas"}],
            "validations": [
                {"expression": "variables.n < 5 && object.spec.template.spec.containers.all(c, c.image != '')"},
                {"expression": "object.spec.replicas > '1'"},
                {"expression": "object.spec.replicaz > 1"},
            ],
        });
        let found = type_check(&spec);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].field, "spec.validations[1].expression");
        assert_eq!(
            found[1].warning,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicaz'\n \
             | object.spec.replicaz > 1\n | ...........^\n"
        );
        spec["matchConstraints"]["resourceRules"][0]["resources"] = json!(["*"]);
        assert_eq!(type_check(&spec), []);
    }
}
