//! Values.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use davit_api::quantity::Quantity;
use jiff::Timestamp;

use crate::effort::EvaluationEffort;
use crate::error::{EvalError, shortened};
use crate::library::authorizer::Handle;
use crate::library::format::NamedFormat;
use crate::library::urls::Url;
use crate::types::Type;

/// A value of CEL. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(Arc<str>),
    /// Octets.
    Bytes(Arc<[u8]>),
    /// A list.
    List(Arc<List>),
    /// A map, or an object, whose keys are its fields.
    Map(Arc<Map>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A span of time in nanoseconds.
    Duration(i64),
    /// A type.
    Type(Type),
    /// A value or nothing.
    Optional(Option<Arc<Value>>),
    /// A Kubernetes quantity.
    Quantity(Quantity),
    /// A parsed URL.
    Url(Arc<Url>),
    /// An IP address.
    Ip(IpAddr),
    /// A block of IP addresses.
    Cidr(Cidr),
    /// A semantic version.
    Semver(Arc<semver::Version>),
    /// A named format.
    Format(NamedFormat),
    /// The authorizer, or a check that is being put together.
    Authorizer(Handle),
}

/// A list and how lists like it are compared.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// The elements.
    pub items: Vec<Value>,
    /// How equality and concatenation treat the elements.
    pub kind: ListKind,
}

/// The `x-kubernetes-list-type` of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ListKind {
    /// The order matters.
    #[default]
    Atomic,
    /// The order does not matter.
    Set,
    /// Elements correspond by these (escaped) keys; the order does not matter.
    Map(Arc<[Arc<str>]>),
}

/// A map or an object.
#[derive(Debug, Clone, Default)]
pub struct Map {
    /// The entries in the order of their keys.
    pub entries: BTreeMap<Key, Value>,
    /// The type of an object; none for maps.
    pub object: Option<Arc<str>>,
    /// A value for absent keys that reads as present but is not counted, as
    /// `device.attributes["unknown"]` is an empty map.
    pub fallback: Option<Value>,
}

/// A key of a map. Numbers are equal across their types.
#[derive(Debug, Clone)]
pub enum Key {
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// Text.
    String(Arc<str>),
}

/// An address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address as written, bits behind the prefix included.
    pub ip: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u8,
}

impl Key {
    fn rank(&self) -> (u8, i128, bool, &str) {
        match self {
            Self::Bool(b) => (0, 0, *b, ""),
            Self::Int(i) => (1, i128::from(*i), false, ""),
            Self::Uint(u) => (1, i128::from(*u), false, ""),
            Self::String(s) => (2, 0, false, s),
        }
    }

    /// The key as a value.
    pub fn value(&self) -> Value {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(i) => Value::Int(*i),
            Self::Uint(u) => Value::Uint(*u),
            Self::String(s) => Value::String(Arc::clone(s)),
        }
    }

    /// A value as a key; a double counts if it is a whole number.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(i) => Some(Self::Int(*i)),
            Value::Uint(u) => Some(Self::Uint(*u)),
            Value::String(s) => Some(Self::String(Arc::clone(s))),
            // the bounds are exact in floating point
            Value::Double(d)
                if d.fract() == 0.0
                    && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(d) =>
            {
                Some(Self::Int(*d as i64))
            }
            _ => None,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(b) => write!(f, "{b}"),
            Self::Int(i) => write!(f, "{i}"),
            Self::Uint(u) => write!(f, "{u}"),
            Self::String(s) => f.write_str(s),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl Map {
    /// The entry under a text key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(&Key::from(key))
    }

    pub(crate) fn find(&self, key: &Key) -> Option<&Value> {
        self.entries.get(key).or(self.fallback.as_ref())
    }

    /// Enters a value under a key that is not there yet.
    pub(crate) fn insert(&mut self, key: &Value, value: Value) -> Result<(), EvalError> {
        let Some(key) = Key::of(key) else {
            return Err(EvalError::new("unsupported key type"));
        };
        match self.entries.entry(key) {
            Entry::Vacant(place) => drop(place.insert(value)),
            Entry::Occupied(known) => {
                let shown = shortened(&known.key().to_string()).to_owned();
                return Err(EvalError::new(format!(
                    "insert failed: key {shown} already exists"
                )));
            }
        }
        Ok(())
    }
}

impl Value {
    /// Text.
    pub fn string(text: impl Into<Arc<str>>) -> Self {
        Self::String(text.into())
    }

    /// A list whose order matters.
    pub fn list(items: Vec<Value>) -> Self {
        Self::List(Arc::new(List {
            items,
            kind: ListKind::Atomic,
        }))
    }

    /// A map with text keys.
    pub fn map<K: Into<Arc<str>>>(entries: impl IntoIterator<Item = (K, Value)>) -> Self {
        Self::Map(Arc::new(Map {
            entries: entries
                .into_iter()
                .map(|(key, value)| (Key::String(key.into()), value))
                .collect(),
            ..Map::default()
        }))
    }

    /// An optional with a value.
    pub fn some(value: Value) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// The type as `type(x)` gives it.
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(map) => match &map.object {
                Some(name) => Type::Opaque(Arc::clone(name)),
                None => Type::map(Type::Dyn, Type::Dyn),
            },
            Self::Timestamp(_) => Type::Timestamp,
            Self::Duration(_) => Type::Duration,
            Self::Type(_) => Type::Type(Arc::new(Type::Dyn)),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Quantity(_) => Type::opaque("kubernetes.Quantity"),
            Self::Url(_) => Type::opaque("kubernetes.URL"),
            Self::Ip(_) => Type::opaque("net.IP"),
            Self::Cidr(_) => Type::opaque("net.CIDR"),
            Self::Semver(_) => Type::opaque("kubernetes.Semver"),
            Self::Format(_) => Type::opaque("kubernetes.NamedFormat"),
            Self::Authorizer(handle) => Type::opaque(handle.type_name()),
        }
    }

    /// What the cost of working on the value is counted by: 1 for scalars.
    pub(crate) fn cost_size(&self) -> u64 {
        match self {
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.items.len() as u64,
            Self::Map(map) => map.entries.len() as u64,
            Self::Optional(Some(held)) => held.cost_size(),
            Self::Ip(ip) => address_bytes(*ip),
            Self::Cidr(cidr) => address_bytes(cidr.ip),
            _ => 1,
        }
    }

    /// The value under a key or field of a map, or none.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Map(map) => map.get(key),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The truth of a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// Whether `self == other` has an answer: a value of a library's type knows only its own kind
    /// and null.
    pub(crate) fn compares_with(&self, other: &Value) -> bool {
        let same = std::mem::discriminant(self) == std::mem::discriminant(other);
        match self {
            Self::Quantity(_)
            | Self::Semver(_)
            | Self::Url(_)
            | Self::Ip(_)
            | Self::Cidr(_)
            | Self::Format(_) => same || matches!(other, Self::Null),
            _ => true,
        }
    }

    /// CEL's `==`: numbers across types, lists and maps by their elements. What takes longer than an evaluation may is not
    /// equal.
    pub fn equals(&self, other: &Value) -> bool {
        self.equals_within(other, &EvaluationEffort::default()) == Ok(true)
    }

    /// CEL's `==`, which takes effort by what is compared, however often it is the same.
    pub(crate) fn equals_within(
        &self,
        other: &Value,
        effort: &EvaluationEffort,
    ) -> Result<bool, EvalError> {
        effort.look(1)?;
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
            ) => number_order(self, other) == Some(Ordering::Equal),
            (Self::String(a), Self::String(b)) => {
                effort.compare(a.as_bytes(), b.as_bytes())?;
                a == b
            }
            (Self::Bytes(a), Self::Bytes(b)) => {
                effort.compare(a, b)?;
                a == b
            }
            (Self::List(a), Self::List(b)) => lists_equal(a, b, effort)?,
            (Self::Map(a), Self::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    let other = b.entries.get(key);
                    if !equals_some(value, other, effort)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => types_equal(a, b),
            (Self::Optional(None), Self::Optional(None)) => true,
            (Self::Optional(Some(a)), Self::Optional(Some(b))) => a.equals_within(b, effort)?,
            (Self::Quantity(a), Self::Quantity(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Semver(a), Self::Semver(b)) => a.cmp_precedence(b) == Ordering::Equal,
            (Self::Format(a), Self::Format(b)) => a == b,
            _ => false,
        })
    }

    /// The order of two values of an ordered type.
    pub(crate) fn order(&self, other: &Value) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            _ => number_order(self, other),
        }
    }
}

fn address_bytes(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 16,
    }
}

/// Types are compared by their outermost name, as values do not know their elements' types.
fn types_equal(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::List(_), Type::List(_))
        | (Type::Map(..), Type::Map(..))
        | (Type::Optional(_), Type::Optional(_)) => true,
        (Type::Object(a), Type::Opaque(b)) | (Type::Opaque(b), Type::Object(a)) => a.name == *b,
        _ => a == b,
    }
}

/// Whether there is another value, and it is equal.
fn equals_some(
    value: &Value,
    other: Option<&Value>,
    effort: &EvaluationEffort,
) -> Result<bool, EvalError> {
    match other {
        Some(other) => value.equals_within(other, effort),
        None => Ok(false),
    }
}

/// The place of the first value for which the test holds.
pub(crate) fn find<'a>(
    values: impl IntoIterator<Item = &'a Value>,
    mut test: impl FnMut(&Value) -> Result<bool, EvalError>,
) -> Result<Option<(usize, &'a Value)>, EvalError> {
    for (n, value) in values.into_iter().enumerate() {
        if test(value)? {
            return Ok(Some((n, value)));
        }
    }
    Ok(None)
}

fn lists_equal(a: &List, b: &List, effort: &EvaluationEffort) -> Result<bool, EvalError> {
    if a.items.len() != b.items.len() {
        return Ok(false);
    }
    let places = match a.kind {
        ListKind::Atomic => None,
        _ => Some(Places::of(&b.items, &a.kind, effort)?),
    };
    for (n, item) in a.items.iter().enumerate() {
        let other = match &places {
            None => Some(n),
            Some(places) => places.find(item, &b.items, effort)?,
        };
        if !equals_some(item, other.map(|n| &b.items[n]), effort)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the elements of a list are whose order does not matter, by what tells them apart.
pub(crate) struct Places<'a> {
    kind: &'a ListKind,
    known: BTreeMap<Vec<Option<Key>>, usize>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(
        items: &[Value],
        kind: &'a ListKind,
        effort: &EvaluationEffort,
    ) -> Result<Self, EvalError> {
        let mut places = Self {
            kind,
            known: BTreeMap::new(),
        };
        for (n, item) in items.iter().enumerate() {
            places.add(n, item, effort)?;
        }
        Ok(places)
    }

    pub(crate) fn add(
        &mut self,
        n: usize,
        item: &Value,
        effort: &EvaluationEffort,
    ) -> Result<(), EvalError> {
        effort.values(1)?;
        if let Some(identity) = self.identity(item) {
            self.known.entry(identity).or_insert(n);
        }
        Ok(())
    }

    /// The place of the element of `items` that is the same as `item`.
    pub(crate) fn find(
        &self,
        item: &Value,
        items: &[Value],
        effort: &EvaluationEffort,
    ) -> Result<Option<usize>, EvalError> {
        effort.look(1)?;
        if let Some(identity) = self.identity(item) {
            return Ok(self.known.get(&identity).copied());
        }
        let found = find(items, |other| match self.kind {
            ListKind::Map(keys) => same_keys(other, item, keys, effort),
            _ => other.equals_within(item, effort),
        })?;
        Ok(found.map(|(n, _)| n))
    }

    /// What tells an element apart; none where that is a list, an object or a fraction.
    fn identity(&self, item: &Value) -> Option<Vec<Option<Key>>> {
        match self.kind {
            ListKind::Map(keys) => {
                let of = |key: &Arc<str>| match item.get(key) {
                    None => Some(None),
                    Some(value) => Key::of(value).map(Some),
                };
                keys.iter().map(of).collect()
            }
            _ => Some(vec![Some(Key::of(item)?)]),
        }
    }
}

/// Whether two elements of a `map` list are the same one.
fn same_keys(
    a: &Value,
    b: &Value,
    keys: &[Arc<str>],
    effort: &EvaluationEffort,
) -> Result<bool, EvalError> {
    for key in keys {
        let is_same = match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => a.equals_within(b, effort)?,
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn number_order(a: &Value, b: &Value) -> Option<Ordering> {
    let whole = |value: &Value| match value {
        Value::Int(i) => Some(i128::from(*i)),
        Value::Uint(u) => Some(i128::from(*u)),
        _ => None,
    };
    match (whole(a), whole(b), a, b) {
        (Some(a), Some(b), ..) => Some(a.cmp(&b)),
        (_, _, Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Some(a), _, _, Value::Double(b)) => whole_to_double(a, *b),
        (_, Some(b), Value::Double(a), _) => whole_to_double(b, *a).map(Ordering::reverse),
        _ => None,
    }
}

fn whole_to_double(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    // beyond these bounds the double is larger or smaller than every 64-bit integer
    if b >= 36_893_488_147_419_103_232.0 {
        return Some(Ordering::Less);
    }
    if b <= -36_893_488_147_419_103_232.0 {
        return Some(Ordering::Greater);
    }
    let floor = b.floor();
    Some(match a.cmp(&(floor as i128)) {
        Ordering::Equal if b > floor => Ordering::Less,
        order => order,
    })
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.into())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::String(value.into())
    }
}
