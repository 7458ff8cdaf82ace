//! Objects as lists and watches deliver them, which one that cannot be read must not end.
//!
//! The generated types want fields that the API does not: the time of a condition may be null or missing, where whoever
//! wrote the status left it out. A watch of typed objects would fail at such an object for ever, and with it everything
//! that follows the kind.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::informer::Object;

/// What Go writes where no time was set.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Lists of objects with a time that must be there, and the time's field.
const TIMED: [(&str, &str); 1] = [("conditions", "lastTransitionTime")];

/// An object of a list or a watch.
#[derive(Debug, Clone)]
pub(crate) enum Received<K> {
    Read(K),
    /// Its metadata, and why the rest cannot be read.
    Unread(Box<ObjectMeta>, String),
}

/// The same resource, whose objects may be unreadable.
pub(crate) fn lenient<K: Object>(api: kube::Api<K>) -> kube::Api<Received<K>> {
    let namespace = api.namespace().map(str::to_owned);
    let client = api.into_client();
    match namespace {
        Some(namespace) => kube::Api::namespaced_with(client, &namespace, &()),
        None => kube::Api::all_with(client, &()),
    }
}

impl<K: Object> Received<K> {
    /// The object; that it is left out is said.
    pub(crate) fn told(self) -> Option<K> {
        match self {
            Self::Read(object) => Some(object),
            Self::Unread(meta, error) => {
                let (kind, namespace, name) = (K::kind(&()), &meta.namespace, &meta.name);
                let namespace = namespace.as_deref().unwrap_or_default();
                let name = name.as_deref().unwrap_or_default();
                tracing::warn!(%kind, namespace, name, error, "an object that cannot be read is passed over");
                None
            }
        }
    }
}

// An object's text is read twice where it must be, which takes that events say their type first: API servers do.
impl<'de, K: DeserializeOwned> Deserialize<'de> for Received<K> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(input)?;
        let error = match serde_json::from_str(raw.get()) {
            Ok(object) => return Ok(Self::Read(object)),
            Err(error) => error,
        };
        let mut value: Value = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
        fill_times(&mut value);
        if let Ok(object) = K::deserialize(&value) {
            return Ok(Self::Read(object));
        }
        let meta = ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?;
        Ok(Self::Unread(Box::new(meta), error.to_string()))
    }
}

/// Puts in the times of conditions that nobody has set.
fn fill_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (list, time) in TIMED {
                let elements = fields.get_mut(list).and_then(Value::as_array_mut);
                let elements = elements.into_iter().flatten();
                for element in elements.filter_map(Value::as_object_mut) {
                    let time = element.entry(time).or_insert(Value::Null);
                    if time.is_null() {
                        *time = Value::from(NO_TIME);
                    }
                }
            }
            fields.values_mut().for_each(fill_times);
        }
        Value::Array(elements) => elements.iter_mut().for_each(fill_times),
        _ => {}
    }
}

impl<K: Object> Resource for Received<K> {
    type DynamicType = ();
    // That of `K` is a type, which a namespace given by name cannot be checked against.
    type Scope = DynamicResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group(_: &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version(_: &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural(_: &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Unread(meta, _) => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Read(object) => object.meta_mut(),
            Self::Unread(meta, _) => meta,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Service;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    fn service(name: &str, status: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "ns"}, "status": status,
        })
    }

    #[test]
    fn a_condition_without_a_time_is_one_of_long_ago() {
        for condition in [
            json!({"type": "X", "status": "True", "reason": "r", "message": "m"}),
            json!({"type": "X", "status": "True", "lastTransitionTime": null}),
        ] {
            let service = service("a", &json!({"conditions": [condition]}));
            let event = format!(r#"{{"type":"MODIFIED","object":{service}}}"#);
            let event: WatchEvent<Received<Service>> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Modified(Received::Read(service)) = event else {
                panic!("{event:?}");
            };
            let conditions = service.status.unwrap().conditions.unwrap();
            assert_eq!(conditions[0].last_transition_time.0.to_string(), NO_TIME);
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_nobody_from_the_others() {
        let list = json!({
            "apiVersion": "v1", "kind": "ServiceList", "metadata": {"resourceVersion": "7"},
            "items": [service("bad", &json!({"loadBalancer": {"ingress": 3}})), service("good", &json!({}))],
        });
        let list: ObjectList<Received<Service>> = serde_json::from_str(&list.to_string()).unwrap();
        let [bad, good] = <[_; 2]>::try_from(list.items).unwrap();
        assert_eq!(bad.meta().name.as_deref(), Some("bad"));
        assert!(bad.told().is_none());
        let good = good.told().unwrap();
        assert_eq!(good.metadata.name.as_deref(), Some("good"));
    }
}
