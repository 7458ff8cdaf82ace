//! Types: what the checker computes with, and what schemas declare.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A type of CEL.
#[derive(Clone, Debug)]
#[allow(
    clippy::enum_variant_names,
    reason = "types are values in CEL and have the type `type`"
)]
pub enum Type {
    /// Anything; checked when the expression runs.
    Dyn,
    /// Anything but a list or map to iterate over: an attribute of a device without list attributes.
    Any,
    /// The type of something that is at fault already.
    Error,
    /// `null`.
    Null,
    /// `bool`.
    Bool,
    /// 64 bits, signed.
    Int,
    /// 64 bits, unsigned.
    Uint,
    /// A floating-point number.
    Double,
    /// Text.
    String,
    /// Octets.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A span of time.
    Duration,
    /// A list of one type.
    List(Arc<Type>),
    /// Keys and values.
    Map(Arc<Type>, Arc<Type>),
    /// A value or nothing.
    Optional(Arc<Type>),
    /// A type of a library, such as `kubernetes.Quantity`.
    Opaque(Arc<str>),
    /// An object with declared fields.
    Object(Arc<ObjectType>),
    /// The type of a type.
    Type(Arc<Type>),
    /// A parameter of an overload.
    Param(Arc<str>),
}

/// An object type: a name and its fields, by their escaped names.
#[derive(Debug)]
pub struct ObjectType {
    /// Shown in messages.
    pub name: Arc<str>,
    /// The fields.
    pub fields: BTreeMap<Arc<str>, DeclType>,
    /// Undeclared fields are `dyn` instead of an error.
    pub open: bool,
}

/// A type with what is known about the size of its values: what a schema declares.
#[derive(Clone, Debug)]
pub struct DeclType {
    /// The type.
    pub ty: Type,
    /// The longest a string, list or map can be; 0 for scalars, as the reference implementation
    /// counts. Strings are counted in bytes.
    pub max_elements: u64,
    /// The least bytes of a value in JSON.
    pub min_size: u64,
    /// The keys of a map.
    pub key: Option<Arc<DeclType>>,
    /// The values of a map or list.
    pub elem: Option<Arc<DeclType>>,
}

impl DeclType {
    /// A type about whose size nothing is known.
    pub fn simple(ty: Type) -> Self {
        Self {
            ty,
            max_elements: u64::MAX,
            min_size: 1,
            key: None,
            elem: None,
        }
    }

    /// A scalar.
    pub fn scalar(ty: Type, min_size: u64) -> Self {
        Self {
            max_elements: 0,
            min_size,
            ..Self::simple(ty)
        }
    }

    /// Text of at most `max` bytes.
    pub fn string(max: u64) -> Self {
        Self {
            max_elements: max,
            min_size: 2,
            ..Self::simple(Type::String)
        }
    }

    /// A list of at most `max` elements.
    pub fn list(elem: DeclType, max: u64) -> Self {
        Self {
            ty: Type::List(Arc::new(elem.ty.clone())),
            max_elements: max,
            min_size: 2,
            key: None,
            elem: Some(Arc::new(elem)),
        }
    }

    /// A map of at most `max` entries.
    pub fn map(key: DeclType, elem: DeclType, max: u64) -> Self {
        Self {
            ty: Type::Map(Arc::new(key.ty.clone()), Arc::new(elem.ty.clone())),
            max_elements: max,
            min_size: 2,
            key: Some(Arc::new(key)),
            elem: Some(Arc::new(elem)),
        }
    }

    /// An object with the fields given (escaped names).
    pub fn object(
        name: impl Into<Arc<str>>,
        fields: impl IntoIterator<Item = (Arc<str>, DeclType)>,
    ) -> Self {
        Self::scalar(
            Type::Object(Arc::new(ObjectType {
                name: name.into(),
                fields: fields.into_iter().collect(),
                open: false,
            })),
            2,
        )
    }
}

impl Type {
    /// `list(elem)`.
    pub fn list(elem: Type) -> Self {
        Self::List(Arc::new(elem))
    }

    /// `map(key, value)`.
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    /// `optional_type(inner)`.
    pub fn optional(inner: Type) -> Self {
        Self::Optional(Arc::new(inner))
    }

    /// A type of a library by name.
    pub fn opaque(name: &str) -> Self {
        Self::Opaque(name.into())
    }

    /// Whether it is made of so many types at most.
    pub(crate) fn is_within(&self, most: usize) -> bool {
        fn rest(ty: &Type, left: usize) -> Option<usize> {
            let left = left.checked_sub(1)?;
            match ty {
                Type::List(a) | Type::Optional(a) | Type::Type(a) => rest(a, left),
                Type::Map(a, b) => rest(a, left).and_then(|left| rest(b, left)),
                _ => Some(left),
            }
        }
        rest(self, most).is_some()
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any | Self::Error)
    }

    /// Whether null can stand for a value of the type.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Object(_)
                | Self::Opaque(_)
                | Self::Optional(_)
                | Self::Timestamp
                | Self::Duration
        )
    }

    /// Whether every value of `other` is also one of this type, as far as dynamic types go.
    fn is_equal_or_less_specific(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Any | Self::Param(_), _) => true,
            (_, Self::Dyn | Self::Any | Self::Param(_)) => false,
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => {
                a.is_equal_or_less_specific(b)
            }
            (Self::Map(ak, av), Self::Map(bk, bv)) => {
                ak.is_equal_or_less_specific(bk) && av.is_equal_or_less_specific(bv)
            }
            (Self::Type(_), Self::Type(_)) => true,
            (a, b) => a == b,
        }
    }

    /// The more general of two types that were found to agree.
    pub(crate) fn most_general(self, other: Type) -> Type {
        if self.is_equal_or_less_specific(&other) {
            self
        } else {
            other
        }
    }

    /// Whether two types are the same but for the names of parameters.
    pub(crate) fn is_equivalent(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Param(_), Self::Param(_)) => true,
            (Self::List(a), Self::List(b))
            | (Self::Optional(a), Self::Optional(b))
            | (Self::Type(a), Self::Type(b)) => a.is_equivalent(b),
            (Self::Map(ak, av), Self::Map(bk, bv)) => ak.is_equivalent(bk) && av.is_equivalent(bv),
            (a, b) => a == b,
        }
    }

    /// The name without parameters, as `type(x)` shows it.
    pub(crate) fn runtime_name(&self) -> &str {
        match self {
            Self::Any => "google.protobuf.Any",
            Self::Null => "null_type",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::Dyn => "dyn",
            Self::Error => "!error!",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::List(_) => "list",
            Self::Map(..) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Opaque(name) | Self::Param(name) => name,
            Self::Object(object) => &object.name,
        }
    }

    /// The name with parameters, by the names that types have when an expression runs.
    pub fn declared_name(&self) -> String {
        let name = self.runtime_name();
        match self {
            Self::List(inner) | Self::Optional(inner) | Self::Type(inner) => {
                format!("{name}({})", inner.declared_name())
            }
            Self::Map(key, value) => {
                format!("{name}({}, {})", key.declared_name(), value.declared_name())
            }
            _ => name.to_owned(),
        }
    }

    /// Values have one size whatever they are.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Timestamp
            | Self::Duration => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b))
            | (Self::Optional(a), Self::Optional(b))
            | (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Map(ak, av), Self::Map(bk, bv)) => ak == bk && av == bv,
            (Self::Opaque(a), Self::Opaque(b)) | (Self::Param(a), Self::Param(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => a.name == b.name,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl Eq for Type {}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Any => "any",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::List(elem) => return write!(f, "list({elem})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
            Self::Optional(inner) => return write!(f, "optional_type({inner})"),
            Self::Type(inner) => return write!(f, "type({inner})"),
            Self::Opaque(name) | Self::Param(name) => name,
            Self::Object(object) => &object.name,
        })
    }
}

/// What the parameters of overloads stand for, while one expression is checked.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    map: HashMap<Arc<str>, Type>,
    /// What was bound, in order, and what it was before: a try can be taken back.
    log: Vec<(Arc<str>, Option<Type>)>,
    /// Steps that may still be taken. Without any what is found out means nothing.
    steps: Cell<u64>,
}

impl Bindings {
    pub(crate) fn new(steps: u64) -> Self {
        Self {
            steps: Cell::new(steps),
            ..Self::default()
        }
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.steps.get() == 0
    }

    /// Whether there is another step.
    fn step(&self) -> bool {
        self.steps.set(self.steps.get().saturating_sub(1));
        !self.is_exhausted()
    }

    /// Replaces bound parameters; unbound ones become `dyn` if asked.
    pub(crate) fn apply(&self, ty: &Type, free_to_dyn: bool) -> Type {
        if !self.step() {
            return Type::Dyn;
        }
        match ty {
            Type::Param(name) => match self.map.get(name) {
                Some(bound) => self.apply(bound, free_to_dyn),
                None if free_to_dyn => Type::Dyn,
                None => ty.clone(),
            },
            Type::List(elem) => Type::list(self.apply(elem, free_to_dyn)),
            Type::Optional(inner) => Type::optional(self.apply(inner, free_to_dyn)),
            Type::Type(inner) => Type::Type(Arc::new(self.apply(inner, free_to_dyn))),
            Type::Map(key, value) => {
                Type::map(self.apply(key, free_to_dyn), self.apply(value, free_to_dyn))
            }
            other => other.clone(),
        }
    }

    /// Whether the parameter is the type or a part of it.
    fn occurs(&self, name: &Arc<str>, ty: &Type) -> bool {
        if !self.step() {
            return false;
        }
        match ty {
            Type::Param(other) if other == name => true,
            Type::Param(other) => match self.map.get(other) {
                Some(bound) => self.occurs(name, bound),
                None => false,
            },
            Type::List(a) | Type::Optional(a) | Type::Type(a) => self.occurs(name, a),
            Type::Map(a, b) => self.occurs(name, a) || self.occurs(name, b),
            _ => false,
        }
    }

    /// Whether a value of type `from` can be given where `to` is wanted; binds parameters.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        if !self.step() {
            return true;
        }
        if let Type::Param(name) = to {
            match self.substitute(from, name) {
                Substitution::Fits => return true,
                Substitution::Differs => return false,
                Substitution::Occurs => {}
            }
        }
        match (from, to) {
            (Type::Param(name), _) => matches!(self.substitute(to, name), Substitution::Fits),
            (a, b) if a.is_dyn() || b.is_dyn() => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.assign(a, b)
            }
            (Type::Map(ak, av), Type::Map(bk, bv)) => self.assign(ak, bk) && self.assign(av, bv),
            (Type::Type(_), Type::Type(_)) => true,
            // what has no value is null
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (a, b) => a == b,
        }
    }

    /// Lets a parameter stand for a type. One that stands for something already stands for the more
    /// general of both from then on.
    fn substitute(&mut self, ty: &Type, name: &Arc<str>) -> Substitution {
        if matches!(ty, Type::Param(other) if other == name) {
            return Substitution::Fits;
        }
        let Some(known) = self.map.get(name).cloned() else {
            if self.occurs(name, ty) {
                return Substitution::Occurs;
            }
            self.bind(name, ty.clone());
            return Substitution::Fits;
        };
        if *ty == known {
            return Substitution::Fits;
        }
        if !self.assign(ty, &known) {
            return Substitution::Differs;
        }
        let general = ty.clone().most_general(known);
        if !self.occurs(name, &general) {
            self.bind(name, general);
        }
        Substitution::Fits
    }

    /// Like [`Bindings::assign`], without a trace when it fails.
    pub(crate) fn try_assign(&mut self, from: &Type, to: &Type) -> bool {
        let before = self.mark();
        let fits = self.assign(from, to);
        if !fits {
            self.rollback(before);
        }
        fits
    }

    fn bind(&mut self, name: &Arc<str>, ty: Type) {
        let before = self.map.insert(Arc::clone(name), ty);
        self.log.push((Arc::clone(name), before));
    }

    pub(crate) fn mark(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn rollback(&mut self, mark: usize) {
        for (name, before) in self.log.drain(mark..).rev() {
            match before {
                Some(ty) => drop(self.map.insert(name, ty)),
                None => drop(self.map.remove(&name)),
            }
        }
    }
}

/// What came of letting a parameter stand for a type.
enum Substitution {
    /// It does.
    Fits,
    /// It stands for a type that does not agree.
    Differs,
    /// It is a part of the type.
    Occurs,
}
