//! What holds for every expression.
#![allow(clippy::unwrap_used)]

use davit_cel::{Env, Type, Value};
use proptest::prelude::*;

fn env() -> Env {
    Env::kubernetes()
        .variable("x", Type::Int)
        .variable("l", Type::list(Type::Int))
        .variable("d", Type::Dyn)
        .build()
}

/// Pieces of which many make no sense together.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "x",
        "l",
        "d",
        "1",
        "2u",
        "3.5",
        "'a'",
        "b'b'",
        "true",
        "null",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "&&",
        "||",
        "==",
        "<",
        " in ",
        ".all(i, ",
        ".map(i, ",
        "has(",
        ".?a",
        "[?",
        "cel.bind(y, ",
        "size(",
        ".orValue(",
        "'\\n'",
        "\"",
        "optional.of(",
        ".optMap(z, ",
        "T{a: ",
        "\u{e9}",
        "\n",
        "@",
        "\\",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// Expressions of integers that compile.
fn sound() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec!["x", "1", "2", "size(l)", "l[0]", "d.n"]);
    leaf.prop_map(str::to_owned)
        .prop_recursive(5, 40, 3, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} + {b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} / {b})")),
                (inner.clone(), inner.clone(), inner.clone())
                    .prop_map(|(a, b, c)| format!("({a} < {b} ? {a} : {c})")),
                inner
                    .clone()
                    .prop_map(|a| format!("size(l.map(i, i + {a}))")),
                inner
                    .clone()
                    .prop_map(|a| format!("(l.exists(i, i > {a}) ? 1 : 0)")),
                inner.prop_map(|a| format!("cel.bind(y, {a}, y)")),
            ]
        })
}

proptest! {
    #[test]
    fn nothing_panics(text in soup()) {
        if let Ok(program) = env().compile(&text) {
            let _ = program.cost_estimate();
            let _ = program.eval(&[("x", Value::Int(1)), ("l", Value::list(vec![Value::Int(1)])), ("d", Value::Null)], 10_000);
        }
    }

    #[test]
    fn any_text_can_be_refused(text in "\\PC{0,60}") {
        let _ = env().compile(&text);
    }

    #[test]
    fn evaluation_is_repeatable_and_keeps_its_budget(expr in sound(), x in -3i64..4, budget in 0u64..400) {
        let program = env().compile(&expr).unwrap();
        let variables = [
            ("x", Value::Int(x)),
            ("l", Value::list(vec![Value::Int(x), Value::Int(2)])),
            ("d", Value::map([("n", Value::Int(3))])),
        ];
        let (first, cost) = program.run(&variables, u64::MAX);
        prop_assert_eq!(&program.run(&variables, u64::MAX), &(first.clone(), cost));
        let (limited, _) = program.run(&variables, budget);
        if cost <= budget {
            prop_assert_eq!(limited, first);
        } else {
            prop_assert!(limited.is_err());
        }
    }
}

/// A path in a branch costs one less than it costs on the way there.
#[test]
fn a_budget_that_is_just_enough() {
    let program = env()
        .compile("(size(l) < size(l) ? size(l) : l[0])")
        .unwrap();
    let variables = [("l", Value::list(vec![Value::Int(0), Value::Int(2)]))];
    let (value, cost) = program.run(&variables, u64::MAX);
    assert_eq!(value, Ok(Value::Int(0)));
    assert_eq!(program.run(&variables, cost), (value, cost));
    assert!(program.run(&variables, cost - 1).0.is_err());
}
