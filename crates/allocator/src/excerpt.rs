//! How much is said of what users have written.

/// Bytes of an expression that are shown. It may have ten thousand, and is told of each device that it does not select.
const SHOWN: usize = 512;

/// The beginning of an expression, or of what is wrong with it.
pub(crate) fn shown(expression: &str) -> String {
    if expression.len() <= SHOWN {
        return expression.to_owned();
    }
    let end = expression.floor_char_boundary(SHOWN);
    format!("{} ...", &expression[..end])
}
