//! `TokenReview`: who a token stands for.

use davit_api::status::Status;
use serde_json::{Value, json};

use crate::server::ApiServer;

pub(super) async fn token(server: &ApiServer, review: &Value) -> Result<Value, Status> {
    let token = review
        .pointer("/spec/token")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if token.is_empty() {
        let why = "token is required for TokenReview in authentication";
        return Err(Status::bad_request(why));
    }
    let asked: Vec<String> = review
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let authenticator = server.authenticator();
    let audiences = if asked.is_empty() {
        authenticator.token_keys().audiences().to_vec()
    } else {
        asked
    };
    Ok(match authenticator.token(server, token, &audiences).await {
        Ok(found) => json!({
            "authenticated": true,
            "user": found.user.to_value(),
            "audiences": found.audiences,
        }),
        Err(reason) => json!({ "user": {}, "error": reason }),
    })
}
