//! Types: what the checker computes with, and what schemas declare.

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

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
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
    /// What was bound, in order: a parameter is bound once, so that a try can be taken back.
    log: Vec<Arc<str>>,
}

impl Bindings {
    /// Replaces bound parameters; unbound ones become `dyn` if asked.
    pub(crate) fn apply(&self, ty: &Type, free_to_dyn: bool) -> Type {
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

    fn resolved<'a>(&'a self, mut ty: &'a Type) -> &'a Type {
        while let Type::Param(name) = ty {
            match self.map.get(name) {
                Some(bound) => ty = bound,
                None => break,
            }
        }
        ty
    }

    fn occurs(&self, name: &str, ty: &Type) -> bool {
        match self.resolved(ty) {
            Type::Param(other) => &**other == name,
            Type::List(a) | Type::Optional(a) | Type::Type(a) => self.occurs(name, a),
            Type::Map(a, b) => self.occurs(name, a) || self.occurs(name, b),
            _ => false,
        }
    }

    /// Whether a value of type `from` can be given where `to` is wanted; binds parameters.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        let (from, to) = (self.resolved(from).clone(), self.resolved(to).clone());
        match (&from, &to) {
            (Type::Param(a), Type::Param(b)) if a == b => true,
            (_, Type::Param(name)) => {
                let occurs = self.occurs(name, &from);
                if !occurs {
                    self.bind(name, from);
                }
                !occurs
            }
            (Type::Param(name), _) => {
                let occurs = self.occurs(name, &to);
                if !occurs {
                    self.bind(name, to);
                }
                !occurs
            }
            (a, b) if a.is_dyn() || b.is_dyn() => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.assign(a, b)
            }
            (Type::Map(ak, av), Type::Map(bk, bv)) => self.assign(ak, bk) && self.assign(av, bv),
            (Type::Type(_), Type::Type(_)) => true,
            // what has no value is null
            (Type::Null, Type::Object(_) | Type::Opaque(_) | Type::Timestamp | Type::Duration)
            | (Type::Object(_) | Type::Opaque(_) | Type::Timestamp | Type::Duration, Type::Null) => {
                true
            }
            (a, b) => a == b,
        }
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
        self.map.insert(Arc::clone(name), ty);
        self.log.push(Arc::clone(name));
    }

    pub(crate) fn mark(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn rollback(&mut self, mark: usize) {
        for name in self.log.drain(mark..) {
            self.map.remove(&name);
        }
    }
}
