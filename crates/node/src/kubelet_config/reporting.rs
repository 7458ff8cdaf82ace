//! The fields about the Node object: who makes it, how often it is written, what it says.

use std::time::Duration;

use super::{ConfigError, KubeletConfig, time, wrong};
use crate::options::NodeOptions;
use crate::reporting::Reporting;

impl KubeletConfig {
    /// Puts what concerns the Node object into the options.
    pub(super) fn report(&self, options: &mut NodeOptions) -> Result<(), ConfigError> {
        let defaults = Reporting::default();
        let update = self.node_status_update_frequency.as_ref();
        let update = time("nodeStatusUpdateFrequency", update, Duration::ZERO)?;
        // Who names only the one means both.
        let report = if update.is_zero() {
            defaults.report
        } else {
            update
        };
        let field = "nodeStatusReportFrequency";
        let report = time(field, self.node_status_report_frequency.as_ref(), report)?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        options.reporting = Reporting {
            register: self.register_node.unwrap_or(defaults.register),
            provider_id: text(&self.provider_id),
            pod_cidr: text(&self.pod_cidr),
            lease_seconds: match self.node_lease_duration_seconds.unwrap_or(0) {
                0 => defaults.lease_seconds,
                seconds if seconds > 0 => seconds,
                _ => return Err(wrong("nodeLeaseDurationSeconds", "must be greater than 0")),
            },
            update: if update.is_zero() {
                defaults.update
            } else {
                update
            },
            report,
            max_images: match self.node_status_max_images {
                None => defaults.max_images,
                Some(-1) => None,
                Some(most) => match usize::try_from(most) {
                    Ok(most) => Some(most),
                    Err(_) => return Err(wrong("nodeStatusMaxImages", "must be -1 or greater")),
                },
            },
        };
        let each = self.pods_per_core.unwrap_or(0);
        let each = u32::try_from(each);
        let each = each.map_err(|_| wrong("podsPerCore", "must not be negative"))?;
        options.pods_per_core = Some(each).filter(|each| *each > 0);
        Ok(())
    }
}
