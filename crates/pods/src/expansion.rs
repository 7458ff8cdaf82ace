//! `$(NAME)` expansion in commands, arguments, environment values and `subPathExpr`.

use std::borrow::Cow;

/// The text has become longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Replaces `$(NAME)` by what `lookup` gives; references it does not know stay as written and `$$` is a literal `$`.
///
/// # Errors
/// The result has more than `limit` bytes: a value may be named any number of times, also by one that is named itself.
pub fn expand<'a>(
    input: &str,
    limit: usize,
    mut lookup: impl FnMut(&str) -> Option<Cow<'a, str>>,
) -> Result<String, TooLong> {
    let mut out = String::with_capacity(input.len().min(limit));
    let mut push = |text: &str| {
        if text.len() > limit - out.len() {
            return Err(TooLong);
        }
        out.push_str(text);
        Ok(())
    };
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        push(&rest[..at])?;
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            push("$")?;
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match lookup(name) {
                Some(value) => push(&value)?,
                None => push(&rest[at..rest.len() - after.len()])?,
            }
            rest = after;
        } else {
            push("$")?;
            rest = tail;
        }
    }
    push(rest)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(name: &str) -> Option<Cow<'static, str>> {
        match name {
            "VAR_A" => Some("A".into()),
            "VAR_B" => Some("B".into()),
            "VAR_REF" => Some("$(VAR_A)".into()),
            "VAR_EMPTY" => Some("".into()),
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
            assert_eq!(expand(input, 100, vars).as_deref(), Ok(expected), "{input}");
        }
    }

    #[test]
    fn nothing_grows_beyond_its_limit() {
        assert_eq!(expand("$(VAR_A)b$$", 3, vars).as_deref(), Ok("Ab$"));
        for input in ["$(VAR_A)b$$", "$(N)", "abc", "$x$"] {
            assert_eq!(expand(input, 2, vars), Err(TooLong), "{input}");
        }
    }
}
