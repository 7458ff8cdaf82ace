//! Typed kinds of classic dynamic resource allocation, `resource.k8s.io/v1alpha1` as of Kubernetes
//! 1.26 (KEP-3063), where a driver's controller and the scheduler negotiate about nodes.
//!
//! It shares nothing but the group and some names with today's `resource.k8s.io/v1`.

use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::{Deserialize, Deserializer, Serialize};

/// API group and version of the classic kinds.
pub const API_VERSION: &str = "resource.k8s.io/v1alpha1";
/// Most pods a claim can be reserved for.
pub const MOST_RESERVED: usize = 32;
/// Most nodes the scheduler proposes, and most a driver rules out, for one pod.
pub const MOST_NODES: usize = 128;
/// Longest resource handle, in bytes.
pub const LONGEST_HANDLE: usize = 16 * 1024;

/// Null stands for absent, as in Go.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Which driver allocates the claims that name the class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClass {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The driver.
    #[serde(default)]
    pub driver_name: String,
    /// An object with parameters for the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ClassParametersReference>,
    /// The nodes for which claims of the class may be allocated; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suitable_nodes: Option<NodeSelector>,
}

/// An object with parameters of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassParametersReference {
    /// Its API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// A wish for a resource, and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaim {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wished for; never changes.
    #[serde(default)]
    pub spec: ResourceClaimSpec,
    /// What became of it.
    #[serde(default, deserialize_with = "or_default")]
    pub status: ResourceClaimStatus,
}

/// What a claim asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimSpec {
    /// The class, by which the driver is chosen.
    #[serde(default)]
    pub resource_class_name: String,
    /// An object of the claim's namespace with parameters for the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ClaimParametersReference>,
    /// When to allocate.
    #[serde(default, deserialize_with = "or_default")]
    pub allocation_mode: AllocationMode,
}

/// An object with parameters of a claim, in the claim's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimParametersReference {
    /// Its API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// When a claim is allocated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationMode {
    /// For the first pod that needs it, on a node that scheduler and driver agree on.
    #[default]
    WaitForFirstConsumer,
    /// As soon as the claim exists, wherever the driver likes.
    Immediate,
}

/// What became of a claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    /// The driver that allocated the claim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver_name: String,
    /// What was allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationResult>,
    /// Who may use the claim: pods.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reserved_for: Vec<ConsumerReference>,
    /// The driver is to take the allocation back, as soon as nobody uses the claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deallocation_requested: bool,
}

/// What a driver allocated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocationResult {
    /// What the driver's node plugin gets to see; at most [`LONGEST_HANDLE`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_handle: String,
    /// Where it can be used; absent: everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_on_nodes: Option<NodeSelector>,
    /// Whether several pods may use it at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shareable: bool,
}

/// A user of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerReference {
    /// API group of the resource; empty for pods.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The resource, `pods`.
    #[serde(default)]
    pub resource: String,
    /// The user's name.
    #[serde(default)]
    pub name: String,
    /// The user's UID.
    #[serde(default)]
    pub uid: String,
}

/// A template of claims that are made for pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimTemplate {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What claims look like.
    #[serde(default)]
    pub spec: ResourceClaimTemplateSpec,
}

/// What claims made from a template look like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimTemplateSpec {
    /// Their labels and annotations.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: ObjectMeta,
    /// Their spec.
    #[serde(default)]
    pub spec: ResourceClaimSpec,
}

/// What scheduler and drivers tell each other about one pod, whose name and namespace it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodScheduling {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The scheduler's part.
    #[serde(default)]
    pub spec: PodSchedulingSpec,
    /// The drivers' part.
    #[serde(default, deserialize_with = "or_default")]
    pub status: PodSchedulingStatus,
}

/// What the scheduler tells drivers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSchedulingSpec {
    /// The node claims are to be allocated for; empty: none yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selected_node: String,
    /// Nodes that could take the pod.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub potential_nodes: Vec<String>,
}

/// What drivers tell the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSchedulingStatus {
    /// One entry for each of the pod's claims that is allocated when it is first used.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resource_claims: Vec<ClaimSchedulingStatus>,
}

/// What a driver says of one claim of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSchedulingStatus {
    /// The name in the pod's `spec.resourceClaims`.
    #[serde(default)]
    pub name: String,
    /// Nodes for which the claim cannot be allocated.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub unsuitable_nodes: Vec<String>,
}

macro_rules! kind {
    ($type:ident, $plural:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = "resource.k8s.io";
            const KIND: &'static str = stringify!($type);
            const VERSION: &'static str = "v1alpha1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::ListableResource for $type {
            const LIST_KIND: &'static str = concat!(stringify!($type), "List");
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(ResourceClass, "resourceclasses", ClusterResourceScope);
kind!(ResourceClaim, "resourceclaims", NamespaceResourceScope);
kind!(
    ResourceClaimTemplate,
    "resourceclaimtemplates",
    NamespaceResourceScope
);
kind!(PodScheduling, "podschedulings", NamespaceResourceScope);

impl ResourceClaim {
    /// Whether the claim is reserved for the object of this UID.
    pub fn is_reserved_for(&self, uid: &str) -> bool {
        self.status.reserved_for.iter().any(|r| r.uid == uid)
    }

    /// Whether one more pod may use the claim, were it allocated.
    pub fn can_be_reserved(&self) -> bool {
        let shareable = self.status.allocation.as_ref().is_some_and(|a| a.shareable);
        shareable || self.status.reserved_for.is_empty()
    }

    /// Whether the claim is allocated only when a pod needs it.
    pub fn is_delayed(&self) -> bool {
        self.spec.allocation_mode == AllocationMode::WaitForFirstConsumer
    }

    /// Whether the object of this UID is the claim's controller.
    pub fn is_controlled_by(&self, uid: &str) -> bool {
        let owners = self.metadata.owner_references.iter().flatten();
        owners
            .into_iter()
            .any(|o| o.controller == Some(true) && o.uid == uid)
    }
}

impl ConsumerReference {
    /// A pod as user of a claim.
    pub fn pod(name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            api_group: String::new(),
            resource: "pods".to_owned(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

impl PodScheduling {
    /// What the driver says of a claim, by its name in the pod; `None` when it has not spoken yet.
    pub fn of_claim(&self, name: &str) -> Option<&ClaimSchedulingStatus> {
        let mut all = self.status.resource_claims.iter();
        all.find(|c| c.name == name)
    }
}

/// The name of the claim for an entry of a pod's `spec.resourceClaims`: the given one, or for a
/// template the name that follows from the pod's.
pub fn claim_name(pod: &Pod, entry: &PodResourceClaim) -> String {
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    match &entry.resource_claim_name {
        Some(name) => name.clone(),
        None => generated_name(pod, &entry.name),
    }
}

/// The name of the claim that is made from a template: `<pod>-<name in the pod>`.
pub fn generated_name(pod: &str, entry: &str) -> String {
    format!("{pod}-{entry}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn item_127_objects_round_trip() {
        let claim = json!({
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"resourceClassName": "k", "allocationMode": "Immediate",
                "parametersRef": {"apiGroup": "cats.example.com", "kind": "Cat", "name": "black"}},
            "status": {"driverName": "d", "deallocationRequested": true,
                "allocation": {"resourceHandle": "h", "shareable": true, "availableOnNodes":
                    {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
        });
        let typed: ResourceClaim = serde_json::from_value(claim.clone()).unwrap();
        assert!(typed.is_reserved_for("u") && typed.can_be_reserved() && !typed.is_delayed());
        assert_eq!(serde_json::to_value(&typed).unwrap(), claim);
        let bare: ResourceClaim =
            serde_json::from_value(json!({"metadata": {}, "spec": {}, "status": null})).unwrap();
        assert!(bare.is_delayed() && bare.can_be_reserved());
        let scheduling: PodScheduling = serde_json::from_value(json!({"metadata": {}, "spec":
            {"selectedNode": "a", "potentialNodes": null},
            "status": {"resourceClaims": [{"name": "cat", "unsuitableNodes": ["b"]}]}}))
        .unwrap();
        assert_eq!(
            scheduling.of_claim("cat").unwrap().unsuitable_nodes,
            ["b".to_owned()]
        );
        assert_eq!(scheduling.of_claim("dog"), None);
    }

    #[test]
    fn names_of_claims_follow_from_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        let entry = |value| serde_json::from_value::<PodResourceClaim>(value).unwrap();
        let made = entry(json!({"name": "cat", "resourceClaimTemplateName": "t"}));
        let named = entry(json!({"name": "cat", "resourceClaimName": "c"}));
        assert_eq!(claim_name(&pod, &made), "p-cat");
        assert_eq!(claim_name(&pod, &named), "c");
    }
}
