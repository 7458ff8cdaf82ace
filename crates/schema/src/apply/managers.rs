//! `metadata.managedFields`: who owns what, as it stands in objects.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use davit_api::field::quote;
use davit_api::time;
use serde_json::{Map, Value, json};

use super::fields_v1::{ParseFieldsError, escaped};
use super::set::Set;

/// A manager: what tells one entry of `managedFields` from another.
///
/// Managers that apply are the same in every version, those that update are not.
#[derive(Debug, Clone)]
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) applies: bool,
    /// Empty for those that apply.
    pub(super) api_version: String,
    pub(super) subresource: String,
    /// The JSON text by which managers are ordered.
    key: String,
}

impl Manager {
    pub(super) fn new(name: &str, applies: bool, api_version: &str, subresource: &str) -> Self {
        let name = if name.is_empty() { "unknown" } else { name };
        Manager::exactly(name, applies, api_version, subresource)
    }

    fn exactly(name: &str, applies: bool, api_version: &str, subresource: &str) -> Self {
        let api_version = if applies { "" } else { api_version };
        let operation = operation(applies);
        let fields = [
            ("manager", name),
            ("operation", operation),
            ("apiVersion", api_version),
            ("subresource", subresource),
        ];
        let fields: Vec<String> = fields
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(field, value)| format!("\"{field}\":{}", escaped(&Value::from(*value))))
            .collect();
        Manager {
            key: format!("{{{}}}", fields.join(",")),
            name: name.to_owned(),
            applies,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The manager as conflicts name it: `"kubectl" with subresource "status" using v1`.
    pub(super) fn describe(&self) -> String {
        let mut out = quote(&self.name);
        if !self.subresource.is_empty() {
            out += " with subresource ";
            out += &quote(&self.subresource);
        }
        if !self.applies {
            out += " using ";
            out += &self.api_version;
        }
        out
    }
}

impl PartialEq for Manager {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Manager {}

impl PartialOrd for Manager {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Manager {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

fn operation(applies: bool) -> &'static str {
    if applies { "Apply" } else { "Update" }
}

/// What a manager owns.
#[derive(Debug, Clone)]
pub(super) struct Owned {
    pub(super) set: Set,
    /// The version in which it owns it.
    pub(super) api_version: String,
}

/// All managers of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Managers {
    pub(super) owned: BTreeMap<Manager, Owned>,
    /// When entries changed, as text; managers that are gone may still be in it.
    pub(super) times: BTreeMap<Manager, String>,
}

/// `metadata.managedFields` is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagedFieldsError {
    /// An entry's operation is another one.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no version.
    #[error("apiVersion must not be empty")]
    Version,
    /// An entry does not say in which form its fields are.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// An entry's fields are in another form.
    #[error("invalid fieldsType {} in managed fields entry {index}", quote(.form))]
    FieldsType {
        /// The form it names.
        form: String,
        /// Which entry it is.
        index: usize,
    },
    /// An entry's fields cannot be read.
    #[error("error decoding set: {0}")]
    Fields(#[from] ParseFieldsError),
}

impl Managers {
    /// Reads the `managedFields` of an object.
    pub(super) fn of(object: &Value) -> Result<Self, ManagedFieldsError> {
        let mut out = Managers::default();
        let entries = object["metadata"]["managedFields"].as_array();
        for (i, entry) in entries.into_iter().flatten().enumerate() {
            let text = |field: &str| entry[field].as_str().unwrap_or("");
            let applies = match text("operation") {
                "Apply" => true,
                "Update" => false,
                _ => return Err(ManagedFieldsError::Operation),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err(ManagedFieldsError::Version);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagedFieldsError::NoFieldsType(i)),
                other => {
                    let (form, index) = (other.to_owned(), i);
                    return Err(ManagedFieldsError::FieldsType { form, index });
                }
            }
            let manager =
                Manager::exactly(text("manager"), applies, api_version, text("subresource"));
            let set = match &entry["fieldsV1"] {
                Value::Null => Set::default(),
                fields => Set::from_fields_v1(fields)?,
            };
            if let Some(time) = entry["time"].as_str() {
                out.times.insert(manager.clone(), time.to_owned());
            }
            let api_version = api_version.to_owned();
            out.owned.insert(manager, Owned { set, api_version });
        }
        Ok(out)
    }

    /// Writes the `managedFields` of an object: those that apply first, then by time, name, version
    /// and subresource. Without managers the object has none.
    pub(super) fn write(self, object: &mut Value) {
        let mut entries: Vec<(&Manager, &Owned, Option<&String>)> = self
            .owned
            .iter()
            .map(|(manager, owned)| (manager, owned, self.times.get(manager)))
            .collect();
        entries.sort_by(|(a, a_owned, a_time), (b, b_owned, b_time)| {
            b.applies
                .cmp(&a.applies)
                .then_with(|| seconds(*a_time).cmp(&seconds(*b_time)))
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| a_owned.api_version.cmp(&b_owned.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|(manager, owned, time)| {
                let mut entry = json!({
                    "manager": manager.name,
                    "operation": operation(manager.applies),
                    "apiVersion": owned.api_version,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": owned.set.to_fields_v1(),
                });
                if let Some(time) = time {
                    entry["time"] = Value::from(&**time);
                }
                if !manager.subresource.is_empty() {
                    entry["subresource"] = Value::from(&*manager.subresource);
                }
                entry
            })
            .collect();
        if entries.is_empty() {
            strip(object);
            return;
        }
        if let Some(metadata) = metadata(object) {
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }

    /// Joins the oldest entries of managers that update until at most `max` of them are left.
    pub(super) fn cap(&mut self, max: usize, joined_name: &str) {
        let mut updaters: Vec<Manager> =
            self.owned.keys().filter(|m| !m.applies).cloned().collect();
        let mut count = updaters.len();
        if count <= max {
            return;
        }
        updaters.sort_by(|a, b| {
            seconds(self.times.get(a))
                .cmp(&seconds(self.times.get(b)))
                .then_with(|| a.cmp(b))
        });
        let mut first_of_version: BTreeMap<String, Manager> = BTreeMap::new();
        for manager in updaters {
            if count <= max {
                break;
            }
            let Some(owned) = self.owned.get(&manager).cloned() else {
                continue;
            };
            let bucket = Manager::new(joined_name, false, &owned.api_version, "");
            let Some(first) = first_of_version.get(&owned.api_version) else {
                first_of_version.insert(owned.api_version, manager);
                continue;
            };
            if !self.owned.contains_key(&bucket)
                && let Some(oldest) = self.owned.remove(first)
            {
                self.owned.insert(bucket.clone(), oldest);
            }
            if let Some(joined) = self.owned.get_mut(&bucket) {
                joined.set.add(owned.set);
            }
            self.owned.remove(&manager);
            count -= 1;
            // The newer of the two times.
            match self.times.get(&manager).cloned() {
                Some(time) => self.times.insert(bucket, time),
                None => self.times.remove(&bucket),
            };
        }
    }
}

fn seconds(time: Option<&String>) -> i64 {
    time.and_then(|t| time::parse(t).ok())
        .map_or(0, jiff::Timestamp::as_second)
}

/// Takes `managedFields` out of an object.
pub fn strip(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// The metadata of an object, made when missing.
pub(super) fn metadata(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
}

/// Checks `managedFields` that a client or a webhook wrote.
///
/// # Errors
/// When they cannot be read.
pub fn validate_managed_fields(object: &Value) -> Result<(), ManagedFieldsError> {
    Managers::of(object).map(drop)
}
