//! `$(NAME)` expansion in commands, arguments, environment values and `subPathExpr`.

/// Replaces `$(NAME)` by what `lookup` gives; references it does not know stay as written and `$$` is a literal `$`.
pub fn expand(input: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

/// Like [`expand`], but a reference that is not known is an error (`subPathExpr`).
///
/// # Errors
/// The missing names.
pub fn expand_strict(
    input: &str,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, Vec<String>> {
    let missing = std::cell::RefCell::new(Vec::new());
    let out = expand(input, |name| {
        let value = lookup(name);
        if value.is_none() {
            missing.borrow_mut().push(name.to_owned());
        }
        value
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        Ok(out)
    } else {
        Err(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(name: &str) -> Option<String> {
        match name {
            "VAR_A" => Some("A".into()),
            "VAR_B" => Some("B".into()),
            "VAR_REF" => Some("$(VAR_A)".into()),
            "VAR_EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn expansion_table() {
        for (input, expected) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_A)-$(VAR_B)", "A-B"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$(MISSING)", "$(MISSING)"),
            ("f000-$VAR_A", "f000-$VAR_A"),
            ("$(VAR_A", "$(VAR_A"),
            ("$(VAR_EMPTY)x", "x"),
            ("$", "$"),
            ("a$", "a$"),
            ("$()", "$()"),
            ("", ""),
        ] {
            assert_eq!(expand(input, vars), expected, "{input}");
        }
    }

    #[test]
    fn strict_expansion_names_what_is_missing() {
        assert_eq!(
            expand_strict("$(A)/$(VAR_A)/$(B)", vars),
            Err(vec!["A".into(), "B".into()])
        );
        assert_eq!(expand_strict("$(VAR_A)", vars).as_deref(), Ok("A"));
    }
}
