//! Columns that line up.

use crate::page::{Paint, Tone, tone_of_cell};
use crate::plain::printable;

/// Columns are at most so wide, which the longest names of objects are not; longer cells stand out. Every line would be as long
/// as whatever somebody has made one of its cells.
const WIDEST: usize = 400;

/// Prints rows under a header, each column as wide as its widest cell, three blanks apart, as kubectl does.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    painted(header, rows, Paint::NONE)
}

/// The same in colour, if there are colours.
pub(crate) fn painted(header: &[&str], rows: &[Vec<String>], paint: Paint) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(WIDEST));
        }
    }
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = (Tone, &str)>| {
        // Blanks wait for a cell that is not empty: lines end with their last text.
        let mut blanks = 0;
        for ((tone, cell), width) in cells.zip(&widths) {
            if !cell.is_empty() {
                out.push_str(&" ".repeat(blanks));
                out.push_str(&paint.put(tone, cell));
                blanks = 0;
            }
            blanks += width.saturating_sub(cell.chars().count()) + 3;
        }
        out.push('\n');
    };
    line(&mut header.iter().map(|title| (Tone::Title, *title)));
    for row in &rows {
        let cells = header.iter().zip(row);
        line(&mut cells.map(|(title, cell)| (tone_of_cell(title, cell), cell.as_str())));
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_long_cell_does_not_make_all_lines_long() {
        let long = [["x".repeat(1 << 20), "a".to_owned()].to_vec()];
        let short = vec![vec!["y".to_owned(), "b".to_owned()]; 1_000];
        let text = super::render(&["NAME", "B"], &[&long[..], &short].concat());
        assert!(text.len() < 2 << 20, "{} bytes", text.len());
    }

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let rows = vec![
            vec!["a".to_owned(), "x".to_owned()],
            vec!["longer".to_owned(), String::new()],
            vec![String::new(), "y".to_owned()],
        ];
        assert_eq!(
            super::render(&["NAME", "B"], &rows),
            "NAME     B\na        x\nlonger\n         y\n"
        );
    }
}
