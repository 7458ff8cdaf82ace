//! Order of Kubernetes versions.

use std::cmp::Ordering;

/// Orders versions by stability, then by number: `v1alpha1 < v1beta1 < v1 < v2`. Texts of another
/// form come before all others, in reverse alphabetical order, as in discovery.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (0 alpha, 1 beta, 2 stable), major and minor number.
fn parse(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    let (major, rest) = rest.split_at(digits.unwrap_or(rest.len()));
    let major = number(major)?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = rest
        .strip_prefix("alpha")
        .map(|m| (0, m))
        .or_else(|| rest.strip_prefix("beta").map(|m| (1, m)))?;
    Some((stability, major, number(minor)?))
}

fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_beats_beta_beats_alpha_beats_others() {
        let mut v = vec![
            "v1",
            "v10",
            "v2",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
        ];
        v.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(
            v,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "foo1",
                "foo10"
            ]
        );
    }
}
