//! Texts of objects, plugins and programs on a terminal: readable, short, and without what would move the cursor.

/// The text without control characters, on one line.
pub(crate) fn printable(text: &str) -> String {
    printable_piece(text.trim_end())
}

/// The same of a text that goes on: what blanks it ends with stay.
pub(crate) fn printable_piece(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => ' ',
        // Those of bidirectional writing change the order of what follows.
        c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
            '\u{fffd}'
        }
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The lines of a text, each printable.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line) + "\n").collect()
}

/// The beginning and the end of a text that is longer.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else {
        return String::new();
    };
    let (before, after) = (room.div_ceil(2), room / 2);
    let begin: String = chars[..before].iter().collect();
    let end: String = chars[chars.len() - after..].iter().collect();
    format!("{begin}…{end}")
}

/// `5s`, `3m`, `2h`, `4d`: one unit is enough to see how old something is.
pub(crate) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// Bytes as people read them.
pub(crate) fn bytes(bytes: i64) -> String {
    match bytes {
        b if b >= 10 << 30 => format!("{}Gi", b >> 30),
        b if b >= 1 << 20 => format!("{}Mi", b >> 20),
        b if b >= 1 << 10 => format!("{}Ki", b >> 10),
        b => b.to_string(),
    }
}

/// A dash where there is nothing.
pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor() {
        let shown = printable("a\x1b[2Jb\nc\u{202e}d\r\n");
        assert_eq!(shown, "a\u{fffd}[2Jb c\u{fffd}d");
        assert_eq!(
            printable_lines("a\n  b\r\x07c"),
            "a\n  b\u{fffd}\u{fffd}c\n"
        );
    }

    #[test]
    fn long_texts_keep_their_beginning_and_end() {
        assert_eq!(shortened("abcdefgh", 5), "ab…gh");
        assert_eq!(shortened("abcdefgh", 4), "ab…h");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abc", 1), "…");
        assert_eq!(shortened("abc", 0), "");
    }

    #[test]
    fn ages_and_sizes_have_one_unit() {
        let ages: Vec<String> = [-3, 119, 120, 7199, 7200, 172_800].map(age).to_vec();
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "2d"]);
        assert_eq!(bytes(5), "5");
        assert_eq!(bytes(12 << 20), "12Mi");
        assert_eq!(bytes(20 << 30), "20Gi");
    }
}
