//! Controllers of pods: apps, batch, autoscaling, replication controllers, templates.

use serde_json::Value;

use super::format::{
    Row, at, bool_text, containers, human_duration, is_true, labels, non_empty, selector, str_at,
};
use super::{AGE, CONTAINERS, Column, DEFAULT, IMAGES, NAME, Printer, SELECTOR};

const DESIRED: Column = Column::number("Desired", "Pods wanted");
const CURRENT: Column = Column::number("Current", "Pods there are");
const READY_COUNT: Column = Column::number("Ready", "Pods that are ready");
const READY_OF: Column = Column::text("Ready", "Pods that are ready of the pods wanted");
const UP_TO_DATE: Column = Column::number("Up-to-date", "Pods of the newest revision");
const AVAILABLE: Column = Column::number("Available", "Pods ready for long enough");

pub(super) static POD_TEMPLATE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Containers", "Names of the containers"),
        Column::text("Images", "Images of the containers"),
        Column::text("Pod Labels", "Labels of the pods"),
    ],
    cells: |r| {
        let [names, images] = containers(r.at(&["template", "spec"]));
        let labels = labels(r.at(&["template", "metadata", "labels"]));
        vec![r.name(), names, images, Value::from(labels)]
    },
};

const REPLICAS: &[Column] = &[
    NAME,
    DESIRED,
    CURRENT,
    READY_COUNT,
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) static REPLICATION_CONTROLLER: Printer = Printer {
    columns: REPLICAS,
    cells: |r| replicas(r, labels(r.at(&["spec", "selector"]))),
};

static REPLICA_SET: Printer = Printer {
    columns: REPLICAS,
    cells: |r| replicas(r, selector(r.at(&["spec", "selector"]))),
};

fn replicas(r: &Row<'_>, selector: String) -> Vec<Value> {
    let [names, images] = containers(r.at(&["spec", "template", "spec"]));
    vec![
        r.name(),
        Value::from(r.int(&["spec", "replicas"])),
        Value::from(r.int(&["status", "replicas"])),
        Value::from(r.int(&["status", "readyReplicas"])),
        r.age(),
        names,
        images,
        Value::from(selector),
    ]
}

static DEPLOYMENT: Printer = Printer {
    columns: &[
        NAME,
        READY_OF,
        Column::text("Up-to-date", "Pods of the newest revision"),
        Column::text("Available", "Pods ready for long enough"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |r| {
        let [names, images] = containers(r.at(&["spec", "template", "spec"]));
        vec![
            r.name(),
            ready_of(r),
            Value::from(r.int(&["status", "updatedReplicas"])),
            Value::from(r.int(&["status", "availableReplicas"])),
            r.age(),
            names,
            images,
            Value::from(selector(r.at(&["spec", "selector"]))),
        ]
    },
};

static STATEFUL_SET: Printer = Printer {
    columns: &[NAME, READY_OF, AGE, CONTAINERS, IMAGES],
    cells: |r| {
        let [names, images] = containers(r.at(&["spec", "template", "spec"]));
        vec![r.name(), ready_of(r), r.age(), names, images]
    },
};

fn ready_of(r: &Row<'_>) -> Value {
    let (ready, wanted) = (
        r.int(&["status", "readyReplicas"]),
        r.int(&["spec", "replicas"]),
    );
    Value::from(format!("{ready}/{wanted}"))
}

static DAEMON_SET: Printer = Printer {
    columns: &[
        NAME,
        DESIRED,
        CURRENT,
        READY_COUNT,
        UP_TO_DATE,
        AVAILABLE,
        Column::text("Node Selector", "Nodes that get a pod"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |r| {
        let template = r.at(&["spec", "template", "spec"]);
        let [names, images] = containers(template);
        let count = |key| Value::from(r.int(&["status", key]));
        vec![
            r.name(),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            Value::from(labels(at(template, &["nodeSelector"]))),
            r.age(),
            names,
            images,
            Value::from(selector(r.at(&["spec", "selector"]))),
        ]
    },
};

static CONTROLLER_REVISION: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Controller", "Controller the revision belongs to"),
        Column::text("Revision", "Number of the revision"),
        AGE,
    ],
    cells: |r| {
        let owner = r
            .list(&["metadata", "ownerReferences"])
            .iter()
            .find(|o| at(o, &["controller"]).as_bool() == Some(true));
        let controller = owner.map_or_else(
            || "<none>".to_owned(),
            |o| {
                let kind = str_at(o, &["kind"]).to_lowercase();
                let name = str_at(o, &["name"]);
                match str_at(o, &["apiVersion"]).split_once('/') {
                    Some((group, _)) => format!("{kind}.{group}/{name}"),
                    None => format!("{kind}/{name}"),
                }
            },
        );
        vec![
            r.name(),
            Value::from(controller),
            Value::from(r.int(&["revision"])),
            r.age(),
        ]
    },
};

static JOB: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "What the job is doing"),
        Column::text("Completions", "Pods that succeeded of the pods wanted"),
        Column::text("Duration", "How long the job has run"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |r| {
        let [names, images] = containers(r.at(&["spec", "template", "spec"]));
        vec![
            r.name(),
            Value::from(job_status(r)),
            Value::from(job_completions(r)),
            Value::from(job_duration(r)),
            r.age(),
            names,
            images,
            Value::from(selector(r.at(&["spec", "selector"]))),
        ]
    },
};

fn job_status(r: &Row<'_>) -> &'static str {
    let conditions = r.list(&["status", "conditions"]);
    if is_true(conditions, "Complete") {
        "Complete"
    } else if is_true(conditions, "Failed") {
        "Failed"
    } else if r.deleting() {
        "Terminating"
    } else if is_true(conditions, "Suspended") {
        "Suspended"
    } else if is_true(conditions, "FailureTarget") {
        "FailureTarget"
    } else if is_true(conditions, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn job_completions(r: &Row<'_>) -> String {
    let succeeded = r.int(&["status", "succeeded"]);
    match r.at(&["spec", "completions"]).as_i64() {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match r.int(&["spec", "parallelism"]) {
            parallelism @ 2.. => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    }
}

fn job_duration(r: &Row<'_>) -> String {
    let Some(start) = r.time(&["status", "startTime"]) else {
        return String::new();
    };
    let end = r.time(&["status", "completionTime"]).unwrap_or(r.now);
    human_duration(end.as_second() - start.as_second())
}

static CRON_JOB: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Schedule", "When jobs are made"),
        Column::text("Timezone", "Time zone of the schedule"),
        Column::flag("Suspend", "Whether making jobs is suspended"),
        Column::number("Active", "Jobs that run"),
        Column::text("Last Schedule", "Time since a job was last made"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |r| {
        let job = r.at(&["spec", "jobTemplate", "spec"]);
        let [names, images] = containers(at(job, &["template", "spec"]));
        let last = r.time(&["status", "lastScheduleTime"]);
        vec![
            r.name(),
            Value::from(r.str(&["spec", "schedule"])),
            r.str_or(&["spec", "timeZone"], "<none>"),
            bool_text(r.at(&["spec", "suspend"])),
            Value::from(r.list(&["status", "active"]).len()),
            Value::from(last.map_or_else(|| "<none>".to_owned(), |t| r.since_time(Some(t)))),
            r.age(),
            names,
            images,
            Value::from(selector(at(job, &["selector"]))),
        ]
    },
};

static AUTOSCALER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Reference", "What is scaled"),
        Column::text("Targets", "Metrics and their targets"),
        Column::text("MinPods", "Fewest pods"),
        Column::text("MaxPods", "Most pods"),
        Column::text("Replicas", "Pods there are"),
        AGE,
    ],
    cells: |r| {
        let target = |key| r.str(&["spec", "scaleTargetRef", key]);
        vec![
            r.name(),
            Value::from(format!("{}/{}", target("kind"), target("name"))),
            Value::from(targets(r)),
            r.int_or(&["spec", "minReplicas"], "<unset>"),
            Value::from(r.int(&["spec", "maxReplicas"])),
            Value::from(r.int(&["status", "currentReplicas"])),
            r.age(),
        ]
    },
};

static SCALE: Printer = Printer {
    columns: &[
        NAME,
        DESIRED,
        Column::number("Available", "Pods there are"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.int(&["spec", "replicas"])),
            Value::from(r.int(&["status", "replicas"])),
            r.age(),
        ]
    },
};

pub(super) fn printer(group: &str, kind: &str) -> &'static Printer {
    match (group, kind) {
        ("apps", "Deployment") => &DEPLOYMENT,
        ("apps", "ReplicaSet") => &REPLICA_SET,
        ("apps", "StatefulSet") => &STATEFUL_SET,
        ("apps", "DaemonSet") => &DAEMON_SET,
        ("apps", "ControllerRevision") => &CONTROLLER_REVISION,
        ("batch", "Job") => &JOB,
        ("batch", "CronJob") => &CRON_JOB,
        ("autoscaling", "HorizontalPodAutoscaler") => &AUTOSCALER,
        ("autoscaling", "Scale") => &SCALE,
        _ => &DEFAULT,
    }
}

/// The metrics of an autoscaler, in the shape of either version.
fn targets(r: &Row<'_>) -> String {
    const SHOWN: usize = 2;
    // version 1 keeps in annotations what it has no fields for
    let kept = |key: &str| -> Vec<Value> {
        let key = format!("autoscaling.alpha.kubernetes.io/{key}");
        serde_json::from_str(r.str(&["metadata", "annotations", key.as_str()])).unwrap_or_default()
    };
    let mut all = Vec::new();
    if let Some(target) = r.at(&["spec", "targetCPUUtilizationPercentage"]).as_i64() {
        let current = r.at(&["status", "currentCPUUtilizationPercentage"]);
        all.push(format!("cpu: {}/{target}%", percent(current)));
    }
    let mut metrics = |specs: &[Value], current: &[Value]| {
        let shown = specs.iter().enumerate();
        all.extend(shown.map(|(i, spec)| metric(spec, current.get(i).unwrap_or(&Value::Null))));
    };
    metrics(
        r.list(&["spec", "metrics"]),
        r.list(&["status", "currentMetrics"]),
    );
    metrics(&kept("metrics"), &kept("current-metrics"));
    match all.len() {
        0 => "<none>".to_owned(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(", "), n - SHOWN),
        _ => all.join(", "),
    }
}

fn percent(value: &Value) -> String {
    value
        .as_i64()
        .map_or_else(|| "<unknown>".to_owned(), |n| format!("{n}%"))
}

fn metric(spec: &Value, status: &Value) -> String {
    let kind = str_at(spec, &["type"]);
    let key = match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let name = match key {
        "resource" | "containerResource" => format!("{}: ", str_at(spec, &[key, "name"])),
        _ => String::new(),
    };
    let target = at(spec, &[key, "target"]);
    let current = at(status, &[key, "current"]);
    if let Some(wanted) = at(target, &["averageUtilization"]).as_i64() {
        return format!(
            "{name}{}/{wanted}%",
            percent(at(current, &["averageUtilization"]))
        );
    }
    let quantity = |v: &Value, key: &str| non_empty(str_at(v, &[key]), "<unknown>").to_owned();
    let average = !str_at(target, &["averageValue"]).is_empty();
    let field = if average { "averageValue" } else { "value" };
    let suffix = if average && matches!(key, "object" | "external") {
        " (avg)"
    } else {
        ""
    };
    format!(
        "{name}{}/{}{suffix}",
        quantity(current, field),
        quantity(target, field)
    )
}
