//! Named formats: `format.dns1123Label().validate(text)`.

use std::sync::Arc;

use base64::Engine;
use davit_api::names;

use super::strings::text;
use super::{Native, no_overload};
use crate::value::Value;

/// A format by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedFormat {
    /// A DNS label.
    Dns1123Label,
    /// A DNS subdomain.
    Dns1123Subdomain,
    /// A DNS label that begins with a letter.
    Dns1035Label,
    /// `prefix/name`.
    QualifiedName,
    /// A name that something is appended to.
    Dns1123LabelPrefix,
    /// A name that something is appended to.
    Dns1123SubdomainPrefix,
    /// A name that something is appended to.
    Dns1035LabelPrefix,
    /// The value of a label.
    LabelValue,
    /// A URI.
    Uri,
    /// A UUID.
    Uuid,
    /// Base64.
    Byte,
    /// `2006-01-02`.
    Date,
    /// RFC 3339.
    Datetime,
}

const NAMES: [(&str, NamedFormat); 13] = [
    ("dns1123Label", NamedFormat::Dns1123Label),
    ("dns1123Subdomain", NamedFormat::Dns1123Subdomain),
    ("dns1035Label", NamedFormat::Dns1035Label),
    ("qualifiedName", NamedFormat::QualifiedName),
    ("dns1123LabelPrefix", NamedFormat::Dns1123LabelPrefix),
    (
        "dns1123SubdomainPrefix",
        NamedFormat::Dns1123SubdomainPrefix,
    ),
    ("dns1035LabelPrefix", NamedFormat::Dns1035LabelPrefix),
    ("labelValue", NamedFormat::LabelValue),
    ("uri", NamedFormat::Uri),
    ("uuid", NamedFormat::Uuid),
    ("byte", NamedFormat::Byte),
    ("date", NamedFormat::Date),
    ("datetime", NamedFormat::Datetime),
];

impl NamedFormat {
    /// What checking a text of this length costs.
    pub(crate) fn cost(self, size: u64) -> u64 {
        // as matching a pattern of 128 characters
        crate::costs::traversal(size + 1) * if self.is_pattern() { 32 } else { 1 }
    }

    fn is_pattern(self) -> bool {
        !matches!(self, Self::Uri | Self::Byte | Self::Date | Self::Datetime)
    }

    fn check(self, text: &str) -> Vec<String> {
        let prefix = text.strip_suffix('-').unwrap_or(text);
        match self {
            Self::Dns1123Label => names::check_dns1123_label(text),
            Self::Dns1123Subdomain => names::check_dns1123_subdomain(text),
            Self::Dns1035Label => names::check_dns1035_label(text),
            Self::Dns1123LabelPrefix => names::check_dns1123_label(prefix),
            Self::Dns1123SubdomainPrefix => names::check_dns1123_subdomain(prefix),
            Self::Dns1035LabelPrefix => names::check_dns1035_label(prefix),
            Self::QualifiedName => names::check_qualified_name(text),
            Self::LabelValue => names::check_label_value(text),
            Self::Uri => one(super::urls::is_uri(text), "invalid URI"),
            Self::Uuid => one(is_uuid(text), "does not match the UUID format"),
            Self::Byte => one(
                base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .is_ok(),
                "invalid base64",
            ),
            Self::Date => one(
                text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
                "invalid date",
            ),
            Self::Datetime => one(
                super::time::parse_timestamp(text).is_some(),
                "invalid datetime",
            ),
        }
    }
}

fn one(fits: bool, message: &str) -> Vec<String> {
    if fits {
        Vec::new()
    } else {
        vec![message.to_owned()]
    }
}

fn is_uuid(text: &str) -> bool {
    let plain: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let dashes = text
        .bytes()
        .enumerate()
        .all(|(n, b)| b != b'-' || matches!(n, 8 | 13 | 18 | 23));
    plain.len() == 32 && dashes && plain.iter().all(u8::is_ascii_hexdigit)
}

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("validate", true) => |_, args| match &args[0] {
            Value::Format(format) => {
                let faults = format.check(text(args, 1)?);
                Ok(if faults.is_empty() {
                    Value::Optional(None)
                } else {
                    Value::some(Value::list(faults.into_iter().map(Value::from).collect()))
                })
            }
            _ => no_overload(),
        },
        ("format.named", false) => |_, args| {
            let found = NAMES.iter().find(|(known, _)| Ok(*known) == text(args, 0));
            Ok(Value::Optional(
                found.map(|(_, format)| Arc::new(Value::Format(*format))),
            ))
        },
        ("format.dns1123Label", false) => |_, _| Ok(Value::Format(NamedFormat::Dns1123Label)),
        ("format.dns1123Subdomain", false) => {
            |_, _| Ok(Value::Format(NamedFormat::Dns1123Subdomain))
        }
        ("format.dns1035Label", false) => |_, _| Ok(Value::Format(NamedFormat::Dns1035Label)),
        ("format.qualifiedName", false) => |_, _| Ok(Value::Format(NamedFormat::QualifiedName)),
        ("format.dns1123LabelPrefix", false) => {
            |_, _| Ok(Value::Format(NamedFormat::Dns1123LabelPrefix))
        }
        ("format.dns1123SubdomainPrefix", false) => {
            |_, _| Ok(Value::Format(NamedFormat::Dns1123SubdomainPrefix))
        }
        ("format.dns1035LabelPrefix", false) => {
            |_, _| Ok(Value::Format(NamedFormat::Dns1035LabelPrefix))
        }
        ("format.labelValue", false) => |_, _| Ok(Value::Format(NamedFormat::LabelValue)),
        ("format.uri", false) => |_, _| Ok(Value::Format(NamedFormat::Uri)),
        ("format.uuid", false) => |_, _| Ok(Value::Format(NamedFormat::Uuid)),
        ("format.byte", false) => |_, _| Ok(Value::Format(NamedFormat::Byte)),
        ("format.date", false) => |_, _| Ok(Value::Format(NamedFormat::Date)),
        ("format.datetime", false) => |_, _| Ok(Value::Format(NamedFormat::Datetime)),
        _ => return None,
    })
}
