//! The requests about the object of a case.

use crate::differential::cases::Case;
use crate::differential::servers::Request;
use crate::differential::targets::NAMESPACE;
use davit_api::kinds::{FieldType, builtin};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

impl Case<'_> {
    pub(crate) fn request(&self, verb: &str, method: &'static str, path: String) -> Request {
        Request {
            label: format!("{verb} {}", self.target.label),
            method,
            path,
            content_type: JSON,
            accept: JSON,
            body: String::new(),
            headers: Vec::new(),
        }
    }

    pub(crate) fn options(&mut self) -> &'static str {
        self.dice.pick(&[
            "",
            "",
            "",
            "",
            "&dryRun=All",
            "&fieldValidation=Strict",
            "&fieldValidation=Warn",
            "&fieldValidation=Ignore",
            "&pretty=true",
            "&dryRun=x",
            "&fieldValidation=x",
        ])
    }

    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.target.collection, self.name_in_path())
    }

    /// Names of roles are nearly free.
    fn name_in_path(&self) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let encode = |byte: u8| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        self.name.bytes().map(encode).collect()
    }

    pub(crate) fn read(&mut self) -> Request {
        let version = self.dice.pick(&self.target.versions);
        let (form, accept) = self.dice.pick(&[
            ("get", JSON),
            ("get table of", TABLE),
            ("get metadata of", PARTIAL),
        ]);
        let mut request = self.request(form, "GET", format!("{version}/{}", self.name_in_path()));
        request.accept = accept;
        request
    }

    pub(crate) fn list(&mut self) -> Request {
        let (form, accept) = self.dice.pick(&[
            ("list", JSON),
            ("list table of", TABLE),
            ("list metadata of", PARTIAL_LIST),
        ]);
        let more = self.dice.pick(&[
            "",
            "",
            "",
            "&limit=1",
            "&labelSelector=a%3Db",
            "&labelSelector=%21a",
            "&labelSelector=a%20in%20%28%29",
            "&resourceVersion=0",
            "&resourceVersion=x",
            "&includeObject=None",
            "&limit=-1",
            "&fieldSelector=x%3Dy",
            "&resourceVersionMatch=Exact",
            "&continue=x",
        ]);
        let path = format!(
            "{}?fieldSelector=metadata.name%3D{}{more}",
            self.target.collection,
            self.name_in_path()
        );
        let mut request = self.request(form, "GET", path);
        request.accept = accept;
        request
    }

    /// The object as kube-apiserver has it, as far as both have the same.
    pub(crate) fn stored(&self) -> Value {
        let stored = self.run.pair.theirs.stored.clone();
        let mut object = stored.unwrap_or_else(|| self.target.sample.clone());
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            if metadata.contains_key("resourceVersion") {
                metadata.insert("resourceVersion".to_owned(), json!("$RV"));
            }
        }
        // it stands in the labels of jobs, too
        if let Some(uid) = object["metadata"]["uid"].as_str() {
            let text = object.to_string().replace(uid, "$UID");
            object = serde_json::from_str(&text).unwrap_or(object);
        }
        if object["kind"] == "Service"
            && let Some(spec) = object["spec"].as_object_mut()
        {
            spec.retain(|key, _| {
                !["clusterIP", "clusterIPs", "healthCheckNodePort"].contains(&key.as_str())
            });
            for port in spec
                .get_mut("ports")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                port.as_object_mut().map(|port| port.remove("nodePort"));
            }
        }
        object
    }

    pub(crate) fn changed(&mut self, part: &str) -> Value {
        let mut object = self.stored();
        let ty = self.target.ty;
        let field = ty.and_then(|ty| builtin().types.field(ty, part));
        for _ in 0..=self.dice.roll(2) {
            match (field, object.as_object_mut()) {
                (Some(field), Some(map)) if !self.dice.one_in(8) => {
                    let value = map.entry(part).or_insert(Value::Null);
                    self.dice.change(value, &field.ty);
                }
                _ => self.change(&mut object),
            }
        }
        if self.dice.one_in(6)
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            let versions = [json!(null), json!(""), json!("1"), json!("x")];
            metadata.insert("resourceVersion".to_owned(), self.dice.pick(&versions));
        }
        object
    }

    pub(crate) fn update(&mut self, subresource: &str) -> Request {
        let part = if subresource.is_empty() {
            "spec"
        } else {
            "status"
        };
        let body = self.changed(part).to_string();
        let path = format!(
            "{}{subresource}?fieldManager=m{}",
            self.place(),
            self.options()
        );
        let mut request = self.request("update", "PUT", path);
        request.label.push_str(subresource);
        request.body = body;
        request
    }

    pub(crate) fn patch(
        &mut self,
        name: &str,
        content_type: &'static str,
        subresource: &str,
    ) -> Request {
        let part = if subresource.is_empty() {
            "spec"
        } else {
            "status"
        };
        let mut object = self.changed(part);
        if let Some(map) = object.as_object_mut() {
            let whole = self.dice.one_in(4);
            map.retain(|key, _| {
                whole || !["apiVersion", "kind", "metadata"].contains(&key.as_str())
            });
        }
        let path = format!(
            "{}{subresource}?fieldManager=m2{}",
            self.place(),
            self.options()
        );
        let mut request = self.request(&format!("patch ({name})"), "PATCH", path);
        request.label.push_str(subresource);
        request.content_type = content_type;
        request.body = object.to_string();
        request
    }

    pub(crate) fn json_patch(&mut self) -> Request {
        let stored = self.stored();
        let mut place = String::new();
        let mut at = &stored;
        while let Value::Object(map) = at
            && let Some((key, value)) = map.iter().nth(self.dice.roll(map.len()))
        {
            place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
            at = value;
            if self.dice.one_in(4) {
                break;
            }
        }
        let op = self
            .dice
            .pick(&["add", "remove", "replace", "test", "copy", "move", "x"]);
        let value = self
            .dice
            .pick(&[at.clone(), json!("x"), json!(1), json!(null), json!([])]);
        let patch = json!([{"op": op, "path": place, "value": value, "from": "/metadata/labels"}]);
        let mut request = self.request(
            "patch (json)",
            "PATCH",
            format!("{}?fieldManager=m3", self.place()),
        );
        request.content_type = "application/json-patch+json";
        request.body = patch.to_string();
        request
    }

    pub(crate) fn apply(&mut self) -> Request {
        let mut object = self.target.sample.clone();
        for _ in 0..self.dice.roll(3) {
            self.change(&mut object);
        }
        let force = self.dice.pick(&["", "&force=true", "&force=false"]);
        let manager = self
            .dice
            .pick(&["?fieldManager=a", "?fieldManager=b", "?x=y"]);
        let path = format!("{}{manager}{force}{}", self.place(), self.options());
        let mut request = self.request("apply", "PATCH", path);
        request.content_type = "application/apply-patch+yaml";
        request.body = object.to_string();
        request
    }

    pub(crate) fn scale(&mut self) -> Request {
        let place = format!("{}/scale", self.place());
        let mut request = self.request("get", "GET", place.clone());
        match self.dice.roll(3) {
            0 => request.accept = self.dice.pick(&[JSON, TABLE, PARTIAL]),
            1 => {
                request = self.request("patch (merge)", "PATCH", place);
                request.content_type = "application/merge-patch+json";
                let count = self
                    .dice
                    .pick(&[json!(1), json!(-1), json!("x"), json!(null)]);
                request.body = json!({"spec": {"replicas": count}}).to_string();
            }
            _ => {
                request = self.request("update", "PUT", place);
                let mut scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": self.name, "namespace": NAMESPACE}, "spec": {"replicas": 3}});
                let ty = builtin().kind_type("autoscaling", "v1", "Scale");
                if let Some(ty) = ty.filter(|_| self.dice.one_in(2)) {
                    self.dice.change(&mut scale, &FieldType::Named(ty));
                }
                request.body = scale.to_string();
            }
        }
        request.label.push_str("/scale");
        request
    }

    pub(crate) fn delete(&mut self) -> Request {
        let mut request = self.request("delete", "DELETE", self.place());
        let body = self.dice.pick(&[
            json!(null),
            json!({"propagationPolicy": "Foreground"}),
            json!({"propagationPolicy": "Orphan"}),
            json!({"propagationPolicy": "x"}),
            json!({"gracePeriodSeconds": 0}),
            json!({"gracePeriodSeconds": -1}),
            json!({"preconditions": {"uid": "x"}}),
            json!({"preconditions": {"uid": "$UID", "resourceVersion": "$RV"}}),
            json!({"preconditions": {"resourceVersion": "1"}}),
            json!({"dryRun": ["All"]}),
            json!({"dryRun": ["x"]}),
            json!({"orphanDependents": true}),
            json!({"orphanDependents": true, "propagationPolicy": "Orphan"}),
            json!({"kind": "x"}),
        ]);
        if !body.is_null() {
            request.body = body.to_string();
        }
        request
    }

    pub(crate) fn delete_collection(&mut self) -> Request {
        let path = format!(
            "{}?fieldSelector=metadata.name%3D{}",
            self.target.collection,
            self.name_in_path()
        );
        self.request("deletecollection", "DELETE", path)
    }
}
