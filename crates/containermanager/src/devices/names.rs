//! Which resource names device plugins may advertise.

/// A name a device plugin may not use; the text is what the plugin gets to see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ResourceName \"{0}\" is invalid")]
pub struct InvalidName(pub String);

/// Checks that `name` is an extended resource: not native, not a quota name, and
/// `requests.` followed by it is a qualified name.
///
/// # Errors
/// It is none of these.
pub fn check(name: &str) -> Result<(), InvalidName> {
    if !davit_api::names::is_extended_resource(name) {
        return Err(InvalidName(shortened(name)));
    }
    Ok(())
}

/// Bytes of a plugin's text that are shown: longer than any that is valid.
const SHOWN: usize = 400;

/// The beginning of what a plugin says, for logs and answers.
pub(super) fn shortened(text: &str) -> String {
    match text.floor_char_boundary(SHOWN) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_006_names() {
        let part = |n| format!("a.com/{}", "x".repeat(n));
        for good in ["a.com/x", "hardware-vendor.example/foo", "A/x", &part(63)] {
            assert_eq!(check(good).is_ok(), good != "A/x", "{good}");
        }
        for bad in [
            "cpu",
            "kubernetes.io/x",
            "mykubernetes.io/x",
            "foo.kubernetes.io/x",
            "requests.a.com/x",
            "a.com/",
            "/x",
            "a.com/x/y",
            "a.com/-x",
            &part(64),
            &format!("{}/x", "a".repeat(250)),
        ] {
            let e = check(bad).unwrap_err();
            assert_eq!(
                e.to_string(),
                format!("the ResourceName \"{bad}\" is invalid")
            );
        }
        let e = check(&"é".repeat(1 << 20)).unwrap_err().to_string();
        assert!(e.len() < 500 && e.ends_with("…\" is invalid"), "{e}");
    }
}
