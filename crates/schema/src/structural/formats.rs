//! Named formats of texts. Formats that nobody knows hold for every text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use davit_api::{names, time};

/// Whether a text has a format.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format {
        "bsonobjectid" => text.len() == 24 && is_hex(text),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some(b"3")),
        "uuid4" => is_uuid(text, Some(b"4")),
        "uuid5" => is_uuid(text, Some(b"5")),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => is_ssn(text),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && is_hex(digits)
        }
        "rgbcolor" => is_rgb(text),
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .is_ok(),
        "date" => is_date(text),
        "duration" => is_duration(text),
        "date-time" | "datetime" => is_date_time(text),
        "k8s-short-name" => names::check_dns1123_label(text).is_empty(),
        "k8s-long-name" => names::check_dns1123_subdomain(text).is_empty(),
        _ => true,
    }
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_uri(text: &str) -> bool {
    let clean = !text.is_empty() && !text.contains(|c: char| c.is_control() || c == ' ');
    let scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let rooted = text.starts_with('/');
    clean
        && (rooted
            || text
                .split_once(':')
                .is_some_and(|(before, _)| scheme(before)))
}

fn is_email(text: &str) -> bool {
    // `Name <a@b>` is an address too
    let address = text
        .strip_suffix('>')
        .and_then(|text| text.rsplit_once('<'))
        .map_or(text, |(_, address)| address);
    let clean = !address.contains(|c: char| c.is_control() || c.is_whitespace());
    clean
        && address
            .rsplit_once('@')
            .is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
}

fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 255 && name.split('.').all(label)
}

fn is_cidr(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else {
        return false;
    };
    let plain = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|b| b.is_ascii_digit());
    let Ok(bits) = bits.parse::<u8>() else {
        return false;
    };
    plain
        && match ip.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => bits <= 32,
            Ok(IpAddr::V6(_)) => bits <= 128,
            Err(_) => false,
        }
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize, counts: &[usize]| {
        let groups: Vec<&str> = text.split(separator).collect();
        counts.contains(&groups.len()) && groups.iter().all(|g| g.len() == digits && is_hex(g))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

fn is_uuid(text: &str, version: Option<&[u8]>) -> bool {
    let compact: String = text.chars().filter(|c| *c != '-').collect();
    let dashes_fit = !text.contains('-')
        || text.split('-').map(str::len).collect::<Vec<_>>() == [8, 4, 4, 4, 12];
    if compact.len() != 32 || !is_hex(&compact) || !dashes_fit {
        return false;
    }
    let bytes = compact.as_bytes();
    let variant = matches!(bytes[16], b'8' | b'9' | b'a' | b'b' | b'A' | b'B');
    match version {
        None => true,
        Some(b"3") => bytes[12] == b'3',
        Some(version) => bytes[12] == version[0] && variant,
    }
}

fn compact(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = compact(text);
    if text.len() != 10 {
        return false;
    }
    let mut sum = 0;
    for (i, b) in text.bytes().enumerate() {
        let digit = match b {
            b'0'..=b'9' => u32::from(b - b'0'),
            b'X' if i == 9 => 10,
            _ => return false,
        };
        sum += digit * (10 - i as u32);
    }
    sum % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let text = compact(text);
    if text.len() != 13 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sum: u32 = text
        .bytes()
        .enumerate()
        .map(|(i, b)| u32::from(b - b'0') * if i % 2 == 0 { 1 } else { 3 })
        .sum();
    sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let text = compact(text);
    if !(12..=19).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sum: u32 = text
        .bytes()
        .rev()
        .enumerate()
        .map(|(i, b)| {
            let digit = u32::from(b - b'0');
            match (i % 2, digit) {
                (0, _) => digit,
                (_, 0..5) => 2 * digit,
                _ => 2 * digit - 9,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

fn is_ssn(text: &str) -> bool {
    let digits = compact(text);
    digits.len() == 9
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (text.len() == 9
            || text.len() == 11
                && matches!(
                    (text.as_bytes()[3], text.as_bytes()[6]),
                    (b'-' | b' ', b'-' | b' ')
                ))
}

fn is_rgb(text: &str) -> bool {
    let inside = text
        .strip_prefix("rgb(")
        .and_then(|text| text.strip_suffix(')'));
    inside.is_some_and(|inside| {
        let parts: Vec<&str> = inside.split(',').map(str::trim).collect();
        parts.len() == 3 && parts.iter().all(|part| part.parse::<u8>().is_ok())
    })
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    if text.len() < 20 || !text.is_ascii() {
        return false;
    }
    let (date, rest) = text.split_at(10);
    let zoned = rest.ends_with(['Z', 'z'])
        || rest.len() > 6 && matches!(rest.as_bytes()[rest.len() - 6], b'+' | b'-');
    is_date(date)
        && rest.starts_with(['T', 't'])
        && zoned
        && rest.as_bytes()[3] == b':'
        && rest.as_bytes()[6] == b':'
        && time::instant(&text.to_ascii_uppercase()).is_some()
}

/// A duration of Go, or a number with a unit in words (`3 days`).
fn is_duration(text: &str) -> bool {
    if time::parse_duration(text).is_ok() {
        return true;
    }
    const UNITS: [&str; 30] = [
        "ns",
        "nano",
        "nanosecond",
        "nanoseconds",
        "us",
        "µs",
        "micro",
        "microsecond",
        "microseconds",
        "ms",
        "milli",
        "millisecond",
        "milliseconds",
        "s",
        "sec",
        "second",
        "seconds",
        "m",
        "min",
        "minute",
        "minutes",
        "h",
        "hr",
        "hour",
        "hours",
        "d",
        "day",
        "days",
        "w",
        "wk",
    ];
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let unit = text[digits..].trim();
    digits > 0 && (UNITS.contains(&unit) || matches!(unit, "week" | "weeks"))
}
