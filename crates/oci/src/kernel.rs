//! Which kernel this is.

/// The first two numbers of its version.
pub(crate) fn version() -> (u32, u32) {
    let names = rustix::system::uname();
    let release = names.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
