//! Rules for names, label keys and values, ports and environment variables, each answering with the
//! texts that Kubernetes prints.
//!
//! Every `check_*` function returns what is wrong, one sentence a fault; an empty list means valid.

mod charset;

pub use crate::addresses::{
    check_canonical_cidr, check_canonical_ip, check_cidr, check_interface_address, check_ip,
    check_non_special_ip, parse_cidr,
};
pub use charset::{is_dns1035_label, is_dns1123_label, is_dns1123_subdomain, is_qualified_part};

/// Greatest length of a DNS-1123 or DNS-1035 label, in bytes.
pub const LABEL_MAX: usize = 63;
/// Greatest length of a DNS-1123 subdomain, in bytes.
pub const SUBDOMAIN_MAX: usize = 253;

/// What generated parts of names are written with: without vowels and what looks like one, they spell nothing
/// (`k8s.io/apimachinery/pkg/util/rand`).
pub const GENERATED_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const DNS1123_LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_LABEL_MSG: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN_FMT: &str =
    "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1123_SUBDOMAIN_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const CASELESS_SUBDOMAIN_MSG: &str = "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1035_LABEL_FMT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const DNS1035_LABEL_MSG: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const QUALIFIED_NAME_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_NAME_MSG: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE_FMT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_MSG: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const WILDCARD_FMT: &str = "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WILDCARD_MSG: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const CONFIG_KEY_FMT: &str = "[-._a-zA-Z0-9]+";
const CONFIG_KEY_MSG: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
const HEADER_FMT: &str = "[-A-Za-z0-9]+";
const HEADER_MSG: &str = "a valid HTTP header must consist of alphanumeric characters or '-'";
const C_IDENTIFIER_FMT: &str = "[A-Za-z_][A-Za-z0-9_]*";
const C_IDENTIFIER_MSG: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'";
const PERCENT_FMT: &str = "[0-9]+%";
const PERCENT_MSG: &str =
    "a valid percent string must be a numeric string followed by an ending '%'";

/// `must be no more than N bytes`.
pub fn too_long_text(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// `must be no more than N characters`: so it is said of names, the other way of parts of labels.
pub fn too_many_characters(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// `must be between LO and HI, inclusive`.
pub fn range_text(lo: i64, hi: i64) -> String {
    format!("must be between {lo} and {hi}, inclusive")
}

/// A hash (FNV-1a, 32 bits) in [`GENERATED_ALPHABET`], at most ten letters: for names that follow from what they stand for.
pub fn short_hash(of: impl IntoIterator<Item = u8>) -> String {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in of {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    let digits = hash.to_string().into_bytes().into_iter();
    digits
        .map(|digit| char::from(GENERATED_ALPHABET[usize::from(digit - b'0')]))
        .collect()
}

/// The text for an empty value.
pub const EMPTY: &str = "must be non-empty";

/// The text for a value that does not match a pattern.
pub fn regex_text(message: &str, pattern: &str, examples: &[&str]) -> String {
    let mut out = message.to_owned();
    out.push_str(" (");
    for (i, example) in examples.iter().enumerate() {
        out.push_str(if i == 0 { "e.g. '" } else { " or '" });
        out.push_str(example);
        out.push_str("', ");
    }
    out.push_str("regex used for validation is '");
    out.push_str(pattern);
    out.push_str("')");
    out
}

/// A lower-case DNS label of at most 63 bytes (namespaces, containers, volumes).
pub fn check_dns1123_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_many_characters(LABEL_MAX));
    }
    if !is_dns1123_label(value) {
        if is_dns1123_subdomain(value) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(regex_text(
                DNS1123_LABEL_MSG,
                DNS1123_LABEL_FMT,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

/// Lower-case DNS labels joined by dots, at most 253 bytes (the names of most objects).
pub fn check_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_many_characters(SUBDOMAIN_MAX));
    }
    if !is_dns1123_subdomain(value) {
        errors.push(regex_text(
            DNS1123_SUBDOMAIN_MSG,
            DNS1123_SUBDOMAIN_FMT,
            &["example.com"],
        ));
    }
    errors
}

/// Like [`check_dns1123_subdomain`], in the words of declared formats
/// (`k8s-long-name` of <https://kubernetes.io/docs/reference/using-api/declarative-validation/>).
pub fn check_long_name(value: &str) -> Vec<String> {
    in_bytes(check_dns1123_subdomain(value), SUBDOMAIN_MAX)
}

/// Like [`check_dns1123_label`], in the words of declared formats (`k8s-short-name`).
pub fn check_short_name(value: &str) -> Vec<String> {
    in_bytes(check_dns1123_label(value), LABEL_MAX)
}

/// Like [`check_dns1123_subdomain_caseless`], in the words of declared formats (`k8s-long-name-caseless`).
pub fn check_long_name_caseless(value: &str) -> Vec<String> {
    in_bytes(check_dns1123_subdomain_caseless(value), SUBDOMAIN_MAX)
}

/// Lengths are told in bytes where rules are declared, in characters elsewhere.
fn in_bytes(mut faults: Vec<String>, max: usize) -> Vec<String> {
    for fault in &mut faults {
        if *fault == too_many_characters(max) {
            *fault = too_long_text(max);
        }
    }
    faults
}

/// Like [`check_dns1123_subdomain`] with upper case allowed (driver names).
pub fn check_dns1123_subdomain_caseless(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_many_characters(SUBDOMAIN_MAX));
    }
    if !is_dns1123_subdomain(&value.to_ascii_lowercase()) {
        errors.push(regex_text(
            CASELESS_SUBDOMAIN_MSG,
            DNS1123_SUBDOMAIN_FMT,
            &["Example.com"],
        ));
    }
    errors
}

/// A DNS label that starts with a letter, at most 63 bytes.
pub fn check_dns1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_many_characters(LABEL_MAX));
    }
    if !is_dns1035_label(value) {
        errors.push(regex_text(
            DNS1035_LABEL_MSG,
            DNS1035_LABEL_FMT,
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// `*.` followed by a DNS subdomain (ingress hosts).
pub fn check_wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_many_characters(SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_dns1123_subdomain) {
        errors.push(regex_text(WILDCARD_MSG, WILDCARD_FMT, &["*.example.com"]));
    }
    errors
}

/// A label key, annotation key, finalizer or resource name: an optional DNS subdomain and `/`
/// before a name of at most 63 bytes.
pub fn check_qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push(format!("prefix part {EMPTY}"));
            } else {
                let mut faults = check_dns1123_subdomain(prefix);
                if prefix.len() > SUBDOMAIN_MAX {
                    faults[0] = too_long_text(SUBDOMAIN_MAX);
                }
                errors.extend(faults.into_iter().map(|e| format!("prefix part {e}")));
            }
            *name
        }
        _ => {
            errors.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                qualified_part_text()
            ));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push(format!("name part {EMPTY}"));
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_long_text(LABEL_MAX)));
    }
    if !is_qualified_part(name) {
        errors.push(format!("name part {}", qualified_part_text()));
    }
    errors
}

fn qualified_part_text() -> String {
    regex_text(
        QUALIFIED_NAME_MSG,
        QUALIFIED_NAME_FMT,
        &["MyName", "my.name", "123-abc"],
    )
}

/// A label value: at most 63 bytes, may be empty.
pub fn check_label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_long_text(LABEL_MAX));
    }
    if !value.is_empty() && !is_qualified_part(value) {
        errors.push(regex_text(
            LABEL_VALUE_MSG,
            LABEL_VALUE_FMT,
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// A name that can stand as one segment of a URL path (RBAC kinds and others).
pub fn check_path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|c| value.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// The base of generated names: what [`check_path_segment`] allows.
pub fn check_path_segment_prefix(value: &str) -> Vec<String> {
    ["/", "%"]
        .iter()
        .filter(|c| value.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// A port number.
pub fn check_port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec![range_text(1, 65535)]
    }
}

/// A port name (IANA service name, at most 15 bytes).
pub fn check_port_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 15 {
        errors.push(too_many_characters(15));
    }
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if value.is_empty() || !value.bytes().all(plain) {
        errors.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// A whole number followed by `%`.
pub fn check_percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        Vec::new()
    } else {
        vec![regex_text(PERCENT_MSG, PERCENT_FMT, &["1%", "93%"])]
    }
}

/// An HTTP header name of a probe or hook.
pub fn check_http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        Vec::new()
    } else {
        vec![regex_text(HEADER_MSG, HEADER_FMT, &["X-Header-Name"])]
    }
}

/// A C identifier.
pub fn check_c_identifier(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let first = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if first && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        Vec::new()
    } else {
        vec![regex_text(
            C_IDENTIFIER_MSG,
            C_IDENTIFIER_FMT,
            &["my_name", "MY_NAME", "MyName"],
        )]
    }
}

/// An environment variable name under the rules since 1.34: printable ASCII without `=`.
pub fn check_env_var_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec![format!("environment variable name {EMPTY}")];
    }
    if value
        .bytes()
        .all(|b| (b' '..=b'~').contains(&b) && b != b'=')
    {
        Vec::new()
    } else {
        vec![regex_text(
            "a valid environment variable name must consist only of printable ASCII characters other than '='",
            "^[ -<>-~]+$",
            &[],
        )]
    }
}

/// A key of a ConfigMap or Secret.
pub fn check_config_map_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_many_characters(SUBDOMAIN_MAX));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if value.is_empty() || !value.bytes().all(plain) {
        errors.push(regex_text(
            CONFIG_KEY_MSG,
            CONFIG_KEY_FMT,
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    errors.extend(check_dots(value));
    errors
}

/// Names that would walk out of a directory.
fn check_dots(value: &str) -> Option<String> {
    match value {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        v if v.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Which rule the name of an object follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// [`check_dns1123_subdomain`].
    Subdomain,
    /// [`check_dns1123_label`].
    Label,
    /// [`check_dns1035_label`].
    Label1035,
    /// [`check_path_segment`].
    PathSegment,
    /// [`check_long_name`], and of what names are generated from only what no name may have.
    LongName,
    /// The kind has a rule of its own.
    Own,
}

impl NameRule {
    /// Checks a name, or the base of a generated one (`prefix`), whose last hyphen is not counted.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        let masked = if prefix && name.len() > 1 && name.ends_with('-') {
            format!("{}a", &name[..name.len() - 1])
        } else {
            name.to_owned()
        };
        match self {
            NameRule::Subdomain => check_dns1123_subdomain(&masked),
            NameRule::Label => check_dns1123_label(&masked),
            NameRule::Label1035 => check_dns1035_label(&masked),
            NameRule::LongName | NameRule::PathSegment if prefix => check_path_segment_prefix(name),
            NameRule::LongName => check_long_name(name),
            NameRule::Own => Vec::new(),
            NameRule::PathSegment => check_path_segment(name),
        }
    }
}

/// Whether a resource name belongs to Kubernetes: without a domain, or of `kubernetes.io`.
pub fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || is_prefixed_native_resource(name)
}

/// Whether a resource name has a domain of Kubernetes.
pub fn is_prefixed_native_resource(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// Whether this is the name of huge pages, e.g. `hugepages-2Mi`.
pub fn is_huge_page_resource(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether this is the name of an extended resource: a domain that is not of Kubernetes, and still
/// a qualified name when a quota prefixes `requests.`.
pub fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name)
        && !name.starts_with("requests.")
        && check_qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests;
