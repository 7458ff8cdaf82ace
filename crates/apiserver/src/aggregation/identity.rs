//! Who asks, in words that a backend believes of this server.

use davit_access::UserInfo;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::hop_headers::strip_claims;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";
/// What may stand in a header's name as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Says who the caller is; what the caller said of itself goes.
///
/// # Errors
/// When that cannot be said: half of an identity would be another one.
pub(crate) fn identity_headers(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), String> {
    strip_claims(headers);
    let value = |text: &str| {
        let value = HeaderValue::from_bytes(text.as_bytes());
        value.map_err(|_| format!("the caller's identity cannot be passed on: {text:?}"))
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let escaped = utf8_percent_encode(key, ESCAPED).to_string();
        let name = format!("{EXTRA}{}", escaped.to_ascii_lowercase());
        let name: HeaderName = name
            .parse()
            .map_err(|_| format!("the caller's identity cannot be passed on: {key:?}"))?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_164_identity_replaces_what_the_caller_claims() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("x-remote-group", HeaderValue::from_static("system:masters"));
        headers.insert("x-remote-extra-scopes", HeaderValue::from_static("all"));
        headers.insert("impersonate-user", HeaderValue::from_static("root"));
        let mut user = UserInfo::new("jane", &["a", "b"]);
        user.uid = "u1".to_owned();
        user.extra.insert(
            "example.com/Some Key%".to_owned(),
            vec!["1".to_owned(), "2".to_owned()],
        );
        headers.insert("x_remote_user", HeaderValue::from_static("root"));
        headers.insert(
            "Impersonate_Group",
            HeaderValue::from_static("system:masters"),
        );
        identity_headers(&mut headers, &user).unwrap();
        // a server that reads both spellings as one reads no claim
        assert!(headers.keys().all(|name| !name.as_str().contains('_')));
        for hostile in ["a\nb", "a\r\nX-Remote-Group: system:masters", "\0"] {
            let nobody = UserInfo::new(hostile, &[]);
            assert!(identity_headers(&mut HeaderMap::new(), &nobody).is_err());
            let half = UserInfo::new("jane", &[hostile]);
            assert!(identity_headers(&mut HeaderMap::new(), &half).is_err());
        }
        let all = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values.map(|v| v.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-uid"), ["u1"]);
        assert_eq!(all("x-remote-group"), ["a", "b", "system:authenticated"]);
        assert!(all("x-remote-extra-scopes").is_empty() && all("impersonate-user").is_empty());
        assert_eq!(
            all("x-remote-extra-example.com%2fsome%20key%25"),
            ["1", "2"]
        );
    }
}
