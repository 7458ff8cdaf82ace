//! Behaviour of the language and its libraries, as a table of expressions.
#![allow(clippy::unwrap_used)]

use davit_cel::{DeclType, Env, EvalError, Type, Value, join_errors};
use serde_json::json;

fn env() -> Env {
    Env::kubernetes()
        .variable("x", Type::Int)
        .variable("s", Type::String)
        .variable("l", Type::list(Type::Int))
        .variable("m", Type::map(Type::String, Type::Int))
        .variable("d", Type::Dyn)
        .build()
}

fn eval(expr: &str) -> Result<Value, String> {
    let program = env()
        .compile(expr)
        .map_err(|errors| format!("{expr}: {}", join_errors(&errors)))?;
    let variables = [
        ("x", Value::Int(7)),
        ("s", Value::from("hello")),
        (
            "l",
            Value::list(vec![Value::Int(1), Value::Int(2), Value::Int(3)]),
        ),
        (
            "m",
            Value::map([("a", Value::Int(1)), ("b", Value::Int(2))]),
        ),
        (
            "d",
            davit_cel::value(&json!({"a": {"b": [1, 2.5, "x", null]}, "t": true})),
        ),
    ];
    program
        .eval(&variables, 10_000_000)
        .map(|(value, _)| value)
        .map_err(|error| error.to_string())
}

#[test]
fn these_are_true() {
    for expr in [
        // arithmetic and comparison
        "1 + 2 * 3 == 7",
        "-5 / 2 == -2 && -5 % 2 == -1",
        "7u / 2u == 3u",
        "dyn(1) == 1.0 && dyn(1u) == 1 && dyn(1) == dyn(1u)",
        "1 < 2.5 && 2u > 1 && 1.5 <= 2",
        "'a' < 'b' && b'a' < b'b' && false < true",
        "-9223372036854775808 < 0",
        "0x1f == 31 && 1e3 == 1000.0 && .5 == 0.5",
        "!(1 > 2) && --x == 7",
        "'a' + 'b' == 'ab' && b'a' + b'b' == b'ab' && [1] + [2] == [1, 2]",
        "x > 5 ? s == 'hello' : false",
        // strings and escapes
        r#""\u00e9" == 'é' && r'\n' == '\\n' && '''a'b''' == "a'b""#,
        "'\\x41\\101' == 'AA' && b'\\xff' != b'\\x00'",
        "size('héllo') == 5 && size(b'\\xff\\xfe') == 2 && s.size() == 5",
        "s.startsWith('he') && s.endsWith('lo') && s.contains('ell') && s.matches('^h.*o$')",
        "matches(s, 'l{2}')",
        // containers
        "[1, 2, 3][1] == 2 && {'a': 1}['a'] == 1 && m.a == 1 && m['b'] == 2",
        "2 in l && !(9 in l) && 'a' in m && dyn(1.0) in [1]",
        "{1: 'a', 2: 'b'}[dyn(2u)] == 'b'",
        "has(m.a) && !has(m.z) && has(d.a.b) && d.a.b[2] == 'x' && d.a.b[3] == null",
        "size(l) == 3 && size(m) == 2 && [] == [] && {} == {}",
        "dyn({'a': [1]}) == {'a': [1.0]}",
        // macros
        "l.all(i, i > 0) && l.exists(i, i == 2) && l.exists_one(i, i > 2)",
        "l.map(i, i * 2) == [2, 4, 6] && l.filter(i, i > 1) == [2, 3]",
        "l.map(i, i > 1, i * i) == [4, 9]",
        "m.all(k, m[k] > 0) && m.exists(k, k == 'a')",
        "l.all(i, l.all(j, i + j > 1))",
        "l.all(i, v, v == i + 1) && m.exists(k, v, k == 'b' && v == 2)",
        "l.transformList(i, v, v - i) == [1, 1, 1] && l.transformList(i, v, i > 0, v) == [2, 3]",
        "m.transformMap(k, v, v * 10) == {'a': 10, 'b': 20}",
        "m.transformMapEntry(k, v, {v: k}) == {1: 'a', 2: 'b'}",
        "l.existsOne(i, v, v == 3)",
        "cel.bind(y, x + 1, y * y) == 64",
        "cel.bind(unused, 1 / 0, true)",
        // errors are absorbed by what decides
        "true || 1 / 0 > 0",
        "1 / 0 > 0 || true",
        "!(false && 1 / 0 > 0) && !(1 / 0 > 0 && false)",
        "[0, 1].exists(i, 1 / i == 1)",
        // types and conversions
        "type(1) == int && type('') == string && type([]) == list && type(type(1)) == type",
        "int('42') == 42 && int(3.9) == 3 && uint(3) == 3u && double('1.5') == 1.5",
        "string(1) == '1' && string(1.5) == '1.5' && string(true) == 'true' && bool('t')",
        "string(b'abc') == 'abc' && bytes('abc') == b'abc'",
        "string(1e30) == '1e+30' && string(100000.0) == '100000'",
        // time
        "timestamp('2024-02-29T12:30:45.5Z').getFullYear() == 2024",
        "timestamp('2024-02-29T12:30:45.5Z').getMonth() == 1",
        "timestamp('2024-02-29T12:30:45.5Z').getDate() == 29",
        "timestamp('2024-02-29T12:30:45.5Z').getDayOfMonth() == 28",
        "timestamp('2024-02-29T12:30:45.5Z').getDayOfWeek() == 4",
        "timestamp('2024-02-29T12:30:45.5Z').getHours('+02:00') == 14",
        "timestamp('2024-02-29T12:30:45.5Z').getMilliseconds() == 500",
        "timestamp('2024-01-01T00:00:00Z') + duration('24h') == timestamp('2024-01-02T00:00:00Z')",
        "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
        "duration('1h30m') > duration('89m') && duration('90m').getHours() == 1",
        "string(duration('1.5s')) == '1.5s' && duration('100ms') + duration('0') == duration('0.1s')",
        "string(timestamp(0)) == '1970-01-01T00:00:00Z'",
        // strings extension
        "'tacocat'.charAt(3) == 'o' && 'abc'.charAt(3) == ''",
        "'hello mellow'.indexOf('ello', 2) == 7 && 'x'.indexOf('') == 0 && 'x'.indexOf('y') == -1",
        "'hello mellow'.lastIndexOf('ello') == 7 && 'hello mellow'.lastIndexOf('ello', 6) == 1",
        "'HeLLo'.lowerAscii() == 'hello' && 'é'.upperAscii() == 'é'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']",
        "'abc'.split('') == ['a', 'b', 'c'] && 'a'.split(',', 0) == []",
        "['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b'",
        "'hello hello'.replace('he', 'we') == 'wello wello'",
        "'hello hello'.replace('he', 'we', 1) == 'wello hello'",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'",
        "'  x\\n'.trim() == 'x' && strings.quote('a\"b') == '\"a\\\\\"b\"'",
        "'%s is %d, %.2f %e %b %x %X'.format(['a', 1, 3.14159, 10.0, 5, 255, 'hi']) == 'a is 1, 3.14 1.000000×10⁰¹ 101 ff 6869'",
        "'%s %s'.format([[1, 'a', null], {'b': true}]) == '[1, \"a\", null] {\"b\":true}'",
        "'%.1f'.format([1234567.5]) == '1,234,567.5'",
        "'%f'.format([dyn('NaN')]) == 'NaN'",
        "[3, 1, 2].sort() == [1, 2, 3]",
        "['b', 'a'].sortBy(e, e) == ['a', 'b']",
        "[{'n': 2}, {'n': 1}].sortBy(e, e.n)[0].n == 1",
        "[1, 2, 1].distinct() == [1, 2]",
        "[1, 2, 3].slice(1, 3) == [2, 3]",
        "[[1], [2, 3]].flatten() == [1, 2, 3]",
        "[[1], [2]].flatten(0) == [[1], [2]]",
        "[1, 2].reverse() == [2, 1]",
        "lists.range(3) == [0, 1, 2]",
        "[1, 2].first() == optional.of(1)",
        "[1, 2].last().value() == 2",
        "!dyn([]).first().hasValue()",
        "optional.unwrap([optional.of(1), optional.none()]) == [1]",
        "[optional.of(1), optional.none()].unwrapOpt() == [1]",
        "sign(quantity('-1')) == -1",
        "dyn(true).orValue(false)",
        "null != optional.of(1)",
        // lists
        "[1, 2, 3].isSorted() && !['b', 'a'].isSorted() && [].isSorted()",
        "[1, 2].sum() == 3 && [1.5, 2.5].sum() == 4.0 && [duration('1m'), duration('1s')].sum() == duration('61s')",
        "[2, 1, 3].min() == 1 && ['a', 'c'].max() == 'c'",
        "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf(5) == -1",
        // regex
        "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('x') == ''",
        "'1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2 3'.findAll('[0-9]', 1) == ['1']",
        // urls
        "url('https://user@example.com:80/a b?k=v&k=w').getHost() == 'example.com:80'",
        "url('https://example.com:80/a?k=v&k=w').getQuery()['k'] == ['v', 'w']",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'",
        "url('/path').getEscapedPath() == '/path' && url('/path').getScheme() == ''",
        "isURL('https://a/b') && !isURL('../x') && !isURL('https://a:b:c/')",
        // sets
        "sets.contains([1, 2], dyn([2.0])) && sets.equivalent([1, 1], [1]) && sets.intersects([1], [1, 2])",
        // optional
        "optional.of(1).value() == 1 && !optional.none().hasValue() && optional.ofNonZeroValue(0) == optional.none()",
        "m.?a.orValue(0) == 1 && m.?z.orValue(5) == 5 && l[?9].orValue(4) == 4",
        "m.?a.optMap(v, v + 1).orValue(0) == 2 && m.?z.optMap(v, v + 1) == optional.none()",
        "m.?a.optFlatMap(v, optional.of(v * 3)).value() == 3",
        "[?m.?a, ?m.?z] == [1] && {?'k': m.?z, 'j': 1} == {'j': 1}",
        "m.?z.or(m.?a).value() == 1 && d.?a.?b[?0].orValue(0) == 1",
        // quantity
        "quantity('1Gi') == quantity('1024Mi') && quantity('1.5').compareTo(quantity('1500m')) == 0",
        "quantity('2').isGreaterThan(quantity('1')) && quantity('-1').sign() == -1",
        "quantity('50k').add(quantity('20k')) == quantity('70k') && quantity('5').sub(2).asInteger() == 3",
        "isQuantity('1M') && !isQuantity('1Mo') && quantity('0.5').asApproximateFloat() == 0.5",
        "quantity('1500m').isInteger() == false && type(quantity('1')) == kubernetes.Quantity",
        // addresses
        "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && isIP('10.0.0.1') && !isIP('10.0.0.1/8')",
        "ip.isCanonical('127.0.0.1') && !ip.isCanonical('2001:DB8::1') && string(ip('::1')) == '::1'",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "!cidr('10.0.0.0/8').containsCIDR(cidr('0.0.0.0/0')) && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.1.2.3/8').ip() == ip('10.1.2.3') && cidr('::/64').prefixLength() == 64 && !isIP('::ffff:1.2.3.4')",
        // formats
        "!format.dns1123Label().validate('my-name').hasValue()",
        "format.dns1123Label().validate('My').hasValue() && format.named('uuid').hasValue()",
        "format.date().validate('2024-02-30').hasValue() && !format.uri().validate('https://x/y').hasValue()",
        // versions
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.2.3-rc1').compareTo(semver('1.2.3')) == -1",
        "semver('v1.02', true) == semver('1.2.0') && !isSemver('1.2') && semver('1.2.3').minor() == 2",
    ] {
        assert_eq!(eval(expr), Ok(Value::Bool(true)), "{expr}");
    }
}

#[test]
fn faults_while_running() {
    for (expr, text) in [
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("l[9]", "index out of bounds: 9"),
        ("m.z", "no such key: z"),
        ("m['z'] == 1", "no such key: z"),
        ("d.t && d.a", "no such overload"),
        ("dyn(1) + dyn('a')", "no such overload"),
        ("optional.none().value()", "optional.none() dereference"),
        ("{'a': 1, 'a': 2}", "insert failed: key a already exists"),
        ("[].min()", "min called on empty list"),
        ("'abc'.charAt(9)", "index out of range: 9"),
    ] {
        assert_eq!(eval(expr), Err(text.to_owned()), "{expr}");
    }
}

#[test]
fn faults_found_by_the_checker() {
    for (expr, text) in [
        (
            "y + 1",
            "ERROR: <input>:1:1: undeclared reference to 'y' (in container '')\n | y + 1\n | ^",
        ),
        (
            "1 + 'a'",
            "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | 1 + 'a'\n | ..^",
        ),
        (
            "x == 1 &&\n  s.nope()",
            "ERROR: <input>:2:9: undeclared reference to 'nope' (in container '')\n |   s.nope()\n | ........^",
        ),
        (
            "s.startsWith(1)",
            "ERROR: <input>:1:13: found no matching overload for 'startsWith' applied to 'string.(int)'\n | s.startsWith(1)\n | ............^",
        ),
        (
            "s.field",
            "ERROR: <input>:1:2: type 'string' does not support field selection\n | s.field\n | .^",
        ),
        (
            "x.all(i, true)",
            "ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | x.all(i, true)\n | ^",
        ),
        (
            "1 +",
            "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | 1 +\n | ...^",
        ),
        (
            "1 2",
            "ERROR: <input>:1:3: Syntax error: extraneous input '2' expecting <EOF>\n | 1 2\n | ..^",
        ),
        (
            "..",
            "ERROR: <input>:1:2: Syntax error: no viable alternative at input '..'\n | ..\n | .^",
        ),
        (
            "has(x)",
            "ERROR: <input>:1:5: invalid argument to has() macro\n | has(x)\n | ....^",
        ),
        (
            "for",
            "ERROR: <input>:1:1: reserved identifier: for\n | for\n | ^",
        ),
    ] {
        let errors = env().compile(expr).expect_err(expr);
        assert_eq!(join_errors(&errors), text, "{expr}");
    }
    for expr in [
        "'\\q'",
        "'abc",
        "a.b.",
        "[1,, 2]",
        "f(",
        "1 ? 2",
        "s.matches('(')",
        "[1, 'a']",
        "[1, dyn('a')]",
        "{'a': 1, 'b': 'c'}",
        "x in [1, 'A']",
        "duration('1x')",
        "timestamp('yesterday')",
        "int('a') == 1",
        "'%d'.format([1.5])",
        "'%d'.format([1, 2])",
        "[[1]].sort()",
        "@",
        "99999999999999999999",
    ] {
        assert!(env().compile(expr).is_err(), "{expr}");
    }
}

#[test]
fn types_of_results() {
    for (expr, ty) in [
        ("x + 1", "int"),
        ("[1, 2]", "list(int)"),
        ("[1]", "list(int)"),
        ("[dyn(1), dyn('a')].size() == 2 ? 1 : dyn('a')", "dyn"),
        ("{'a': 1.0}", "map(string, double)"),
        ("m.?a", "optional_type(int)"),
        ("l.map(i, string(i))", "list(string)"),
        ("d.x.y", "dyn"),
        ("x > 1 ? 'a' : 'b'", "string"),
        ("quantity('1')", "kubernetes.Quantity"),
        (
            "timestamp('2024-01-01T00:00:00Z') - timestamp(0)",
            "duration",
        ),
        ("type(1)", "type(int)"),
        ("null", "null"),
        ("cel.bind(y, 1, [y])", "list(int)"),
        ("m.transformMap(k, v, string(v))", "map(string, string)"),
    ] {
        let program = env()
            .compile(expr)
            .unwrap_or_else(|e| panic!("{expr}: {}", join_errors(&e)));
        assert_eq!(program.output_type().to_string(), ty, "{expr}");
    }
}

#[test]
fn deep_and_long_expressions() {
    let deep = format!("{}1{}", "(".repeat(300), ")".repeat(300));
    let errors = env().compile(&deep).unwrap_err();
    assert_eq!(
        errors[0].message,
        "expression recursion limit exceeded: 250"
    );
    let long = vec!["x == 7"; 1500].join(" && ");
    let program = env().compile(&long).unwrap();
    let (value, cost) = program.eval(&[("x", Value::Int(7))], u64::MAX).unwrap();
    assert_eq!((value, cost), (Value::Bool(true), 3000));
    let program = env().compile(&vec!["x"; 240].join("+")).unwrap();
    let (value, _) = program.eval(&[("x", Value::Int(1))], u64::MAX).unwrap();
    assert_eq!(value, Value::Int(240));
    let nested = format!("{}x{}", "[".repeat(60), "]".repeat(60));
    assert!(env().compile(&nested).is_ok());
    assert!(env().compile(&vec!["1"; 400].join("+")).is_err());
    assert!(env().compile(&format!("{}true", "!".repeat(4000))).is_ok());
}

#[test]
fn the_budget_is_kept() {
    let program = env()
        .compile("l.all(i, l.all(j, l.all(k, i + j + k > 0)))")
        .unwrap();
    let list = Value::list((1..100).map(Value::Int).collect());
    let result = program.eval(&[("l", list)], 10_000);
    assert_eq!(result.unwrap_err(), EvalError::CostLimitExceeded);
    assert_eq!(
        EvalError::CostLimitExceeded.to_string(),
        "operation cancelled: actual cost limit exceeded"
    );
}

#[test]
fn objects_can_be_made() {
    let decl = DeclType::object(
        "JSONPatch",
        [
            ("op".into(), DeclType::string(100)),
            ("value".into(), DeclType::simple(Type::Dyn)),
        ],
    );
    let env = Env::kubernetes()
        .constructible(&decl)
        .open_objects()
        .build();
    let eval = |expr: &str| {
        let program = env.compile(expr).map_err(|e| join_errors(&e))?;
        let (value, _) = program.eval(&(), 1000).map_err(|e| e.to_string())?;
        Ok::<_, String>(davit_cel::to_json(&value))
    };
    assert_eq!(
        eval("[JSONPatch{op: 'add', value: {'a': 1}}]"),
        Ok(Some(json!([{"op": "add", "value": {"a": 1}}])))
    );
    assert_eq!(
        eval(
            "Object{metadata: Object.metadata{labels: {'a.b': 'c'}}, spec: Object.spec{replicas: 3}}"
        ),
        Ok(Some(
            json!({"metadata": {"labels": {"a.b": "c"}}, "spec": {"replicas": 3}})
        ))
    );
    assert!(
        eval("JSONPatch{nope: 1}")
            .unwrap_err()
            .contains("undefined field 'nope'")
    );
    assert!(
        eval("JSONPatch{op: 1}")
            .unwrap_err()
            .contains("expected type of field 'op' is 'string' but provided type is 'int'")
    );
    assert!(
        eval("Other{}")
            .unwrap_err()
            .contains("undeclared reference to 'Other'")
    );
}
