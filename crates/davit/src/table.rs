//! Columns that line up.

use crate::plain::printable;

/// Prints rows under a header, each column as wide as its widest cell, three blanks apart, as kubectl does.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(cell);
            text.push_str(&" ".repeat(width - cell.chars().count() + 3));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut header.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let rows = vec![
            vec!["a".to_owned(), "x".to_owned()],
            vec!["longer".to_owned(), String::new()],
        ];
        assert_eq!(
            super::render(&["NAME", "B"], &rows),
            "NAME     B\na        x\nlonger\n"
        );
    }
}
