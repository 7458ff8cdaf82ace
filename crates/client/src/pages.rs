//! Lists that are read page by page: one text with everything has a limit of size and of values.

use kube::Api;
use kube::api::{ListParams, ObjectList};
use serde::de::DeserializeOwned;

/// Objects of one page.
const PAGE: u32 = 500;

/// All that `params` choose, as of one revision, read in pages; the metadata are those of the last page.
///
/// # Errors
/// What the API server says, also that the revision is gone before the last page was read (410).
pub async fn list_in_pages<K>(
    api: &Api<K>,
    params: ListParams,
) -> Result<ObjectList<K>, kube::Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    let mut items = Vec::new();
    loop {
        let mut page = api.list(&params).await?;
        items.append(&mut page.items);
        match page
            .metadata
            .continue_
            .take()
            .filter(|token| !token.is_empty())
        {
            Some(token) => params = params.continue_token(&token),
            None => {
                page.items = items;
                return Ok(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::Full;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;
    use std::convert::Infallible;

    #[tokio::test]
    async fn pages_are_put_together() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(
                query.contains("limit=500") && query.contains("labelSelector=a"),
                "{query}"
            );
            let (name, next) = match query.contains("continue=two") {
                true => ("b", ""),
                false => ("a", "two"),
            };
            let list = json!({ "kind": "ConfigMapList", "apiVersion": "v1",
                "metadata": { "resourceVersion": "7", "continue": next },
                "items": [{ "metadata": { "name": name } }] });
            let response = Response::builder().header("content-type", "application/json");
            Ok::<_, Infallible>(response.body(Full::from(list.to_string())).unwrap())
        });
        let api: Api<ConfigMap> = Api::all(crate::in_process(service, "default"));
        let all = list_in_pages(&api, ListParams::default().labels("a"))
            .await
            .unwrap();
        let names: Vec<_> = all
            .items
            .iter()
            .filter_map(|o| o.metadata.name.clone())
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(all.metadata.resource_version.as_deref(), Some("7"));
    }
}
