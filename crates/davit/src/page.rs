//! What commands print for people: in colour on a terminal, and never with what would move the cursor.
//!
//! Texts of objects, plugins and programs come into a [`Page`] through [`printable`], whoever adds them; colours are put
//! around what has passed.

use crate::plain::{printable, printable_piece};
use clap::ValueEnum;
use std::io::IsTerminal;

/// When to print in colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal that knows colours, unless NO_COLOR is set
    #[default]
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    is_on: bool,
}

/// What a text means to who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    Plain,
    /// Titles of columns and parts.
    Title,
    /// As it should be.
    Good,
    /// Somebody may have to look.
    Doubtful,
    /// Somebody has to look.
    Bad,
    /// Nothing to see.
    Faint,
}

impl Paint {
    /// No colours.
    pub(crate) const NONE: Self = Self { is_on: false };

    /// For what this process prints.
    pub(crate) fn of(choice: ColorChoice) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self::chosen(choice, is_terminal, |name| std::env::var_os(name))
    }

    fn chosen(
        choice: ColorChoice,
        is_terminal: bool,
        environment: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Self {
        let says = |name| environment(name).filter(|value| !value.is_empty());
        let is_on = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                is_terminal
                    && says("NO_COLOR").is_none()
                    && says("TERM").is_some_and(|term| term != "dumb")
            }
        };
        Self { is_on }
    }

    /// The text with its tone; what it is made of must be printable.
    pub(crate) fn put(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            _ if !self.is_on || text.is_empty() => return text.to_owned(),
            Tone::Title => "1",
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A text that grows.
#[derive(Debug)]
pub(crate) struct Page {
    paint: Paint,
    text: String,
}

impl Page {
    /// An empty one.
    pub(crate) fn new(paint: Paint) -> Self {
        Self {
            paint,
            text: String::new(),
        }
    }

    /// A line.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) {
        self.toned(Tone::Plain, text);
    }

    /// A line that means something as a whole.
    pub(crate) fn toned(&mut self, tone: Tone, text: impl AsRef<str>) {
        self.pieces(&[(tone, text.as_ref())]);
    }

    /// A line of pieces, each with its tone.
    pub(crate) fn pieces(&mut self, pieces: &[(Tone, &str)]) {
        let last = pieces.len().saturating_sub(1);
        for (at, (tone, text)) in pieces.iter().enumerate() {
            let text = match at == last {
                true => printable(text),
                false => printable_piece(text),
            };
            self.text.push_str(&self.paint.put(*tone, &text));
        }
        self.text.push('\n');
    }

    /// Each line of a text.
    pub(crate) fn lines(&mut self, text: &str) {
        for line in text.lines() {
            self.line(line);
        }
    }

    /// An empty line.
    pub(crate) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// An empty line, and what the next are about.
    pub(crate) fn part(&mut self, title: &str) {
        self.gap();
        self.toned(Tone::Title, title);
    }

    /// Rows under titles.
    pub(crate) fn table(&mut self, titles: &[&str], rows: &[Vec<String>]) {
        self.text
            .push_str(&crate::table::painted(titles, rows, self.paint));
    }

    /// What has come together.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// The tone of a cell under this title.
pub(crate) fn tone_of_cell(title: &str, cell: &str) -> Tone {
    match (title, cell) {
        (_, "-") => Tone::Faint,
        ("HEALTH", _) => tone_of_health(cell),
        ("TYPE", "Warning") => Tone::Doubtful,
        ("STATE", "waiting") => Tone::Doubtful,
        ("NOT HEALTHY", count) if count != "0" => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// The tone of a device's health.
pub(crate) fn tone_of_health(health: &str) -> Tone {
    match health {
        "Healthy" => Tone::Good,
        "" => Tone::Plain,
        "Unknown" => Tone::Doubtful,
        _ => Tone::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    const COLOURS: Paint = Paint { is_on: true };

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let is_on = |choice, is_terminal, variables: &[(&str, &str)]| {
            let environment = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            Paint::chosen(choice, is_terminal, environment).is_on
        };
        let xterm = ("TERM", "xterm");
        assert!(is_on(ColorChoice::Auto, true, &[xterm]));
        assert!(is_on(ColorChoice::Auto, true, &[xterm, ("NO_COLOR", "")]));
        assert!(!is_on(ColorChoice::Auto, true, &[xterm, ("NO_COLOR", "1")]));
        assert!(!is_on(ColorChoice::Auto, false, &[xterm]));
        assert!(!is_on(ColorChoice::Auto, true, &[("TERM", "dumb")]));
        assert!(!is_on(ColorChoice::Auto, true, &[]));
        assert!(is_on(ColorChoice::Always, false, &[("NO_COLOR", "1")]));
        assert!(!is_on(ColorChoice::Never, true, &[xterm]));
    }

    #[test]
    fn no_escape_code_but_the_pages_own() {
        let evil = "a\x1b[31m\u{9b}2J\u{202e}\nb";
        for paint in [Paint::NONE, COLOURS] {
            let mut page = Page::new(paint);
            page.line(evil);
            page.toned(Tone::Bad, evil);
            page.lines(evil);
            page.part(evil);
            page.table(&["HEALTH", "X"], &[vec![evil.to_owned(), evil.to_owned()]]);
            let mut text = page.into_text();
            for own in ["\x1b[1m", "\x1b[0m"] {
                text = text.replace(own, "");
            }
            let text = text.replace("\x1b[31ma", "a");
            let rest = text.replace('\n', "");
            assert!(!rest.contains(char::is_control), "{text:?}");
            assert!(!text.contains('\u{202e}'), "{text:?}");
        }
    }

    #[test]
    fn colours_change_no_width() {
        let rows = vec![
            vec!["Healthy".to_owned(), "-".to_owned()],
            vec!["Unhealthy".to_owned(), "p".to_owned()],
        ];
        let of = |paint| {
            let mut page = Page::new(paint);
            page.table(&["HEALTH", "POD"], &rows);
            page.into_text()
        };
        let coloured = of(COLOURS);
        assert!(
            coloured.contains("\x1b[31mUnhealthy\x1b[0m   p"),
            "{coloured:?}"
        );
        let mut without = coloured;
        for code in ["1", "2", "31", "32", "0"] {
            without = without.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(without, of(Paint::NONE));
    }
}
