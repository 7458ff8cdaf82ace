//! Hosts and ports as they stand together in URLs and `Host` headers: addresses of IPv6 in brackets
//! (RFC 3986, section 3.2.2).

use std::borrow::Cow;
use std::fmt::Display;

/// `host:port`.
pub fn host_port(host: &str, port: impl Display) -> String {
    format!("{}:{port}", bracketed(host))
}

/// A host as it stands before a port. One that stands in brackets already is taken as it is.
pub fn bracketed(host: &str) -> Cow<'_, str> {
    match host.contains(':') && !host.starts_with('[') {
        true => Cow::Owned(format!("[{host}]")),
        false => Cow::Borrowed(host),
    }
}

/// A host as it is looked up and stands in certificates: without the brackets around an address of IPv6.
pub fn without_brackets(host: &str) -> &str {
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inside.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ipv6_stand_in_brackets() {
        for (host, with_port, plain) in [
            ("example.com", "example.com:80", "example.com"),
            ("10.0.0.1", "10.0.0.1:80", "10.0.0.1"),
            ("fd00::1", "[fd00::1]:80", "fd00::1"),
            ("[fd00::1]", "[fd00::1]:80", "fd00::1"),
            ("", ":80", ""),
        ] {
            assert_eq!(host_port(host, 80), with_port);
            assert_eq!(without_brackets(host), plain);
        }
        for odd in ["[a", "a]", "[", "]"] {
            assert_eq!(
                without_brackets(odd),
                odd,
                "half a pair is part of the name"
            );
        }
        assert_eq!(without_brackets("[[::1]]"), "[::1]");
    }
}
