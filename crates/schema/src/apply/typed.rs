//! Objects seen through their schema: which lists and maps are one value, how elements are told
//! apart, and which paths an object has.

use std::collections::BTreeSet;

use davit_api::field::quote;
use davit_api::kinds::{Field, FieldType, ListType, MapType, Text, TypeBody, TypeId, TypeTable};
use serde_json::{Map, Value};

use super::atomic;
use super::path::{Path, PathElement};
use super::set::Set;
use crate::decode::zero_value;

/// The schema of a kind.
///
/// Additional properties of a struct, as custom kinds may have them beside declared ones, are an
/// [inline](Field::inline) field whose type is a map.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'t> {
    pub(super) types: &'t TypeTable,
    pub(super) root: TypeId,
}

/// A type as it stands at a place of the schema.
#[derive(Debug, Clone, Copy)]
pub(super) enum TypeRef<'t> {
    Field(&'t Field),
    Type(&'t FieldType),
    Root(TypeId),
    /// Anything; maps are merged, lists are one value.
    Deduced,
    /// Anything, as one value.
    Untyped,
    /// Not declared.
    None,
}

/// What a type accepts.
#[derive(Debug, Clone, Copy)]
enum Node<'t> {
    One(Atom<'t>),
    Deduced,
    Untyped,
    None,
}

/// How a value is treated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Atom<'t> {
    Scalar(Scalar),
    List(List<'t>),
    Map(MapShape<'t>),
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Number,
    String,
    Bool,
    Any,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct List<'t> {
    pub(super) item: TypeRef<'t>,
    pub(super) kind: ListType,
    keys: &'t [Text],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MapShape<'t> {
    id: Option<TypeId>,
    item: TypeRef<'t>,
    pub(super) atomic: bool,
}

impl Atom<'_> {
    /// Whether two values are treated alike.
    pub(super) fn same_shape(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Atom::Scalar(_), Atom::Scalar(_))
                | (Atom::List(_), Atom::List(_))
                | (Atom::Map(_), Atom::Map(_))
                | (Atom::None, Atom::None)
        )
    }
}

impl<'t> Schema<'t> {
    /// The schema of the type `root`.
    pub fn new(types: &'t TypeTable, root: TypeId) -> Self {
        Schema { types, root }
    }

    pub(super) fn root(self) -> TypeRef<'t> {
        TypeRef::Root(self.root)
    }

    fn node(self, ty: TypeRef<'t>) -> Node<'t> {
        match ty {
            TypeRef::Field(field) => self.typed(&field.ty, Some(field)),
            TypeRef::Type(ty) => self.typed(ty, None),
            TypeRef::Root(id) => self.named(self.types.resolve(id), None),
            TypeRef::Deduced => Node::Deduced,
            TypeRef::Untyped => Node::Untyped,
            TypeRef::None => Node::None,
        }
    }

    fn typed(self, ty: &'t FieldType, field: Option<&'t Field>) -> Node<'t> {
        let atomic = |f: &Field| f.map_type == Some(MapType::Atomic);
        Node::One(match self.types.resolve_type(ty) {
            FieldType::Bool => Atom::Scalar(Scalar::Bool),
            FieldType::Int32 | FieldType::Int64 | FieldType::Float64 => {
                Atom::Scalar(Scalar::Number)
            }
            FieldType::String | FieldType::Bytes | FieldType::Duration => {
                Atom::Scalar(Scalar::String)
            }
            FieldType::Time
            | FieldType::MicroTime
            | FieldType::Quantity
            | FieldType::IntOrString => Atom::Scalar(Scalar::Any),
            FieldType::RawExtension => return Node::Untyped,
            FieldType::Any => return Node::Deduced,
            FieldType::List(item) => Atom::List(List {
                item: TypeRef::Type(item),
                kind: field.and_then(|f| f.list_type).unwrap_or(ListType::Atomic),
                keys: field.map_or(&[], |f| &*f.list_map_keys),
            }),
            FieldType::Map(item) => Atom::Map(MapShape {
                id: None,
                item: TypeRef::Type(item),
                atomic: field.is_some_and(atomic),
            }),
            FieldType::Named(id) => return self.named(*id, field),
        })
    }

    fn named(self, id: TypeId, field: Option<&'t Field>) -> Node<'t> {
        let def = self.types.get(id);
        if !matches!(def.body, TypeBody::Struct { .. }) {
            return Node::Deduced;
        }
        let declared = field.and_then(|f| f.struct_type.or(f.map_type));
        let extra = self.types.own_fields(id).iter().find_map(|f| match &f.ty {
            FieldType::Map(item) if f.inline => Some(TypeRef::Type(item)),
            _ => None,
        });
        Node::One(Atom::Map(MapShape {
            id: Some(id),
            item: extra.unwrap_or(TypeRef::None),
            atomic: match declared {
                Some(declared) => declared == MapType::Atomic,
                None => atomic::is_atomic(&def.name),
            },
        }))
    }

    /// How a value of a type is treated; without a value, or null, as the type prefers.
    pub(super) fn atom(self, ty: TypeRef<'t>, value: Option<&Value>) -> Atom<'t> {
        let (item, atomic) = match self.node(ty) {
            Node::One(atom) => return atom,
            Node::None => return Atom::None,
            Node::Deduced => (TypeRef::Deduced, false),
            Node::Untyped => (TypeRef::Untyped, true),
        };
        match value {
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Atom::Scalar(Scalar::Any),
            Some(Value::Array(_)) => Atom::List(List {
                item: TypeRef::Untyped,
                kind: ListType::Atomic,
                keys: &[],
            }),
            Some(Value::Object(_) | Value::Null) | None => Atom::Map(MapShape {
                id: None,
                item,
                atomic,
            }),
        }
    }

    /// The type of a field or entry.
    pub(super) fn entry(self, map: &MapShape<'t>, key: &str) -> TypeRef<'t> {
        match map.id.and_then(|id| self.types.field(id, key)) {
            Some(field) => TypeRef::Field(field),
            None => map.item,
        }
    }

    /// Whether a key is a declared field.
    pub(super) fn is_field(self, map: &MapShape<'t>, key: &str) -> bool {
        map.id.is_some_and(|id| self.types.field(id, key).is_some())
    }

    /// Whether a type declares a field.
    pub(super) fn declares(self, ty: TypeRef<'t>, name: &str) -> bool {
        match self.node(ty) {
            Node::One(Atom::Map(map)) => self.is_field(&map, name),
            _ => false,
        }
    }

    /// The type below a step, as far as the schema knows it.
    pub(super) fn child(self, ty: TypeRef<'t>, step: &PathElement) -> TypeRef<'t> {
        match (self.node(ty), step) {
            (Node::One(Atom::Map(map)), PathElement::Field(name)) => self.entry(&map, name),
            (Node::Deduced, PathElement::Field(_)) => TypeRef::Deduced,
            (Node::Untyped, _) => TypeRef::Untyped,
            (Node::One(Atom::List(list)), PathElement::Key(_)) => list.item,
            _ => TypeRef::None,
        }
    }

    /// The type below a step in whose reconciliation lists are entered by any step.
    fn below(self, ty: TypeRef<'t>, step: &PathElement) -> TypeRef<'t> {
        match self.node(ty) {
            Node::One(Atom::List(list)) => list.item,
            Node::One(Atom::Map(map)) => match step {
                PathElement::Field(name) => self.entry(&map, name),
                _ => map.item,
            },
            _ => TypeRef::None,
        }
    }

    /// The step by which an element of a list is told apart.
    ///
    /// # Errors
    /// When it is no element of such a list.
    pub(super) fn element(self, list: &List<'t>, value: &Value) -> Result<PathElement, String> {
        let because = |why: &str| Err(why.to_owned());
        match (list.kind, value) {
            (ListType::Atomic, _) => because("invalid indexing of non-associative list"),
            (ListType::Map, Value::Object(object)) => self.key(list, object),
            (ListType::Map, Value::Null) => {
                because("associative list with keys may not have a null element")
            }
            (ListType::Map, _) => {
                because("associative list with keys may not have non-map elements")
            }
            (ListType::Set, Value::Object(_)) => {
                because("associative list without keys has an element that's a map type")
            }
            (ListType::Set, Value::Array(_)) => {
                because("not supported: associative list with lists as elements")
            }
            (ListType::Set, Value::Null) => {
                because("associative list without keys has an element that's an explicit null")
            }
            (ListType::Set, value) => Ok(PathElement::Value(value.clone())),
        }
    }

    fn key(self, list: &List<'t>, object: &Map<String, Value>) -> Result<PathElement, String> {
        let mut fields = Vec::with_capacity(list.keys.len());
        for key in list.keys {
            let value = match object.get(&**key) {
                Some(value) => Some(value.clone()),
                None => self.key_default(list.item, key),
            };
            if let Some(value) = value {
                fields.push((key.to_string(), value));
            }
        }
        if fields.is_empty() && !list.keys.is_empty() {
            let keys: Vec<String> = list.keys.iter().map(|k| quote(k)).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and \
                 doesn't have default values for any key fields)",
                keys.join(" ")
            ));
        }
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(PathElement::Key(fields))
    }

    /// What stands for a key field that is not given: its default, or the empty value of a field
    /// that is always written.
    fn key_default(self, item: TypeRef<'t>, key: &str) -> Option<Value> {
        let Node::One(Atom::Map(MapShape { id: Some(id), .. })) = self.node(item) else {
            return None;
        };
        let field = self.types.field(id, key)?;
        match &field.default {
            Some(default) => Some(default.clone()),
            None if field.required && !field.nullable => zero_value(self.types, &field.ty),
            None => None,
        }
    }

    /// The paths of an object: its leaves, and the elements and entries on the way to them.
    pub fn fields(self, object: &Value) -> Set {
        let mut set = Set::default();
        self.collect(self.root(), object, &mut Vec::new(), &mut set);
        set
    }

    fn collect(self, ty: TypeRef<'t>, value: &Value, path: &mut Path, set: &mut Set) {
        match (self.atom(ty, Some(value)), value) {
            (Atom::Scalar(_), _) => set.insert(path),
            (Atom::List(list), _) if list.kind == ListType::Atomic => set.insert(path),
            (Atom::List(list), Value::Array(items)) => {
                let steps: Vec<Option<PathElement>> = items
                    .iter()
                    .map(|item| self.element(&list, item).ok())
                    .collect();
                let mut sorted: Vec<&PathElement> = steps.iter().flatten().collect();
                sorted.sort_unstable();
                let twice: BTreeSet<PathElement> = sorted
                    .windows(2)
                    .filter(|pair| pair[0] == pair[1])
                    .map(|pair| pair[0].clone())
                    .collect();
                for (item, step) in items.iter().zip(steps) {
                    let Some(step) = step else {
                        continue;
                    };
                    let repeated = twice.contains(&step);
                    path.push(step);
                    if !repeated {
                        self.collect(list.item, item, path, set);
                    }
                    set.insert(path);
                    path.pop();
                }
            }
            (Atom::Map(map), _) if map.atomic => set.insert(path),
            (Atom::Map(map), Value::Object(entries)) => {
                for (key, value) in entries {
                    path.push(PathElement::field(key));
                    self.collect(self.entry(&map, key), value, path, set);
                    let empty = match value {
                        Value::Null => true,
                        Value::Object(map) => map.is_empty(),
                        _ => false,
                    };
                    if empty || !self.is_field(&map, key) {
                        set.insert(path);
                    }
                    path.pop();
                }
            }
            _ => {}
        }
    }

    /// The set with the paths below values that have become one value replaced by the value's own;
    /// none if there are none.
    pub(super) fn reconcile(self, set: &Set) -> Option<Set> {
        if !self.has_atomic(self.root(), Some(set), false) {
            return None;
        }
        let mut changed = Set::default();
        self.find_atomic(self.root(), Some(set), false, &mut Vec::new(), &mut changed);
        (!changed.is_empty()).then(|| set.recursive_difference(&changed).union(&changed))
    }

    /// Whether a value on the way to a path of the set, or at its end, has become one value.
    fn is_one(self, ty: TypeRef<'t>, set: Option<&Set>) -> Option<bool> {
        match self.node(ty) {
            Node::One(Atom::Map(map)) => Some(map.atomic && set.is_some_and(|s| !s.is_empty())),
            Node::One(Atom::List(list)) => Some(list.kind == ListType::Atomic),
            Node::Untyped => Some(set.is_some_and(|s| !s.is_empty())),
            _ => None,
        }
    }

    /// Whether [`Schema::find_atomic`] would find something.
    fn has_atomic(self, ty: TypeRef<'t>, set: Option<&Set>, whole: bool) -> bool {
        let Some(atomic) = self.is_one(ty, set) else {
            return false;
        };
        if atomic && !whole {
            return true;
        }
        set.is_some_and(|set| {
            let below = |step| self.below(ty, step);
            let leaf = |step: &&PathElement| !set.children.contains_key(*step);
            let mut children = set.children.iter();
            let mut leaves = set.members.iter().filter(leaf);
            children.any(|(step, child)| self.has_atomic(below(step), Some(child), false))
                || leaves.any(|step| self.has_atomic(below(step), None, true))
        })
    }

    fn find_atomic(
        self,
        ty: TypeRef<'t>,
        set: Option<&Set>,
        whole: bool,
        path: &mut Path,
        changed: &mut Set,
    ) {
        let Some(atomic) = self.is_one(ty, set) else {
            return;
        };
        if atomic && !whole {
            changed.insert(path);
            return;
        }
        let Some(set) = set else {
            return;
        };
        let steps = set.children.keys().chain(
            set.members
                .iter()
                .filter(|step| !set.children.contains_key(*step)),
        );
        for step in steps {
            let below = self.below(ty, step);
            let child = set.children.get(step);
            let whole = set.members.contains(step) && child.is_none();
            path.push(step.clone());
            self.find_atomic(below, child, whole, path, changed);
            path.pop();
        }
    }
}
