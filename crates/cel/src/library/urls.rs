//! URLs, parsed as Go parses request URIs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::strings::text;
use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::{Key, Map, Value};

/// The parts of an absolute URL or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// With port.
    host: String,
    escaped_path: String,
    query: String,
    whole: String,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)
    }
}

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("url", false) => |_, args| {
            let text = text(args, 0)?;
            parse(text).map_or_else(
                |why| {
                    failed(format!(
                        "URL parse error during conversion from string: parse {text:?}: {why}"
                    ))
                },
                |url| Ok(Value::Url(Arc::new(url))),
            )
        },
        ("isURL", false) => |_, args| Ok(parse(text(args, 0)?).is_ok().into()),
        ("getScheme", true) => |_, args| of(args, |url| url.scheme.as_str().into()),
        ("getHost", true) => |_, args| of(args, |url| url.host.as_str().into()),
        ("getHostname", true) => |_, args| of(args, |url| split_port(&url.host).0.into()),
        ("getPort", true) => |_, args| of(args, |url| split_port(&url.host).1.into()),
        ("getEscapedPath", true) => |_, args| of(args, |url| url.escaped_path.as_str().into()),
        ("getQuery", true) => |_, args| of(args, |url| query(&url.query)),
        _ => return None,
    })
}

fn of(args: &[Value], part: fn(&Url) -> Value) -> Result<Value, EvalError> {
    match args.first() {
        Some(Value::Url(url)) => Ok(part(url)),
        _ => no_overload(),
    }
}

fn split_port(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((name, port)) => (name, port.trim_start_matches(':')),
            None => (host, ""),
        };
    }
    host.rsplit_once(':').unwrap_or((host, ""))
}

fn parse(text: &str) -> Result<Url, &'static str> {
    if text.is_empty() {
        return Err("empty url");
    }
    if text.chars().any(char::is_control) {
        return Err("net/url: invalid control character in URL");
    }
    let (scheme, rest) = scheme(text)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return if scheme.is_empty() {
            Err("invalid URI for request")
        } else {
            Err("only absolute paths are supported")
        };
    }
    let (host, path) = match path.strip_prefix("//") {
        Some(after) if !scheme.is_empty() => {
            let end = after.find('/').unwrap_or(after.len());
            (&after[..end], &after[end..])
        }
        _ => ("", path),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = split_port(host).1;
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err("invalid port after host");
    }
    if host.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '}', '|']) {
        return Err("invalid character in host name");
    }
    if !escapes_are_valid(path) || !escapes_are_valid(host) {
        return Err("invalid URL escape");
    }
    Ok(Url {
        scheme: scheme.to_ascii_lowercase(),
        host: host.to_owned(),
        escaped_path: escape_path(path),
        query: query.to_owned(),
        whole: text.to_owned(),
    })
}

fn scheme(text: &str) -> Result<(&str, &str), &'static str> {
    let Some(colon) = text.find(':') else {
        return Ok(("", text));
    };
    let name = &text[..colon];
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    if name.is_empty() {
        return Err("missing protocol scheme");
    }
    if plain && name.as_bytes()[0].is_ascii_alphabetic() {
        return Ok((name, &text[colon + 1..]));
    }
    Ok(("", text))
}

fn escapes_are_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().all(|(n, b)| {
        *b != b'%'
            || bytes
                .get(n + 1..n + 3)
                .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    })
}

fn escape_path(path: &str) -> String {
    let mut escaped = String::new();
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte);
        if plain {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn query(text: &str) -> Value {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for pair in text
        .split('&')
        .filter(|p| !p.is_empty() && !p.contains(';'))
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescape(key), unescape(value)) {
            found.entry(key).or_default().push(value.into());
        }
    }
    Value::Map(Arc::new(Map {
        entries: found
            .into_iter()
            .map(|(key, values)| (Key::String(key.into()), Value::list(values)))
            .collect(),
        ..Map::default()
    }))
}

fn unescape(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut n = 0;
    while n < bytes.len() {
        match bytes[n] {
            b'+' => plain.push(b' '),
            b'%' => {
                let hex = text.get(n + 1..n + 3)?;
                plain.push(u8::from_str_radix(hex, 16).ok()?);
                n += 2;
            }
            b => plain.push(b),
        }
        n += 1;
    }
    String::from_utf8(plain).ok()
}

pub(super) fn is_uri(text: &str) -> bool {
    parse(text).is_ok()
}
