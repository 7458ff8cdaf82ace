//! Any text as an expression: no panic while it is compiled, estimated or run, and no budget is
//! exceeded.
#![no_main]

use davit_cel::{Env, Type, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let env = Env::kubernetes()
        .variable("self", Type::Dyn)
        .variable("x", Type::Int)
        .variable("l", Type::list(Type::String))
        .open_objects()
        .build();
    let Ok(program) = env.compile(text) else {
        return;
    };
    let _ = program.cost_estimate();
    let own = davit_cel::value(&serde_json::json!({"a": [1, "b", {"c": null}]}));
    let variables = [
        ("self", own),
        ("x", Value::Int(7)),
        ("l", Value::list(vec![Value::from("a"), Value::from("b")])),
    ];
    if let Ok((_, cost)) = program.eval(&variables, 100_000) {
        assert!(cost <= 100_000);
    }
});
