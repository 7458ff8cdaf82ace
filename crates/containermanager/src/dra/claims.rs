//! Which claims a pod has, and whether it may use them. Pure.

use super::Error;
use super::api::ClassicClaim;
use super::pod;
use crate::allocation::{ClaimDriver, ClaimHold, ClaimName, PodName};
use davit_api::resource_claims::ClaimConsumers;
use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeMap;

/// One claim a pod names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Name in `spec.resourceClaims`; empty for the claim of extended resources.
    pub(super) name: String,
    /// Name of the claim object.
    pub(super) claim: String,
    /// It was generated for the pod, which must be its owner.
    pub(super) owned: bool,
    /// The name was not told by the pod's status: only a classic claim can have it.
    pub(super) guessed: bool,
}

/// The claims of a pod. Entries that need no claim are left out.
pub(super) fn entries(pod: &Pod) -> Vec<Entry> {
    let named = pod::resource_claims(pod);
    let mut entries: Vec<Entry> = named.filter_map(|e| entry(pod, e)).collect();
    entries.extend(pod::extended(pod).map(|status| Entry {
        name: String::new(),
        claim: status.resource_claim_name.clone(),
        owned: false,
        guessed: false,
    }));
    entries
}

/// The claim of one entry of the pod's spec; `None` when it needs none.
pub(super) fn entry(pod: &Pod, entry: &PodResourceClaim) -> Option<Entry> {
    let named = |claim: &str, owned, guessed| Entry {
        name: entry.name.clone(),
        claim: claim.to_owned(),
        owned,
        guessed,
    };
    if let Some(claim) = &entry.resource_claim_name {
        return Some(named(claim, false, false));
    }
    let statuses = pod.status.iter();
    let statuses = statuses.flat_map(|s| s.resource_claim_statuses.iter().flatten());
    let mut of_entry = statuses.filter(|s| s.name == entry.name);
    match of_entry.next() {
        Some(status) => Some(named(status.resource_claim_name.as_deref()?, true, false)),
        None => Some(named(
            &format!("{}-{}", pod::name(pod), entry.name),
            true,
            true,
        )),
    }
}

/// Who the pod is, for records.
pub(super) fn pod_name(pod: &Pod) -> PodName {
    PodName {
        uid: pod::uid(pod).to_owned(),
        namespace: pod::namespace(pod).to_owned(),
        name: pod::name(pod).to_owned(),
    }
}

/// Checks a claim of today's API and makes its record, without pods.
pub(super) fn structured(
    pod: &Pod,
    entry: &Entry,
    claim: &ResourceClaim,
    (node, consumers): (&str, ClaimConsumers),
    now: i64,
) -> Result<ClaimHold, Error> {
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    let status = claim.status.as_ref();
    let owned = consumers.is_made_for(claim, pod);
    let reserved = consumers.is_reserved_for(claim, pod);
    may_use(pod, entry, &uid, owned, reserved)?;
    let allocation = status
        .and_then(|s| s.allocation.as_ref())
        .ok_or_else(|| Error::NotAllocated(entry.claim.clone()))?;
    if let Some(selector) = &allocation.node_selector
        && !may_be(selector, node)
    {
        return Err(Error::OtherNode {
            claim: entry.claim.clone(),
            node: node.to_owned(),
        });
    }
    let results = allocation.devices.as_ref().and_then(|d| d.results.as_ref());
    let drivers = results.into_iter().flatten();
    Ok(ClaimHold {
        claim: name(pod, entry, uid),
        classic: false,
        pods: Vec::new(),
        drivers: drivers
            .map(|r| (r.driver.clone(), ClaimDriver::default()))
            .collect(),
        since: now,
    })
}

/// Checks a claim of the classic API and makes its record, without pods.
pub(super) fn classic(
    pod: &Pod,
    entry: &Entry,
    claim: &ClassicClaim,
    now: i64,
) -> Result<ClaimHold, Error> {
    let owned = claim.owners.iter().any(|o| o == pod::uid(pod));
    let reserved = claim.reserved_for.iter().any(|o| o == pod::uid(pod));
    may_use(pod, entry, &claim.uid, owned, reserved)?;
    let handle = claim.handle.clone();
    let handle = handle.ok_or_else(|| Error::NotAllocated(entry.claim.clone()))?;
    let driver = ClaimDriver {
        handle: Some(handle),
        ..ClaimDriver::default()
    };
    Ok(ClaimHold {
        claim: name(pod, entry, claim.uid.clone()),
        classic: true,
        pods: Vec::new(),
        drivers: BTreeMap::from([(claim.driver.clone(), driver)]),
        since: now,
    })
}

fn name(pod: &Pod, entry: &Entry, uid: String) -> ClaimName {
    ClaimName {
        uid,
        namespace: pod::namespace(pod).to_owned(),
        name: entry.claim.clone(),
    }
}

fn may_use(
    pod: &Pod,
    entry: &Entry,
    claim_uid: &str,
    owned: bool,
    reserved: bool,
) -> Result<(), Error> {
    if entry.owned && !owned {
        return Err(Error::NotOwner {
            namespace: pod::namespace(pod).to_owned(),
            claim: entry.claim.clone(),
            pod: pod::name(pod).to_owned(),
        });
    }
    if !reserved {
        return Err(Error::NotReserved {
            pod: pod::name(pod).to_owned(),
            pod_uid: pod::uid(pod).to_owned(),
            claim: entry.claim.clone(),
            claim_uid: claim_uid.to_owned(),
        });
    }
    Ok(())
}

/// Whether the selector leaves room for this node. Terms about labels are the scheduler's matter.
fn may_be(selector: &NodeSelector, node: &str) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let mut by_name = term.match_fields.iter().flatten();
        by_name.all(|requirement| {
            let names = requirement.values.iter().flatten();
            requirement.key != "metadata.name"
                || requirement.operator != "In"
                || names.into_iter().any(|n| n == node)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "named", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "none", "resourceClaimTemplateName": "t"},
                {"name": "cat", "resourceClaimTemplateName": "t"}]},
            "status": {
                "resourceClaimStatuses": [
                    {"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "p-ext", "requestMappings": []}},
        }))
        .unwrap()
    }

    fn claim(change: impl FnOnce(&mut serde_json::Value)) -> ResourceClaim {
        let mut value = json!({
            "metadata": {"name": "p-made-x", "namespace": "ns", "uid": "c-1", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": true}]},
            "spec": {},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-1"}],
                "allocation": {
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]},
                    "devices": {"results": [
                        {"request": "r", "driver": "a.dev", "pool": "n", "device": "0"},
                        {"request": "r", "driver": "b.dev", "pool": "n", "device": "0"},
                        {"request": "r", "driver": "a.dev", "pool": "n", "device": "1"}]}}},
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn claims_have_names_or_none_is_needed() {
        let names: Vec<(String, String, bool, bool)> = entries(&pod())
            .into_iter()
            .map(|e| (e.name, e.claim, e.owned, e.guessed))
            .collect();
        let row = |n: &str, c: &str, o, g| (n.to_owned(), c.to_owned(), o, g);
        let expected = [
            row("named", "shared", false, false),
            row("made", "p-made-x", true, false),
            row("cat", "p-cat", true, true),
            row("", "p-ext", false, false),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn item_106_who_may_use_a_claim() {
        let (pod, made) = (pod(), entries(&pod()).remove(1));
        let check =
            |claim: &ResourceClaim| structured(&pod, &made, claim, ("n", ClaimConsumers::Pods), 0);
        let hold = check(&claim(|_| {})).unwrap();
        assert_eq!(hold.drivers.keys().collect::<Vec<_>>(), ["a.dev", "b.dev"]);
        let unreserved = check(&claim(|c| c["status"]["reservedFor"] = json!([])));
        assert_eq!(
            unreserved.unwrap_err().to_string(),
            "pod p (pod-1) is not allowed to use ResourceClaim p-made-x (c-1)"
        );
        let foreign = check(&claim(|c| c["metadata"]["ownerReferences"] = json!([])));
        assert_eq!(
            foreign.unwrap_err().to_string(),
            "ResourceClaim ns/p-made-x was not created for Pod ns/p (Pod is not owner)"
        );
        let pending = check(&claim(|c| c["status"]["allocation"] = json!(null)));
        assert!(matches!(pending, Err(Error::NotAllocated(_))));
        let other = structured(
            &pod,
            &made,
            &claim(|_| {}),
            ("other", ClaimConsumers::Pods),
            0,
        );
        assert!(matches!(other, Err(Error::OtherNode { .. })));
    }

    /// KEP-5729.
    #[test]
    fn pods_use_what_was_made_and_reserved_for_their_group() {
        let (mut pod, made) = (pod(), entries(&pod()).remove(1));
        let of_group = claim(|c| {
            let group = "scheduling.k8s.io";
            let meta = json!({"apiVersion": format!("{group}/v1alpha2"), "kind": "PodGroup",
                "name": "g", "uid": "g-1", "controller": true});
            c["metadata"]["ownerReferences"] = json!([meta]);
            c["status"]["reservedFor"] =
                json!([{"apiGroup": group, "resource": "podgroups", "name": "g", "uid": "g-1"}]);
        });
        let check = |pod: &Pod, who| structured(pod, &made, &of_group, ("n", who), 0);
        let (alone, grouped) = (ClaimConsumers::Pods, ClaimConsumers::PodsAndGroups);
        assert!(matches!(check(&pod, grouped), Err(Error::NotOwner { .. })));
        pod.spec.as_mut().unwrap().scheduling_group =
            serde_json::from_value(json!({"podGroupName": "g"})).unwrap();
        check(&pod, grouped).unwrap();
        assert!(matches!(check(&pod, alone), Err(Error::NotOwner { .. })));
    }

    #[test]
    fn classic_claims_are_checked_alike() {
        let (pod, cat) = (pod(), entries(&pod()).remove(2));
        let mut claim = ClassicClaim {
            uid: "c".into(),
            owners: vec!["pod-1".into()],
            reserved_for: vec!["pod-1".into()],
            driver: "d".into(),
            handle: Some("h".into()),
        };
        let hold = classic(&pod, &cat, &claim, 0).unwrap();
        assert_eq!(hold.drivers["d"].handle.as_deref(), Some("h"));
        claim.handle = None;
        assert!(matches!(
            classic(&pod, &cat, &claim, 0),
            Err(Error::NotAllocated(_))
        ));
        claim.reserved_for.clear();
        assert!(matches!(
            classic(&pod, &cat, &claim, 0),
            Err(Error::NotReserved { .. })
        ));
    }
}
