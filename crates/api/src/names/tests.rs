use super::*;

#[test]
fn texts_are_those_of_kubernetes() {
    assert_eq!(
        check_dns1123_subdomain("Bad_Name"),
        [
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ]
    );
    assert_eq!(check_dns1123_label("a.b"), ["must not contain dots"]);
    assert_eq!(
        check_dns1123_label("-"),
        [
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        ]
    );
    assert_eq!(
        check_qualified_name("a/b/c"),
        [
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    );
    assert_eq!(
        check_qualified_name("/a"),
        ["prefix part must be non-empty"]
    );
    assert_eq!(
        check_label_value(&"x".repeat(64)),
        ["must be no more than 63 bytes"]
    );
    assert_eq!(check_path_segment(".."), ["may not be '..'"]);
    assert_eq!(
        check_path_segment("a/b%"),
        ["may not contain '/'", "may not contain '%'"]
    );
    assert_eq!(
        check_port_number(0),
        ["must be between 1 and 65535, inclusive"]
    );
}

#[test]
fn valid_names() {
    for ok in ["a", "a.b", "0", "a-b.c-d"] {
        assert!(check_dns1123_subdomain(ok).is_empty(), "{ok}");
    }
    for bad in ["", ".", "a.", "a..b", "a-", "A"] {
        assert!(!check_dns1123_subdomain(bad).is_empty(), "{bad}");
    }
    for ok in ["a", "A_b.c", "example.com/Name"] {
        assert!(check_qualified_name(ok).is_empty(), "{ok}");
    }
    assert!(check_label_value("").is_empty());
    assert!(check_dns1035_label("a0").is_empty());
    assert!(!check_dns1035_label("0a").is_empty());
    assert!(check_port_name("http-2").is_empty());
    assert!(!check_port_name("80").is_empty());
    assert!(check_env_var_name("a b").is_empty());
    assert!(!check_env_var_name("a=b").is_empty());
    assert!(NameRule::Subdomain.check("base-", true).is_empty());
    assert!(!NameRule::Subdomain.check("base-", false).is_empty());
}

#[test]
fn extended_resources() {
    assert!(is_extended_resource("hardware-vendor.example/foo"));
    assert!(!is_extended_resource("cpu"));
    assert!(!is_extended_resource("kubernetes.io/batch"));
    assert!(!is_extended_resource("requests.example.com/foo"));
    assert!(!is_extended_resource("example.com/foo/bar"));
}
