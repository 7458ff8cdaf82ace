//! Pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::format::{Row, at, condition, is_true, list_at, non_empty, str_at, time};
use super::{AGE, Column, NAME, Printer};

pub(super) static POD: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Ready", "Ready containers of all containers"),
        Column::text("Status", "What the pod as a whole is doing"),
        Column::text(
            "Restarts",
            "Restarts of the containers and when the last one was",
        ),
        AGE,
        Column::text("IP", "Address of the pod").wide(),
        Column::text("Node", "Node the pod is bound to").wide(),
        Column::text(
            "Nominated Node",
            "Node where room is being made for the pod",
        )
        .wide(),
        Column::text(
            "Readiness Gates",
            "Further conditions that make the pod ready",
        )
        .wide(),
    ],
    cells,
};

fn cells(row: &Row<'_>) -> Vec<Value> {
    let summary = Summary::of(row);
    let ip = row
        .list(&["status", "podIPs"])
        .first()
        .map_or("", |ip| str_at(ip, &["ip"]));
    let ip = non_empty(ip, row.str(&["status", "podIP"]));
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, row.since_time(Some(at)))
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        row.name(),
        Value::from(format!("{}/{}", summary.ready, summary.total)),
        Value::from(summary.reason),
        Value::from(restarts),
        row.age(),
        Value::from(non_empty(ip, "<none>")),
        row.str_or(&["spec", "nodeName"], "<none>"),
        row.str_or(&["status", "nominatedNodeName"], "<none>"),
        Value::from(readiness_gates(row)),
    ]
}

fn readiness_gates(row: &Row<'_>) -> String {
    let gates = row.list(&["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = row.list(&["status", "conditions"]);
    let met = gates
        .iter()
        .filter(|g| is_true(conditions, str_at(g, &["conditionType"])))
        .count();
    format!("{met}/{}", gates.len())
}

/// Container restarts: how many, and when the last one ended.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += at(status, &["restartCount"]).as_i64().unwrap_or(0);
        self.last = self
            .last
            .max(time(at(status, &["lastState", "terminated", "finishedAt"])));
    }
}

struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(row: &Row<'_>) -> Self {
        let phase = row.str(&["status", "phase"]);
        let conditions = row.list(&["status", "conditions"]);
        let mut reason = non_empty(row.str(&["status", "reason"]), phase).to_owned();
        if condition(conditions, "PodScheduled")
            .is_some_and(|c| str_at(c, &["reason"]) == "SchedulingGated")
        {
            reason = "SchedulingGated".to_owned();
        }

        let specs = row.list(&["spec", "initContainers"]);
        let sidecar = |name: &str| {
            specs
                .iter()
                .any(|c| str_at(c, &["name"]) == name && str_at(c, &["restartPolicy"]) == "Always")
        };
        let sidecars = specs
            .iter()
            .filter(|c| str_at(c, &["restartPolicy"]) == "Always")
            .count();
        let mut summary = Self {
            reason,
            ready: 0,
            total: row.list(&["spec", "containers"]).len() + sidecars,
            restarts: 0,
            last_restart: None,
        };
        let mut all = Restarts::default();
        let mut of_sidecars = Restarts::default();
        let mut initializing = false;
        for (i, status) in row
            .list(&["status", "initContainerStatuses"])
            .iter()
            .enumerate()
        {
            all.add(status);
            let sidecar = sidecar(str_at(status, &["name"]));
            if sidecar {
                of_sidecars.add(status);
            }
            match init_step(status, sidecar, i, specs.len()) {
                InitStep::Done { ready } => summary.ready += usize::from(ready),
                InitStep::At(text) => {
                    summary.reason = text;
                    initializing = true;
                    break;
                }
            }
        }
        if !initializing || is_true(conditions, "Initialized") {
            all = of_sidecars;
            summary.containers(row, &mut all);
        }
        summary.restarts = all.count;
        summary.last_restart = all.last;
        if row.deleting() {
            if row.str(&["status", "reason"]) == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// What the app containers say, the first one last because its word counts.
    fn containers(&mut self, row: &Row<'_>, restarts: &mut Restarts) {
        let mut running = false;
        for status in list_at(row.obj, &["status", "containerStatuses"])
            .iter()
            .rev()
        {
            restarts.add(status);
            let state = at(status, &["state"]);
            let waiting = str_at(state, &["waiting", "reason"]);
            let terminated = at(state, &["terminated"]);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = terminated_reason(terminated, "");
            } else if is_ready(status) && !at(state, &["running"]).is_null() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            let ready = is_true(row.list(&["status", "conditions"]), "Ready");
            self.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

enum InitStep {
    Done { ready: bool },
    At(String),
}

fn init_step(status: &Value, sidecar: bool, index: usize, of: usize) -> InitStep {
    let state = at(status, &["state"]);
    let terminated = at(state, &["terminated"]);
    let waiting = str_at(state, &["waiting", "reason"]);
    if !terminated.is_null() && at(terminated, &["exitCode"]).as_i64().unwrap_or(0) == 0 {
        InitStep::Done { ready: false }
    } else if sidecar && at(status, &["started"]).as_bool() == Some(true) {
        InitStep::Done {
            ready: is_ready(status),
        }
    } else if !terminated.is_null() {
        InitStep::At(terminated_reason(terminated, "Init:"))
    } else if !waiting.is_empty() && waiting != "PodInitializing" {
        InitStep::At(format!("Init:{waiting}"))
    } else {
        InitStep::At(format!("Init:{index}/{of}"))
    }
}

fn is_ready(status: &Value) -> bool {
    at(status, &["ready"]).as_bool() == Some(true)
}

fn terminated_reason(terminated: &Value, prefix: &str) -> String {
    let number = |key: &str| at(terminated, &[key]).as_i64().unwrap_or(0);
    match (str_at(terminated, &["reason"]), number("signal")) {
        ("", 0) => format!("{prefix}ExitCode:{}", number("exitCode")),
        ("", signal) => format!("{prefix}Signal:{signal}"),
        (reason, _) => format!("{prefix}{reason}"),
    }
}

pub(super) fn row_conditions(pod: &Value) -> Vec<Value> {
    let completed = |reason: &str, message: &str| {
        vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
    };
    match str_at(pod, &["status", "phase"]) {
        "Succeeded" => completed("Succeeded", "The pod has completed successfully."),
        "Failed" => completed("Failed", "The pod failed."),
        _ => Vec::new(),
    }
}
