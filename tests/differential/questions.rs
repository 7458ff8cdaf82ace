//! Questions that no seed changes: what clients ask of lists, watches, tables, subresources, discovery and documents. They
//! stand in `questions.yaml` and `clients.yaml` and are asked in their order, so that earlier ones make what later ones are
//! about.

use crate::differential::run::Run;
use crate::differential::servers::Request;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const QUESTIONS: [&str; 2] = [include_str!("questions.yaml"), include_str!("clients.yaml")];
const JSON: &str = "application/json";
/// What tells the elements of a list apart, where the order of a list says nothing.
const KEYS: [&str; 7] = [
    "name",
    "resource",
    "subresource",
    "version",
    "groupVersion",
    "apiGroups",
    "nonResourceURLs",
];

/// One question.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    /// `GET /api/v1/pods`
    ask: String,
    accept: Option<String>,
    /// The body's content type.
    r#type: Option<String>,
    /// Text is sent as it is, anything else as JSON.
    body: Option<Value>,
    /// More headers.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Members of objects that are not compared, wherever they stand.
    #[serde(default)]
    without: Vec<String>,
    /// Whether the order of lists of objects says nothing.
    #[serde(default)]
    unordered: bool,
    /// Whether it is asked once for each group and version of the index of documents, which stands for `GROUP`.
    #[serde(default)]
    documents: bool,
}

/// Asks all of them.
pub(crate) async fn ask(run: &mut Run) {
    let read = |text| serde_saphyr::from_str::<Vec<Question>>(text).unwrap();
    for question in QUESTIONS.into_iter().flat_map(read) {
        let groups = match question.documents {
            true => documented(run).await,
            false => vec![String::new()],
        };
        for group in groups {
            let request = request(&question, &group);
            let (mut theirs, mut ours) = run.ask_only(&request, "-").await;
            for answer in [&mut theirs, &mut ours] {
                shape(&mut answer.body, &question);
            }
            run.compare(&request, &theirs, &ours);
        }
    }
}

/// The groups and versions that kube-apiserver has documents of: `apis/apps/v1`.
async fn documented(run: &mut Run) -> Vec<String> {
    let index = Question {
        ask: "GET /openapi/v3".to_owned(),
        ..Question::default()
    };
    let (theirs, _) = run.ask_only(&request(&index, ""), "-").await;
    let paths = theirs.body["paths"].as_object();
    let paths = paths.unwrap_or_else(|| panic!("no documents: {theirs:?}"));
    let is_version = |path: &&String| {
        path.rsplit('/')
            .next()
            .is_some_and(|last| last.starts_with('v'))
    };
    paths.keys().filter(is_version).cloned().collect()
}

/// Leaves out what is not compared.
fn shape(value: &mut Value, question: &Question) {
    match value {
        Value::Object(map) => {
            // a reference with nothing beside it and one of several that are one
            if let Some(Value::Array(all)) = map.get("allOf")
                && let [Value::Object(one)] = all.as_slice()
            {
                let one = one.clone();
                map.remove("allOf");
                map.extend(one);
            }
            map.retain(|key, _| !question.without.contains(key));
            map.values_mut().for_each(|value| shape(value, question));
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|value| shape(value, question));
            if question.unordered
                && let Some(keyed) = keyed(list)
            {
                *value = Value::Object(keyed);
            }
        }
        _ => {}
    }
}

/// A list of objects as a map.
fn keyed(list: &[Value]) -> Option<Map<String, Value>> {
    let key = |value: &Value| {
        let object = value.as_object()?;
        let named = KEYS.iter().find_map(|key| object.get(*key));
        let key = named.or_else(|| object.get("metadata")?.get("name"))?;
        Some(key.as_str().map_or_else(|| key.to_string(), str::to_owned))
    };
    let mut out = Map::new();
    for value in list {
        out.insert(key(value)?, value.clone());
    }
    (out.len() == list.len()).then_some(out)
}

fn request(question: &Question, group: &str) -> Request {
    let ask = question.ask.replace("GROUP", group);
    let (method, path) = ask.split_once(' ').unwrap();
    let body = match &question.body {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    // there are few, and each is asked once
    let kept = |text: &Option<String>| text.clone().map_or(JSON, |text| &*text.leak());
    let headers = question.headers.clone();
    Request {
        label: ask.clone(),
        method: method.to_owned().leak(),
        path: path.to_owned(),
        content_type: kept(&question.r#type),
        accept: kept(&question.accept),
        body,
        headers: headers.into_iter().collect(),
    }
}
