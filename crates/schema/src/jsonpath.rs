//! JSONPath as kubectl and printer columns use it
//! (<https://kubernetes.io/docs/reference/kubectl/jsonpath/>), without templates around it: fields,
//! indexes, slices, unions, wildcards, recursive descent and filters.

use serde_json::Value;

/// How many filters may stand in one another.
const DEPTH: usize = 16;

/// How many values may still be looked at: each `..` or `*` of a path takes all that the one before it has found.
#[derive(Debug)]
pub struct Looks(usize);

impl Looks {
    /// For all columns of one object.
    #[must_use]
    pub fn of_a_row() -> Self {
        Self(100_000)
    }

    fn spend(&mut self, count: usize) -> Option<()> {
        let left = self.0.checked_sub(count);
        self.0 = left.unwrap_or_default();
        left.map(|_| ())
    }
}

/// A path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

/// Why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSONPath {path}: {why}")]
pub struct JsonPathError {
    path: String,
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// Every element or value.
    All,
    /// The value itself and everything below it.
    Descend,
    /// `[a:b:c]`, and `[i]` as the slice of one.
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
        single: bool,
    },
    Union(Vec<Step>),
    Filter {
        left: Operand,
        operator: Operator,
        right: Operand,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(JsonPath),
    Constant(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl JsonPath {
    /// Reads a path such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// When the text is no path.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        Self::parse_at(text, 0).map_err(|why| JsonPathError {
            path: text.to_owned(),
            why,
        })
    }

    /// A path that stands in so many filters.
    fn parse_at(text: &str, depth: usize) -> Result<Self, &'static str> {
        if depth > DEPTH {
            return Err("too many filters in one another");
        }
        let inner = text.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            .unwrap_or(inner);
        let mut steps = Vec::new();
        let mut rest = inner.strip_prefix(['$', '@']).unwrap_or(inner);
        while !rest.is_empty() {
            rest = step(rest, &mut steps, depth)?;
        }
        Ok(Self(steps))
    }

    /// The values at the path; none when something on the way is missing, or too much was looked at.
    pub fn find<'a>(&self, value: &'a Value, looks: &mut Looks) -> Vec<&'a Value> {
        self.follow(value, looks).unwrap_or_default()
    }

    fn follow<'a>(&self, value: &'a Value, looks: &mut Looks) -> Option<Vec<&'a Value>> {
        let mut found = vec![value];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                step.apply(value, &mut next, looks)?;
            }
            found = next;
        }
        Some(found)
    }
}

fn step<'t>(text: &'t str, steps: &mut Vec<Step>, depth: usize) -> Result<&'t str, &'static str> {
    if let Some(rest) = text.strip_prefix("..") {
        steps.push(Step::Descend);
        return if rest.starts_with('[') {
            Ok(rest)
        } else {
            field(rest, steps)
        };
    }
    if let Some(rest) = text.strip_prefix('.') {
        // a lone dot is the value itself, and a bracket may follow a dot
        return if rest.is_empty() || rest.starts_with('[') {
            Ok(rest)
        } else {
            field(rest, steps)
        };
    }
    if let Some(rest) = text.strip_prefix('[') {
        let end = closing(rest).ok_or("unterminated array")?;
        steps.push(bracket(rest[..end].trim(), depth)?);
        return Ok(&rest[end + 1..]);
    }
    field(text, steps)
}

/// A field name; a backslash makes the next character part of it.
fn field<'t>(text: &'t str, steps: &mut Vec<Step>) -> Result<&'t str, &'static str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => {
                end = at;
                break;
            }
            ' ' | '{' | '}' | '"' | '\'' | ']' | '(' | ')' => return Err("unexpected character"),
            c => name.push(c),
        }
    }
    if name.is_empty() {
        return Err("empty field name");
    }
    steps.push(if name == "*" {
        Step::All
    } else {
        Step::Field(name)
    });
    Ok(&text[end..])
}

/// Where the bracket closes that stands before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str, depth: usize) -> Result<Step, &'static str> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(inner) = text
        .strip_prefix("?(")
        .and_then(|inner| inner.strip_suffix(')'))
    {
        return filter(inner.trim(), depth);
    }
    if let Some(name) = quoted(text) {
        return Ok(Step::Field(name));
    }
    if text.contains(',') {
        let parts = text.split(',').map(|part| bracket(part.trim(), depth));
        return parts.collect::<Result<_, _>>().map(Step::Union);
    }
    let number = |text: &str| -> Result<Option<i64>, &'static str> {
        match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| "invalid array index"),
        }
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [index] => {
            let start = number(index)?.ok_or("empty array index")?;
            Ok(Step::Slice {
                start: Some(start),
                end: None,
                step: 1,
                single: true,
            })
        }
        [start, end] | [start, end, ""] => Ok(Step::Slice {
            start: number(start)?,
            end: number(end)?,
            step: 1,
            single: false,
        }),
        [start, end, step] => match number(step)? {
            Some(step) if step > 0 => Ok(Step::Slice {
                start: number(start)?,
                end: number(end)?,
                step,
                single: false,
            }),
            _ => Err("step must be > 0"),
        },
        _ => Err("invalid array index"),
    }
}

fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = text.get(1..)?.strip_suffix(quote)?;
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c if c == quote => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

fn filter(text: &str, depth: usize) -> Result<Step, &'static str> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessEqual),
        (">=", Operator::GreaterEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, _) => {
                let rest = &text[at..];
                if let Some((word, operator)) =
                    OPERATORS.iter().find(|(word, _)| rest.starts_with(word))
                {
                    return Ok(Step::Filter {
                        left: operand(text[..at].trim(), depth)?,
                        operator: *operator,
                        right: operand(rest[word.len()..].trim(), depth)?,
                    });
                }
            }
            _ => {}
        }
    }
    Ok(Step::Filter {
        left: operand(text, depth)?,
        operator: Operator::Exists,
        right: Operand::Constant(Value::Null),
    })
}

fn operand(text: &str, depth: usize) -> Result<Operand, &'static str> {
    if let Some(text) = quoted(text) {
        return Ok(Operand::Constant(Value::from(text)));
    }
    if text.starts_with(['@', '$', '.']) {
        return JsonPath::parse_at(text, depth + 1).map(Operand::Path);
    }
    serde_json::from_str(text)
        .map(Operand::Constant)
        .map_err(|_| "unrecognized operand")
}

impl Operand {
    fn value<'v>(&'v self, item: &'v Value, looks: &mut Looks) -> Option<&'v Value> {
        match self {
            Operand::Constant(value) => Some(value),
            Operand::Path(path) => path.find(item, looks).into_iter().next(),
        }
    }
}

impl Step {
    fn apply<'a>(
        &self,
        value: &'a Value,
        out: &mut Vec<&'a Value>,
        looks: &mut Looks,
    ) -> Option<()> {
        let before = out.len();
        match self {
            Step::Field(name) => out.extend(value.get(name)),
            Step::All => match value {
                Value::Array(items) => out.extend(items),
                Value::Object(map) => out.extend(map.values()),
                _ => {}
            },
            Step::Descend => descend(value, out),
            Step::Slice {
                start,
                end,
                step,
                single,
            } => {
                if let Value::Array(items) = value {
                    let (start, end) = range(items.len(), *start, *end, *single);
                    let step = usize::try_from(*step).unwrap_or(usize::MAX);
                    out.extend(items.iter().take(end).skip(start).step_by(step));
                }
            }
            Step::Union(steps) => {
                for step in steps {
                    step.apply(value, out, looks)?;
                }
            }
            Step::Filter {
                left,
                operator,
                right,
            } => {
                if let Value::Array(items) = value {
                    looks.spend(items.len())?;
                    let keeps = |item: &&Value| holds(left, *operator, right, item, looks);
                    out.extend(items.iter().filter(keeps));
                }
            }
        }
        looks.spend(1 + out.len() - before)
    }
}

/// Which of so many elements a slice means: from the first to before the second. Those before the beginning are none.
fn range(length: usize, start: Option<i64>, end: Option<i64>, single: bool) -> (usize, usize) {
    let place = |at: i64| match usize::try_from(at) {
        Ok(at) => Some(at),
        Err(_) => length.checked_sub(usize::try_from(at.unsigned_abs()).ok()?),
    };
    let Some(start) = place(start.unwrap_or(0)) else {
        return (0, 0);
    };
    let end = match end {
        _ if single => start.saturating_add(1),
        Some(end) => place(end).unwrap_or(0),
        None => length,
    };
    (start, end)
}

fn descend<'a>(value: &'a Value, out: &mut Vec<&'a Value>) {
    out.push(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| descend(item, out)),
        Value::Object(map) => map.values().for_each(|item| descend(item, out)),
        _ => {}
    }
}

fn holds(
    left: &Operand,
    operator: Operator,
    right: &Operand,
    item: &Value,
    looks: &mut Looks,
) -> bool {
    let Some(left) = left.value(item, looks) else {
        return false;
    };
    if operator == Operator::Exists {
        return true;
    }
    let Some(right) = right.value(item, looks) else {
        return false;
    };
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().and_then(|a| a.partial_cmp(&b.as_f64()?))
        }
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(order) = order else {
        return operator == Operator::NotEqual;
    };
    match operator {
        Operator::Exists => true,
        Operator::Equal => order.is_eq(),
        Operator::NotEqual => order.is_ne(),
        Operator::Less => order.is_lt(),
        Operator::LessEqual => order.is_le(),
        Operator::Greater => order.is_gt(),
        Operator::GreaterEqual => order.is_ge(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn find(path: &str, value: &Value) -> Value {
        let found = JsonPath::parse(path).unwrap();
        json!(found.find(value, &mut Looks::of_a_row()))
    }

    #[test]
    fn paths_of_columns() {
        let object = json!({"spec": {"color": "blue", "list": [1, 2, 3, 4], "a.b/c": 5},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "n": 3}]}});
        assert_eq!(find(".spec.color", &object), json!(["blue"]));
        assert_eq!(find("{.spec.list[1:3]}", &object), json!([2, 3]));
        assert_eq!(find(".spec.list[-1]", &object), json!([4]));
        assert_eq!(find(".spec.list[0,2]", &object), json!([1, 3]));
        assert_eq!(find(".spec.list[*]", &object), json!([1, 2, 3, 4]));
        assert_eq!(find(".spec['a.b/c']", &object), json!([5]));
        assert_eq!(find(r".spec.a\.b/c", &object), json!([5]));
        let ready = r#".status.conditions[?(@.type=="Ready")].status"#;
        assert_eq!(find(ready, &object), json!(["True"]));
        assert_eq!(
            find(".status.conditions[?(@.n > 2)].type", &object),
            json!(["X"])
        );
        assert_eq!(find("..type", &object), json!(["Ready", "X"]));
        assert_eq!(find(".missing.more", &object), json!([]));
        assert!(JsonPath::parse(".a[").is_err());
    }

    #[test]
    fn what_leads_far_finds_nothing() {
        let nested = |depth| format!(".a{}{}", "[?(@".repeat(depth), ")]".repeat(depth));
        assert!(JsonPath::parse(&nested(DEPTH)).is_ok());
        assert!(JsonPath::parse(&nested(DEPTH + 1)).is_err());
        assert!(JsonPath::parse(&nested(100_000)).is_err());

        let list = json!({"list": [1, 2, 3]});
        for (path, wanted) in [
            (".list[-9223372036854775808:]", json!([])),
            (".list[9223372036854775807]", json!([])),
            (".list[-4]", json!([])),
            (".list[-3:]", json!([1, 2, 3])),
            (".list[:-1]", json!([1, 2])),
            (".list[:-9223372036854775808]", json!([])),
            (
                ".list[0:9223372036854775807:9223372036854775807]",
                json!([1]),
            ),
        ] {
            assert_eq!(find(path, &list), wanted, "{path}");
        }

        let chain = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert_eq!(find("..a..a", &chain).as_array().map(Vec::len), Some(4950));
        assert_eq!(find("..a..a..a..a..a..a", &chain), json!([]));
        let many = json!({ "list": vec![json!([[1], 2]); 1000] });
        let union = format!(".list[{}*]", "*,".repeat(1000));
        assert_eq!(find(&union, &many), json!([]));
        let filters = ".list[?(@[?(@..[?(@)])])]";
        assert_eq!(
            find(filters, &json!({ "list": vec![many; 1000] })),
            json!([])
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[.a\\[\\]*?()@=\"':,0-9\\\\-]{0,16}") {
            if let Ok(path) = JsonPath::parse(&text) {
                let value = json!({"a": [{"a": 1}, [2]]});
                let _ = path.find(&value, &mut Looks::of_a_row());
            }
        }
    }
}
