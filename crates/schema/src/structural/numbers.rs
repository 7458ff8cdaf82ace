//! Numbers as Go's decoder leaves them: whole ones are integers however they were spelled.

use serde_json::Value;

/// Whole numbers within 64 bits become integers, everywhere in a value: `1.0` is written as `1`
/// from then on, as the original writes it.
pub fn canonical(mut value: Value) -> Value {
    walk(&mut value);
    value
}

fn walk(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(whole) {
                *value = Value::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(walk),
        Value::Object(map) => map.values_mut().for_each(walk),
        _ => {}
    }
}

/// The integer a floating number is, if it is one that floating numbers hold exactly.
pub(super) fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}
