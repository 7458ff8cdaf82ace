//! One case: an object, changed somewhere, is made and then goes through what can be done with it.

use crate::differential::answers::Answer;
use crate::differential::dice::Dice;
use crate::differential::run::Run;
use crate::differential::servers::Request;
use crate::differential::targets::Target;
use davit_api::kinds::FieldType;
use serde_json::{Value, json};

/// What happens to one object.
pub(crate) struct Case<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) dice: Dice,
    pub(crate) target: Target,
    /// That of the object.
    pub(crate) name: String,
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

    pub(crate) fn change(&mut self, object: &mut Value) {
        match self.target.ty {
            Some(ty) => self.dice.change(object, &FieldType::Named(ty)),
            None => match object.as_object_mut() {
                Some(map) => self.dice.change_free(map),
                None => *object = json!({}),
            },
        }
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
        // What one of them alone has made goes away, too.
        let pair = &self.run.pair;
        let stored = pair.theirs.stored.as_ref().or(pair.ours.stored.as_ref());
        if let Some(name) = stored.and_then(|s| s["metadata"]["name"].as_str()) {
            name.clone_into(&mut self.name);
        }
        // each names what says no name itself
        let same_name = self.run.pair.same_name();
        kept(&theirs) && kept(&ours) && same_name && !options.contains("dryRun")
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

/// Kinds of whose objects controllers within the servers write a part when they come to it.
const WRITTEN_LATER: [&str; 5] = [
    "customresourcedefinitions",
    "apiservices",
    "flowschemas",
    "prioritylevelconfigurations",
    "servicecidrs",
];

/// Removes that part. Whether a definition that is deleted is gone or goes is for its controller to say.
pub(crate) fn without_what_follows(request: &Request, answer: &mut Answer) {
    if request
        .label
        .starts_with("delete customresourcedefinitions")
        && answer.code == 200
    {
        answer.body = Value::Null;
    }
    if WRITTEN_LATER
        .iter()
        .any(|kind| request.label.contains(kind))
    {
        strip(&mut answer.body);
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
                metadata.retain(|key, _| !["managedFields", "finalizers"].contains(&key.as_str()));
                map.retain(|key, value| key != "status" || value.is_string());
            }
            map.remove("cells");
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}
