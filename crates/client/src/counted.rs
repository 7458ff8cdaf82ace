//! How many requests a client has sent, as client-go counts them.

use http::Request;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnsweredRequest {
    /// The status, or `<error>` without an answer.
    code: String,
    method: String,
}

/// `rest_client_requests_total`, without the label `host`: there is one API server. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RestRequests(Family<AnsweredRequest, Counter>);

impl RestRequests {
    /// Adds them to a registry that gives no prefix.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code and method",
            self.0.clone(),
        );
    }

    /// A client whose requests are counted and go out by `client`.
    pub fn of(&self, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let counts = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, counts) = (client.clone(), counts.clone());
            async move {
                let method = request.method().to_string();
                let answer = client.send(request).await;
                let code = match &answer {
                    Ok(answer) => answer.status().as_u16().to_string(),
                    Err(_) => "<error>".to_owned(),
                };
                counts
                    .get_or_create(&AnsweredRequest { code, method })
                    .inc();
                answer
            }
        });
        kube::Client::new(service, namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use std::convert::Infallible;

    #[tokio::test]
    async fn answers_are_counted_by_their_codes() {
        let service = tower::service_fn(|_: Request<Body>| async {
            let text = br#"{"kind":"Status","code":404,"reason":"NotFound","message":"no"}"#;
            let mut answer = http::Response::new(Body::from(text.to_vec()));
            *answer.status_mut() = http::StatusCode::NOT_FOUND;
            Ok::<_, Infallible>(answer)
        });
        let requests = RestRequests::default();
        let client = requests.of(kube::Client::new(service, "default"));
        let nodes: Api<Node> = Api::all(client);
        for _ in 0..2 {
            assert!(nodes.get("n").await.is_err());
        }
        let mut registry = Registry::default();
        requests.register(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let line = r#"rest_client_requests_total{code="404",method="GET"} 2"#;
        assert!(page.contains(line), "{page}");
    }
}
