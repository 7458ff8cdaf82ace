//! What the API server serves, of all groups in all their versions: each kind once, in the version its group prefers
//! among those that have it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList, ObjectMeta};
use kube::core::discovery::v2::{
    ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscovery, APIGroupDiscoveryList, APIResourceDiscovery,
    APIVersionDiscovery, GroupVersionKind,
};
use kube::discovery::{ApiResource, Scope};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

/// The API server could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct DiscoverError {
    /// What was attempted.
    pub what: String,
    /// What it said.
    #[source]
    pub source: kube::Error,
}

fn asking<T>(what: &str, answer: Result<T, kube::Error>) -> Result<T, DiscoverError> {
    answer.map_err(|source| DiscoverError {
        what: what.to_owned(),
        source,
    })
}

/// A kind of object, and the version by which it is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedKind {
    /// The kind in that version.
    pub resource: ApiResource,
    /// Whether its objects are in namespaces.
    pub scope: Scope,
    verbs: Vec<String>,
}

impl ServedKind {
    /// Whether a request of this verb is served.
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// What discovery found.
#[derive(Debug, Default, PartialEq)]
pub struct ServedKinds {
    /// Each kind once.
    pub kinds: Vec<ServedKind>,
    /// Group versions whose servers did not say what they have, and why.
    pub failures: BTreeMap<String, String>,
}

impl ServedKinds {
    /// Asks the API server: two requests where it has aggregated discovery, one for each group version otherwise.
    ///
    /// # Errors
    /// When it does not say which groups it has.
    pub async fn discover(client: &kube::Client) -> Result<Self, DiscoverError> {
        let mut failures = BTreeMap::new();
        let mut groups = match ask(client, "/api").await? {
            Answer::Aggregated(list) => list.items,
            Answer::Legacy => core_group(client, &mut failures).await?,
        };
        groups.extend(match ask(client, "/apis").await? {
            Answer::Aggregated(list) => list.items,
            Answer::Legacy => named_groups(client, &mut failures).await?,
        });
        let mut found = Self::of(groups);
        found.failures.extend(failures);
        Ok(found)
    }

    /// The kinds of the groups, whose versions are in order of preference.
    fn of(groups: Vec<APIGroupDiscovery>) -> Self {
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for group in groups {
            let name = group.metadata.and_then(|m| m.name).unwrap_or_default();
            for APIVersionDiscovery {
                version,
                resources,
                freshness,
            } in group.versions
            {
                let version = version.unwrap_or_default();
                let api_version = match name.as_str() {
                    "" => version.clone(),
                    group => format!("{group}/{version}"),
                };
                if freshness.as_deref() == Some(STALE) {
                    let why = format!("stale GroupVersion discovery: {api_version}");
                    found.failures.insert(api_version, why);
                    continue;
                }
                // The classic kinds are other objects under the same names.
                let classic = api_version == davit_api::classic::API_VERSION;
                for served in resources {
                    // Without a kind there are only subresources.
                    let kind = served.response_kind.and_then(|k| k.kind);
                    let Some((plural, kind)) = served.resource.zip(kind.filter(|k| !k.is_empty()))
                    else {
                        continue;
                    };
                    if !seen.insert((name.clone(), plural.clone(), classic)) {
                        continue;
                    }
                    found.kinds.push(ServedKind {
                        resource: ApiResource {
                            group: name.clone(),
                            version: version.clone(),
                            api_version: api_version.clone(),
                            kind,
                            plural,
                        },
                        scope: match served.scope.as_deref() {
                            Some(NAMESPACED) => Scope::Namespaced,
                            _ => Scope::Cluster,
                        },
                        verbs: served.verbs,
                    });
                }
            }
        }
        found
    }
}

/// How a server that could not be asked shows in aggregated discovery.
const STALE: &str = "Stale";
const NAMESPACED: &str = "Namespaced";

/// What came back for the aggregated form.
#[derive(Deserialize)]
#[serde(tag = "kind")]
enum Answer {
    #[serde(rename = "APIGroupDiscoveryList")]
    Aggregated(APIGroupDiscoveryList),
    /// The server only has the older form.
    #[serde(other)]
    Legacy,
}

async fn ask(client: &kube::Client, path: &str) -> Result<Answer, DiscoverError> {
    let what = format!("discover what {path} has");
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, ACCEPT_AGGREGATED_DISCOVERY_V2)
        .body(Vec::new());
    let request = asking(&what, request.map_err(kube::Error::HttpError))?;
    asking(&what, client.request(request).await)
}

async fn core_group(
    client: &kube::Client,
    failures: &mut BTreeMap<String, String>,
) -> Result<Vec<APIGroupDiscovery>, DiscoverError> {
    let listed = client.list_core_api_versions().await;
    let mut versions = Vec::new();
    for version in asking("discover the core group", listed)?.versions {
        let resources = client.list_core_api_resources(&version).await;
        versions.extend(legacy_version(&version, &version, resources, failures));
    }
    Ok(vec![legacy_group("", versions)])
}

async fn named_groups(
    client: &kube::Client,
    failures: &mut BTreeMap<String, String>,
) -> Result<Vec<APIGroupDiscovery>, DiscoverError> {
    let listed = client.list_api_groups().await;
    let mut groups = Vec::new();
    for group in asking("discover groups", listed)?.groups {
        let mut offered = group.versions;
        let preferred = group.preferred_version.map(|p| p.version);
        // A stable sort: the preferred version goes before the others, which keep their order.
        offered.sort_by_key(|v| Some(&v.version) != preferred.as_ref());
        let mut versions = Vec::new();
        for offer in offered {
            let resources = client.list_api_group_resources(&offer.group_version).await;
            let (name, version) = (&offer.group_version, &offer.version);
            versions.extend(legacy_version(name, version, resources, failures));
        }
        groups.push(legacy_group(&group.name, versions));
    }
    Ok(groups)
}

fn legacy_group(name: &str, versions: Vec<APIVersionDiscovery>) -> APIGroupDiscovery {
    APIGroupDiscovery {
        metadata: Some(ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        }),
        versions,
    }
}

/// The older form of a version in the words of the aggregated one; none for one that could not be asked.
fn legacy_version(
    group_version: &str,
    version: &str,
    listed: Result<APIResourceList, kube::Error>,
    failures: &mut BTreeMap<String, String>,
) -> Option<APIVersionDiscovery> {
    let resources = match listed {
        Ok(listed) => listed.resources,
        Err(error) => {
            failures.insert(group_version.to_owned(), crate::message_of(&error));
            return None;
        }
    };
    let kinds = resources.into_iter().filter(|r| !r.name.contains('/'));
    let of_kind = |resource: APIResource| APIResourceDiscovery {
        resource: Some(resource.name),
        response_kind: Some(GroupVersionKind {
            kind: Some(resource.kind),
            ..GroupVersionKind::default()
        }),
        scope: resource.namespaced.then(|| NAMESPACED.to_owned()),
        verbs: resource.verbs,
        ..APIResourceDiscovery::default()
    };
    Some(APIVersionDiscovery {
        version: Some(version.to_owned()),
        resources: kinds.map(of_kind).collect(),
        freshness: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn resource(plural: &str, kind: &str) -> Value {
        json!({ "resource": plural, "responseKind": { "kind": kind }, "scope": "Namespaced", "verbs": ["list"] })
    }

    fn found(groups: Value) -> ServedKinds {
        ServedKinds::of(serde_json::from_value(groups).unwrap())
    }

    fn kinds(found: &ServedKinds) -> Vec<(&str, &str)> {
        let kinds = found.kinds.iter().map(|k| &k.resource);
        kinds.map(|r| (&*r.api_version, &*r.plural)).collect()
    }

    #[test]
    fn a_kind_that_the_preferred_version_lacks_is_found_in_another() {
        let found = found(json!([{ "metadata": { "name": "g.test" }, "versions": [
            { "version": "v1", "resources": [resource("as", "A")] },
            { "version": "v1beta1", "resources": [resource("as", "A"), resource("bs", "B")] },
            { "version": "v1alpha1", "resources": [resource("bs", "B"), resource("cs", "C")] },
        ] }]));
        let expected = [
            ("g.test/v1", "as"),
            ("g.test/v1beta1", "bs"),
            ("g.test/v1alpha1", "cs"),
        ];
        assert_eq!(kinds(&found), expected);
        assert!(found.kinds[0].supports("list") && !found.kinds[0].supports("delete"));
        assert_eq!(found.kinds[0].scope, Scope::Namespaced);
    }

    #[test]
    fn classic_claims_are_kinds_of_their_own() {
        let found = found(
            json!([{ "metadata": { "name": "resource.k8s.io" }, "versions": [
            { "version": "v1", "resources": [resource("resourceclaims", "ResourceClaim")] },
            { "version": "v1beta1", "resources": [resource("resourceclaims", "ResourceClaim")] },
            { "version": "v1alpha1", "resources": [resource("resourceclaims", "ResourceClaim")] },
        ] }]),
        );
        let expected = [
            ("resource.k8s.io/v1", "resourceclaims"),
            ("resource.k8s.io/v1alpha1", "resourceclaims"),
        ];
        assert_eq!(kinds(&found), expected);
    }

    #[test]
    fn stale_versions_are_named_and_hide_nothing() {
        let found = found(json!([
            { "metadata": {}, "versions": [{ "version": "v1", "freshness": "Current", "resources": [
                resource("pods", "Pod"),
                { "resource": "only-a-subresource", "responseKind": null },
            ] }] },
            { "metadata": { "name": "m.test" }, "versions": [
                { "version": "v1", "freshness": "Stale", "resources": [resource("ms", "M")] },
                { "version": "v1beta1", "freshness": "Current", "resources": [resource("ms", "M")] },
            ] },
        ]));
        assert_eq!(kinds(&found), [("v1", "pods"), ("m.test/v1beta1", "ms")]);
        let why = "stale GroupVersion discovery: m.test/v1".to_owned();
        assert_eq!(found.failures, [("m.test/v1".to_owned(), why)].into());
    }

    /// A server that answers from a table of paths, in the older form.
    fn legacy_server() -> kube::Client {
        let answers = |path: &str| match path {
            "/api" => {
                json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
            }
            "/api/v1" => json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [
                { "name": "pods", "kind": "Pod", "namespaced": true, "singularName": "", "verbs": ["list"] },
                { "name": "pods/log", "kind": "Pod", "namespaced": true, "singularName": "", "verbs": ["get"] },
            ] }),
            "/apis" => json!({ "kind": "APIGroupList", "groups": [{
                "name": "g.test",
                "preferredVersion": { "groupVersion": "g.test/v1", "version": "v1" },
                "versions": [
                    { "groupVersion": "g.test/v2", "version": "v2" },
                    { "groupVersion": "g.test/v1", "version": "v1" },
                    { "groupVersion": "g.test/v0", "version": "v0" },
                ],
            }] }),
            "/apis/g.test/v1" => {
                json!({ "kind": "APIResourceList", "groupVersion": "g.test/v1", "resources": [
                { "name": "as", "kind": "A", "namespaced": false, "singularName": "", "verbs": [] },
            ] })
            }
            "/apis/g.test/v2" => {
                json!({ "kind": "APIResourceList", "groupVersion": "g.test/v2", "resources": [
                { "name": "as", "kind": "A", "namespaced": false, "singularName": "", "verbs": [] },
                { "name": "bs", "kind": "B", "namespaced": true, "singularName": "", "verbs": [] },
            ] })
            }
            _ => Value::Null,
        };
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let answer = answers(request.uri().path());
            let status = if answer.is_null() { 503 } else { 200 };
            let body = kube::client::Body::from(serde_json::to_vec(&answer).unwrap());
            let answer = http::Response::builder().status(status).body(body).unwrap();
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test]
    async fn servers_without_the_aggregated_form_are_asked_version_by_version() {
        let found = ServedKinds::discover(&legacy_server()).await.unwrap();
        let expected = [("v1", "pods"), ("g.test/v1", "as"), ("g.test/v2", "bs")];
        assert_eq!(kinds(&found), expected);
        let failed: Vec<_> = found.failures.keys().collect();
        assert_eq!(failed, ["g.test/v0"]);
    }
}
