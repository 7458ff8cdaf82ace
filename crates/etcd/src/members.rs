//! The members that can be used: those that answer, are new enough and vote.

use std::time::Duration;

use davit_store::{Error, Result};
use tokio::time::{Instant, sleep};

use crate::calls::Cluster;
use crate::endpoint::Member;

/// The oldest releases whose answers about the progress of a watch are true.
const OLDEST: [(u32, u32, u32); 2] = [(3, 5, 13), (3, 6, 0)];

/// Waits for a member that answers, and leaves out those that only learn.
pub(crate) async fn present(members: Vec<Member>, patience: Duration) -> Result<Vec<Member>> {
    let deadline = Instant::now() + patience;
    loop {
        let mut faults = Vec::new();
        let mut usable = Vec::new();
        let mut answered = false;
        for member in &members {
            match Cluster::status(member).await {
                Ok(status) if status.is_learner => answered = true,
                Ok(status) => {
                    check_version(&status.version).map_err(Error::Refused)?;
                    answered = true;
                    usable.push(member.clone());
                }
                Err(why) => {
                    faults.push(format!("{}: {why}", member.url));
                    usable.push(member.clone());
                }
            }
        }
        if answered && !usable.is_empty() {
            return Ok(usable);
        }
        if Instant::now() >= deadline {
            let text = format!("etcd cannot be reached: {}", faults.join("; "));
            return Err(Error::Unavailable(text));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn check_version(version: &str) -> std::result::Result<(), String> {
    let mut numbers = version
        .split(['.', '-', '+'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let (major, minor, patch) = (next(), next(), next());
    let is_enough = OLDEST
        .iter()
        .any(|oldest| (oldest.0, oldest.1) == (major, minor) && patch >= oldest.2)
        || (major, minor) > (3, 6);
    if is_enough {
        return Ok(());
    }
    Err(format!(
        "etcd {version} is too old: its answers about the progress of watches are not true; 3.5.13 or newer is needed"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for good in ["3.5.13", "3.5.21", "3.6.0", "3.6.0-rc.1", "3.7.1", "4.0.0"] {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for bad in ["3.4.31", "3.5.12", "", "2.3.8"] {
            assert!(check_version(bad).is_err(), "{bad}");
        }
    }
}
