//! Character rules as plain loops: these run for every name of every object.

/// Whether a text is a lower-case DNS label, of any length.
pub fn is_dns1123_label(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let bytes = value.as_bytes();
    bounded(bytes) && bytes.iter().all(|b| inner(*b))
}

/// Whether a text is lower-case DNS labels joined by dots, of any length.
pub fn is_dns1123_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns1123_label)
}

/// Whether a text is a lower-case DNS label that starts with a letter, of any length.
pub fn is_dns1035_label(value: &str) -> bool {
    is_dns1123_label(value) && value.as_bytes()[0].is_ascii_lowercase()
}

/// Whether a text can be the name part of a qualified name, of any length.
pub fn is_qualified_part(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let bytes = value.as_bytes();
    bounded(bytes) && bytes.iter().all(|b| inner(*b))
}

/// Not empty, and letters or digits at both ends.
fn bounded(bytes: &[u8]) -> bool {
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric(),
        _ => false,
    }
}
