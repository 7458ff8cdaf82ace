//! Kinds around the cluster: access rules, admission, leases, classes, certificates, extensions.

mod api_services;
mod leases;
mod runtime_classes;
mod storage_versions;
mod webhooks;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::{Value, json};

use super::fields::{optional_choice, required};
use super::json::{
    at, at_mut, default, default_unset, has, int_at, list_at, list_mut, same, str_at,
};
use super::{
    Generic, KindInfo, Strategy, fields, flowcontrol, meta, pod_certificates, pod_groups, policies,
    selectors,
};

pub(super) use webhooks::rules as rule;

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match (&*info.group, &*info.kind) {
        (RBAC, "Role" | "ClusterRole") => Box::new(Role(info)),
        (RBAC, _) => Box::new(RoleBinding(info)),
        ("admissionregistration.k8s.io", kind) if kind.ends_with("WebhookConfiguration") => {
            Box::new(Webhooks(info))
        }
        ("admissionregistration.k8s.io", kind) if kind.ends_with("Policy") => {
            Box::new(policies::Policy(info))
        }
        ("admissionregistration.k8s.io", kind) if kind.ends_with("PolicyBinding") => {
            Box::new(policies::Binding(info))
        }
        ("coordination.k8s.io", "Lease") => Box::new(leases::Lease(info)),
        ("coordination.k8s.io", "LeaseCandidate") => Box::new(leases::LeaseCandidate(info)),
        ("scheduling.k8s.io", "PriorityClass") => Box::new(PriorityClass(info)),
        ("node.k8s.io", "RuntimeClass") => Box::new(runtime_classes::RuntimeClass(info)),
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            Box::new(super::signing_requests::SigningRequest(info))
        }
        ("certificates.k8s.io", "ClusterTrustBundle") => {
            Box::new(super::trust_bundles::TrustBundle(info))
        }
        ("certificates.k8s.io", "PodCertificateRequest") => {
            Box::new(pod_certificates::PodCertificateRequest(info))
        }
        ("apiregistration.k8s.io", _) => Box::new(api_services::ApiService(info)),
        ("apiextensions.k8s.io", _) => Box::new(super::crd::CustomResourceDefinition(info)),
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::build(info),
        ("storagemigration.k8s.io", "StorageVersionMigration") => {
            Box::new(storage_versions::StorageVersionMigration(info))
        }
        ("internal.apiserver.k8s.io", "StorageVersion") => {
            Box::new(storage_versions::StorageVersion(info))
        }
        ("scheduling.k8s.io", "PodGroup") => Box::new(pod_groups::PodGroupRules(info)),
        ("scheduling.k8s.io", "Workload") => Box::new(pod_groups::WorkloadRules(info)),
        _ => Box::new(Generic::new(info)),
    }
}

struct Role(KindInfo);

impl Strategy for Role {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        rules(&self.0, obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        rules(&self.0, new, &mut errors);
        errors
    }
}

fn rules(kind: &KindInfo, obj: &Value, errors: &mut ErrorList) {
    for (i, rule) in list_at(obj, &["rules"]).iter().enumerate() {
        let path = Path::new("rules").index(i);
        let empty = |key: &str| list_at(rule, &[key]).is_empty();
        if empty("verbs") {
            let why = "verbs must contain at least one value";
            errors.push(FieldError::required(&path.child("verbs"), why));
        }
        if !empty("nonResourceURLs") {
            let urls = at(rule, &["nonResourceURLs"]).clone();
            let path = path.child("nonResourceURLs");
            if kind.namespaced {
                let fault = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(&path, urls, fault));
            } else if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                let fault = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(FieldError::invalid(&path, urls, fault));
            }
            continue;
        }
        if empty("apiGroups") {
            let why = "resource rules must supply at least one api group";
            errors.push(FieldError::required(&path.child("apiGroups"), why));
        }
        if empty("resources") {
            let why = "resource rules must supply at least one resource";
            errors.push(FieldError::required(&path.child("resources"), why));
        }
    }
    let aggregation = list_at(obj, &["aggregationRule", "clusterRoleSelectors"]);
    if has(obj, &["aggregationRule"]) && aggregation.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        errors.push(FieldError::required(&path, why));
    }
    for (i, selector) in aggregation.iter().enumerate() {
        let path = Path::new("aggregationRule")
            .child("clusterRoleSelectors")
            .index(i);
        selectors::label_selector(selector, &path, errors);
    }
}

struct RoleBinding(KindInfo);

impl Strategy for RoleBinding {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(role) = at_mut(obj, &["roleRef"]) {
            default(role, "apiGroup", RBAC);
        }
        for subject in list_mut(obj, &["subjects"]) {
            if matches!(str_at(subject, &["kind"]), "User" | "Group") {
                default(subject, "apiGroup", RBAC);
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        self.binding(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        self.binding(new, &mut errors);
        let role = at(new, &["roleRef"]);
        if !same(role, at(old, &["roleRef"])) {
            let [group, kind, name] = ["apiGroup", "kind", "name"].map(|key| str_at(role, &[key]));
            let shown = json!({"APIGroup": group, "Kind": kind, "Name": name});
            let why = "cannot change roleRef";
            errors.push(FieldError::invalid(&Path::new("roleRef"), shown, why));
        }
        errors
    }
}

impl RoleBinding {
    fn binding(&self, obj: &Value, errors: &mut ErrorList) {
        let path = Path::new("roleRef");
        let role = at(obj, &["roleRef"]);
        fields::one_of(role, "apiGroup", &[RBAC], &path, errors);
        let kinds: &[&str] = if self.0.namespaced {
            &["Role", "ClusterRole"]
        } else {
            &["ClusterRole"]
        };
        fields::one_of(role, "kind", kinds, &path, errors);
        fields::name(role, "name", names::check_path_segment, &path, errors);
        for (i, subject) in list_at(obj, &["subjects"]).iter().enumerate() {
            let path = Path::new("subjects").index(i);
            required(subject, "name", &path, errors);
            match str_at(subject, &["kind"]) {
                "ServiceAccount" => {
                    let check = names::check_dns1123_subdomain;
                    fields::optional_name(subject, "name", check, &path, errors);
                    if !str_at(subject, &["apiGroup"]).is_empty() {
                        let group = str_at(subject, &["apiGroup"]);
                        let path = path.child("apiGroup");
                        errors.push(FieldError::not_supported(&path, group, &[""]));
                    }
                    // in a binding of a namespace the namespace is filled in by nobody either
                    required(subject, "namespace", &path, errors);
                }
                "User" | "Group" => {
                    fields::one_of(subject, "apiGroup", &[RBAC], &path, errors);
                }
                _ => {
                    let kinds = ["ServiceAccount", "User", "Group"];
                    fields::one_of(subject, "kind", &kinds, &path, errors);
                }
            }
        }
    }
}

/// Defaults of `matchConstraints` and webhooks: selectors, policy, scope of rules.
pub(super) fn match_defaults(of: &mut Value) {
    default(of, "matchPolicy", "Equivalent");
    for key in ["namespaceSelector", "objectSelector"] {
        default_unset(of, key, json!({}));
    }
    for list in ["rules", "resourceRules", "excludeResourceRules"] {
        for rule in list_mut(of, &[list]) {
            default(rule, "scope", "*");
        }
    }
}

struct Webhooks(KindInfo);

impl Strategy for Webhooks {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let mutating = self.0.kind.starts_with("Mutating");
        for hook in list_mut(obj, &["webhooks"]) {
            default(hook, "failurePolicy", "Fail");
            match_defaults(hook);
            default_unset(hook, "timeoutSeconds", 10);
            if mutating {
                default(hook, "reinvocationPolicy", "Never");
            }
            if let Some(service) = at_mut(hook, &["clientConfig", "service"]) {
                default_unset(service, "port", 443);
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        webhooks::validate(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        webhooks::validate(new, &mut errors);
        errors
    }
}

struct PriorityClass(KindInfo);

impl Strategy for PriorityClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        default(obj, "preemptionPolicy", "PreemptLowerPriority");
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        const USER_MAX: i64 = 1_000_000_000;
        // the two classes every cluster has, with the values they must have
        const SYSTEM: [(&str, i64); 2] = [
            ("system-node-critical", 2_000_001_000),
            ("system-cluster-critical", 2_000_000_000),
        ];
        let mut errors = meta::validate(&self.0, obj);
        let name = str_at(obj, &["metadata", "name"]);
        let value = int_at(obj, &["value"]).unwrap_or(0);
        if name.starts_with("system-") {
            if !SYSTEM.contains(&(name, value)) {
                let why = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
                );
                errors.push(FieldError::forbidden(
                    &Path::new("metadata").child("name"),
                    why,
                ));
            }
        } else if value > USER_MAX {
            let why = format!("maximum allowed value of a user defined priority is {USER_MAX}");
            errors.push(FieldError::forbidden(&Path::new("value"), why));
        }
        let policies = ["PreemptLowerPriority", "Never"];
        optional_choice(
            obj,
            "preemptionPolicy",
            &policies,
            &Path::root(),
            &mut errors,
        );
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        if !same(at(new, &["value"]), at(old, &["value"])) {
            let why = "may not be changed in an update.";
            errors.push(FieldError::forbidden(&Path::new("value"), why));
        }
        meta::immutable_at(new, old, &["preemptionPolicy"], &mut errors);
        errors
    }
}
