//! Which objects of a resource a list, watch or deletion is about.

use std::sync::Arc;

use davit_api::fields::FieldSelector;
use davit_api::labels::Selector;
use davit_api::status::Status;
use davit_store::KeyValue;
use serde_json::Value;

use crate::cache::{CachedObject, Filter, Header, Predicate};
use crate::crd::{Normal, View};
use crate::registry::ResourceInfo;
use crate::strategy::Strategy;

/// The filter of a namespace and selectors; refuses fields that cannot be selected by.
pub(crate) fn filter(
    resource: &ResourceInfo,
    namespace: Option<&str>,
    labels: &Selector,
    fields: &FieldSelector,
) -> Result<Filter, Status> {
    let strategy = &*resource.strategy;
    let mut name = None;
    let mut conditions: Vec<(String, String, bool)> = Vec::new();
    for term in fields.terms() {
        let label = strategy.field_alias(&term.field);
        let known = label == "metadata.name"
            || (label == "metadata.namespace" && resource.row.namespaced)
            || strategy.field_names().contains(&label);
        if !known {
            return Err(Status::bad_request(format!(
                "field label not supported: {}",
                term.field
            )));
        }
        if label == "metadata.name" && term.equal && name.is_none() {
            name = Some(term.value.clone());
        } else {
            conditions.push((label.to_owned(), term.value.clone(), term.equal));
        }
    }
    let predicate = if labels.is_empty() && conditions.is_empty() {
        None
    } else {
        let labels = labels.clone();
        let predicate: Predicate = Arc::new(move |object: &CachedObject| {
            let header = object.header();
            let has = |(field, value, equal): &(String, String, bool)| {
                (header.field(field).unwrap_or_default() == value) == *equal
            };
            conditions.iter().all(has) && (labels.is_empty() || labels.matches(header))
        });
        Some(predicate)
    };
    Ok(Filter {
        namespace: namespace.map(str::to_owned),
        name,
        predicate,
    })
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
        Ok(value) => fill(&mut header, &value, strategy),
        Err(error) => tracing::error!(key = %pair.key, %error, "stored object cannot be read"),
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
    let Ok(mut value) = serde_json::from_slice::<Value>(&pair.value) else {
        return cached(pair, prefix, namespaced, strategy);
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
    header.labels = labels
        .map(|(key, value)| {
            (
                key.as_str().into(),
                value.as_str().unwrap_or_default().into(),
            )
        })
        .collect();
    header.fields = strategy
        .fields(value)
        .into_iter()
        .map(|(field, value)| (field.into(), value.into_boxed_str()))
        .collect();
    header.owners = davit_api::meta::owner_references(value)
        .map(|owner| owner.uid.into())
        .collect();
}
