//! Questions that no seed changes: what clients ask of lists, watches, tables, subresources, discovery and documents. They
//! stand in `questions.yaml` and are asked in their order, so that earlier ones make what later ones are about.

use crate::run::Run;
use crate::servers::Request;
use serde::Deserialize;
use serde_json::Value;

const QUESTIONS: &str = include_str!("questions.yaml");
const JSON: &str = "application/json";

/// One question.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    /// `GET /api/v1/pods`
    ask: String,
    accept: Option<String>,
    /// The body's content type.
    r#type: Option<String>,
    /// Text is sent as it is, anything else as JSON.
    body: Option<Value>,
}

/// Asks all of them.
pub(crate) async fn ask(run: &mut Run) {
    let questions: Vec<Question> = serde_saphyr::from_str(QUESTIONS).unwrap();
    for question in questions {
        run.ask(&request(question), "-").await;
    }
}

fn request(question: Question) -> Request {
    let (method, path) = question.ask.split_once(' ').unwrap();
    let body = match question.body {
        None => String::new(),
        Some(Value::String(text)) => text,
        Some(value) => value.to_string(),
    };
    // there are few, and each is asked once
    let kept = |text: Option<String>| text.map_or(JSON, |text| &*text.leak());
    Request {
        label: question.ask.clone(),
        method: method.to_owned().leak(),
        path: path.to_owned(),
        content_type: kept(question.r#type),
        accept: kept(question.accept),
        body,
    }
}
