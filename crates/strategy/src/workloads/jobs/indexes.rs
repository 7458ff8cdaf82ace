//! Completion indexes as text, `0,3-5`.

/// A run of indexes, its ends included.
type Run = (i64, i64);

/// How many indexes the text names, or what is wrong with it: they have to increase and to be below `completions`.
pub(super) fn total(text: &str, completions: i64) -> Result<i64, String> {
    let mut last: Option<i64> = None;
    let mut total = 0;
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = run(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!(
                "non-increasing order, previous: {last}, current: {first}"
            ));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// An index that both texts name.
pub(super) fn shared(a: &str, b: &str, completions: i64) -> Option<i64> {
    let runs = |text: &str| -> Vec<Run> {
        let parts = text
            .split(',')
            .filter_map(|part| run(part, completions).ok());
        parts.collect()
    };
    let (a, b) = (runs(a), runs(b));
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        if x.0 <= y.1 && y.0 <= x.1 {
            return Some(x.0.max(y.0));
        }
        if x.0 <= y.0 {
            a.next();
        } else {
            b.next();
        }
    }
    None
}

fn run(part: &str, completions: i64) -> Result<Run, String> {
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(format!(
            "cannot convert string to integer for index: {text:?}"
        )),
        Ok(n) if n >= completions => Err(format!("too large index: {text:?}")),
        Ok(n) => Ok(n),
    };
    let mut limits = part.split('-');
    let first = index(limits.next().unwrap_or_default())?;
    let Some(last) = limits.next() else {
        return Ok((first, first));
    };
    if limits.next().is_some() {
        return Err(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let last = index(last)?;
    if first >= last {
        return Err(format!(
            "non-increasing order, previous: {first}, current: {last}"
        ));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_increase_and_stay_below_the_completions() {
        assert_eq!(total("", 5), Ok(0));
        assert_eq!(total("0,2-4", 5), Ok(4));
        for (text, fault) in [
            ("5", "too large index: \"5\""),
            ("x", "cannot convert string to integer for index: \"x\""),
            ("1,1", "non-increasing order, previous: 1, current: 1"),
            ("3-2", "non-increasing order, previous: 3, current: 2"),
        ] {
            assert_eq!(total(text, 5), Err(fault.to_owned()));
        }
        assert!(total("1-2-3", 5).is_err());
        assert_eq!(shared("0,3-4", "1-2", 5), None);
        assert_eq!(shared("0-3", "2,4", 5), Some(2));
    }
}
