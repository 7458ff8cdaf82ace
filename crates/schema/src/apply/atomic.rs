//! Built-in types that are one value wherever they stand, unless the field says otherwise.

/// Types declared with `+structType=atomic`, ordered by name.
const TYPES: [&str; 36] = [
    "admissionregistration/v1.MatchResources",
    "admissionregistration/v1.NamedRuleWithOperations",
    "admissionregistration/v1.ParamKind",
    "admissionregistration/v1.ParamRef",
    "admissionregistration/v1.Variable",
    "admissionregistration/v1alpha1.MatchResources",
    "admissionregistration/v1alpha1.NamedRuleWithOperations",
    "admissionregistration/v1alpha1.ParamKind",
    "admissionregistration/v1alpha1.ParamRef",
    "admissionregistration/v1beta1.MatchResources",
    "admissionregistration/v1beta1.NamedRuleWithOperations",
    "admissionregistration/v1beta1.ParamKind",
    "admissionregistration/v1beta1.ParamRef",
    "admissionregistration/v1beta1.Variable",
    "autoscaling/v1.CrossVersionObjectReference",
    "core/v1.ConfigMapKeySelector",
    "core/v1.EndpointAddress",
    "core/v1.EndpointPort",
    "core/v1.FileKeySelector",
    "core/v1.LocalObjectReference",
    "core/v1.NodeSelector",
    "core/v1.NodeSelectorTerm",
    "core/v1.ObjectFieldSelector",
    "core/v1.ObjectReference",
    "core/v1.ResourceFieldSelector",
    "core/v1.ScopeSelector",
    "core/v1.SecretKeySelector",
    "core/v1.SecretReference",
    "core/v1.TopologySelectorTerm",
    "core/v1.TypedLocalObjectReference",
    "discovery/v1.EndpointPort",
    "meta/v1.LabelSelector",
    "meta/v1.OwnerReference",
    "networking/v1.ServiceBackendPort",
    "rbac/v1.RoleRef",
    "rbac/v1.Subject",
];

/// Whether a built-in type is one value as a whole.
pub(crate) fn is_atomic(type_name: &str) -> bool {
    TYPES.binary_search(&type_name).is_ok()
}
