//! Jobs: each pod that ended is counted once.

use super::{Checks, Judged, controller, is_over, items, text};

impl Checks {
    pub(super) fn pods_of_jobs(&mut self, judged: &Judged<'_>) {
        // one that goes without having ended counts as failed
        let (pod, gone) = match (judged.new, judged.old) {
            (Some(new), _) => (new, false),
            (None, Some(old)) => (old, true),
            (None, None) => return,
        };
        let Some(job) = controller(pod, "Job") else {
            return;
        };
        let failed = text(pod, "/status/phase") != "Succeeded";
        if is_over(pod) || gone || super::is_going(pod) {
            let uid = text(pod, "/metadata/uid").to_owned();
            self.ended.insert((uid, failed), job.to_owned());
        }
    }

    pub(super) fn jobs(&self, judged: &Judged<'_>, found: &mut Vec<String>) {
        let Some(new) = judged.new else { return };
        let key = judged.key;
        let uid = text(new, "/metadata/uid");
        for (name, failed) in [("succeeded", false), ("failed", true)] {
            let count = |job: &serde_json::Value| job["status"][name].as_u64().unwrap_or(0);
            let ended = self
                .ended
                .iter()
                .filter(|((_, f), job)| *job == uid && *f == failed)
                .count();
            if count(new) > ended as u64 {
                found.push(format!(
                    "{key} counts {} pods {name}, {ended} have",
                    count(new)
                ));
            }
            // those of an indexed job may fall out of its range
            if judged.old.is_some_and(|old| count(new) < count(old)) {
                found.push(format!("{key} counts fewer pods {name} than before"));
            }
        }
        let is_complete = items(new, "/status/conditions")
            .any(|condition| condition["type"] == "Complete" && condition["status"] == "True");
        let completions = new["spec"]["completions"].as_u64().unwrap_or(1);
        if is_complete && new["status"]["succeeded"].as_u64().unwrap_or(0) < completions {
            found.push(format!(
                "{key} is complete, and not all of its pods have succeeded"
            ));
        }
    }
}
