//! Which kernel this is.

/// The first two numbers of its version.
pub(crate) fn version() -> (u32, u32) {
    let names = rustix::system::uname();
    let release = names.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether the machine has swap that is on; so, too, where nobody tells.
pub(crate) fn has_swap() -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("SwapTotal:"));
    let number = total.and_then(|total| total.split_whitespace().next());
    number != Some("0")
}
