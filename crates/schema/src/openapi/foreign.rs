//! Version 2 documents of other servers, taken into ours.
//!
//! Of such a document only the paths of one group and version are of interest, and the definitions
//! these lead to. Definitions that are called like one of ours but say something else get another
//! name; those of Kubernetes' own types are taken to be the same.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
/// Types that all servers mean alike.
const SHARED: &str = "io.k8s.apimachinery.";
/// Bytes of parameters that are put in the place of references to them; those that do not fit stay references.
const INLINED: usize = 4 << 20;

/// The part of another server's version 2 document that is merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    paths: BTreeMap<String, Value>,
    definitions: BTreeMap<String, Value>,
}

impl Foreign {
    /// Takes the paths of a group and version out of a version 2 document, and what they need.
    pub fn of(document: &Value, group: &str, version: &str) -> Self {
        let root = format!("/apis/{group}/{version}");
        let below = format!("{root}/");
        let all = document["paths"].as_object().into_iter().flatten();
        let mut paths: BTreeMap<String, Value> = all
            .filter(|(path, _)| **path == root || path.starts_with(&below))
            .map(|(path, item)| (path.clone(), item.clone()))
            .collect();
        let mut parameters = Parameters::of(document);
        for item in paths.values_mut() {
            parameters.put_in(item);
        }
        let mut wanted: Vec<String> = Vec::new();
        for item in paths.values() {
            references(item, &mut wanted);
        }
        let mut definitions = BTreeMap::new();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        while let Some(name) = wanted.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let Some(schema) = document["definitions"].get(&name) else {
                continue;
            };
            references(schema, &mut wanted);
            definitions.insert(name, schema.clone());
        }
        Self { paths, definitions }
    }

    /// Paths and what can be done there.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.paths.iter()
    }

    /// Names and schemas.
    pub(super) fn definitions(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.definitions.iter()
    }

    /// Whether there is nothing to merge.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// Names of the definitions a value refers to.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member
                    .as_str()
                    .and_then(|text| text.strip_prefix(DEFINITIONS))
                {
                    Some(name) if key == "$ref" => found.push(name.to_owned()),
                    _ => references(member, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// The parameters of a document, which its paths refer to. A parameter refers to no other one.
struct Parameters<'a> {
    /// With its length.
    known: BTreeMap<&'a str, (&'a Value, usize)>,
    /// Bytes that may still be put in.
    left: usize,
}

impl<'a> Parameters<'a> {
    fn of(document: &'a Value) -> Self {
        let all = document["parameters"].as_object().into_iter().flatten();
        let known = all.map(|(name, value)| (name.as_str(), (value, value.to_string().len())));
        Self {
            known: known.collect(),
            left: INLINED,
        }
    }

    /// Puts them in the place of references.
    fn put_in(&mut self, value: &mut Value) {
        let named = value["$ref"]
            .as_str()
            .and_then(|text| text.strip_prefix(PARAMETERS));
        if let Some((parameter, length)) = named.and_then(|name| self.known.get(name)) {
            if let Some(left) = self.left.checked_sub(*length) {
                self.left = left;
                *value = (*parameter).clone();
            }
            return;
        }
        match value {
            Value::Object(members) => members.values_mut().for_each(|member| self.put_in(member)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.put_in(item)),
            _ => {}
        }
    }
}

fn digest(schema: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    schema.to_string().hash(&mut hasher);
    hasher.finish()
}

/// The definitions of the document so far, by name.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<String, u64>);

impl Known {
    pub(super) fn add(&mut self, name: &str, schema: &Value) {
        self.0.insert(name.to_owned(), digest(schema));
    }

    /// What is added to the document for a foreign one.
    pub(super) fn adopt(&mut self, foreign: &Foreign) -> Foreign {
        let mut renamed: BTreeMap<String, String> = BTreeMap::new();
        let mut definitions = Vec::new();
        for (name, schema) in &foreign.definitions {
            let new = match self.0.get(name) {
                None => name.clone(),
                Some(held) if name.starts_with(SHARED) || *held == digest(schema) => continue,
                Some(_) => {
                    let free = |name: &String| !self.0.contains_key(name);
                    let candidates = (2_u32..).map(|n| format!("{name}_v{n}"));
                    let Some(new) = candidates.take(1000).find(free) else {
                        continue;
                    };
                    renamed.insert(name.clone(), new.clone());
                    new
                }
            };
            self.0.insert(new.clone(), digest(schema));
            definitions.push((new, schema.clone()));
        }
        let mut adopted = Foreign {
            paths: foreign.paths.clone(),
            definitions: definitions.into_iter().collect(),
        };
        if !renamed.is_empty() {
            let values = adopted.paths.values_mut();
            values
                .chain(adopted.definitions.values_mut())
                .for_each(|value| rename(value, &renamed));
        }
        adopted
    }
}

fn rename(value: &mut Value, renamed: &BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let named = member
                    .as_str()
                    .and_then(|text| text.strip_prefix(DEFINITIONS));
                match named.and_then(|name| renamed.get(name)) {
                    Some(new) if key == "$ref" => {
                        *member = Value::String(format!("{DEFINITIONS}{new}"));
                    }
                    _ => rename(member, renamed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        json!({
            "parameters": { "p": { "name": "pretty", "in": "query", "type": "string" } },
            "paths": {
                "/apis/g.test/v1/gauges": {
                    "get": { "responses": { "200": { "description": "OK",
                        "schema": { "$ref": "#/definitions/test.v1.GaugeList" } } } },
                    "parameters": [{ "$ref": "#/parameters/p" }],
                },
                "/apis/g.test/v10/gauges": { "get": {} },
                "/apis/": { "get": {} },
            },
            "definitions": {
                "test.v1.GaugeList": { "type": "object", "properties": {
                    "items": { "type": "array", "items": { "$ref": "#/definitions/test.v1.Gauge" } } } },
                "test.v1.Gauge": { "type": "object", "properties": {
                    "metadata": { "$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" },
                    "$ref": { "type": "string" } } },
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": { "type": "object" },
                "unused": {},
            },
        })
    }

    #[test]
    fn only_what_the_version_needs_is_taken() {
        let taken = Foreign::of(&document(), "g.test", "v1");
        let paths: Vec<&String> = taken.paths.keys().collect();
        assert_eq!(paths, ["/apis/g.test/v1/gauges"]);
        let names: Vec<&String> = taken.definitions.keys().collect();
        assert_eq!(
            names,
            [
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "test.v1.Gauge",
                "test.v1.GaugeList"
            ]
        );
        let item = &taken.paths["/apis/g.test/v1/gauges"];
        assert_eq!(item["parameters"][0]["name"], "pretty");
        assert!(Foreign::of(&Value::Null, "g", "v1").is_empty());
    }

    /// A parameter that is a list of itself, and one that is large and wanted often: a hundred kilobytes that have no end.
    #[test]
    fn parameters_are_not_multiplied() {
        let itself = vec![json!({ "$ref": "#/parameters/p" }); 300];
        let often = vec![json!({ "$ref": "#/parameters/large" }); 3000];
        let document = json!({
            "parameters": { "p": itself, "large": { "name": "x".repeat(100_000) } },
            "paths": {
                "/apis/g.test/v1/a": { "parameters": itself.clone() },
                "/apis/g.test/v1/b": { "get": { "parameters": often } },
            },
        });
        let taken = Foreign::of(&document, "g.test", "v1");
        let size: usize = taken
            .paths
            .values()
            .map(|item| item.to_string().len())
            .sum();
        assert!(size < 4 * INLINED, "{size}");
        let first = &taken.paths["/apis/g.test/v1/b"]["get"]["parameters"][0];
        assert!(first["name"].is_string());
    }

    #[test]
    fn what_is_called_alike_and_is_not_gets_another_name() {
        let taken = Foreign::of(&document(), "g.test", "v1");
        let mut known = Known::default();
        known.add("test.v1.Gauge", &json!({ "type": "string" }));
        known.add(
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
            &json!({ "type": "object", "description": "ours" }),
        );
        let adopted = known.adopt(&taken);
        let names: Vec<&String> = adopted.definitions.keys().collect();
        assert_eq!(names, ["test.v1.GaugeList", "test.v1.Gauge_v2"]);
        let item = &adopted.definitions["test.v1.GaugeList"]["properties"]["items"]["items"];
        assert_eq!(item["$ref"], "#/definitions/test.v1.Gauge_v2");
        // the same once more adds nothing
        let mut known = Known::default();
        assert_eq!(known.adopt(&taken).definitions.len(), 3);
        assert!(known.adopt(&taken).definitions.is_empty());
    }
}
