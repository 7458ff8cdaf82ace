//! Selectors in the Common Expression Language: the variable `device`.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use davit_cel::{
    CostEstimate, DeclType, Env, Key, Library, Map, PatternRoom, Program, Type, Value, join_errors,
};

use crate::device::{Attribute, DeviceView};
use crate::selector::{CompileSelector, EvaluateSelector, Selectors};
use crate::support::Support;

/// How much evaluating a selector may cost.
pub const COST_LIMIT: u64 = 1_000_000;
/// Longest expression, in bytes.
pub const EXPRESSION_LIMIT: usize = 10 * 1024;

const MOST_VALUES: u64 = 32;
const LONGEST_DOMAIN: u64 = 63;
const LONGEST_ID: u64 = 32;
const LONGEST_VALUE: u64 = 64;

/// The environment of selectors.
fn environment(lists: bool) -> Env {
    let id = || DeclType::string(LONGEST_ID);
    let domain = || DeclType::string(LONGEST_DOMAIN);
    // whether an attribute is a list is known only when there are no lists
    let value = DeclType {
        max_elements: LONGEST_VALUE,
        ..DeclType::simple(if lists { Type::Dyn } else { Type::Any })
    };
    let quantity = DeclType::simple(Type::opaque("kubernetes.Quantity"));
    let nested = |of| DeclType::map(domain(), DeclType::map(id(), of, MOST_VALUES), MOST_VALUES);
    let device = DeclType::object(
        "kubernetes.DRADevice",
        [
            ("driver".into(), DeclType::string(LONGEST_DOMAIN)),
            ("attributes".into(), nested(value)),
            ("capacity".into(), nested(quantity)),
            (
                "allowMultipleAllocations".into(),
                DeclType {
                    max_elements: 1,
                    ..DeclType::scalar(Type::Bool, 1)
                },
            ),
        ],
    );
    let mut builder = Env::kubernetes().declare("device", device);
    if lists {
        builder = builder.library(Library::Includes);
    }
    builder.build()
}

/// What a selector that has been checked can cost. `room` is there for its regular expressions.
///
/// # Errors
/// What is wrong with the expression, as the API server says it.
pub fn check_selector(
    expression: &str,
    lists: bool,
    room: &PatternRoom,
) -> Result<CostEstimate, String> {
    Ok(Selector::compile_within(expression, lists, room)?.cost_estimate())
}

/// Compiles selectors with everything that is known, as the scheduler does with stored ones.
struct Compiler;

impl CompileSelector for Compiler {
    fn compile(&self, expression: &str) -> Result<Box<dyn EvaluateSelector>, String> {
        Ok(Box::new(Selector::compile(expression, true)?))
    }
}

/// A compiled selector.
#[derive(Debug)]
pub struct Selector(Program);

impl Selector {
    /// Compiles an expression; `lists` is whether attributes can be lists (DRAListTypeAttributes).
    ///
    /// # Errors
    /// What is wrong with the expression, as the API server says it.
    pub fn compile(expression: &str, lists: bool) -> Result<Self, String> {
        Self::compile_within(expression, lists, &PatternRoom::default())
    }

    fn compile_within(expression: &str, lists: bool, room: &PatternRoom) -> Result<Self, String> {
        static PLAIN: LazyLock<Env> = LazyLock::new(|| environment(false));
        static LISTS: LazyLock<Env> = LazyLock::new(|| environment(true));
        let program = if lists { &LISTS } else { &PLAIN }
            .compile_within(expression, room)
            .map_err(|errors| match errors.as_slice() {
                // no place in the source: found when the program was made
                [fault] if fault.line == 0 => fault.to_string(),
                faults => format!("compilation failed: {}", join_errors(faults)),
            })?;
        match program.output_type() {
            Type::Bool | Type::Any => Ok(Self(program)),
            Type::Dyn if lists => Ok(Self(program)),
            other => Err(format!(
                "must evaluate to bool or the unknown type, not {}",
                other.declared_name()
            )),
        }
    }

    /// What an evaluation can cost.
    pub fn cost_estimate(&self) -> CostEstimate {
        self.0.cost_estimate()
    }

    /// Whether the device is selected, and what it cost to find out.
    ///
    /// # Errors
    /// What is wrong with the device, or went wrong while evaluating.
    pub fn evaluate(&self, device: DeviceView<'_>) -> (Result<bool, String>, u64) {
        let device = match value(device) {
            Ok(device) => [("device", device)],
            Err(fault) => return (Err(fault), 0),
        };
        let (outcome, cost) = self.0.run(&device, COST_LIMIT);
        let outcome = match outcome {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(Value::Optional(Some(held))) if held.as_bool().is_some() => {
                Ok(held.as_bool() == Some(true))
            }
            Ok(other) => Err(format!(
                "CEL result of type {} could not be converted to bool",
                other.type_of()
            )),
            Err(error) => Err(hint(error.to_string())),
        };
        (outcome, cost)
    }
}

impl EvaluateSelector for Selector {
    fn matches(&self, device: DeviceView<'_>) -> Result<bool, String> {
        self.evaluate(device).0
    }

    fn support(&self) -> Support {
        Support::of_program(&self.0)
    }

    fn pattern_bytes(&self) -> usize {
        self.0.pattern_bytes()
    }
}

/// Says how to deal with attributes that not every device has.
fn hint(error: String) -> String {
    if error.contains("no such key") {
        format!(
            "{error}, consider using optional access (`.?`) or `has` for what not every device has"
        )
    } else {
        error
    }
}

impl Selectors {
    /// Selectors as Kubernetes evaluates them.
    pub fn kubernetes() -> Self {
        Self::new(Compiler)
    }
}

/// The device as a value, or which attribute has none.
fn value(device: DeviceView<'_>) -> Result<Value, String> {
    let mut attributes = Vec::with_capacity(device.attributes.iter().len());
    for (name, found) in device.attributes.iter() {
        let value = attribute(found).map_err(|fault| format!("attribute {name}: {fault}"))?;
        attributes.push((&**name, value));
    }
    let capacity = device.capacity.iter();
    let capacity = capacity.map(|(name, c)| (&**name, Value::Quantity(c.value)));
    let fields = [
        ("driver", Value::String(device.driver.into())),
        (
            "attributes",
            by_domain(device.driver, attributes.into_iter()),
        ),
        ("capacity", by_domain(device.driver, capacity)),
        ("allowMultipleAllocations", Value::Bool(device.shareable)),
    ];
    let entries = fields.map(|(name, value)| (Key::String(name.into()), value));
    Ok(Value::Map(Arc::new(Map {
        entries: entries.into_iter().collect(),
        object: Some("kubernetes.DRADevice".into()),
        fallback: None,
    })))
}

/// Values by domain and name; those without domain belong to the driver. A domain that is not there
/// reads as an empty map.
fn by_domain<'a>(driver: &'a str, values: impl Iterator<Item = (&'a str, Value)>) -> Value {
    let mut domains: BTreeMap<&str, BTreeMap<Key, Value>> = BTreeMap::new();
    for (name, value) in values {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        let of = domains.entry(domain).or_default();
        of.insert(Key::String(id.into()), value);
    }
    let map = |entries| {
        Value::Map(Arc::new(Map {
            entries,
            ..Map::default()
        }))
    };
    let domains = domains.into_iter();
    let entries = domains.map(|(domain, ids)| (Key::String(domain.into()), map(ids)));
    Value::Map(Arc::new(Map {
        entries: entries.collect(),
        object: None,
        fallback: Some(Value::Map(Arc::default())),
    }))
}

/// Whether an attribute has a value in expressions. If not, all fail on the device, whatever they read.
pub(crate) fn is_readable(found: &Attribute) -> bool {
    attribute(found).is_ok()
}

fn attribute(attribute: &Attribute) -> Result<Value, String> {
    let version = |text: &Arc<str>| match text.parse() {
        Ok(version) => Ok(Value::Semver(Arc::new(version))),
        Err(fault) => Err(format!("parse semantic version: {fault}")),
    };
    Ok(match attribute {
        Attribute::Bool(v) => Value::Bool(*v),
        Attribute::Int(v) => Value::Int(*v),
        Attribute::String(v) => Value::String(v.clone()),
        Attribute::Version(v) => version(v)?,
        Attribute::Bools(v) => Value::list(v.iter().map(|v| Value::Bool(*v)).collect()),
        Attribute::Ints(v) => Value::list(v.iter().map(|v| Value::Int(*v)).collect()),
        Attribute::Strings(v) => Value::list(v.iter().map(|v| Value::String(v.clone())).collect()),
        Attribute::Versions(v) => {
            let versions: Result<Vec<Value>, String> = v.iter().map(version).collect();
            Value::list(versions?)
        }
        Attribute::Unknown => return Err("unsupported attribute value".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::device::Slice;

    fn run(expression: &str) -> Result<bool, String> {
        let slice = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
            "driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "a", "attributes": {
                "model": {"string": "X"}, "other.com/fast": {"bool": true}, "n": {"int": 5},
                "firmware": {"version": "1.2.3"}, "links": {"strings": ["a", "b"]},
            }, "capacity": {"memory": {"value": "2Gi"}}}],
        }}))
        .unwrap();
        let slice = Slice::new(&slice, &[]).unwrap();
        let selectors = Selectors::kubernetes();
        let compiled = selectors.get(expression);
        if let Some(fault) = compiled.fault() {
            return Err(fault.to_string());
        }
        let outcome = selectors.matches(&compiled, "d", &slice.devices[0], &|| false);
        outcome.unwrap().map_err(|e: Arc<str>| e.to_string())
    }

    /// Checklist 43, 44, 45, 46, 47 (`bind`, sharing), 48 (`includes`).
    #[test]
    fn devices_in_expressions() {
        for (expression, expected) in [
            ("device.driver == \"d\"", true),
            ("device.driver == \"e\"", false),
            ("device.attributes[\"d\"].model == \"X\"", true),
            ("device.attributes[\"other.com\"].fast", true),
            ("device.attributes[\"d\"].n > 4", true),
            ("\"other.com\" in device.attributes", true),
            ("\"nowhere.com\" in device.attributes", false),
            (
                "device.attributes[\"nowhere.com\"].?x.orValue(false)",
                false,
            ),
            ("has(device.attributes[\"nowhere.com\"].x)", false),
            (
                "device.capacity[\"d\"].memory.compareTo(quantity(\"1Gi\")) >= 0",
                true,
            ),
            (
                "device.capacity[\"d\"].memory.isGreaterThan(quantity(\"4Gi\"))",
                false,
            ),
            (
                "device.attributes[\"d\"].firmware.isGreaterThan(semver(\"1.2.0\"))",
                true,
            ),
            (
                "cel.bind(a, device.attributes[\"d\"], a.n == 5 && a.model == \"X\")",
                true,
            ),
            ("device.allowMultipleAllocations", false),
            ("device.attributes[\"d\"].links.includes(\"b\")", true),
            ("device.attributes[\"d\"].model.includes(\"X\")", true),
        ] {
            assert_eq!(run(expression), Ok(expected), "{expression}");
        }
        let error = run("device.attributes[\"nowhere.com\"].x").unwrap_err();
        assert!(error.starts_with("no such key: x"), "{error}");
        assert!(run("device.attributes[\"d\"].model").is_err());
        assert!(check_selector("device.driver", false, &PatternRoom::default()).is_err());
        assert!(check_selector("device.driver == ", false, &PatternRoom::default()).is_err());
        assert!(
            check_selector(
                "device.attributes[\"d\"].a.includes(1)",
                false,
                &PatternRoom::default()
            )
            .is_err()
        );
    }

    /// Checklist 50.
    #[test]
    fn evaluation_is_bounded() {
        let nested = "[1,2,3,4,5,6,7,8,9,10]";
        let mut expression = "true".to_owned();
        for i in 0..7 {
            expression = format!("{nested}.all(x{i}, {expression})");
        }
        let error = run(&expression).unwrap_err();
        assert!(error.contains("actual cost limit exceeded"), "{error}");
    }

    /// Reference costs of the original.
    #[test]
    fn estimates() {
        for (expression, cost) in [
            ("device.driver == \"name\"", 4),
            ("device.attributes[\"d\"].ready", 4),
            ("device.attributes[\"d\"].n > 0", 5),
        ] {
            let estimate = check_selector(expression, false, &PatternRoom::default()).unwrap();
            assert!(
                (3..=cost).contains(&estimate.max),
                "{expression}: {estimate:?}"
            );
        }
    }
}
