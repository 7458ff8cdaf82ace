//! Server-side printing: the columns `kubectl get` shows for each kind and how its cells follow
//! from an object. Pure: the present time is an argument.
//!
//! The columns are those of upstream's printers (meta.k8s.io/v1 Table); a kind without columns of
//! its own prints name and age.

use jiff::Timestamp;
use serde_json::Value;

mod events;
mod format;
mod nodes;
mod pods;
mod policy;
mod read;
mod resource;
mod services;
mod storage;
mod usage;
mod workloads;

pub use format::human_duration;
pub use read::read;

use format::Row;

/// One column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading; clients print it in upper case.
    pub name: &'static str,
    /// OpenAPI type of the column: `string`, `integer`, `boolean` or `date`. Upstream calls some columns of
    /// numbers strings, and clients read the cells all the same.
    pub r#type: &'static str,
    /// OpenAPI format; `name` marks the column with the object's name.
    pub format: &'static str,
    /// One sentence about the column.
    pub description: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
}

impl Column {
    const fn new(name: &'static str, kind: &'static str, description: &'static str) -> Self {
        Self {
            name,
            r#type: kind,
            format: "",
            description,
            priority: 0,
        }
    }

    const fn text(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", description)
    }

    const fn number(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "integer", description)
    }

    const fn flag(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "boolean", description)
    }

    const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

const NAME: Column = Column {
    name: "Name",
    r#type: "string",
    format: "name",
    description: "Name of the object, unique within its namespace",
    priority: 0,
};
const AGE: Column = Column::text("Age", "Time since the object was created");
const CREATED_AT: Column = Column::new("Created At", "date", "When the object was created");
const CONTAINERS: Column = Column::text("Containers", "Names of the containers").wide();
const IMAGES: Column = Column::text("Images", "Images of the containers").wide();
const SELECTOR: Column = Column::text("Selector", "Selector of the pods").wide();

/// How a kind is printed.
struct Printer {
    columns: &'static [Column],
    cells: fn(&Row<'_>) -> Vec<Value>,
}

static DEFAULT: Printer = Printer {
    columns: &[NAME, AGE],
    cells: |r| vec![r.name(), r.age()],
};

/// The columns of a kind.
pub fn columns(group: &str, version: &str, kind: &str) -> &'static [Column] {
    printer(group, version, kind).columns
}

/// The cells of one object, one for each of [`columns`].
pub fn cells(group: &str, version: &str, kind: &str, obj: &Value, now: Timestamp) -> Vec<Value> {
    (printer(group, version, kind).cells)(&Row::new(obj, now))
}

/// `conditions` of an object's row: `Completed` for pods that ended.
pub fn row_conditions(group: &str, kind: &str, obj: &Value) -> Vec<Value> {
    if group.is_empty() && kind == "Pod" {
        pods::row_conditions(obj)
    } else {
        Vec::new()
    }
}

fn printer(group: &str, version: &str, kind: &str) -> &'static Printer {
    match (group, kind) {
        ("", "Pod") => &pods::POD,
        ("", "PodTemplate") => &workloads::POD_TEMPLATE,
        ("", "ReplicationController") => &workloads::REPLICATION_CONTROLLER,
        ("", "Service") => &services::SERVICE,
        ("", "Endpoints") => &services::ENDPOINTS,
        ("", "Node") => &nodes::NODE,
        ("", "Namespace") => &nodes::NAMESPACE,
        ("", "ComponentStatus") => &nodes::COMPONENT_STATUS,
        ("", "Event") => &events::CORE,
        ("events.k8s.io", "Event") => &events::EVENTS,
        ("", "ConfigMap") => &storage::CONFIG_MAP,
        ("", "Secret") => &storage::SECRET,
        ("", "ServiceAccount") => &storage::SERVICE_ACCOUNT,
        ("", "PersistentVolume") => &storage::PERSISTENT_VOLUME,
        ("", "PersistentVolumeClaim") => &storage::PERSISTENT_VOLUME_CLAIM,
        ("", "ResourceQuota") => &policy::RESOURCE_QUOTA,
        ("", "LimitRange") => &policy::CREATED,
        ("apps", _) | ("batch", _) | ("autoscaling", _) => workloads::printer(group, kind),
        ("discovery.k8s.io", "EndpointSlice") => &services::ENDPOINT_SLICE,
        ("networking.k8s.io", _) => services::networking(kind),
        ("storage.k8s.io", _) => storage::printer(kind),
        ("resource.k8s.io", _) => resource::printer(version, kind),
        ("metrics.k8s.io", "NodeMetrics") => &usage::NODE_METRICS,
        ("metrics.k8s.io", "PodMetrics") => &usage::POD_METRICS,
        _ => policy::printer(group, kind),
    }
}

#[cfg(test)]
mod tests;
