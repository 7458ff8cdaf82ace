//! Columns of tables of custom kinds.

use davit_schema::jsonpath::{JsonPath, Looks};
use davit_schema::table::human_duration;
use serde_json::{Value, json};

/// One column.
#[derive(Debug)]
struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Option<JsonPath>,
}

/// The columns after the name.
#[derive(Debug)]
pub struct Columns(Vec<Column>);

impl Columns {
    /// Reads `additionalPrinterColumns`; without any there is the age.
    pub(crate) fn new(list: &Value) -> Self {
        let columns: Vec<Column> = list
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| {
                let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
                let path = text("jsonPath");
                let description = match text("description") {
                    text if text.is_empty() => {
                        format!("Custom resource definition column (in JSONPath format): {path}")
                    }
                    text => text,
                };
                Column {
                    name: text("name"),
                    kind: text("type"),
                    format: text("format"),
                    description,
                    priority: value["priority"].as_i64().unwrap_or(0),
                    path: JsonPath::parse(&path).ok(),
                }
            })
            .collect();
        if columns.is_empty() {
            return Self(vec![Column {
                name: "Age".to_owned(),
                kind: "date".to_owned(),
                format: String::new(),
                description: "Time since the object was created".to_owned(),
                priority: 0,
                path: JsonPath::parse(".metadata.creationTimestamp").ok(),
            }]);
        }
        Self(columns)
    }

    /// `columnDefinitions`.
    pub fn definitions(&self) -> Vec<Value> {
        let name = json!({
            "name": "Name", "type": "string", "format": "name",
            "description": "Name of the object, unique within its namespace", "priority": 0,
        });
        let own = self.0.iter().map(|column| {
            json!({
                "name": column.name, "type": column.kind, "format": column.format,
                "description": column.description, "priority": column.priority,
            })
        });
        std::iter::once(name).chain(own).collect()
    }

    /// The cells of an object.
    pub fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let mut looks = Looks::of_a_row();
        let own = self.0.iter().map(|column| {
            let path = column.path.as_ref();
            let found = path.and_then(|path| path.find(object, &mut looks).into_iter().next());
            found.map_or(Value::Null, |value| cell(&column.kind, value, now))
        });
        std::iter::once(Value::from(crate::object::name(object)))
            .chain(own)
            .collect()
    }
}

fn cell(kind: &str, value: &Value, now: jiff::Timestamp) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("string", other) => Value::from(other.to_string()),
        ("integer", Value::Number(number)) => number.as_i64().map_or_else(
            // as an integer, the fraction is cut off
            || Value::from(number.as_f64().unwrap_or(0.0) as i64),
            Value::from,
        ),
        ("number", Value::Number(_)) => value.clone(),
        ("date", Value::String(text)) => match davit_api::time::parse(text) {
            Ok(at) => Value::from(human_duration(now.as_second() - at.as_second())),
            Err(_) => Value::from("<invalid>"),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_158_cells_follow_the_type_of_their_column() {
        let columns = Columns::new(&json!([
            {"name": "S", "type": "string", "jsonPath": ".s"},
            {"name": "I", "type": "integer", "jsonPath": ".i", "priority": 1},
            {"name": "D", "type": "date", "jsonPath": ".d"},
            {"name": "M", "type": "string", "jsonPath": ".missing"},
            {"name": "L", "type": "string", "jsonPath": ".l"},
            {"name": "W", "type": "integer", "jsonPath": ".s"},
        ]));
        let now: jiff::Timestamp = "2024-01-01T00:10:00Z".parse().unwrap();
        let object = json!({"metadata": {"name": "n"}, "s": "x", "i": 3.7,
            "d": "2024-01-01T00:00:00Z", "l": ["a", 1]});
        assert_eq!(
            columns.cells(&object, now),
            [
                json!("n"),
                json!("x"),
                json!(3),
                json!("10m"),
                Value::Null,
                json!("[\"a\",1]"),
                Value::Null
            ]
        );
        assert_eq!(columns.definitions()[2]["priority"], 1);
        let usual = Columns::new(&Value::Null).definitions();
        assert_eq!(usual.len(), 2);
        assert_eq!(usual[1]["type"], "date");
    }
}
