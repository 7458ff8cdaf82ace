//! Claims: no device for two, nothing taken from who uses it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{CLAIMS, Checks, Judged, PODS, is_going, is_over, items, text};

fn devices(claim: &Value) -> impl Iterator<Item = String> + '_ {
    items(claim, "/status/allocation/devices/results").map(|result| {
        let part = |pointer| text(result, pointer);
        format!("{}/{}/{}", part("/driver"), part("/pool"), part("/device"))
    })
}

impl Checks {
    pub(super) fn claims(&self, judged: &Judged<'_>, found: &mut Vec<String>) {
        self.one_holder(judged, found);
        let Some(old) = judged.old else { return };
        let key = judged.key;
        let nothing = Value::Null;
        let new = judged.new.unwrap_or(&nothing);
        let stays = |uid: &str| items(new, "/status/reservedFor").any(|c| text(c, "/uid") == uid);
        for consumer in items(old, "/status/reservedFor") {
            let uid = text(consumer, "/uid");
            let mut pods = self.below(PODS);
            let user = pods.find(|(_, pod)| text(pod, "/metadata/uid") == uid);
            let Some((pod, object)) = user else { continue };
            let uses = !is_over(object) && !text(object, "/spec/nodeName").is_empty();
            if uses && !stays(uid) {
                found.push(format!(
                    "{key} is taken from {pod}, which is bound and has not ended"
                ));
            }
        }
        let allocated: Vec<String> = devices(old).collect();
        let changed = !allocated.is_empty() && allocated != devices(new).collect::<Vec<_>>();
        let is_used = items(new, "/status/reservedFor").next().is_some();
        if changed && is_used && !is_going(old) {
            found.push(format!("{key} has other devices while it is reserved"));
        }
    }

    fn one_holder(&self, judged: &Judged<'_>, found: &mut Vec<String>) {
        let Some(new) = judged.new else { return };
        if devices(new).next().is_none() {
            return;
        }
        let mut holders: BTreeMap<String, &str> = BTreeMap::new();
        for (key, claim) in self.below(CLAIMS) {
            for device in devices(claim) {
                if let Some(other) = holders.insert(device.clone(), key) {
                    found.push(format!("device {device} is held by {other} and {key}"));
                }
            }
        }
    }
}
