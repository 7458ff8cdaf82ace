//! One case: an object, changed somewhere, is made and then goes through what can be done with it.

use crate::answers::Answer;
use crate::dice::Dice;
use crate::run::Run;
use crate::servers::Request;
use davit_api::kinds::{FieldType, TypeId, builtin, split_api_version};
use serde_json::{Map, Value, json};

/// The namespace of all objects but those that limit others.
pub(crate) const NAMESPACE: &str = "differential";
/// That of the others.
pub(crate) const LIMITS: &str = "differential-limits";

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Of what kind an object is and where it is posted to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    sample: Value,
    /// `pods.v1`, `deployments.v1.apps`
    label: String,
    collection: String,
    ty: Option<TypeId>,
    subresources: Vec<&'static str>,
    /// Other versions of the collection.
    versions: Vec<String>,
    /// Whether it is only asked, not kept.
    is_review: bool,
}

impl Target {
    /// The target of an object of a built-in kind; none for one that kube-apiserver does not have.
    pub(crate) fn built_in(sample: Value) -> Option<Self> {
        let api_version = sample["apiVersion"].as_str().unwrap();
        let (group, version) = split_api_version(api_version);
        let row = builtin().resource_of_kind(group, version, sample["kind"].as_str().unwrap());
        let row = row.unwrap_or_else(|| panic!("no kind of {sample}"));
        if row.is_classic_dra() {
            return None;
        }
        let namespace = match row.kind {
            _ if !row.namespaced => String::new(),
            "LimitRange" | "ResourceQuota" => format!("/namespaces/{LIMITS}"),
            _ => format!("/namespaces/{NAMESPACE}"),
        };
        let place = |api_version: &str| {
            let root = if group.is_empty() { "/api" } else { "/apis" };
            format!("{root}/{api_version}{namespace}/{}", row.plural)
        };
        let rows = builtin().resources.iter();
        let others =
            rows.filter(|r| r.group == group && r.plural == row.plural && !r.is_classic_dra());
        let subresources = row.subresources.iter().map(|s| s.name);
        Some(Self {
            label: format!("{}.{version}.{group}", row.plural)
                .trim_end_matches('.')
                .to_owned(),
            collection: place(api_version),
            ty: Some(row.type_id),
            subresources: subresources
                .filter(|s| ["status", "scale"].contains(s))
                .collect(),
            versions: others.map(|r| place(&r.api_version())).collect(),
            is_review: false,
            sample,
        })
    }

    /// That of an object of the custom kind.
    pub(crate) fn custom(sample: Value) -> Self {
        let collection =
            format!("/apis/differential.example.com/v1/namespaces/{NAMESPACE}/gadgets");
        Self {
            label: "gadgets".to_owned(),
            versions: vec![collection.clone()],
            collection,
            ty: None,
            subresources: vec!["status", "scale"],
            is_review: false,
            sample,
        }
    }

    /// That of an object that is only asked, whose `at` says where.
    pub(crate) fn review(mut sample: Value) -> Self {
        let at = sample.as_object_mut().unwrap().remove("at").unwrap();
        let (group, version) = split_api_version(sample["apiVersion"].as_str().unwrap());
        let kind = sample["kind"].as_str().unwrap();
        Self {
            label: kind.to_owned(),
            collection: at.as_str().unwrap().to_owned(),
            ty: builtin().kind_type(group, version, kind),
            subresources: Vec::new(),
            versions: Vec::new(),
            is_review: true,
            sample,
        }
    }
}

/// What happens to one object.
pub(crate) struct Case<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) dice: Dice,
    target: Target,
    /// That of the object.
    name: String,
}

impl<'a> Case<'a> {
    pub(crate) fn new(run: &'a mut Run, target: &Target, seed: u64) -> Self {
        let mut target = target.clone();
        let mut name = format!("case-{seed}");
        if target.sample["kind"] == "CustomResourceDefinition" {
            let text = target.sample.to_string();
            let text = text
                .replace("widgets", &name)
                .replace("Widget", &format!("Case{seed}"));
            target.sample = serde_json::from_str(&text).unwrap();
        }
        match target.sample["metadata"]["name"].as_str() {
            Some(given) => given.clone_into(&mut name),
            None => target.sample["metadata"]["name"] = json!(name),
        }
        Self {
            run,
            dice: Dice(seed),
            target,
            name,
        }
    }

    pub(crate) async fn go(mut self) {
        self.run.pair.forget();
        let mut object = self.target.sample.clone();
        for _ in 0..self.dice.roll(4) {
            self.change(&mut object);
        }
        if !self.create(&object).await || self.target.is_review {
            return self.clean_up().await;
        }
        for _ in 0..3 + self.dice.roll(4) {
            if !self.step().await {
                break;
            }
        }
        self.clean_up().await;
    }

    fn change(&mut self, object: &mut Value) {
        match self.target.ty {
            Some(ty) => self.dice.change(object, &FieldType::Named(ty)),
            None => match object.as_object_mut() {
                Some(map) => self.dice.change_free(map),
                None => *object = json!({}),
            },
        }
    }

    fn request(&self, verb: &str, method: &'static str, path: String) -> Request {
        Request {
            label: format!("{verb} {}", self.target.label),
            method,
            path,
            content_type: JSON,
            accept: JSON,
            body: String::new(),
        }
    }

    fn options(&mut self) -> &'static str {
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

    fn place(&self) -> String {
        format!("{}/{}", self.target.collection, self.name)
    }

    /// Whether both did it and it holds.
    async fn create(&mut self, object: &Value) -> bool {
        let options = self.options();
        let path = format!("{}?fieldManager=m{options}", self.target.collection);
        let mut request = self.request("create", "POST", path);
        request.body = object.to_string();
        if self.dice.one_in(60) {
            request.body = self
                .dice
                .pick(&["", "{", "[]", "null", "a: 1", "{}"])
                .to_owned();
        }
        let (theirs, ours) = self.run.ask(&request, &self.name).await;
        let kept = |answer: &Answer| answer.code == 201;
        if let Some(name) = self
            .run
            .pair
            .theirs
            .stored
            .as_ref()
            .and_then(|s| s["metadata"]["name"].as_str())
        {
            name.clone_into(&mut self.name);
        }
        kept(&theirs) && kept(&ours) && !options.contains("dryRun")
    }

    /// One more request; whether the servers still have the same.
    async fn step(&mut self) -> bool {
        let request = match self.dice.roll(16) {
            0 | 1 => self.read(),
            2 | 3 => self.list(),
            4 | 5 => self.update(""),
            6 => self.patch("merge", "application/merge-patch+json", ""),
            7 => self.patch("strategic", "application/strategic-merge-patch+json", ""),
            8 => self.json_patch(),
            9 | 10 => self.apply(),
            11 => self.delete(),
            12 => self.delete_collection(),
            _ => match self.target.subresources.clone().as_slice() {
                [] => self.read(),
                names => match self.dice.pick(names) {
                    "scale" => self.scale(),
                    _ if self.dice.one_in(3) => {
                        self.patch("merge", "application/merge-patch+json", "/status")
                    }
                    _ => self.update("/status"),
                },
            },
        };
        let (theirs, ours) = self.run.ask(&request, &self.name).await;
        (theirs.code < 300) == (ours.code < 300)
    }

    fn read(&mut self) -> Request {
        let version = self.dice.pick(&self.target.versions);
        let (form, accept) = self.dice.pick(&[
            ("get", JSON),
            ("get table of", TABLE),
            ("get metadata of", PARTIAL),
        ]);
        let mut request = self.request(form, "GET", format!("{version}/{}", self.name));
        request.accept = accept;
        request
    }

    fn list(&mut self) -> Request {
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
            self.target.collection, self.name
        );
        let mut request = self.request(form, "GET", path);
        request.accept = accept;
        request
    }

    /// The object as kube-apiserver has it, as far as both have the same.
    fn stored(&self) -> Value {
        let stored = self.run.pair.theirs.stored.clone();
        let mut object = stored.unwrap_or_else(|| self.target.sample.clone());
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            for (key, sign) in [("uid", "$UID"), ("resourceVersion", "$RV")] {
                if metadata.contains_key(key) {
                    metadata.insert(key.to_owned(), json!(sign));
                }
            }
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

    fn changed(&mut self, part: &str) -> Value {
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

    fn update(&mut self, subresource: &str) -> Request {
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

    fn patch(&mut self, name: &str, content_type: &'static str, subresource: &str) -> Request {
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

    fn json_patch(&mut self) -> Request {
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

    fn apply(&mut self) -> Request {
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

    fn scale(&mut self) -> Request {
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

    fn delete(&mut self) -> Request {
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

    fn delete_collection(&mut self) -> Request {
        let path = format!(
            "{}?fieldSelector=metadata.name%3D{}",
            self.target.collection, self.name
        );
        self.request("deletecollection", "DELETE", path)
    }

    /// Away with it on both sides, finalizers or not; what they answer is not compared.
    async fn clean_up(&mut self) {
        if self.target.is_review {
            return;
        }
        let mut request = self.request(
            "clean up",
            "DELETE",
            format!(
                "{}?gracePeriodSeconds=0&propagationPolicy=Background",
                self.place()
            ),
        );
        let (theirs, ours) = self.run.ask_only(&request, &self.name).await;
        let remains = |answer: &Answer| answer.code < 300 && answer.body["kind"] != "Status";
        if remains(&theirs) || remains(&ours) {
            let none = json!({"metadata": {"finalizers": null}});
            request.method = "PATCH";
            request.content_type = "application/merge-patch+json";
            request.body = none.to_string();
            request.path = self.place();
            self.run.ask_only(&request, &self.name).await;
        }
    }
}

/// Removes what controllers within the servers write when they come to it.
pub(crate) fn without_what_follows(answer: &mut Answer) {
    let later = [
        "CustomResourceDefinition",
        "APIService",
        "FlowSchema",
        "PriorityLevelConfiguration",
        "ServiceCIDR",
    ];
    let strip = |object: &mut Map<String, Value>| {
        object.remove("status");
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            metadata.remove("finalizers");
        }
    };
    let kind = answer.body["kind"].as_str().unwrap_or_default().to_owned();
    let is_later = |kind: &str| later.contains(&kind);
    if is_later(&kind) {
        answer.body.as_object_mut().map(strip);
    } else if kind.strip_suffix("List").is_some_and(is_later) {
        let items = answer.body["items"].as_array_mut().into_iter().flatten();
        items.filter_map(Value::as_object_mut).for_each(strip);
    }
}
