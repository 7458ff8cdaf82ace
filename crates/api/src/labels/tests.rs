use proptest::prelude::*;
use serde_json::json;

use super::*;

fn matches(selector: &str, labels: &Value) -> bool {
    Selector::parse(selector).unwrap().matches(labels)
}

#[test]
fn language() {
    let labels = json!({"x": "y", "n": "5", "empty": ""});
    for yes in [
        "",
        "x=y",
        "x==y",
        " x = y ",
        "x!=z",
        "gone!=y",
        "x in (a,y)",
        "x in(y)",
        "gone notin (a)",
        "x notin (a,b)",
        "x",
        "!gone",
        "n>4",
        "n<6",
        "empty=",
        "empty in (,)",
        "empty in ()",
        "x=y,n=5",
        "x,!gone",
    ] {
        assert!(matches(yes, &labels), "{yes}");
    }
    for no in [
        "x=z",
        "gone",
        "!x",
        "n>5",
        "x>1",
        "gone=",
        "x notin (y)",
        "x=y,n=6",
    ] {
        assert!(!matches(no, &labels), "{no}");
    }
}

#[test]
fn refusals() {
    for (text, error) in [
        (
            "x=a||y=b",
            "unable to parse requirement: values[0][x]: Invalid value: \"a||y\": a valid label must",
        ),
        (
            ",",
            "found ',', expected: !, identifier, or 'end of string'",
        ),
        ("x,", "found '', expected: identifier after ','"),
        (
            "x in",
            "unable to parse requirement: found '' expected: '('",
        ),
        (
            "x in (a",
            "unable to parse requirement: found '', expected: ',' or ')'",
        ),
        (
            "x ! y",
            "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt",
        ),
        (
            "x>a",
            "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("x=y z", "found 'z', expected: ',' or 'end of string'"),
        (
            "_x=y",
            "unable to parse requirement: <nil>: Invalid value: \"_x\": name part must consist of",
        ),
        (
            "!",
            "unable to parse requirement: found '', expected: identifier",
        ),
    ] {
        let got = Selector::parse(text).unwrap_err().to_string();
        assert!(got.starts_with(error), "{text}: {got}");
    }
}

#[test]
fn typed_selector() {
    let everything = Selector::from_label_selector(Some(&json!({}))).unwrap();
    assert!(everything.matches(&json!({})));
    let nothing = Selector::from_label_selector(None).unwrap();
    assert!(!nothing.matches(&json!({"a": "b"})));
    let s = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["d"]},
        {"key": "e", "operator": "DoesNotExist"}]});
    let selector = Selector::from_label_selector(Some(&s)).unwrap();
    assert_eq!(selector.to_string(), "a=b,c in (d),!e");
    assert!(selector.matches(&json!({"a": "b", "c": "d"})));
    assert!(!selector.matches(&json!({"a": "b", "c": "d", "e": ""})));
    let bad = json!({"matchExpressions": [{"key": "c", "operator": "Gt", "values": ["1"]}]});
    assert_eq!(
        Selector::from_label_selector(Some(&bad))
            .unwrap_err()
            .to_string(),
        "\"Gt\" is not a valid label selector operator"
    );
    let errors = validate_label_selector(&bad, &Path::new("spec").child("selector"));
    assert_eq!(
        errors[0].to_string(),
        "spec.selector.matchExpressions[0].operator: Invalid value: \"Gt\": not a valid selector operator"
    );
}

#[test]
fn exact_match() {
    let s = Selector::parse("a=b,c in (d,e)").unwrap();
    assert_eq!(s.requires_exact_match("a"), Some("b"));
    assert_eq!(s.requires_exact_match("c"), None);
}

proptest! {
    #[test]
    fn parse_never_panics(s in "\\PC*") {
        let _ = Selector::parse(&s);
    }

    #[test]
    fn symbols_never_panic(s in "[a-c!=,()<> in\0]{0,20}") {
        if let Ok(selector) = Selector::parse(&s) {
            let printed = selector.to_string();
            let again = Selector::parse(&printed).unwrap();
            prop_assert_eq!(again.to_string(), printed);
        }
    }

    #[test]
    fn a_requirement_and_its_negation_split_all_objects(k in "[ab]", v in "[ab]", lk in "[ab]", lv in "[ab]") {
        let labels = json!({lk: lv});
        let yes = matches(&format!("{k}={v}"), &labels);
        let no = matches(&format!("{k}!={v}"), &labels);
        prop_assert!(yes != no);
    }
}

/// A selector in a URL has room for twenty thousand values, one in an object for a hundred thousand, and is asked about every
/// object of a kind.
#[test]
fn many_values_cost_their_logarithm() {
    let values: Vec<String> = (0..100_000).rev().map(|n| format!("v{n}")).collect();
    let began = std::time::Instant::now();
    let text = format!("a notin ({})", values.join(","));
    let asked = Selector::parse(&text).unwrap();
    let typed = k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
        match_expressions: Some(vec![
            k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement {
                key: "a".to_owned(),
                operator: "NotIn".to_owned(),
                values: Some(values.clone()),
            },
        ]),
        match_labels: None,
    };
    let typed = crate::selector::Selector::new(Some(&typed));
    for n in 0..100_000 {
        for (value, selected) in [(format!("v{n}"), false), (format!("w{n}"), true)] {
            let labels = BTreeMap::from([("a".to_owned(), value)]);
            assert_eq!(asked.matches(&labels), selected);
            assert_eq!(typed.matches(&labels), selected);
        }
    }
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    assert_eq!(
        asked.requirements()[0].values()[0],
        "v99999",
        "in the order given"
    );
}
