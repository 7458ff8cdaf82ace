//! The type checker: gives every node a type and every call its possible overloads.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{Expr, Fold, Id, Kind};
use crate::declarations::{Functions, Overload};
use crate::error::{CompileError, most_faults};
use crate::types::{Bindings, DeclType, Type};
use crate::value::Value;

/// What the checker found out, by node.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) types: Vec<Type>,
    pub(crate) overloads: HashMap<Id, Vec<&'static str>>,
}

/// What the checker looks names up in.
pub(crate) struct Scope<'a> {
    pub(crate) variables: &'a HashMap<Arc<str>, DeclType>,
    pub(crate) functions: &'a Functions,
    /// Constructible objects, by name.
    pub(crate) structs: &'a HashMap<Arc<str>, Type>,
    /// `Object` and everything below it can be made with any field.
    pub(crate) open_objects: bool,
}

pub(crate) fn check(
    root: &mut Expr,
    ids: Id,
    source: &[char],
    scope: &Scope<'_>,
) -> Result<Checked, Vec<CompileError>> {
    let mut checker = Checker {
        scope,
        source,
        locals: Vec::new(),
        errors: Vec::new(),
        bindings: Bindings::new(STEPS + STEPS_OF_A_NODE * ids as u64),
        fresh: 0,
        checked: Checked {
            types: vec![Type::Dyn; ids],
            overloads: HashMap::new(),
        },
    };
    checker.check(root);
    if checker.bindings.is_exhausted() && checker.errors.is_empty() {
        checker.error(0, TOO_COMPLEX);
    }
    if !checker.errors.is_empty() {
        return Err(checker.errors);
    }
    let Checker {
        mut checked,
        bindings,
        ..
    } = checker;
    for ty in &mut checked.types {
        *ty = bindings.apply(ty, true);
    }
    if bindings.is_exhausted() {
        return Err(vec![CompileError::new(source, 0, TOO_COMPLEX)]);
    }
    Ok(checked)
}

/// Types that a type is made of, at most: `{x: x}` has twice those of `x`.
const MOST_PARTS: usize = 512;
/// Steps of finding out what parameters of types stand for, which refer to one another.
const STEPS: u64 = 1 << 18;
const STEPS_OF_A_NODE: u64 = 1 << 9;
const TOO_COMPLEX: &str = "expression is too complex";
struct Checker<'a> {
    scope: &'a Scope<'a>,
    source: &'a [char],
    locals: Vec<(Arc<str>, Type)>,
    errors: Vec<CompileError>,
    bindings: Bindings,
    fresh: usize,
    checked: Checked,
}

/// The names of types that can be written in an expression.
fn type_by_name(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "type" => Type::Type(Arc::new(Type::Dyn)),
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "kubernetes.Quantity"
        | "kubernetes.URL"
        | "net.IP"
        | "net.CIDR"
        | "kubernetes.Semver"
        | "kubernetes.NamedFormat" => Type::opaque(name),
        _ => return None,
    })
}

impl Checker<'_> {
    fn error(&mut self, at: usize, message: impl Into<String>) -> Type {
        if self.errors.len() < most_faults(self.source) {
            self.errors
                .push(CompileError::new(self.source, at, message));
        }
        Type::Error
    }

    fn check(&mut self, expr: &mut Expr) -> Type {
        let mut ty = self.find(expr);
        if !ty.is_within(MOST_PARTS) {
            ty = self.error(expr.at, TOO_COMPLEX);
        }
        self.checked.types[expr.id] = ty.clone();
        ty
    }

    fn find(&mut self, expr: &mut Expr) -> Type {
        let (id, at) = (expr.id, expr.at);
        match &mut expr.kind {
            Kind::Const(value) => value.type_of(),
            Kind::Ident(name) => {
                let name = Arc::clone(name);
                if let Some(ty) = self.local_or_variable(&name) {
                    return ty;
                }
                let plain = name.trim_start_matches('.');
                if let Some(ty) = type_by_name(plain) {
                    expr.kind = Kind::Const(Value::Type(ty.clone()));
                    return Type::Type(Arc::new(ty));
                }
                self.error(
                    at,
                    format!("undeclared reference to '{plain}' (in container '')"),
                )
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List { items } => {
                let mut elem = None;
                for item in items {
                    let mut ty = self.check(&mut item.value);
                    if item.optional {
                        ty = self.unwrap_optional(item.value.at, &ty);
                    }
                    elem = Some(self.join(elem, ty));
                }
                let elem = elem.unwrap_or_else(|| self.fresh());
                Type::list(elem)
            }
            Kind::Map { entries } => {
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    let key = self.check(&mut entry.key);
                    keys = Some(self.join(keys, key));
                    let mut value = self.check(&mut entry.value);
                    if entry.optional {
                        value = self.unwrap_optional(entry.value.at, &value);
                    }
                    values = Some(self.join(values, value));
                }
                let key = keys.unwrap_or_else(|| self.fresh());
                let value = values.unwrap_or_else(|| self.fresh());
                Type::map(key, value)
            }
            Kind::Struct { .. } => self.construct(expr),
            Kind::Fold(fold) => self.fold(id, fold),
        }
    }

    fn fresh(&mut self) -> Type {
        self.fresh += 1;
        Type::Param(format!("_var{}", self.fresh).into())
    }

    /// The type of elements of both kinds. Where they differ it is `dyn`, so that one fault does
    /// not hide others; [`crate::validate`] refuses such literals.
    fn join(&mut self, known: Option<Type>, ty: Type) -> Type {
        let Some(known) = known else {
            return ty;
        };
        if self.bindings.try_assign(&known, &ty) {
            known.most_general(ty)
        } else {
            Type::Dyn
        }
    }

    fn unwrap_optional(&mut self, at: usize, ty: &Type) -> Type {
        match self.bindings.apply(ty, false) {
            Type::Optional(inner) => (*inner).clone(),
            other if other.is_dyn() => Type::Dyn,
            other => self.error(
                at,
                format!("expected type 'optional_type({other})' but found '{other}'"),
            ),
        }
    }

    fn local_or_variable(&self, name: &str) -> Option<Type> {
        if let Some(global) = name.strip_prefix('.') {
            return self.scope.variables.get(global).map(|v| v.ty.clone());
        }
        if let Some((_, ty)) = self.locals.iter().rev().find(|(local, _)| &**local == name) {
            return Some(ty.clone());
        }
        self.scope.variables.get(name).map(|v| v.ty.clone())
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        // a dotted name may be the name of a variable or a type
        if let Some(qualified) = expr.qualified_name() {
            let root = qualified.split('.').next().unwrap_or_default();
            if self.local_or_variable(root).is_none() {
                if let Some(ty) = self.scope.variables.get(qualified.as_str()) {
                    let ty = ty.ty.clone();
                    expr.kind = Kind::Ident(qualified.into());
                    return ty;
                }
                if let Some(ty) = type_by_name(&qualified) {
                    expr.kind = Kind::Const(Value::Type(ty.clone()));
                    return Type::Type(Arc::new(ty));
                }
            }
        }
        let at = expr.at;
        let Kind::Select {
            operand,
            field,
            test,
        } = &mut expr.kind
        else {
            return Type::Dyn;
        };
        let (test, field) = (*test, Arc::clone(field));
        let operand = self.check(operand);
        let ty = self.field(at, &operand, &field, false);
        if test { Type::Bool } else { ty }
    }

    /// The type of a field; of an optional operand it is optional, too.
    fn field(&mut self, at: usize, operand: &Type, field: &str, optional: bool) -> Type {
        let operand = self.bindings.apply(operand, false);
        match &operand {
            Type::Optional(inner) => {
                let inner = self.field(at, inner, field, false);
                match inner {
                    Type::Optional(_) | Type::Error => inner,
                    other => Type::optional(other),
                }
            }
            Type::Map(key, value) => {
                if !self.bindings.try_assign(&Type::String, key) {
                    return self.mismatch(at, &Type::String, key);
                }
                (**value).clone()
            }
            Type::Object(object) => {
                let declared = object
                    .fields
                    .get(field)
                    .or_else(|| object.fields.get(format!("__{field}__").as_str()));
                match declared {
                    Some(declared) => declared.ty.clone(),
                    None if object.open => Type::Dyn,
                    None => self.error(at, format!("undefined field '{field}'")),
                }
            }
            Type::Param(_) => {
                self.bindings.assign(&operand, &Type::Dyn);
                Type::Dyn
            }
            other if other.is_dyn() => Type::Dyn,
            other if optional => {
                self.error(at, format!("unsupported optional field selection: {other}"))
            }
            other => self.error(
                at,
                format!("type '{other}' does not support field selection"),
            ),
        }
    }

    fn mismatch(&mut self, at: usize, expected: &Type, actual: &Type) -> Type {
        self.error(
            at,
            format!("expected type '{expected}' but found '{actual}'"),
        )
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let (id, at) = (expr.id, expr.at);
        let Kind::Call {
            function,
            target,
            args,
        } = &mut expr.kind
        else {
            return Type::Dyn;
        };
        match &**function {
            "_?._" => return self.optional_select(id, at, args),
            "_&&_" => return self.logical(id, "logical_and", args),
            "_||_" => return self.logical(id, "logical_or", args),
            _ => {}
        }
        // `sets.contains(…)` looks like a member call but is a function with a dotted name
        if let Some(operand) = target
            && let Some(qualified) = operand.qualified_name()
        {
            let name = format!("{qualified}.{function}");
            if self.scope.functions.contains_key(name.as_str()) {
                *function = name.into();
                *target = None;
            }
        }
        let member = target.is_some();
        let mut types = Vec::new();
        if let Some(target) = target {
            types.push(self.check(target));
        }
        for arg in args.iter_mut() {
            let ty = self.check(arg);
            types.push(ty);
        }
        let name = Arc::clone(function);
        let name = name.trim_start_matches('.');
        let Some(overloads) = self.scope.functions.get(name) else {
            return self.error(
                at,
                format!("undeclared reference to '{name}' (in container '')"),
            );
        };
        if name != &**function {
            *function = name.into();
        }
        let (result, ids) = self.resolve(overloads, member, &types);
        let Some(result) = result else {
            let shown: Vec<String> = types
                .iter()
                .map(|ty| self.bindings.apply(ty, true).to_string())
                .collect();
            let applied = if member {
                format!("{}.({})", shown[0], shown[1..].join(", "))
            } else {
                format!("({})", shown.join(", "))
            };
            return self.error(
                at,
                format!("found no matching overload for '{name}' applied to '{applied}'"),
            );
        };
        self.checked.overloads.insert(id, ids);
        result
    }

    fn resolve(
        &mut self,
        overloads: &[Overload],
        member: bool,
        types: &[Type],
    ) -> (Option<Type>, Vec<&'static str>) {
        let mut result: Option<Type> = None;
        let mut ids = Vec::new();
        for overload in overloads {
            if overload.member != member || overload.args.len() != types.len() {
                continue;
            }
            self.fresh += 1;
            let suffix = self.fresh;
            let before = self.bindings.mark();
            let fits = types
                .iter()
                .zip(&overload.args)
                .all(|(given, wanted)| self.bindings.assign(given, &rename(wanted, suffix)));
            if !fits {
                self.bindings.rollback(before);
                continue;
            }
            ids.push(overload.id);
            let ty = self
                .bindings
                .apply(&rename(&overload.result, suffix), false);
            result = Some(match result {
                None => ty,
                Some(known) if known == ty => known,
                Some(_) => Type::Dyn,
            });
        }
        (result, ids)
    }

    /// `&&` and `||`: each operand that is no bool is a fault of its own.
    fn logical(&mut self, id: Id, overload: &'static str, args: &mut [Expr]) -> Type {
        let types: Vec<(usize, Type)> = args
            .iter_mut()
            .map(|arg| (arg.at, self.check(arg)))
            .collect();
        let faults = self.errors.len();
        for (at, ty) in types {
            self.expect(at, &ty, &Type::Bool);
        }
        if self.errors.len() > faults {
            return Type::Error;
        }
        self.checked.overloads.insert(id, vec![overload]);
        Type::Bool
    }

    fn optional_select(&mut self, id: Id, at: usize, args: &mut [Expr]) -> Type {
        let operand = self.check(&mut args[0]);
        self.checked.types[args[1].id] = Type::String;
        let Kind::Const(Value::String(field)) = &args[1].kind else {
            return self.error(at, "unsupported optional field selection");
        };
        let field = Arc::clone(field);
        if matches!(operand, Type::Error) {
            return Type::Error;
        }
        self.checked
            .overloads
            .insert(id, vec!["select_optional_field"]);
        match self.field(at, &operand, &field, true) {
            found @ (Type::Optional(_) | Type::Error) => found,
            found => Type::optional(found),
        }
    }

    fn construct(&mut self, expr: &mut Expr) -> Type {
        let at = expr.at;
        let Kind::Struct { name, fields } = &mut expr.kind else {
            return Type::Dyn;
        };
        let name = Arc::clone(name);
        let plain = name.trim_start_matches('.');
        let open = self.scope.open_objects && (plain == "Object" || plain.starts_with("Object."));
        let declared = match self.scope.structs.get(plain) {
            Some(ty) => ty.clone(),
            None if open => Type::Object(Arc::new(crate::types::ObjectType {
                name: plain.into(),
                fields: std::collections::BTreeMap::new(),
                open: true,
            })),
            None => {
                return self.error(
                    at,
                    format!("undeclared reference to '{plain}' (in container '')"),
                );
            }
        };
        for field in fields.iter_mut() {
            let mut given = self.check(&mut field.value);
            if field.optional {
                given = self.unwrap_optional(field.value.at, &given);
            }
            let Type::Object(object) = &declared else {
                continue;
            };
            let Some(wanted) = object.fields.get(&field.name) else {
                if !object.open {
                    self.error(field.at, format!("undefined field '{}'", field.name));
                }
                continue;
            };
            let wanted = wanted.ty.clone();
            if !self.bindings.try_assign(&given, &wanted) {
                let given = self.bindings.apply(&given, true);
                self.error(
                    field.at,
                    format!(
                        "expected type of field '{}' is '{wanted}' but provided type is '{given}'",
                        field.name
                    ),
                );
            }
        }
        declared
    }

    fn fold(&mut self, _id: Id, fold: &mut Fold) -> Type {
        let range = self.check(&mut fold.range);
        let range = self.bindings.apply(&range, false);
        let (var, var2) = match &range {
            Type::List(elem) if fold.var2.is_some() => (Type::Int, (**elem).clone()),
            Type::List(elem) => ((**elem).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error => (Type::Dyn, Type::Dyn),
            Type::Param(_) => {
                self.bindings.assign(&range, &Type::Dyn);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be \
                     list, map, or dynamic)"
                );
                self.error(fold.range.at, message);
                (Type::Error, Type::Error)
            }
        };
        let init = self.check(&mut fold.init);
        self.locals.push((Arc::clone(&fold.accu), init.clone()));
        let depth = self.locals.len();
        self.locals.push((Arc::clone(&fold.var), var));
        if let Some(name) = &fold.var2 {
            self.locals.push((Arc::clone(name), var2));
        }
        let condition = self.check(&mut fold.condition);
        self.expect(fold.condition.at, &condition, &Type::Bool);
        let step = self.check(&mut fold.step);
        self.expect(fold.step.at, &step, &init);
        self.locals.truncate(depth);
        let result = self.check(&mut fold.result);
        self.locals.truncate(depth - 1);
        self.bindings.apply(&result, false)
    }

    fn expect(&mut self, at: usize, given: &Type, wanted: &Type) {
        if !self.bindings.try_assign(given, wanted) {
            let given = self.bindings.apply(given, true);
            let wanted = self.bindings.apply(wanted, true);
            self.mismatch(at, &wanted, &given);
        }
    }
}

/// An overload's parameters under names of their own for one call.
fn rename(ty: &Type, suffix: usize) -> Type {
    match ty {
        Type::Param(name) => Type::Param(format!("{name}{suffix}").into()),
        Type::List(elem) => Type::list(rename(elem, suffix)),
        Type::Optional(inner) => Type::optional(rename(inner, suffix)),
        Type::Type(inner) => Type::Type(Arc::new(rename(inner, suffix))),
        Type::Map(key, value) => Type::map(rename(key, suffix), rename(value, suffix)),
        other => other.clone(),
    }
}
