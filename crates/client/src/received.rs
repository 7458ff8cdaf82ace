//! Objects as lists and watches deliver them: text, of which only what a watch goes by is read at once.
//!
//! So lists and watches are compiled once, not once for each kind. And an object that cannot be read does not end them: the
//! generated types want fields that the API does not (the time of a condition may be null or missing, where whoever wrote
//! the status left it out), and a watch of typed objects would fail at such an object for ever, and with it everything that
//! follows the kind.

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::informer::Object;

/// What Go writes where no time was set.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Lists of objects with a time that must be there, and the time's field.
const TIMED: [(&str, &str); 1] = [("conditions", "lastTransitionTime")];

/// An object of a list or a watch, of any kind.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Namespace, name and resource version alone.
    meta: ObjectMeta,
    /// The text, and where in it the owners of fields are listed: often the half of it, which nobody here asks for.
    text: Box<RawValue>,
    owners: Option<Range<usize>>,
}

/// The same resource, whose objects are left as text.
pub(crate) fn untyped<K: Object>(api: kube::Api<K>) -> kube::Api<Received> {
    let resource = ApiResource::erase::<K>(&());
    let namespace = api.namespace().map(str::to_owned);
    let client = api.into_client();
    match namespace {
        Some(namespace) => kube::Api::namespaced_with(client, &namespace, &resource),
        None => kube::Api::all_with(client, &resource),
    }
}

impl Received {
    /// The object; where it cannot be read that is said, and there is none.
    pub(crate) fn read<K: Object>(&self) -> Option<K> {
        let text = self.text_without_owners();
        let error = match serde_json::from_str(&text) {
            Ok(object) => return Some(object),
            Err(error) => error,
        };
        let mended = with_times(&text);
        if let Some(object) = mended.and_then(|text| serde_json::from_str(&text).ok()) {
            return Some(object);
        }
        let kind = K::kind(&());
        let namespace = self.meta.namespace.as_deref().unwrap_or_default();
        let name = self.meta.name.as_deref().unwrap_or_default();
        tracing::warn!(%kind, namespace, name, %error, "an object that cannot be read is passed over");
        None
    }

    fn text_without_owners(&self) -> Cow<'_, str> {
        let text = self.text.get();
        match &self.owners {
            Some(owners) => {
                Cow::Owned([&text[..owners.start], "null", &text[owners.end..]].concat())
            }
            None => Cow::Borrowed(text),
        }
    }
}

/// The metadata that a watch goes by.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: HeadMeta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMeta<'a> {
    namespace: Option<String>,
    name: Option<String>,
    resource_version: Option<String>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

// An object's text is read twice where it must be, which takes that events say their type first: API servers do.
impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(input)?;
        let Head { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let owners = metadata
            .managed_fields
            .and_then(|part| place(text.get(), part.get()));
        let meta = ObjectMeta {
            namespace: metadata.namespace,
            name: metadata.name,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Ok(Self { meta, text, owners })
    }
}

/// Where a part of a text lies in it.
fn place(text: &str, part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let place = start..start.checked_add(part.len())?;
    (text.get(place.clone()) == Some(part)).then_some(place)
}

/// The same object with the times of conditions that nobody has set.
fn with_times(text: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    fill_times(&mut value);
    Some(value.to_string())
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

impl Resource for Received {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.kind)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.group)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.version)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.plural)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
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
            let event: WatchEvent<Received> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Modified(received) = event else {
                panic!("{event:?}");
            };
            let service: Service = received.read().unwrap();
            let conditions = service.status.unwrap().conditions.unwrap();
            assert_eq!(conditions[0].last_transition_time.0.to_string(), NO_TIME);
        }
    }

    #[test]
    fn owners_of_fields_are_passed_over() {
        let owners = json!([{"manager": "m", "fieldsV1": {"f:spec": {"k:{\"a\":\"]}\"}": {}}}}]);
        for metadata in [
            json!({"managedFields": owners, "name": "a", "labels": {"l": "v"}}),
            json!({"name": "a", "labels": {"l": "v"}, "managedFields": owners}),
            json!({"name": "a", "labels": {"l": "v"}, "managedFields": []}),
            json!({"name": "a", "labels": {"l": "v"}, "managedFields": null}),
            json!({"name": "a", "labels": {"l": "v"}}),
        ] {
            let text = json!({"metadata": metadata, "spec": {"clusterIP": "10.0.0.1"}}).to_string();
            let received: Received = serde_json::from_str(&text).unwrap();
            assert!(
                !received.text_without_owners().contains("fieldsV1"),
                "{text}"
            );
            let service: Service = received.read().unwrap();
            assert_eq!(service.metadata.managed_fields.unwrap_or_default(), []);
            assert_eq!(service.metadata.labels.unwrap()["l"], "v");
            assert_eq!(
                service.spec.unwrap().cluster_ip.as_deref(),
                Some("10.0.0.1")
            );
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_nobody_from_the_others() {
        let list = json!({
            "apiVersion": "v1", "kind": "ServiceList", "metadata": {"resourceVersion": "7"},
            "items": [service("bad", &json!({"loadBalancer": {"ingress": 3}})), service("good", &json!({}))],
        });
        let list: ObjectList<Received> = serde_json::from_str(&list.to_string()).unwrap();
        let [bad, good] = <[_; 2]>::try_from(list.items).unwrap();
        assert_eq!(bad.meta().name.as_deref(), Some("bad"));
        assert!(bad.read::<Service>().is_none());
        let good: Service = good.read().unwrap();
        assert_eq!(good.metadata.name.as_deref(), Some("good"));
    }
}
