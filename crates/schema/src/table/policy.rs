//! Everything around the cluster: quotas, RBAC, admission, certificates, scheduling, fairness.

use serde_json::Value;

use super::format::{
    Row, at, condition, created_at, human_duration, int_or_string, is_true, labels, non_empty,
    str_at,
};
use super::{AGE, CREATED_AT, Column, DEFAULT, NAME, Printer};

pub(super) static CREATED: Printer = Printer {
    columns: &[NAME, CREATED_AT],
    cells: |r| vec![r.name(), created_at(r)],
};

pub(super) static RESOURCE_QUOTA: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Request", "Used and allowed requests"),
        Column::text("Limit", "Used and allowed limits"),
        AGE,
    ],
    cells: |r| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        let mut hard: Vec<_> = r
            .at(&["status", "hard"])
            .as_object()
            .into_iter()
            .flatten()
            .collect();
        hard.sort_by_key(|(name, _)| name.as_str());
        for (name, value) in hard {
            let used = non_empty(str_at(r.at(&["status", "used"]), &[name]), "0");
            let list = if name.starts_with("limits.") {
                &mut limits
            } else {
                &mut requests
            };
            list.push(format!(
                "{name}: {used}/{}",
                value.as_str().unwrap_or_default()
            ));
        }
        vec![
            r.name(),
            Value::from(requests.join(", ")),
            Value::from(limits.join(", ")),
            r.age(),
        ]
    },
};

static DISRUPTION_BUDGET: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Min Available", "Pods that must stay"),
        Column::text("Max Unavailable", "Pods that may be missing"),
        Column::number("Allowed Disruptions", "Pods that may be evicted now"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            int_or_string(r.at(&["spec", "minAvailable"]), "N/A"),
            int_or_string(r.at(&["spec", "maxUnavailable"]), "N/A"),
            Value::from(r.int(&["status", "disruptionsAllowed"])),
            r.age(),
        ]
    },
};

static ROLE_BINDING: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Role", "Role that is granted"),
        AGE,
        Column::text("Users", "Users it is granted to").wide(),
        Column::text("Groups", "Groups it is granted to").wide(),
        Column::text("ServiceAccounts", "Service accounts it is granted to").wide(),
    ],
    cells: |r| {
        let subjects = |kind: &str| {
            let names: Vec<String> = r
                .list(&["subjects"])
                .iter()
                .filter(|s| str_at(s, &["kind"]) == kind)
                // Accounts have a namespace, users and groups none, whatever is written.
                .map(|s| match str_at(s, &["namespace"]) {
                    _ if kind != "ServiceAccount" => str_at(s, &["name"]).to_owned(),
                    "" => str_at(s, &["name"]).to_owned(),
                    namespace => format!("{namespace}/{}", str_at(s, &["name"])),
                })
                .collect();
            Value::from(names.join(", "))
        };
        let role = format!(
            "{}/{}",
            r.str(&["roleRef", "kind"]),
            r.str(&["roleRef", "name"])
        );
        vec![
            r.name(),
            Value::from(role),
            r.age(),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    },
};

static SIGNING_REQUEST: Printer = Printer {
    columns: &[
        NAME,
        AGE,
        Column::text("SignerName", "Signer that is asked"),
        Column::text("Requestor", "User who asks"),
        Column::text(
            "RequestedDuration",
            "How long the certificate shall be valid",
        ),
        Column::text("Condition", "Where the request stands"),
    ],
    cells: |r| {
        let duration = r.at(&["spec", "expirationSeconds"]).as_i64();
        vec![
            r.name(),
            r.age(),
            r.str_or(&["spec", "signerName"], "<none>"),
            Value::from(r.str(&["spec", "username"])),
            Value::from(duration.map_or_else(|| "<none>".to_owned(), human_duration)),
            Value::from(signing_state(r)),
        ]
    },
};

fn signing_state(r: &Row<'_>) -> String {
    let conditions = r.list(&["status", "conditions"]);
    let has = |kind| condition(conditions, kind).is_some();
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !r.str(&["status", "certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    state
}

static TRUST_BUNDLE: Printer = Printer {
    columns: &[NAME, Column::text("SignerName", "Signer the bundle is of")],
    cells: |r| vec![r.name(), r.str_or(&["spec", "signerName"], "<none>")],
};

static LEASE: Printer = Printer {
    columns: &[NAME, Column::text("Holder", "Who holds the lease"), AGE],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "holderIdentity"])),
            r.age(),
        ]
    },
};

static LEASE_CANDIDATE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("LeaseName", "Lease it is a candidate for"),
        Column::text("BinaryVersion", "Version of the program"),
        Column::text("EmulationVersion", "Version the program emulates"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "leaseName"])),
            Value::from(r.str(&["spec", "binaryVersion"])),
            Value::from(r.str(&["spec", "emulationVersion"])),
            r.age(),
        ]
    },
};

static POD_GROUP: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Policy", "How its pods are scheduled"),
        Column::text("Workload", "Name of the referenced Workload object"),
        Column::text("Status", "Status of the PodGroup"),
        AGE,
    ],
    cells: |r| {
        let gang = r.at(&["spec", "schedulingPolicy", "gang"]).is_object();
        let conditions = r.at(&["status", "conditions"]).as_array();
        let conditions = || conditions.into_iter().flatten();
        let condition = |kind: &str| conditions().find(|c| c["type"] == kind);
        let status = match (
            condition("DisruptionTarget"),
            condition("PodGroupScheduled"),
        ) {
            (Some(disrupted), _) => disrupted["reason"].as_str().unwrap_or_default(),
            (None, Some(scheduled)) if scheduled["status"] == "True" => "Scheduled",
            (None, Some(_)) => "Unschedulable",
            (None, None) => "Pending",
        };
        let workload = ["spec", "podGroupTemplateRef", "workload", "workloadName"];
        vec![
            r.name(),
            Value::from(if gang { "Gang" } else { "Basic" }),
            r.str_or(&workload, "<none>"),
            Value::from(status),
            r.age(),
        ]
    },
};

static PRIORITY_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::number("Value", "Priority of the pods"),
        Column::flag("Global-Default", "Whether pods without class get it"),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods may displace others"),
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.int(&["value"])),
            Value::from(r.at(&["globalDefault"]).as_bool().unwrap_or(false)),
            r.age(),
            r.str_or(&["preemptionPolicy"], "<unset>"),
        ]
    },
};

static RUNTIME_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Handler", "Handler of the container runtime"),
        AGE,
    ],
    cells: |r| vec![r.name(), Value::from(r.str(&["handler"])), r.age()],
};

static WEBHOOKS: Printer = Printer {
    columns: &[NAME, Column::number("Webhooks", "Number of webhooks"), AGE],
    cells: |r| vec![r.name(), Value::from(r.list(&["webhooks"]).len()), r.age()],
};

const PARAM_KIND: Column = Column::text("ParamKind", "Kind of the parameters");

static VALIDATING_POLICY: Printer = Printer {
    columns: &[
        NAME,
        Column::number("Validations", "Number of validations"),
        PARAM_KIND,
        AGE,
    ],
    cells: |r| admission_policy(r, "validations"),
};

static MUTATING_POLICY: Printer = Printer {
    columns: &[
        NAME,
        Column::number("Mutations", "Number of mutations"),
        PARAM_KIND,
        AGE,
    ],
    cells: |r| admission_policy(r, "mutations"),
};

fn admission_policy(r: &Row<'_>, list: &str) -> Vec<Value> {
    let kind = r.at(&["spec", "paramKind"]);
    let kind = if kind.is_null() {
        "<unset>".to_owned()
    } else {
        format!(
            "{}/{}",
            str_at(kind, &["apiVersion"]),
            str_at(kind, &["kind"])
        )
    };
    vec![
        r.name(),
        Value::from(r.list(&["spec", list]).len()),
        Value::from(kind),
        r.age(),
    ]
}

static POLICY_BINDING: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PolicyName", "Policy that is bound"),
        Column::text("ParamRef", "Parameters it is bound with"),
        AGE,
    ],
    cells: |r| {
        let parameters = r.at(&["spec", "paramRef"]);
        let name = str_at(parameters, &["name"]);
        let text = match (
            parameters.is_null(),
            name,
            str_at(parameters, &["namespace"]),
        ) {
            (true, ..) => "<unset>".to_owned(),
            (_, "", _) => super::format::selector(at(parameters, &["selector"])),
            (_, name, "") => format!("*/{name}"),
            (_, name, namespace) => format!("{namespace}/{name}"),
        };
        vec![
            r.name(),
            Value::from(r.str(&["spec", "policyName"])),
            Value::from(text),
            r.age(),
        ]
    },
};

static FLOW_SCHEMA: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PriorityLevel", "Priority level of the requests"),
        Column::text("MatchingPrecedence", "Order among the schemas"),
        Column::text("DistinguisherMethod", "How flows are told apart"),
        AGE,
        Column::text("MissingPL", "Whether the priority level is missing"),
    ],
    cells: |r| {
        let dangling = condition(r.list(&["status", "conditions"]), "Dangling");
        vec![
            r.name(),
            Value::from(r.str(&["spec", "priorityLevelConfiguration", "name"])),
            Value::from(r.int(&["spec", "matchingPrecedence"])),
            r.str_or(&["spec", "distinguisherMethod", "type"], "<none>"),
            r.age(),
            Value::from(dangling.map_or("?", |c| str_at(c, &["status"]))),
        ]
    },
};

static PRIORITY_LEVEL: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "Whether requests are limited"),
        Column::text("NominalConcurrencyShares", "Share of the concurrency"),
        Column::text("Queues", "Number of queues"),
        Column::text("HandSize", "Queues a flow is spread over"),
        Column::text("QueueLengthLimit", "Longest queue"),
        AGE,
    ],
    cells: |r| {
        let count = |path: &[&str]| match r.at(path) {
            Value::Null => Value::from("<none>"),
            count => count.clone(),
        };
        let queuing = |key| count(&["spec", "limited", "limitResponse", "queuing", key]);
        vec![
            r.name(),
            Value::from(r.str(&["spec", "type"])),
            count(&["spec", "limited", "nominalConcurrencyShares"]),
            queuing("queues"),
            queuing("handSize"),
            queuing("queueLengthLimit"),
            r.age(),
        ]
    },
};

static API_SERVICE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Service", "Service that serves the version"),
        Column::text("Available", "Whether it can be reached"),
        AGE,
    ],
    cells: |r| {
        let service = r.at(&["spec", "service"]);
        let service = if service.is_null() {
            "Local".to_owned()
        } else {
            format!(
                "{}/{}",
                str_at(service, &["namespace"]),
                str_at(service, &["name"])
            )
        };
        let conditions = r.list(&["status", "conditions"]);
        let available = match condition(conditions, "Available") {
            _ if is_true(conditions, "Available") => "True".to_owned(),
            Some(c) => format!("{} ({})", str_at(c, &["status"]), str_at(c, &["reason"])),
            None => "Unknown".to_owned(),
        };
        vec![
            r.name(),
            Value::from(service),
            Value::from(available),
            r.age(),
        ]
    },
};

static STORAGE_VERSION: Printer = Printer {
    columns: &[
        NAME,
        Column::text("CommonEncodingVersion", "Version all servers write"),
        Column::text("StorageVersions", "Version each server writes"),
        AGE,
    ],
    cells: |r| {
        let versions: Vec<String> = r
            .list(&["status", "storageVersions"])
            .iter()
            .map(|v| {
                format!(
                    "{}={}",
                    str_at(v, &["apiServerID"]),
                    str_at(v, &["encodingVersion"])
                )
            })
            .collect();
        vec![
            r.name(),
            r.str_or(&["status", "commonEncodingVersion"], "<unset>"),
            Value::from(super::format::first_three(&versions, "<unset>")),
            r.age(),
        ]
    },
};

static STORAGE_MIGRATION: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Resource", "Resource that is rewritten"),
        Column::text("Status", "How far it is"),
    ],
    cells: |r| {
        let resource = r.str(&["spec", "resource", "resource"]);
        let text = match r.str(&["spec", "resource", "group"]) {
            "" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        let conditions = r.list(&["status", "conditions"]);
        let states = ["Running", "Failed", "Succeeded"];
        let state = states.into_iter().rfind(|kind| is_true(conditions, kind));
        vec![
            r.name(),
            Value::from(text),
            Value::from(state.unwrap_or("Unknown")),
        ]
    },
};

static CERTIFICATE_OF_POD: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PodName", "Pod the certificate is for"),
        Column::text("ServiceAccountName", "Account of the pod"),
        Column::text("NodeName", "Node of the pod"),
        Column::text("SignerName", "Who is to sign"),
        Column::text("State", "Pending, Issued, Denied or Failed"),
        Column::text(
            "UnverifiedUserAnnotations",
            "What the pod says to the signer",
        ),
    ],
    cells: |r| {
        let conditions = r.list(&["status", "conditions"]).iter();
        let states = ["Issued", "Denied", "Failed"];
        let state = conditions
            .map(|c| str_at(c, &["type"]))
            .rfind(|kind| states.contains(kind));
        let spec = |key| Value::from(r.str(&["spec", key]));
        vec![
            r.name(),
            spec("podName"),
            spec("serviceAccountName"),
            spec("nodeName"),
            spec("signerName"),
            Value::from(state.unwrap_or("Pending")),
            Value::from(labels(r.at(&["spec", "unverifiedUserAnnotations"]))),
        ]
    },
};

static STATUS: Printer = Printer {
    columns: &[
        Column::text("Status", "Success or Failure"),
        Column::text("Reason", "Reason in one word"),
        Column::text("Message", "What happened"),
    ],
    cells: |r| {
        ["status", "reason", "message"]
            .map(|k| Value::from(r.str(&[k])))
            .to_vec()
    },
};

pub(super) fn printer(group: &str, kind: &str) -> &'static Printer {
    match (group, kind) {
        ("", "Status") => &STATUS,
        ("policy", "PodDisruptionBudget") => &DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => &CREATED,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => &ROLE_BINDING,
        ("certificates.k8s.io", "CertificateSigningRequest") => &SIGNING_REQUEST,
        ("certificates.k8s.io", "ClusterTrustBundle") => &TRUST_BUNDLE,
        ("certificates.k8s.io", "PodCertificateRequest") => &CERTIFICATE_OF_POD,
        ("coordination.k8s.io", "Lease") => &LEASE,
        ("coordination.k8s.io", "LeaseCandidate") => &LEASE_CANDIDATE,
        ("scheduling.k8s.io", "PriorityClass") => &PRIORITY_CLASS,
        ("scheduling.k8s.io", "PodGroup") => &POD_GROUP,
        ("node.k8s.io", "RuntimeClass") => &RUNTIME_CLASS,
        ("admissionregistration.k8s.io", _) => admission(kind),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => &FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => &PRIORITY_LEVEL,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => &CREATED,
        ("apiregistration.k8s.io", "APIService") => &API_SERVICE,
        ("internal.apiserver.k8s.io", "StorageVersion") => &STORAGE_VERSION,
        ("storagemigration.k8s.io", "StorageVersionMigration") => &STORAGE_MIGRATION,
        _ => &DEFAULT,
    }
}

fn admission(kind: &str) -> &'static Printer {
    match kind {
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => &WEBHOOKS,
        "ValidatingAdmissionPolicy" => &VALIDATING_POLICY,
        "MutatingAdmissionPolicy" => &MUTATING_POLICY,
        _ => &POLICY_BINDING,
    }
}
