//! Selectors: whether they compile, what they can cost, what they did cost, what they say.

use davit_allocator::{Selector, Slice};
use serde_json::{Value, json};

use crate::oracle::ask;
use crate::seeded::{Seeded, range};

/// Types of expressions that are made.
#[derive(Clone, Copy)]
enum Of {
    Bool,
    Int,
    Text,
    Double,
    Ints,
    Texts,
    Quantity,
    Version,
    Optional,
    /// An attribute or something that hides its type.
    Dynamic,
}

struct Maker<'a> {
    random: &'a mut Seeded,
    lists: bool,
    /// Names of variables of comprehensions, with their types.
    variables: Vec<(String, Of)>,
}

impl Maker<'_> {
    fn any(&mut self, depth: usize) -> String {
        let of = [
            Of::Bool,
            Of::Int,
            Of::Text,
            Of::Double,
            Of::Ints,
            Of::Texts,
            Of::Quantity,
            Of::Version,
            Of::Optional,
            Of::Dynamic,
        ];
        let of = of[self.random.below(of.len())];
        self.make(of, depth)
    }

    fn make(&mut self, of: Of, depth: usize) -> String {
        // now and then a mistake
        if self.random.percent(2) {
            return self.any(depth.saturating_sub(1));
        }
        if let Some(variable) = self.variable(of) {
            return variable;
        }
        match of {
            Of::Bool => self.truth(depth),
            Of::Int => self.number(depth),
            Of::Text => self.text(depth),
            Of::Double => self.double(depth),
            Of::Ints => self.ints(depth),
            Of::Texts => self.texts(depth),
            Of::Quantity => self.quantity(depth),
            Of::Version => self.version(depth),
            Of::Optional => self.optional(depth),
            Of::Dynamic => self.dynamic(depth),
        }
    }

    fn variable(&mut self, of: Of) -> Option<String> {
        let fitting: Vec<&String> = self
            .variables
            .iter()
            .filter(|(_, other)| std::mem::discriminant(other) == std::mem::discriminant(&of))
            .map(|(name, _)| name)
            .collect();
        if fitting.is_empty() || !self.random.percent(40) {
            return None;
        }
        Some(fitting[self.random.below(fitting.len())].clone())
    }

    fn domain(&mut self) -> &'static str {
        self.random.pick(&["d", "d", "d", "other.com", "no.com"])
    }

    fn dynamic(&mut self, depth: usize) -> String {
        let name = self.random.pick(&[
            "text", "number", "flag", "version", "bad", "nope", "texts", "numbers",
        ]);
        let domain = self.domain();
        match self.random.below(if depth == 0 { 4 } else { 6 }) {
            0..=2 => format!("device.attributes[\"{domain}\"].{name}"),
            3 => format!("device.attributes[\"{domain}\"][\"{name}\"]"),
            4 => format!("dyn({})", self.any(depth - 1)),
            _ => format!("cel.bind(a, device.attributes[\"{domain}\"], a.{name})"),
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .random
                .pick(&[
                    "true",
                    "false",
                    "device.allowMultipleAllocations",
                    "device.driver == \"d\"",
                ])
                .to_owned();
        }
        let d = depth - 1;
        let domain = self.domain();
        match self.random.below(24) {
            0 => format!("({} && {})", self.make(Of::Bool, d), self.make(Of::Bool, d)),
            1 => format!("({} || {})", self.make(Of::Bool, d), self.make(Of::Bool, d)),
            2 => format!("!{}", self.make(Of::Bool, d)),
            3 => {
                let relation = self.random.pick(&["==", "!=", "<", "<=", ">", ">="]);
                format!(
                    "{} {relation} {}",
                    self.make(Of::Int, d),
                    self.make(Of::Int, d)
                )
            }
            4 => {
                let relation = self.random.pick(&["==", "!=", "<", ">="]);
                format!(
                    "{} {relation} {}",
                    self.make(Of::Text, d),
                    self.make(Of::Text, d)
                )
            }
            5 => {
                let relation = self.random.pick(&["==", "!=", "<"]);
                format!("{} {relation} {}", self.make(Of::Dynamic, d), self.any(d))
            }
            6 => {
                let relation = self.random.pick(&["==", "!="]);
                format!("{} {relation} {}", self.any(d), self.make(Of::Dynamic, d))
            }
            7 => format!("{} in {}", self.make(Of::Int, d), self.make(Of::Ints, d)),
            8 => format!("{} in {}", self.make(Of::Text, d), self.make(Of::Texts, d)),
            9 => format!(
                "{} in {}",
                self.make(Of::Dynamic, d),
                self.make(Of::Texts, d)
            ),
            10 => format!("\"{domain}\" in device.attributes"),
            11 => format!("has(device.attributes[\"{domain}\"].text)"),
            12 => format!(
                "has(device.attributes.{})",
                self.random.pick(&["d", "nope"])
            ),
            13 => {
                let method = self.random.pick(&["isGreaterThan", "isLessThan"]);
                format!(
                    "{}.{method}({})",
                    self.make(Of::Quantity, d),
                    self.make(Of::Quantity, d)
                )
            }
            14 => {
                let method = self.random.pick(&["isGreaterThan", "isLessThan"]);
                format!(
                    "{}.{method}({})",
                    self.make(Of::Version, d),
                    self.make(Of::Version, d)
                )
            }
            15 => {
                let method = self
                    .random
                    .pick(&["contains", "startsWith", "endsWith", "matches"]);
                let pattern = self.random.pick(&["\"a\"", "\"^a.*\"", "\"[\"", "\"x|y\""]);
                format!("{}.{method}({pattern})", self.make(Of::Text, d))
            }
            16 => self.comprehension(d),
            17 => format!("{}.isSorted()", self.make(Of::Ints, d)),
            18 => format!("{}.hasValue()", self.make(Of::Optional, d)),
            19 => format!(
                "{}.orValue({})",
                self.make(Of::Optional, d),
                self.make(Of::Bool, d)
            ),
            20 => format!("{} == {}", self.make(Of::Optional, d), self.any(d)),
            21 => format!("null {} {}", self.random.pick(&["==", "!="]), self.any(d)),
            22 => format!(
                "({} ? {} : {})",
                self.make(Of::Bool, d),
                self.make(Of::Bool, d),
                self.make(Of::Dynamic, d)
            ),
            _ if self.lists => format!("{}.includes({})", self.make(Of::Dynamic, d), self.any(d)),
            _ => format!("{} == {}", self.make(Of::Ints, d), self.make(Of::Ints, d)),
        }
    }

    fn comprehension(&mut self, d: usize) -> String {
        let over_texts = self.random.percent(50);
        let range = if over_texts {
            self.make(Of::Texts, d)
        } else {
            self.make(Of::Ints, d)
        };
        let name = format!("v{}", self.variables.len());
        self.variables
            .push((name.clone(), if over_texts { Of::Text } else { Of::Int }));
        let inner = self.make(Of::Bool, d);
        self.variables.pop();
        let kind = self.random.pick(&["all", "exists", "exists_one"]);
        format!("{range}.{kind}({name}, {inner})")
    }

    fn number(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .random
                .pick(&["0", "1", "2", "-3", "7", "40"])
                .to_owned();
        }
        let d = depth - 1;
        match self.random.below(14) {
            0..=2 => {
                let operator = self.random.pick(&["+", "-", "*", "/", "%"]);
                format!(
                    "({} {operator} {})",
                    self.make(Of::Int, d),
                    self.make(Of::Int, d)
                )
            }
            3 => format!("size({})", self.make(Of::Texts, d)),
            4 => format!("{}.size()", self.make(Of::Text, d)),
            5 => {
                let method = self.random.pick(&["sum", "min", "max"]);
                format!("{}.{method}()", self.make(Of::Ints, d))
            }
            6 => format!(
                "{}.compareTo({})",
                self.make(Of::Version, d),
                self.make(Of::Version, d)
            ),
            7 => format!("{}.asInteger()", self.make(Of::Quantity, d)),
            8 => format!("sign({})", self.make(Of::Quantity, d)),
            9 => format!(
                "{}.indexOf({})",
                self.make(Of::Texts, d),
                self.make(Of::Text, d)
            ),
            10 => format!("{}[{}]", self.make(Of::Ints, d), self.make(Of::Int, d)),
            11 => format!("{}.major()", self.make(Of::Version, d)),
            12 => format!("int({})", self.make(Of::Text, d)),
            _ => self.make(Of::Int, 0),
        }
    }

    fn double(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.random.pick(&["0.5", "2.0", "-1.25"]).to_owned();
        }
        match self.random.below(3) {
            0 => format!(
                "{}.asApproximateFloat()",
                self.make(Of::Quantity, depth - 1)
            ),
            1 => format!("double({})", self.make(Of::Int, depth - 1)),
            _ => self.make(Of::Double, 0),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .random
                .pick(&[
                    "\"\"",
                    "\"a\"",
                    "\"abc\"",
                    "\"1\"",
                    "device.driver",
                    "\"\u{e9}t\u{e9}\"",
                ])
                .to_owned();
        }
        let d = depth - 1;
        match self.random.below(9) {
            0 => format!("({} + {})", self.make(Of::Text, d), self.make(Of::Text, d)),
            1 => format!("string({})", self.make(Of::Int, d)),
            2 => format!("{}.lowerAscii()", self.make(Of::Text, d)),
            3 => format!(
                "{}.replace(\"a\", {})",
                self.make(Of::Text, d),
                self.make(Of::Text, d)
            ),
            4 => format!(
                "{}.substring({})",
                self.make(Of::Text, d),
                self.make(Of::Int, 0)
            ),
            5 => format!("{}.join(\",\")", self.make(Of::Texts, d)),
            6 => format!(
                "\"%s-%d\".format([{}, {}])",
                self.make(Of::Dynamic, d),
                self.make(Of::Int, d)
            ),
            7 => format!(
                "{}.charAt({})",
                self.make(Of::Text, d),
                self.make(Of::Int, 0)
            ),
            _ => self.make(Of::Text, 0),
        }
    }

    fn ints(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .random
                .pick(&["[1, 2, 3]", "[3, 1, 2, 1]", "[5]"])
                .to_owned();
        }
        let d = depth - 1;
        match self.random.below(11) {
            0 => format!("[{}, {}]", self.make(Of::Int, d), self.make(Of::Int, d)),
            1 => format!("({} + {})", self.make(Of::Ints, d), self.make(Of::Ints, d)),
            2 => format!("{}.sort()", self.make(Of::Ints, d)),
            3 => format!("{}.distinct()", self.make(Of::Ints, d)),
            4 => format!("{}.reverse()", self.make(Of::Ints, d)),
            5 => format!(
                "{}.slice({}, {})",
                self.make(Of::Ints, d),
                self.make(Of::Int, 0),
                self.make(Of::Int, 0)
            ),
            6 => format!("lists.range({})", self.make(Of::Int, 0)),
            7 => format!(
                "[{}, {}].flatten()",
                self.make(Of::Ints, d),
                self.make(Of::Ints, d)
            ),
            8 => format!("{}.sortBy(s, -s)", self.make(Of::Ints, d)),
            9 => format!(
                "{}.map(m, m {} 2)",
                self.make(Of::Ints, d),
                self.random.pick(&["*", "+", "/"])
            ),
            _ => self.make(Of::Ints, 0),
        }
    }

    fn texts(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .random
                .pick(&["[\"a\", \"b\"]", "[\"b\", \"a\", \"b\"]", "[\"\"]"])
                .to_owned();
        }
        let d = depth - 1;
        match self.random.below(10) {
            0 => format!("[{}, {}]", self.make(Of::Text, d), self.make(Of::Text, d)),
            1 => format!("{}.split(\"a\")", self.make(Of::Text, d)),
            2 => format!("{}.sort()", self.make(Of::Texts, d)),
            3 => format!("{}.distinct()", self.make(Of::Texts, d)),
            4 => format!("{}.filter(f, f != \"a\")", self.make(Of::Texts, d)),
            5 => format!("{}.sortBy(s, s.size())", self.make(Of::Texts, d)),
            6 => format!(
                "[{}, {}]",
                self.make(Of::Dynamic, d),
                self.make(Of::Text, d)
            ),
            7 => format!(
                "{}.flatten({})",
                self.make(Of::Dynamic, d),
                self.make(Of::Int, 0)
            ),
            8 => format!(
                "[{}, {}]",
                self.make(Of::Dynamic, d),
                self.make(Of::Dynamic, d)
            ),
            _ => self.make(Of::Texts, 0),
        }
    }

    fn quantity(&mut self, depth: usize) -> String {
        if depth == 0 {
            let domain = self.domain();
            return match self.random.below(5) {
                0 => "quantity(\"1Gi\")".to_owned(),
                1 => "quantity(\"500m\")".to_owned(),
                2 => "quantity(\"nonsense\")".to_owned(),
                3 => format!("device.capacity[\"{domain}\"].memory"),
                _ => format!("device.capacity[\"{domain}\"].cores"),
            };
        }
        match self.random.below(4) {
            0 => format!(
                "{}.add({})",
                self.make(Of::Quantity, depth - 1),
                self.make(Of::Quantity, depth - 1)
            ),
            1 => format!(
                "{}.sub({})",
                self.make(Of::Quantity, depth - 1),
                self.make(Of::Int, depth - 1)
            ),
            _ => self.make(Of::Quantity, 0),
        }
    }

    fn version(&mut self, _depth: usize) -> String {
        let domain = self.domain();
        match self.random.below(6) {
            0 => "semver(\"1.2.3\")".to_owned(),
            1 => "semver(\"2.0.0-rc.1\")".to_owned(),
            2 => "semver(\"v1.2\", true)".to_owned(),
            3 => "semver(\"nonsense\")".to_owned(),
            _ => format!("device.attributes[\"{domain}\"].version"),
        }
    }

    fn optional(&mut self, depth: usize) -> String {
        let domain = self.domain();
        let name = self.random.pick(&["text", "flag", "nope", "number"]);
        if depth == 0 {
            return format!("device.attributes[\"{domain}\"].?{name}");
        }
        let d = depth - 1;
        match self.random.below(9) {
            0 => format!("optional.of({})", self.any(d)),
            1 => "optional.none()".to_owned(),
            2 => format!(
                "{}.or({})",
                self.make(Of::Optional, d),
                self.make(Of::Optional, d)
            ),
            3 => format!("{}.first()", self.make(Of::Ints, d)),
            4 => format!("{}.last()", self.make(Of::Texts, d)),
            5 => format!("{}[?{}]", self.make(Of::Ints, d), self.make(Of::Int, 0)),
            6 => format!("{}.optMap(o, o)", self.make(Of::Optional, d)),
            7 => self.make(Of::Dynamic, d),
            _ => self.make(Of::Optional, 0),
        }
    }
}

fn device(random: &mut Seeded, lists: bool) -> Value {
    let mut attributes = serde_json::Map::new();
    let values = [
        ("text", json!({"string": random.pick(&["a", "abc", ""])})),
        ("number", json!({"int": random.below(9)})),
        ("flag", json!({"bool": random.percent(50)})),
        (
            "version",
            json!({"version": random.pick(&["1.2.3", "2.0.0", "1.2.3-alpha+b"])}),
        ),
        ("other.com/text", json!({"string": "other"})),
        ("other.com/flag", json!({"bool": true})),
    ];
    for (name, value) in values {
        if random.percent(80) {
            attributes.insert(name.to_owned(), value);
        }
    }
    if lists && random.percent(70) {
        attributes.insert("texts".to_owned(), json!({"strings": ["a", "b"]}));
        attributes.insert("numbers".to_owned(), json!({"ints": [3, 1]}));
    }
    if random.percent(3) {
        attributes.insert("bad".to_owned(), json!({}));
    }
    json!({
        "name": "a",
        "attributes": attributes,
        "capacity": {"memory": {"value": random.pick(&["2Gi", "1", "1500m"])}},
        "allowMultipleAllocations": random.percent(30),
    })
}

/// What this crate says, in the form of the oracle's answer.
fn ours(question: &Value) -> Value {
    let expression = question["expression"].as_str().unwrap();
    let lists = question["lists"] == true;
    let selector = match Selector::compile(expression, lists) {
        Ok(selector) => selector,
        Err(invalid) => return json!({"invalid": invalid}),
    };
    let slice = json!({"metadata": {"name": "s"}, "spec": {
        "driver": "d", "nodeName": "n", "devices": [question["device"]],
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    }});
    let slice = Slice::new(&serde_json::from_value(slice).unwrap(), &[]).unwrap();
    let device = &slice.devices[0];
    let (outcome, cost) = selector.evaluate(device.view("d"));
    let mut answer = json!({"maxCost": selector.cost_estimate().max, "cost": cost});
    match outcome {
        Ok(matches) => answer["matches"] = json!(matches),
        Err(error) => answer["error"] = json!(error),
    }
    answer
}

/// Compares what the answers have in common: texts of faults may differ in their words.
fn differs(question: &Value, theirs: &Value, ours: &Value) -> Option<&'static str> {
    let has = |answer: &Value, key: &str| answer.get(key).is_some();
    if has(theirs, "invalid") != has(ours, "invalid") {
        return Some("one compiles it");
    }
    if has(theirs, "invalid") {
        // free parameters of types have numbers there
        let words = |answer: &Value| {
            let text = answer["invalid"].as_str().unwrap();
            let mut parts = text.split("_var");
            let first = parts.next().unwrap().to_owned();
            parts.fold(first, |known, part| {
                known + "dyn" + part.trim_start_matches(|c: char| c.is_ascii_digit())
            })
        };
        let (theirs, ours) = (words(theirs), words(ours));
        // this parser stops at the first fault
        let same = theirs.starts_with(&ours) || ours.starts_with("program instantiation failed");
        return (!same).then_some("the fault");
    }
    // a panic of theirs, as for a version looked up in a list of texts
    let broken = |answer: &Value| {
        let error = answer["error"].as_str().unwrap_or_default();
        error.starts_with("internal error")
    };
    if broken(theirs) {
        return None;
    }
    if has(theirs, "error") != has(ours, "error") {
        return Some("one fails");
    }
    if theirs["matches"] != ours["matches"] {
        return Some("the answer");
    }
    if theirs["maxCost"] != ours["maxCost"] {
        return Some("the estimate");
    }
    // what an operand cost that failed, and was not needed, is not counted alike
    let expression = question["expression"].as_str().unwrap();
    // the length of a list whose type is known only now is not counted there
    if [".texts", ".numbers", "\"texts\"", "\"numbers\""]
        .iter()
        .any(|part| expression.contains(part))
    {
        return None;
    }
    let recovers = ["&&", "||", ".all(", ".exists("];
    let cost = |answer: &Value| answer["cost"].as_u64().unwrap();
    let same = if recovers.iter().any(|part| expression.contains(part)) {
        cost(ours) <= cost(theirs)
    } else {
        cost(ours) == cost(theirs)
    };
    (has(theirs, "matches") && !same).then_some("the cost")
}

#[test]
fn selectors_mean_the_same() {
    let mut questions = Vec::new();
    let seeds = range(4_000);
    for seed in seeds.clone() {
        let random = &mut Seeded::new(seed);
        let lists = random.percent(50);
        let device = device(random, lists);
        let depth = 1 + random.below(3);
        let mut maker = Maker {
            random,
            lists,
            variables: Vec::new(),
        };
        let expression = maker.make(Of::Bool, depth);
        questions.push(
            json!({"expression": expression, "lists": lists, "driver": "d", "device": device}),
        );
    }
    let Some(answers) = ask(questions.clone()) else {
        return;
    };
    let mut wrong = Vec::new();
    let mut compiled = 0;
    for ((seed, question), theirs) in seeds.zip(&questions).zip(&answers) {
        let ours = ours(question);
        compiled += usize::from(theirs.get("invalid").is_none());
        if let Some(what) = differs(question, theirs, &ours) {
            wrong.push(format!(
                "seed {seed}: {what}\n  {}\n  lists {} device {}\n  theirs {theirs}\n  ours   {ours}",
                question["expression"].as_str().unwrap(), question["lists"], question["device"]
            ));
        }
    }
    let count = wrong.len();
    wrong.truncate(20);
    assert!(count == 0, "{count} differ:\n{}", wrong.join("\n"));
    assert!(
        compiled * 2 > questions.len(),
        "most expressions make sense: {compiled}"
    );
}
