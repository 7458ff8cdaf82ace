//! IDs of the host that others have: ranges for users of pods must not be among them.
//!
//! A process with the ID of a pod's user may send its processes signals, and reads its files where it reaches them.

use davit_beneath::read_given;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::RangeInclusive;
use std::path::Path;

/// A map of a process, or a file of ranges, has some hundred bytes; that of a machine with many accounts more.
const MAX_FILE: u64 = 1 << 20;

/// The ranges of IDs that somebody here may have: processes with users of their own, whoever has started them (pods of
/// another agent on this machine among them), and accounts that may map ranges to theirs (`/etc/subuid`, `/etc/subgid`).
///
/// What cannot be read is left out: processes end while they are looked at.
pub fn of_others() -> Vec<RangeInclusive<u64>> {
    let mut found = Vec::new();
    for file in ["/etc/subuid", "/etc/subgid"] {
        let text = read_given(file, MAX_FILE).unwrap_or_default();
        found.extend(of_accounts(&String::from_utf8_lossy(&text)));
    }
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .iter()
            .all(u8::is_ascii_digit)
        {
            continue;
        }
        for file in ["uid_map", "gid_map"] {
            let map = read_given(entry.path().join(file), MAX_FILE).unwrap_or_default();
            found.extend(of_process(&String::from_utf8_lossy(&map)));
        }
    }
    found.sort_unstable_by_key(|range| (*range.start(), *range.end()));
    found.dedup();
    found
}

/// The first of these, the first IDs of ranges of `length`, of which nobody of the others has a part.
pub fn unused(
    ranges: impl IntoIterator<Item = u32>,
    length: u32,
    others: &[RangeInclusive<u64>],
) -> Option<u32> {
    ranges.into_iter().find(|first| {
        let (first, length) = (u64::from(*first), u64::from(length));
        let apart =
            |other: &RangeInclusive<u64>| *other.end() < first || first + length <= *other.start();
        others.iter().all(apart)
    })
}

/// The number of the range that an agent looks at first, out of so many. It follows from where its pods' directories are:
/// two agents on one machine that look at the same moment find others.
pub fn first_of(pods: &Path, ranges: u32) -> u32 {
    let mut hash = DefaultHasher::new();
    pods.hash(&mut hash);
    u32::try_from(hash.finish() % u64::from(ranges)).unwrap_or_default()
}

fn range(first: &str, count: &str) -> Option<RangeInclusive<u64>> {
    let (first, count) = (first.parse::<u64>().ok()?, count.parse::<u64>().ok()?);
    let last = first.checked_add(count)?.checked_sub(1)?;
    (first <= last).then_some(first..=last)
}

/// Lines of an account, the first ID, and how many.
fn of_accounts(text: &str) -> impl Iterator<Item = RangeInclusive<u64>> {
    text.lines().filter_map(|line| {
        let mut parts = line.trim().split(':').skip(1);
        range(parts.next()?, parts.next()?)
    })
}

/// Lines of the first ID inside, the first outside, and how many. Who has the host's first ID has all of the host's.
fn of_process(map: &str) -> impl Iterator<Item = RangeInclusive<u64>> {
    let range = |line: &str| {
        let mut parts = line.split_whitespace().skip(1);
        range(parts.next()?, parts.next()?)
    };
    map.lines()
        .filter_map(range)
        .filter(|range| *range.start() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_processes_and_accounts_are_seen() {
        let found = |map: &str| of_process(map).collect::<Vec<_>>();
        assert!(found("         0          0 4294967295\n").is_empty());
        assert_eq!(found("0 65536 65536\n"), [65536..=131_071]);
        let two = found("0 1000 1\n1 100000 65536\n");
        assert_eq!(two, [1000..=1000, 100_000..=165_535]);
        assert!(found("0 0 0\nx\n1 65536 0\n").is_empty());
        assert!(found("0 4294901760 18446744073709551615").is_empty());
        let accounts = "# x\nanna:100000:65536\nb:165536:x\nc:1:0\nd:231072:65536\n";
        let found: Vec<_> = of_accounts(accounts).collect();
        assert_eq!(found, [100_000..=165_535, 231_072..=296_607]);
    }

    #[test]
    fn ranges_of_others_are_passed_over() {
        let ranges = || (1..=9).map(|number| number * 65_536);
        let unused = |others: &[RangeInclusive<u64>]| unused(ranges(), 65_536, others);
        assert_eq!(unused(&[]), Some(65_536));
        assert_eq!(unused(&[0..=65_535, 131_072..=131_072]), Some(65_536));
        assert_eq!(unused(&[131_071..=131_072]), Some(196_608));
        assert_eq!(unused(&[0..=u64::MAX]), None);
        // Agents that look at the same moment see nothing of one another.
        let first = |path| first_of(Path::new(path), 32_767);
        assert_ne!(first("/var/lib/a/pods"), first("/var/lib/b/pods"));
    }

    #[test]
    fn a_process_with_users_of_its_own_is_seen() {
        let mut child = match std::process::Command::new("unshare")
            .args(["--user", "sleep", "120"])
            .spawn()
        {
            Ok(child) => child,
            Err(error) => return println!("skipped: unshare: {error}"),
        };
        let first: u64 = 1_993_736_192;
        let expected = first..=first + 65_535;
        let map = format!("/proc/{}/uid_map", child.id());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut outcome = Err("in time".to_owned());
        // Refused until the process has left the host's users, and where this one may not give IDs.
        while std::time::Instant::now() < until {
            let ended = child.try_wait().unwrap().is_some();
            match std::fs::write(&map, format!("0 {first} 65536\n")) {
                Ok(()) => {
                    outcome = Ok(of_others().contains(&expected));
                    break;
                }
                Err(error) if ended || !nix::unistd::geteuid().is_root() => {
                    outcome = Err(error.to_string());
                    break;
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        let _gone = child.kill();
        let _gone = child.wait();
        match outcome {
            Ok(seen) => assert!(seen),
            Err(why) => println!("skipped: no IDs can be given here: {why}"),
        }
    }
}
