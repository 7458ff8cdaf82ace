//! Objects that are nearly right: values made from the kinds table, and changes of every kind at one place.

use davit_api::kinds::{Field, FieldType, Opaque, TypeBody, TypeId, builtin};
use serde_json::{Map, Value, json};

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

const WORDS: [&str; 40] = [
    "",
    "a",
    "b",
    "A_b",
    "UPPER",
    "a.example.com",
    "a.example.com/b",
    "a/b/c",
    "-a",
    "a b",
    "ü",
    ".",
    "..",
    "10.0.0.1",
    "010.0.0.1",
    "::1",
    "2001:db8::1",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "/path",
    "../x",
    "http",
    "v1",
    "example.com/v1",
    "None",
    "Always",
    "Retain",
    "Delete",
    "*",
    "$(X)",
    "self.x > 1",
    "object.spec.x == 1",
    "1Gi",
    "100m",
    "-1",
    "0",
    "2024-01-01T00:00:00Z",
    "Europe/Berlin",
    "kubernetes.io/x",
    "system:x",
];
const NUMBERS: [i64; 14] = [
    0,
    1,
    -1,
    2,
    10,
    100,
    101,
    65535,
    65536,
    86401,
    2_147_483_647,
    2_147_483_648,
    -2_147_483_649,
    9_007_199_254_740_993,
];
const QUANTITIES: [&str; 10] = [
    "0",
    "1",
    "-1",
    "1500m",
    "0.5",
    "1e3",
    "1Ei",
    "abc",
    "",
    "1.0000000001",
];
/// Deeper than this nothing optional is made.
const DEEP: usize = 5;

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        usize::try_from(z % below.max(1) as u64).unwrap_or(0)
    }

    pub(crate) fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())].clone()
    }

    fn word(&mut self) -> Value {
        match self.roll(12) {
            0 => json!("a".repeat(64)),
            1 => json!("a".repeat(254)),
            _ => json!(self.pick(&WORDS)),
        }
    }

    /// A value of a type, mostly a valid one.
    fn value(&mut self, ty: &FieldType, depth: usize) -> Value {
        let types = &builtin().types;
        if let FieldType::Named(id) = ty
            && let TypeBody::Alias { values, .. } = &types.get(*id).body
            && !values.is_empty()
            && !self.one_in(8)
        {
            return json!(self.pick(values).as_str());
        }
        match types.resolve_type(ty) {
            FieldType::Bool => json!(self.one_in(2)),
            FieldType::Int32 | FieldType::Int64 => json!(self.pick(&NUMBERS)),
            FieldType::Float64 => json!(0.5),
            FieldType::String => self.word(),
            FieldType::Bytes => json!(self.pick(&["YQ==", "", "?", "YQ"])),
            FieldType::Time => json!(self.pick(&["2024-02-29T23:59:59Z", "2024-02-30", ""])),
            FieldType::MicroTime => json!("2024-02-29T23:59:59.000001Z"),
            FieldType::Duration => json!(self.pick(&["1h0m0s", "-1s", "0s", "x"])),
            FieldType::Quantity => json!(self.pick(&QUANTITIES)),
            FieldType::IntOrString => self.pick(&[json!(7), json!("25%"), json!(-1), json!("x")]),
            FieldType::RawExtension | FieldType::Any => json!({"apiVersion": "x/v1", "kind": "X"}),
            FieldType::List(item) => (0..self.roll(3)).map(|_| self.value(item, depth)).collect(),
            FieldType::Map(item) => {
                let entries =
                    (0..self.roll(3)).map(|at| (format!("k{at}"), self.value(item, depth)));
                entries.collect::<Map<_, _>>().into()
            }
            FieldType::Named(id) => match &types.get(*id).body {
                TypeBody::Opaque(Opaque::Any | Opaque::Object) => json!({"a": "b"}),
                TypeBody::Opaque(Opaque::SchemaOrBool) => json!(true),
                TypeBody::Opaque(_) => json!({"type": "object"}),
                _ => self.object(*id, depth),
            },
        }
    }

    fn object(&mut self, id: TypeId, depth: usize) -> Value {
        let mut out = Map::new();
        for field in builtin().types.fields(id) {
            let given = field.required || (depth < DEEP && self.one_in(4));
            if given && !["apiVersion", "kind"].contains(&field.name.as_str()) {
                out.insert(field.name.to_string(), self.value(&field.ty, depth + 1));
            }
        }
        Value::Object(out)
    }

    fn of_another_type(&mut self) -> Value {
        let values = [
            json!(null),
            json!(1),
            json!("x"),
            json!(true),
            json!([1]),
            json!({"a": 1}),
        ];
        self.pick(&values)
    }

    /// Changes an object at one place.
    pub(crate) fn change(&mut self, value: &mut Value, ty: &FieldType) {
        let types = &builtin().types;
        if self.one_in(24) {
            *value = self.of_another_type();
            return;
        }
        match (types.resolve_type(ty), &mut *value) {
            (FieldType::Named(id), Value::Object(map)) if types.fields(*id).next().is_some() => {
                let fields: Vec<&Field> = types.fields(*id).collect();
                self.change_field(map, &fields);
            }
            (FieldType::Map(item), Value::Object(map)) => self.change_entry(map, item),
            (FieldType::List(item), Value::Array(list)) => self.change_list(list, item),
            (_, Value::Object(map)) if !map.is_empty() => self.change_free(map),
            (_, Value::String(text)) if self.one_in(6) => text.push_str("-x"),
            _ => *value = self.value(ty, 0),
        }
    }

    fn change_field(&mut self, map: &mut Map<String, Value>, fields: &[&Field]) {
        if self.one_in(16) {
            map.insert("unknown".to_owned(), json!("x"));
            return;
        }
        let there: Vec<&&Field> = fields
            .iter()
            .filter(|f| map.contains_key(f.name.as_str()))
            .collect();
        let field = match there.is_empty() || self.one_in(3) {
            true => self.pick(fields),
            false => *self.pick(&there),
        };
        if ["apiVersion", "kind", "name"].contains(&field.name.as_str()) && !self.one_in(8) {
            return self.change_again(map, fields);
        }
        match map.get_mut(field.name.as_str()) {
            Some(_) if self.one_in(6) => {
                map.remove(field.name.as_str());
            }
            Some(value) => self.change(value, &field.ty),
            None => {
                map.insert(field.name.to_string(), self.value(&field.ty, 2));
            }
        }
    }

    fn change_again(&mut self, map: &mut Map<String, Value>, fields: &[&Field]) {
        let field = self.pick(fields);
        map.insert(field.name.to_string(), self.value(&field.ty, 2));
    }

    fn change_entry(&mut self, map: &mut Map<String, Value>, item: &FieldType) {
        let key = map.keys().nth(self.roll(map.len())).cloned();
        match (self.roll(4), key) {
            (0, Some(key)) => {
                map.remove(&key);
            }
            (1 | 2, Some(key)) => self.change(&mut map[&key], item),
            _ => {
                let key = self.word().as_str().unwrap_or_default().to_owned();
                map.insert(key, self.value(item, 1));
            }
        }
    }

    fn change_list(&mut self, list: &mut Vec<Value>, item: &FieldType) {
        let at = self.roll(list.len());
        match self.roll(8) {
            0 => list.clear(),
            1 if !list.is_empty() => list.push(list[at].clone()),
            2 => list.push(self.value(item, 1)),
            3 if !list.is_empty() => {
                list.remove(at);
            }
            _ if !list.is_empty() => self.change(&mut list[at], item),
            _ => list.push(self.value(item, 1)),
        }
    }

    /// Changes JSON of which no type says what it is.
    pub(crate) fn change_free(&mut self, map: &mut Map<String, Value>) {
        let key = map.keys().nth(self.roll(map.len())).cloned();
        let Some(key) = key.filter(|_| !self.one_in(10)) else {
            map.insert("unknown".to_owned(), self.of_another_type());
            return;
        };
        match &mut map[&key] {
            _ if self.one_in(8) => {
                map.remove(&key);
            }
            Value::Object(inner) if !inner.is_empty() => self.change_free(inner),
            Value::Array(list) if !list.is_empty() && !self.one_in(4) => {
                let at = self.roll(list.len());
                match &mut list[at] {
                    Value::Object(inner) if self.one_in(2) => self.change_free(inner),
                    element if self.one_in(3) => *element = self.of_another_type(),
                    element => {
                        let again = element.clone();
                        list.push(again);
                    }
                }
            }
            Value::Number(_) if !self.one_in(4) => map[&key] = json!(self.pick(&NUMBERS)),
            Value::String(_) if !self.one_in(4) => map[&key] = self.word(),
            value => *value = self.of_another_type(),
        }
    }
}
