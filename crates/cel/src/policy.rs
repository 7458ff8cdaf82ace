//! The environments of admission: match conditions of webhooks, admission policies of both kinds.
//!
//! What the API server evaluates and what a controller only checks against the types of the kinds
//! is compiled here, in the same way.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use davit_api::kinds::{FieldType, TypeBody, TypeId, TypeTable, builtin};
use serde_json::{Value as Json, json};

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

/// Most variables of a policy: each sees all that are before it.
const MAX_VARIABLES: usize = 1000;

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
            if variables.len() == MAX_VARIABLES {
                let why = format!("a policy may have at most {MAX_VARIABLES} variables");
                variables.push((name, Err(why)));
                break;
            }
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

/// Bytes of the warnings about a policy at most.
const MAX_WARNINGS: usize = 256 << 10;
/// Most kinds that a policy is checked against.
const MAX_KINDS: usize = 10;

/// A version of a custom kind, as its definition declares it.
#[derive(Debug, Clone, Copy)]
pub struct CustomKind<'a> {
    /// The group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The resource by which rules name it.
    pub plural: &'a str,
    /// The structural schema of the version.
    pub schema: &'a Json,
}

impl CustomKind<'_> {
    /// The type of its objects, with the whole metadata; none when they have none.
    fn object_type(&self) -> Option<Type> {
        let mut schema = self.schema.clone();
        let text = json!({"type": "string"});
        let texts = json!({"type": "object", "additionalProperties": text});
        // Types that are more than one in expressions are not judged.
        let any =
            json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}});
        let time = json!({"x-kubernetes-int-or-string": true});
        let properties = schema.as_object_mut()?.entry("properties");
        let properties = properties.or_insert_with(|| json!({})).as_object_mut()?;
        for key in ["apiVersion", "kind"] {
            properties.insert(key.to_owned(), text.clone());
        }
        let metadata = json!({"type": "object", "properties": {
            "name": text, "generateName": text, "namespace": text, "uid": text, "selfLink": text,
            "resourceVersion": text, "labels": texts, "annotations": texts,
            "generation": {"type": "integer"}, "deletionGracePeriodSeconds": {"type": "integer"},
            "creationTimestamp": time, "deletionTimestamp": time,
            "finalizers": {"type": "array", "items": text},
            "managedFields": {"type": "array", "items": any},
            "ownerReferences": {"type": "array", "items": {"type": "object", "properties": {
                "apiVersion": text, "kind": text, "name": text, "uid": text,
                "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
            }}},
        }});
        properties.insert("metadata".to_owned(), metadata);
        crate::decl_type(&schema, self.kind, false).map(|declared| declared.ty)
    }
}

/// Checks the expressions of a ValidatingAdmissionPolicy against the kinds its rules name without
/// wildcards: built-in ones, and those of `customs`.
pub fn type_check(spec: &Json, customs: &[CustomKind<'_>]) -> Vec<ExpressionWarning> {
    let mut found: Vec<ExpressionWarning> = Vec::new();
    let mut room = MAX_WARNINGS;
    for ((group, version, kind), object) in matched_types(spec, customs) {
        let envs = Environments::of(spec, &object);
        let shown = match group.as_str() {
            "" => format!("{version}, Kind={kind}"),
            group => format!("{group}/{version}, Kind={kind}"),
        };
        let mut check = |field: String, env: &Env, expression: &Json| {
            let source = expression.as_str().filter(|source| !source.is_empty());
            let Some(Err(errors)) = source.map(|source| env.compile(source)) else {
                return;
            };
            let text = format!("{shown}: {}\n", join_errors(&errors));
            // All are in the policy's status.
            let Some(rest) = room.checked_sub(text.len()) else {
                return;
            };
            room = rest;
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

/// Whether the rules of a ValidatingAdmissionPolicy name a group without wildcard that has no
/// built-in kinds: whether custom kinds matter to [`type_check`].
pub fn names_custom_groups(spec: &Json) -> bool {
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    rules.into_iter().flatten().any(|rule| {
        let groups = rule["apiGroups"].as_array().into_iter().flatten();
        groups
            .filter_map(Json::as_str)
            .any(|group| group != "*" && !builtin().resources.iter().any(|row| row.group == group))
    })
}

/// Group, version and kind.
type KindName = (String, String, String);

/// What the rules name, with the types of their objects.
fn matched_types(spec: &Json, customs: &[CustomKind<'_>]) -> Vec<(KindName, Type)> {
    let mut kinds: Vec<(KindName, Type)> = Vec::new();
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    for rule in rules.into_iter().flatten() {
        let names = |key: &str, value: &str| {
            let list = rule[key].as_array().into_iter().flatten();
            list.filter_map(Json::as_str).any(|name| name == value)
        };
        let mut add = |[group, version, kind, plural]: [&str; 4],
                       object: &dyn Fn() -> Option<Type>| {
            if !names("apiGroups", group)
                || !names("apiVersions", version)
                || !names("resources", plural)
            {
                return;
            }
            let name = (group.to_owned(), version.to_owned(), kind.to_owned());
            if kinds.len() < MAX_KINDS
                && !kinds.iter().any(|(known, _)| *known == name)
                && let Some(object) = object()
            {
                kinds.push((name, object));
            }
        };
        for row in &builtin().resources {
            add([row.group, row.version, row.kind, row.plural], &|| {
                let id = builtin().kind_type(row.group, row.version, row.kind)?;
                Some(kind_type(&builtin().types, id))
            });
        }
        for custom in customs {
            let words = [custom.group, custom.version, custom.kind, custom.plural];
            add(words, &|| custom.object_type());
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
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
        let found = type_check(&spec, &[]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].field, "spec.validations[1].expression");
        assert_eq!(
            found[1].warning,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicaz'\n \
             | object.spec.replicaz > 1\n | ...........^\n"
        );
        spec["matchConstraints"]["resourceRules"][0]["resources"] = json!(["*"]);
        assert_eq!(type_check(&spec, &[]), []);
    }

    #[test]
    fn warnings_have_room_in_a_status() {
        let wrong = format!("object.spec.replicaz > 1 || '{}' == ''", "x".repeat(10_000));
        let validations = vec![json!({ "expression": wrong }); 100];
        let spec = json!({
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
            }]},
            "validations": validations,
        });
        let found = type_check(&spec, &[]);
        let bytes: usize = found.iter().map(|one| one.warning.len()).sum();
        assert!((1..=MAX_WARNINGS).contains(&bytes), "{bytes}");
        let variables: Vec<Json> = (0..2000)
            .map(|n| json!({ "name": format!("v{n}"), "expression": "1" }))
            .collect();
        let envs = Environments::of(&json!({ "variables": variables }), &Type::Dyn);
        assert_eq!(envs.variables.len(), MAX_VARIABLES + 1);
        assert!(envs.variables[MAX_VARIABLES].1.is_err());
    }

    #[test]
    fn expressions_are_checked_against_custom_kinds() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "color": {"type": "string"}, "count": {"type": "integer"},
        }}}});
        let shirt = CustomKind {
            group: "stable.example.com",
            version: "v1",
            kind: "Shirt",
            plural: "shirts",
            schema: &schema,
        };
        let spec = json!({
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["stable.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["shirts"],
            }]},
            "validations": [
                {"expression": "object.spec.color != 'red' && object.metadata.labels['a'] == 'b'"},
                {"expression": "object.metadata.namespace == 'x' && object.metadata.ownerReferences.size() == 0"},
                {"expression": "object.spec.colour == 'red'"},
                {"expression": "object.spec.count == 'red'"},
            ],
        });
        assert!(names_custom_groups(&spec));
        assert_eq!(type_check(&spec, &[]), []);
        let found = type_check(&spec, &[shirt]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].field, "spec.validations[2].expression");
        assert_eq!(
            found[0].warning,
            "stable.example.com/v1, Kind=Shirt: ERROR: <input>:1:12: undefined field 'colour'\n \
             | object.spec.colour == 'red'\n | ...........^\n"
        );
    }
}
