//! Config maps, secrets, service accounts, volumes and storage.k8s.io.

use serde_json::Value;

use super::format::{Row, non_empty, str_at};
use super::policy::CREATED;
use super::{AGE, Column, DEFAULT, NAME, Printer};

const DATA: Column = Column::text("Data", "Number of entries");

pub(super) static CONFIG_MAP: Printer = Printer {
    columns: &[NAME, DATA, AGE],
    cells: |r| {
        vec![
            r.name(),
            Value::from(len(r, "data") + len(r, "binaryData")),
            r.age(),
        ]
    },
};

pub(super) static SECRET: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "What the secret is for"),
        DATA,
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["type"])),
            Value::from(len(r, "data")),
            r.age(),
        ]
    },
};

pub(super) static SERVICE_ACCOUNT: Printer = Printer {
    columns: &[NAME, AGE],
    cells: |r| vec![r.name(), r.age()],
};

const VOLUME_MODE: Column = Column::text("VolumeMode", "File system or block device").wide();
const ATTRIBUTES_CLASS: Column =
    Column::text("VolumeAttributesClass", "Class of changeable attributes");

pub(super) static PERSISTENT_VOLUME: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Capacity", "Size"),
        Column::text("Access Modes", "Ways it can be mounted"),
        Column::text("Reclaim Policy", "What happens when its claim is gone"),
        Column::text("Status", "Phase"),
        Column::text("Claim", "Claim it is bound to"),
        Column::text("StorageClass", "Class it belongs to"),
        ATTRIBUTES_CLASS,
        Column::text("Reason", "Why it is in its phase"),
        AGE,
        VOLUME_MODE,
    ],
    cells: |r| {
        let claim = if r.at(&["spec", "claimRef"]).is_null() {
            String::new()
        } else {
            let claim = |key| r.str(&["spec", "claimRef", key]);
            format!("{}/{}", claim("namespace"), claim("name"))
        };
        vec![
            r.name(),
            Value::from(non_empty(r.str(&["spec", "capacity", "storage"]), "0")),
            Value::from(access_modes(r.list(&["spec", "accessModes"]))),
            Value::from(r.str(&["spec", "persistentVolumeReclaimPolicy"])),
            phase(r),
            Value::from(claim),
            storage_class(r),
            r.str_or(&["spec", "volumeAttributesClassName"], "<unset>"),
            Value::from(r.str(&["status", "reason"])),
            r.age(),
            r.str_or(&["spec", "volumeMode"], "<unset>"),
        ]
    },
};

pub(super) static PERSISTENT_VOLUME_CLAIM: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Phase"),
        Column::text("Volume", "Volume it is bound to"),
        Column::text("Capacity", "Size of the volume"),
        Column::text("Access Modes", "Ways it can be mounted"),
        Column::text("StorageClass", "Class asked for"),
        ATTRIBUTES_CLASS,
        AGE,
        VOLUME_MODE,
    ],
    cells: |r| {
        let volume = r.str(&["spec", "volumeName"]);
        let (capacity, modes) = if volume.is_empty() {
            (String::new(), String::new())
        } else {
            let capacity = non_empty(r.str(&["status", "capacity", "storage"]), "0");
            (
                capacity.to_owned(),
                access_modes(r.list(&["status", "accessModes"])),
            )
        };
        vec![
            r.name(),
            phase(r),
            Value::from(volume),
            Value::from(capacity),
            Value::from(modes),
            storage_class(r),
            r.str_or(&["spec", "volumeAttributesClassName"], "<unset>"),
            r.age(),
            r.str_or(&["spec", "volumeMode"], "<unset>"),
        ]
    },
};

static STORAGE_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Provisioner", "Who makes volumes of the class"),
        Column::text(
            "ReclaimPolicy",
            "What happens to a volume when its claim is gone",
        ),
        Column::text("VolumeBindingMode", "When volumes are made and bound"),
        Column::text("AllowVolumeExpansion", "Whether volumes may grow"),
        AGE,
    ],
    cells: |r| {
        let annotations = r.at(&["metadata", "annotations"]);
        let default = ["", "beta."].iter().any(|beta| {
            let key = format!("storageclass.{beta}kubernetes.io/is-default-class");
            str_at(annotations, &[&key]) == "true"
        });
        let name = r.str(&["metadata", "name"]);
        vec![
            Value::from(if default {
                format!("{name} (default)")
            } else {
                name.to_owned()
            }),
            Value::from(r.str(&["provisioner"])),
            r.str_or(&["reclaimPolicy"], "Delete"),
            r.str_or(&["volumeBindingMode"], "Immediate"),
            flag(r, &["allowVolumeExpansion"]),
            r.age(),
        ]
    },
};

static VOLUME_ATTACHMENT: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Attacher", "Driver that attaches"),
        Column::text("PV", "Volume attached"),
        Column::text("Node", "Node it is attached to"),
        Column::flag("Attached", "Whether it is attached"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "attacher"])),
            Value::from(r.str(&["spec", "source", "persistentVolumeName"])),
            Value::from(r.str(&["spec", "nodeName"])),
            flag(r, &["status", "attached"]),
            r.age(),
        ]
    },
};

static VOLUME_ATTRIBUTES_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("DriverName", "Driver the class belongs to"),
        AGE,
    ],
    cells: |r| vec![r.name(), Value::from(r.str(&["driverName"])), r.age()],
};

static CSI_DRIVER: Printer = Printer {
    columns: &[
        NAME,
        Column::flag(
            "AttachRequired",
            "Whether volumes are attached before mounting",
        ),
        Column::flag("PodInfoOnMount", "Whether mounting is told of the pod"),
        Column::flag("StorageCapacity", "Whether the driver publishes capacity"),
        Column::text("TokenRequests", "Audiences of the tokens it gets"),
        Column::flag("RequiresRepublish", "Whether mounts are refreshed"),
        Column::text("Modes", "Lifecycle modes of its volumes"),
        AGE,
    ],
    cells: |r| {
        let tokens: Vec<&str> = r
            .list(&["spec", "tokenRequests"])
            .iter()
            .map(|t| str_at(t, &["audience"]))
            .collect();
        let modes: Vec<&str> = r
            .list(&["spec", "volumeLifecycleModes"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let attach = r.at(&["spec", "attachRequired"]).as_bool().unwrap_or(true);
        vec![
            r.name(),
            Value::from(attach),
            flag(r, &["spec", "podInfoOnMount"]),
            flag(r, &["spec", "storageCapacity"]),
            Value::from(if tokens.is_empty() {
                "<unset>".to_owned()
            } else {
                tokens.join(",")
            }),
            flag(r, &["spec", "requiresRepublish"]),
            Value::from(non_empty(&modes.join(","), "<none>")),
            r.age(),
        ]
    },
};

static CSI_NODE: Printer = Printer {
    columns: &[
        NAME,
        Column::number("Drivers", "Number of drivers on the node"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.list(&["spec", "drivers"]).len()),
            r.age(),
        ]
    },
};

pub(super) fn printer(kind: &str) -> &'static Printer {
    match kind {
        "StorageClass" => &STORAGE_CLASS,
        "VolumeAttachment" => &VOLUME_ATTACHMENT,
        "VolumeAttributesClass" => &VOLUME_ATTRIBUTES_CLASS,
        "CSIDriver" => &CSI_DRIVER,
        "CSINode" => &CSI_NODE,
        "CSIStorageCapacity" => &CREATED,
        _ => &DEFAULT,
    }
}

fn len(row: &Row<'_>, key: &str) -> usize {
    row.at(&[key]).as_object().map_or(0, serde_json::Map::len)
}

fn flag(row: &Row<'_>, path: &[&str]) -> Value {
    Value::from(row.at(path).as_bool().unwrap_or(false))
}

fn phase(row: &Row<'_>) -> Value {
    Value::from(if row.deleting() {
        "Terminating"
    } else {
        row.str(&["status", "phase"])
    })
}

fn storage_class(row: &Row<'_>) -> Value {
    let annotated = str_at(
        row.at(&["metadata", "annotations"]),
        &["volume.beta.kubernetes.io/storage-class"],
    );
    Value::from(non_empty(annotated, row.str(&["spec", "storageClassName"])))
}

/// The short forms, in upstream's order, each once.
fn access_modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let wanted = |long: &str| modes.iter().any(|m| m.as_str() == Some(long));
    let short: Vec<&str> = SHORT
        .iter()
        .filter(|(long, _)| wanted(long))
        .map(|(_, short)| *short)
        .collect();
    short.join(",")
}
