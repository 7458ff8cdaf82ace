//! How many values JSON has, before room is made for them: a value of two bytes takes up to some hundred when it is read.

/// Counts the values of JSON that comes in pieces. What is no JSON has a count, too.
#[derive(Debug, Clone, Default)]
pub struct JsonValues {
    count: usize,
    in_string: bool,
    is_escaped: bool,
}

impl JsonValues {
    /// The values of a whole text, at most: names of members count, too.
    pub fn of(text: &[u8]) -> usize {
        let mut values = Self::default();
        values.read(text);
        values.count()
    }

    /// Goes on with the next piece.
    pub fn read(&mut self, piece: &[u8]) {
        for byte in piece {
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                // What begins after each of them is one.
                b'{' | b'[' | b',' | b':' => self.count += 1,
                _ => {}
            }
        }
    }

    /// As many as there are so far, at most.
    pub fn count(&self) -> usize {
        self.count + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn values(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(values).sum(),
            Value::Object(members) => members.values().map(|v| 1 + values(v)).sum(),
            _ => 0,
        }
    }

    #[test]
    fn what_stands_in_strings_is_no_value() {
        assert_eq!(JsonValues::of(br#""a,b:[{""#), 1);
        assert_eq!(JsonValues::of(br#"["\",", 1]"#), 3);
        assert_eq!(JsonValues::of(b"[0,0,0]"), 4);
        assert_eq!(JsonValues::of(br#"{"\\":0}"#), 3);
    }

    proptest! {
        #[test]
        fn no_value_is_missed_wherever_pieces_end(texts in prop::collection::vec("[a,:\\[{\"\\\\]{0,6}", 0..6), at in 0_usize..200) {
            let inner: Vec<Value> = texts.iter().map(|t| json!({ t.as_str(): [t, {}, []] })).collect();
            let value = json!({ "all": inner, "n": 1 });
            let text = value.to_string();
            let (a, b) = text.as_bytes().split_at(at.min(text.len()));
            let mut counted = JsonValues::default();
            counted.read(a);
            counted.read(b);
            prop_assert!(counted.count() >= values(&value));
            prop_assert_eq!(counted.count(), JsonValues::of(text.as_bytes()));
            prop_assert!(counted.count() <= 2 * values(&value));
        }
    }
}
