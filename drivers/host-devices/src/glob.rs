//! Paths and texts with wildcards.

use std::path::{Path, PathBuf};

/// Whether a text fits a pattern of `*`, `?` and `[abc]`, `[a-z]`, `[!abc]`.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last star has to take one more.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if let Some(next) = one(&pattern, p, text[t]) {
            (p, t) = (next, t + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (p, t) = (at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Where the pattern goes on after it has taken one character.
fn one(pattern: &[char], at: usize, c: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match pattern[at + 1..].iter().position(|c| *c == ']') {
            // A bracket that is not closed stands for itself.
            None => (c == '[').then_some(at + 1),
            Some(length) => {
                let set = &pattern[at + 1..at + 1 + length];
                let (set, not) = match set.first() {
                    Some('!') => (&set[1..], true),
                    _ => (set, false),
                };
                (contains(set, c) != not).then_some(at + length + 2)
            }
        },
        same => (*same == c).then_some(at + 1),
    }
}

fn contains(set: &[char], c: char) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set.get(at + 1) == Some(&'-') && at + 2 < set.len() {
            if (set[at]..=set[at + 2]).contains(&c) {
                return true;
            }
            at += 3;
        } else if set[at] == c {
            return true;
        } else {
            at += 1;
        }
    }
    false
}

/// The files below `root` that a path with wildcards stands for, as paths of the host, sorted.
pub(crate) fn expand(root: &Path, pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').filter(|p| !p.is_empty()) {
        if !part.contains(['*', '?', '[']) {
            found
                .iter_mut()
                .for_each(|path| *path = format!("{path}/{part}"));
            continue;
        }
        let mut next = Vec::new();
        for folder in found {
            let entries = std::fs::read_dir(below(root, &folder))
                .into_iter()
                .flatten()
                .flatten();
            let names = entries.filter_map(|e| e.file_name().into_string().ok());
            // A star is not meant for hidden files.
            let names =
                names.filter(|n| fits(part, n) && (part.starts_with('.') || !n.starts_with('.')));
            next.extend(names.map(|name| format!("{folder}/{name}")));
        }
        found = next;
    }
    found.retain(|path| below(root, path).symlink_metadata().is_ok());
    found.sort();
    found
}

/// A path of the host below a root.
pub(crate) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, fit) in [
            ("ttyUSB*", "ttyUSB0", true),
            ("ttyUSB*", "ttyUSB", true),
            ("ttyUSB*", "ttyS0", false),
            ("*a*b", "xxaxxab", true),
            ("*a*b", "xxaxxabc", false),
            ("tty?", "tty1", true),
            ("tty?", "tty12", false),
            ("sd[a-c]", "sdb", true),
            ("sd[a-c]", "sdd", false),
            ("sd[!a]", "sdb", true),
            ("sd[", "sd[", true),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
        }
    }

    #[test]
    fn paths() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "dev/snd/pcm0",
            "dev/snd/pcm1",
            "dev/snd/.pcm",
            "dev/snd/ctl",
            "dev/x/pcm0",
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = |pattern: &str| expand(root.path(), pattern);
        assert_eq!(found("/dev/snd/pcm*"), ["/dev/snd/pcm0", "/dev/snd/pcm1"]);
        assert_eq!(found("/dev/*/pcm0"), ["/dev/snd/pcm0", "/dev/x/pcm0"]);
        assert_eq!(found("/dev/snd/ctl"), ["/dev/snd/ctl"]);
        assert!(found("/dev/none").is_empty() && found("/none/*").is_empty());
    }
}
