use proptest::prelude::*;

use super::*;

fn canonical(text: &str) -> String {
    Quantity::parse(text).unwrap().to_string()
}

#[test]
fn canonical_forms() {
    for (given, expected) in [
        ("0", "0"),
        ("0n", "0"),
        ("-0", "0"),
        ("0.0", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("-1", "-1"),
        ("01", "1"),
        ("100", "100"),
        ("1000", "1k"),
        ("1k", "1k"),
        ("1.5", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.", "1"),
        ("12.3456", "12345600u"),
        ("500m", "500m"),
        ("1000m", "1"),
        ("0.1m", "100u"),
        ("0.3n", "1n"),
        ("-0.3n", "-1n"),
        ("1.1n", "2n"),
        ("1Ki", "1Ki"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("1000Ki", "1000Ki"),
        ("1023", "1023"),
        ("0.5Ki", "512"),
        ("0.0005Ki", "512m"),
        ("0.1Ki", "102400m"),
        ("12Ei", "9223372036854775807"),
        ("9e18", "9e18"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e1", "10"),
        ("1e2", "100"),
        ("1e-3", "1e-3"),
        ("100e-3", "100e-3"),
        ("5E", "5E"),
        ("1000E", "1e21"),
        ("1000000000000000000000000", "1e24"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
    ] {
        assert_eq!(canonical(given), expected, "{given}");
    }
}

#[test]
fn stored_text_is_kept_where_upstream_keeps_it() {
    for (given, expected) in [
        ("1.500", "1.500"),
        ("1.5", "1500m"),
        ("2000m", "2"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1Gi", "1Gi"),
        ("8Gi", "8Gi"),
        ("1024Mi", "1Gi"),
        ("+1", "+1"),
        ("0.5", "500m"),
        ("1000", "1k"),
    ] {
        assert_eq!(Quantity::canonicalize(given).unwrap(), expected, "{given}");
    }
}

#[test]
fn refused_forms() {
    use ParseQuantityError::{Format as F, Suffix as S};
    for (given, expected) in [
        ("", F),
        ("1.1.M", F),
        ("1+1.0M", F),
        ("0.1mi", S),
        ("0.1am", F),
        ("aoeu", F),
        (".5i", S),
        ("1i", S),
        ("-3.01i", S),
        ("1 Gi", F),
        ("1K", S),
        ("1e", S),
        ("1e3.5", F),
        ("10 ", F),
        ("1MiB", F),
    ] {
        assert_eq!(Quantity::parse(given).unwrap_err(), expected, "{given}");
    }
}

#[test]
fn values_round_away_from_zero() {
    let q = |s| Quantity::parse(s).unwrap();
    assert_eq!(q("1.1").value(), 2);
    assert_eq!(q("-1.1").value(), -2);
    assert_eq!(q("1n").value(), 1);
    assert_eq!(q("1n").milli_value(), 1);
    assert_eq!(q("1.5").milli_value(), 1500);
    assert_eq!(q("1Gi").value(), 1 << 30);
    assert_eq!(q("1e30").value(), i64::MAX);
    assert_eq!(q("-1e30").milli_value(), i64::MIN);
    assert_eq!(q("2k").as_i64(), Some(2000));
    assert_eq!(q("1.5").as_i64(), None);
}

#[test]
fn zero_takes_the_other_format() {
    let sum = Quantity::ZERO + Quantity::parse("2Gi").unwrap();
    assert_eq!(sum.to_string(), "2Gi");
    let diff = Quantity::parse("3Gi").unwrap() - Quantity::parse("1Gi").unwrap();
    assert_eq!(diff.to_string(), "2Gi");
}

#[test]
fn json_text_and_number() {
    for (json, expected) in [
        ("\"500m\"", "500m"),
        ("2", "2"),
        ("0.5", "500m"),
        ("null", "0"),
    ] {
        let q: Quantity = serde_json::from_str(json).unwrap();
        assert_eq!(q.to_string(), expected);
    }
    assert!(serde_json::from_str::<Quantity>("true").is_err());
}

fn text() -> impl Strategy<Value = String> {
    "[+-]?[0-9]{1,15}(\\.[0-9]{0,6})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]|)"
}

proptest! {
    #[test]
    fn parse_never_panics(s in "\\PC*") {
        let _ = Quantity::canonicalize(&s);
    }

    #[test]
    fn printing_keeps_the_value(s in text()) {
        let q = Quantity::parse(&s).unwrap();
        let again = Quantity::parse(&q.to_string()).unwrap();
        prop_assert_eq!(q, again);
        // `687.5Ki` is printed as `704000`, as by Kubernetes, and that as `704k`.
        let third = Quantity::parse(&again.to_string()).unwrap();
        prop_assert_eq!(third.to_string(), again.to_string());
    }

    #[test]
    fn canonicalize_settles_and_keeps_the_value(s in text()) {
        let first = Quantity::canonicalize(&s).unwrap().into_owned();
        prop_assert_eq!(Quantity::parse(&s).unwrap(), Quantity::parse(&first).unwrap());
        let second = Quantity::canonicalize(&first).unwrap().into_owned();
        prop_assert_eq!(Quantity::parse(&s).unwrap(), Quantity::parse(&second).unwrap());
        prop_assert_eq!(Quantity::canonicalize(&second).unwrap(), second.as_str());
    }

    #[test]
    fn order_agrees_with_difference(a in text(), b in text()) {
        let (a, b) = (Quantity::parse(&a).unwrap(), Quantity::parse(&b).unwrap());
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        // Beyond 38 digits a difference is not exact.
        if let Some(difference) = a.checked_sub(b) {
            prop_assert_eq!(a.cmp(&b) as i32, difference.signum());
            prop_assert_eq!(difference + b, a);
        } else {
            prop_assert_eq!(a.cmp(&b) as i32, (a - b).signum());
        }
        prop_assert_eq!(a + b, b + a);
    }

    #[test]
    fn whole_numbers_keep_their_value(v in any::<i64>()) {
        prop_assert_eq!(Quantity::from(v).value(), v);
        prop_assert_eq!(Quantity::from_bytes(v).to_string().parse::<Quantity>().unwrap().value(), v);
    }
}
