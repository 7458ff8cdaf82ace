//! The status of a database, and the events that go with its changes.

use super::calls::doing;
use super::observe::Jobs;
use super::{Failure, Look, MANAGER, Outcome};
use crate::plan::Work;
use crate::resource::{DatabaseStatus, GROUP, KIND, PLURAL, SampleDb, VERSION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use serde_json::json;

impl Look<'_> {
    pub(super) fn serving(&self, status: &mut DatabaseStatus, ready: bool) {
        let (phase, reason, text) = if ready {
            ("Running", "Serving", "the database answers")
        } else {
            ("Starting", "Starting", "the database does not answer yet")
        };
        status.phase = Some(phase.to_owned());
        self.set_condition(status, "Ready", ready, reason, text);
    }

    /// The status while something has the data for itself.
    pub(super) fn begun(&self, status: &mut DatabaseStatus, work: Work) {
        let (phase, text) = match work {
            Work::Init => ("Initialising", "the data are being made"),
            Work::Upgrade => ("Upgrading", "the layout of the data is being changed"),
            Work::Last => ("Terminating", "a last backup is being taken"),
        };
        status.phase = Some(phase.to_owned());
        self.set_condition(status, "Ready", false, phase, text);
        match work {
            Work::Init => {}
            Work::Upgrade => self.set_condition(status, "UpToDate", false, phase, text),
            // a failure stands until the backup is taken
            Work::Last if status.condition("FinalBackup").is_none() => {
                self.set_condition(status, "FinalBackup", false, "Running", text);
            }
            Work::Last => {}
        }
    }

    pub(super) fn note_backup(&self, status: &mut DatabaseStatus, jobs: &Jobs) {
        match &jobs.backup {
            Some((_, Some(failure))) => {
                self.set_condition(status, "BackedUp", false, "Failed", failure);
            }
            Some((ended, None)) => {
                status.last_backup = Some(ended.clone());
                self.set_condition(
                    status,
                    "BackedUp",
                    true,
                    "Taken",
                    "the last backup is whole",
                );
            }
            None => {}
        }
    }

    pub(super) fn set_condition(
        &self,
        status: &mut DatabaseStatus,
        kind: &str,
        is: bool,
        reason: &str,
        message: &str,
    ) {
        let text = if is { "True" } else { "False" };
        let since = status
            .condition(kind)
            .filter(|c| c.status == text)
            .map(|c| c.last_transition_time.clone());
        let condition = Condition {
            type_: kind.to_owned(),
            status: text.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: self.database.metadata.generation,
            last_transition_time: since.unwrap_or_else(|| Time(Timestamp::now())),
        };
        status.conditions.retain(|c| c.type_ != kind);
        status.conditions.push(condition);
        status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    }

    /// Writes the status where it has changed, and an event for each condition that has.
    pub(super) async fn write(&self, status: &DatabaseStatus) -> Outcome<()> {
        let mut status = status.clone();
        status.observed_generation = self.database.metadata.generation;
        if status == self.database.status {
            return Ok(());
        }
        let name = self.objects.name();
        let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND, "metadata": {"name": name}, "status": status});
        let params = PatchParams::apply(MANAGER).force();
        let written = self
            .api::<SampleDb>()
            .patch_status(&name, &params, &Patch::Apply(body))
            .await;
        written.map_err(doing(format!("write the status of {PLURAL} {name}")))?;
        for condition in &status.conditions {
            let before = self.database.status.condition(&condition.type_);
            if before
                .is_none_or(|b| (&b.reason, &b.message) != (&condition.reason, &condition.message))
            {
                self.tell(condition).await;
            }
        }
        Ok(())
    }

    pub(super) async fn tell(&self, condition: &Condition) {
        let failed = condition.reason.ends_with("Failed");
        let event = Event {
            type_: if failed {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: format!("{}{}", condition.type_, condition.reason),
            note: Some(condition.message.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self
            .operator
            .recorder
            .publish(&event, &self.database.object_ref(&()))
            .await
        {
            tracing::warn!(%error, "event not written");
        }
    }

    /// What the API server refused stands on the database, until a look comes to its end.
    pub(super) async fn tell_failure(&self, failure: &Failure) -> Outcome<()> {
        if matches!(failure, Failure::Api { source: kube::Error::Api(status), .. } if status.code == 409)
        {
            return Ok(()); // somebody else was faster: the next look sees what they did
        }
        let mut status = self.database.status.clone();
        let kind = if self.deleted() {
            "FinalBackup"
        } else {
            "Ready"
        };
        self.set_condition(&mut status, kind, false, "Failed", &failure.to_string());
        self.write(&status).await
    }
}
