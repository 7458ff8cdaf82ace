//! Deleting ResourceSlices of drivers that are not there, so that nobody is promised their devices.

use super::manager::Manager;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(5 * 60);
const ATTEMPTS: u32 = 100;

/// Which slices of this node are deleted.
#[derive(Debug, Clone)]
pub(super) enum Which {
    /// Those that an earlier run has left; drivers publish anew.
    MadeBefore(Timestamp),
    /// Those of a driver that has not come back; none when it does.
    Of(String),
}

/// Deletes slices, trying again with growing pauses.
pub(super) async fn wipe(manager: Arc<Manager>, which: Which) {
    let mut pause = FIRST;
    for _ in 0..ATTEMPTS {
        let (driver, before) = match &which {
            Which::MadeBefore(moment) => (None, Some(*moment)),
            Which::Of(driver) if manager.is_connected(driver) => return,
            Which::Of(driver) => (Some(driver.as_str()), None),
        };
        match manager.options.api.delete_slices(driver, before).await {
            Ok(()) => return,
            Err(error) => {
                tracing::info!(
                    ?which,
                    error,
                    "cannot delete ResourceSlices, will try again"
                );
            }
        }
        tokio::time::sleep(pause.mul_f64(1.0 + 0.2 * rand::random::<f64>())).await;
        pause = (pause * 2).min(LAST);
    }
}
