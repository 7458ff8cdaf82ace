//! Which objects of a resource a list, watch or deletion is about.

use std::sync::Arc;

use davit_api::fields::FieldSelector;
use davit_api::labels::Selector;
use davit_api::status::Status;
use davit_store::KeyValue;
use davit_strategy::Strategy;
use davit_watchcache::{CachedObject, Filter, Header, Predicate};
use serde_json::Value;

use crate::ResourceInfo;
use crate::custom::{Normal, View};

/// Which objects a list, watch or deletion is about.
pub struct Selection {
    /// What the cache judges.
    pub filter: Filter,
    /// What can be judged of a custom kind's objects only in the version that was asked for; the filter lets pass what
    /// is not cached in that version.
    pub converted: Option<ConvertedFields>,
}

/// Conditions on selectable fields of a version into which objects are converted.
#[derive(Clone)]
pub struct ConvertedFields {
    conditions: Arc<[Condition]>,
    strategy: Arc<dyn Strategy>,
    view: Arc<View>,
}

/// A field has a value, or has not.
#[derive(Debug, Clone)]
struct Condition {
    field: String,
    value: String,
    equal: bool,
}

impl Condition {
    fn holds(&self, found: Option<&str>) -> bool {
        (found.unwrap_or_default() == self.value) == self.equal
    }

    /// Of what every object has in its key, whatever its version.
    fn is_of_metadata(&self) -> bool {
        self.field.starts_with("metadata.")
    }
}

impl ConvertedFields {
    /// Whether an object that the filter let pass is shown, and the object as it is shown where it had to be converted.
    ///
    /// # Errors
    /// When the conversion fails.
    pub async fn judge(&self, object: &CachedObject) -> Result<(bool, Option<Value>), Status> {
        if is_shown_as_cached(&self.view, object.header()) {
            return Ok((true, None));
        }
        let value = self.view.read_cached(object).await?;
        Ok((self.holds(&value), Some(value)))
    }

    /// The objects that are shown, converted together.
    ///
    /// # Errors
    /// When the conversion fails.
    pub async fn retain(
        &self,
        objects: Vec<Arc<CachedObject>>,
    ) -> Result<Vec<(Arc<CachedObject>, Option<Value>)>, Status> {
        let convert =
            |object: &&Arc<CachedObject>| !is_shown_as_cached(&self.view, object.header());
        let values = objects.iter().filter(convert);
        let values = values.map(|object| serde_json::from_slice(&object.json()));
        let values: Vec<Value> = values.collect::<Result<_, _>>().map_err(Status::internal)?;
        let mut values = self.view.read(values).await?.into_iter();
        let mut shown = Vec::new();
        for object in objects {
            if is_shown_as_cached(&self.view, object.header()) {
                shown.push((object, None));
                continue;
            }
            let value = values.next();
            let value = value.ok_or_else(|| Status::internal("a conversion lost an object"))?;
            if self.holds(&value) {
                shown.push((object, Some(value)));
            }
        }
        Ok(shown)
    }

    fn holds(&self, value: &Value) -> bool {
        let fields = self.strategy.fields(value);
        self.conditions.iter().all(|condition| {
            let mut found = fields.iter().filter(|(field, _)| *field == condition.field);
            condition.holds(found.next().map(|(_, value)| value.as_str()))
        })
    }
}

/// Whether the cache has the object of a custom kind in the version of the view.
fn is_shown_as_cached(view: &View, header: &Header) -> bool {
    view.shows_stored() && !header.foreign
}

/// The selection of a namespace and selectors; refuses fields that cannot be selected by.
pub fn select(
    resource: &ResourceInfo,
    namespace: Option<&str>,
    labels: &Selector,
    fields: &FieldSelector,
) -> Result<Selection, Status> {
    let strategy = &*resource.strategy;
    let mut name = None;
    let mut conditions: Vec<Condition> = Vec::new();
    for term in fields.terms() {
        let label = strategy.field_alias(&term.field);
        let known = label == "metadata.name"
            || (label == "metadata.namespace" && resource.row.namespaced)
            || strategy.field_names().contains(&label);
        if !known {
            let plain = strategy.field_names().is_empty() && resource.custom.is_none();
            return Err(Status::bad_request(if plain {
                let field = davit_api::field::quote(&term.field);
                format!(
                    "{field} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else {
                format!("field label not supported: {}", term.field)
            }));
        }
        if label == "metadata.name" && term.equal && name.is_none() {
            name = Some(term.value.clone());
        } else {
            conditions.push(Condition {
                field: label.to_owned(),
                value: term.value.clone(),
                equal: term.equal,
            });
        }
    }
    let (metadata, custom): (Vec<_>, Vec<_>) =
        conditions.into_iter().partition(Condition::is_of_metadata);
    let custom: Arc<[Condition]> = custom.into();
    let view = resource.storage.view().filter(|_| !custom.is_empty());
    let predicate = if labels.is_empty() && metadata.is_empty() && custom.is_empty() {
        None
    } else {
        let (labels, custom, view) = (labels.clone(), Arc::clone(&custom), view.cloned());
        let predicate: Predicate = Arc::new(move |object: &CachedObject| {
            let header = object.header();
            let holds = |condition: &Condition| condition.holds(header.field(&condition.field));
            let judged_here = || {
                view.as_ref()
                    .is_none_or(|view| is_shown_as_cached(view, header))
            };
            metadata.iter().all(holds)
                && (labels.is_empty() || labels.matches(header))
                && (custom.iter().all(holds) || !judged_here())
        });
        Some(predicate)
    };
    let filter = Filter {
        namespace: namespace.map(str::to_owned),
        name,
        predicate,
    };
    let converted = view.map(|view| ConvertedFields {
        conditions: custom,
        strategy: Arc::clone(&resource.strategy),
        view: Arc::clone(view),
    });
    Ok(Selection { filter, converted })
}

/// What a stored object can be selected by. One that cannot be read has only its key's names.
pub(crate) fn cached(
    pair: &KeyValue,
    prefix: &str,
    namespaced: bool,
    strategy: &dyn Strategy,
) -> CachedObject {
    let mut header = header(pair, prefix, namespaced);
    match serde_json::from_slice::<Value>(&pair.value) {
        Ok(value) if value.is_object() => fill(&mut header, &value, strategy),
        read => {
            header.unreadable = true;
            let error = read.err().map(|error| error.to_string());
            tracing::error!(key = %pair.key, error, "stored object cannot be read");
        }
    }
    CachedObject::new(pair, header)
}

/// As [`cached`] for a custom kind: the object is brought into the storage version first.
pub(crate) fn cached_custom(
    pair: &KeyValue,
    prefix: &str,
    namespaced: bool,
    strategy: &dyn Strategy,
    view: &View,
) -> CachedObject {
    let mut value = match serde_json::from_slice::<Value>(&pair.value) {
        Ok(value) if value.is_object() => value,
        _ => return cached(pair, prefix, namespaced, strategy),
    };
    let state = view.normalize(&mut value);
    let mut header = header(pair, prefix, namespaced);
    fill(&mut header, &value, strategy);
    header.foreign = state == Normal::Foreign;
    if state == Normal::Changed {
        let pair = KeyValue {
            value: crate::storage::encode(&value),
            ..pair.clone()
        };
        return CachedObject::new(&pair, header);
    }
    CachedObject::new(pair, header)
}

fn header(pair: &KeyValue, prefix: &str, namespaced: bool) -> Header {
    let rest = pair.key.strip_prefix(prefix).unwrap_or(&pair.key);
    let (namespace, name) = match rest.split_once('/') {
        Some((namespace, name)) if namespaced => (namespace, name),
        _ => ("", rest),
    };
    Header {
        namespace: namespace.into(),
        name: name.into(),
        ..Header::default()
    }
}

fn fill(header: &mut Header, value: &Value, strategy: &dyn Strategy) {
    header.uid = crate::object::uid(value).into();
    let labels = davit_api::meta::labels(value).into_iter().flatten();
    let label = |(key, value): (&String, &Value)| {
        let value = value.as_str().unwrap_or_default();
        (Box::from(key.as_str()), Box::from(value))
    };
    header.labels = labels.map(label).collect();
    header.fields = strategy
        .fields(value)
        .into_iter()
        .map(|(field, value)| (field.into(), value.into_boxed_str()))
        .collect();
    header.owners = davit_api::meta::owner_references(value)
        .map(|owner| owner.uid.into())
        .collect();
}
