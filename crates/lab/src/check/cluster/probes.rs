//! Pods that no namespace of users should admit, one for each control; they are sent as dry runs.

use serde_json::{Value, json};

/// What a control of section 5.2 is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Control {
    Privileged,
    HostPid,
    HostIpc,
    HostNetwork,
    Escalation,
    Root,
    NetRaw,
    Capabilities,
    HostProcess,
    HostPath,
    HostPorts,
}

impl Control {
    pub(super) const ALL: [Self; 11] = [
        Self::Privileged,
        Self::HostPid,
        Self::HostIpc,
        Self::HostNetwork,
        Self::Escalation,
        Self::Root,
        Self::NetRaw,
        Self::Capabilities,
        Self::HostProcess,
        Self::HostPath,
        Self::HostPorts,
    ];

    /// The pod that breaks this control and keeps every other, as far as one can without the other.
    pub(super) fn offender(self) -> Value {
        let mut pod = harmless();
        let (at, value) = match self {
            Self::Privileged => {
                let context = "/spec/containers/0/securityContext";
                set(&mut pod, context, "allowPrivilegeEscalation", json!(true));
                (context, ("privileged", json!(true)))
            }
            Self::HostPid => ("/spec", ("hostPID", json!(true))),
            Self::HostIpc => ("/spec", ("hostIPC", json!(true))),
            Self::HostNetwork => ("/spec", ("hostNetwork", json!(true))),
            Self::Escalation => (
                "/spec/containers/0/securityContext",
                ("allowPrivilegeEscalation", json!(true)),
            ),
            Self::Root => {
                set(
                    &mut pod,
                    "/spec/securityContext",
                    "runAsNonRoot",
                    json!(false),
                );
                ("/spec/securityContext", ("runAsUser", json!(0)))
            }
            Self::NetRaw => (
                "/spec/containers/0/securityContext",
                ("capabilities", json!({"drop": ["ALL"], "add": ["NET_RAW"]})),
            ),
            Self::Capabilities => (
                "/spec/containers/0/securityContext",
                ("capabilities", json!({"drop": ["ALL"], "add": ["CHOWN"]})),
            ),
            Self::HostProcess => return host_process(),
            Self::HostPath => (
                "/spec",
                (
                    "volumes",
                    json!([{"name": "host", "hostPath": {"path": "/"}}]),
                ),
            ),
            Self::HostPorts => (
                "/spec/containers/0",
                ("ports", json!([{"containerPort": 80, "hostPort": 80}])),
            ),
        };
        set(&mut pod, at, value.0, value.1);
        pod
    }
}

fn set(pod: &mut Value, at: &str, field: &str, value: Value) {
    if let Some(place) = pod.pointer_mut(at) {
        place[field] = value;
    }
}

/// A pod that the strictest of the pod security standards admits.
pub(super) fn harmless() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "davit-lab-check"},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "none",
                "image": "davit.invalid/none:1",
                "imagePullPolicy": "IfNotPresent",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {
                    "requests": {"cpu": "1m", "memory": "1Mi"},
                    "limits": {"cpu": "1m", "memory": "1Mi"},
                },
            }],
        },
    })
}

/// Windows pods have no Linux fields.
fn host_process() -> Value {
    let mut pod = harmless();
    pod["spec"]["os"] = json!({"name": "windows"});
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["securityContext"] = json!({
        "runAsNonRoot": true,
        "windowsOptions": {"hostProcess": true, "runAsUserName": "NT AUTHORITY\\Local service"},
    });
    pod["spec"]["containers"][0]["securityContext"] = json!({});
    pod
}
