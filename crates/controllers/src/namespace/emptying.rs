//! One round of emptying a namespace, and what is left after it.

use davit_client::message_of;
use davit_client::served_kinds::{ServedKind, ServedKinds};
use davit_reconcile::gone_is_none;
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::discovery::{Scope, verbs};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Kinds that are emptied at the same time, and how long one may take in a round: a server of others, or a webhook that
/// converts its objects, that does not answer holds up no other kind, and is named in the namespace's conditions.
const AT_ONCE: usize = 16;
const KIND_DEADLINE: Duration = Duration::from_secs(20);

/// Kinds of a group that may take that long in a round; the rest of it waits for the next one.
const SLOW_KINDS: usize = 16;
/// Objects that are listed at a time.
const PAGE: u32 = 500;

/// Finalizers, resources and failures that a condition names, and bytes of what is said of each failure: with all those that
/// objects have room for, and all that servers say, the namespace's status would have none itself.
const TOLD: usize = 100;
const WORDS: usize = 1000;

/// What is left in a namespace after one round of deletion.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remains {
    /// Resource and how many objects of it remain.
    objects: Vec<(String, usize)>,
    /// Finalizers that hold objects back, and how many.
    finalizers: BTreeMap<String, usize>,
    /// Resources that could not be emptied, and why.
    failures: Vec<String>,
    /// Groups that discovery could not tell about.
    undiscovered: Option<String>,
}

impl Remains {
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty() && self.undiscovered.is_none()
    }

    /// What is left of one more kind. Always in the same order, in whatever order they were looked at.
    fn add(&mut self, kind: Remains) {
        self.objects.extend(kind.objects);
        self.objects.sort_unstable();
        self.failures.extend(kind.failures);
        self.failures.sort_unstable();
        for (finalizer, count) in kind.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
    }

    /// The conditions that `kubectl get namespace -o yaml` shows for a deletion that hangs.
    pub(super) fn conditions(&self) -> Vec<NamespaceCondition> {
        let condition = |type_: &str, problem: Option<(&str, String)>, fine: (&str, &str)| {
            let (status, reason, message) = match problem {
                Some((reason, message)) => ("True", reason.to_owned(), message),
                None => ("False", fine.0.to_owned(), fine.1.to_owned()),
            };
            NamespaceCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason),
                message: Some(message),
                last_transition_time: Some(Time(Timestamp::now())),
            }
        };
        let objects = self.objects.iter();
        let objects = objects.map(|(resource, n)| format!("{resource} has {n} resource instances"));
        let finalizers = self.finalizers.iter();
        let finalizers = finalizers.map(|(name, n)| format!("{name} in {n} resource instances"));
        vec![
            condition(
                "NamespaceDeletionDiscoveryFailure",
                self.undiscovered
                    .clone()
                    .map(|why| ("DiscoveryFailed", why)),
                (
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                ),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                (
                    "ParsedGroupVersions",
                    "All legacy kube types successfully parsed",
                ),
            ),
            condition(
                "NamespaceDeletionContentFailure",
                (!self.failures.is_empty()).then(|| {
                    let text = format!(
                        "Failed to delete all resource types, {} remaining: {}",
                        self.failures.len(),
                        listed(self.failures.iter().cloned(), "; ")
                    );
                    ("ContentDeletionFailed", text)
                }),
                (
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
            ),
            condition(
                "NamespaceContentRemaining",
                (!self.objects.is_empty()).then(|| {
                    (
                        "SomeResourcesRemain",
                        format!("Some resources are remaining: {}", listed(objects, ", ")),
                    )
                }),
                ("ContentRemoved", "All content successfully removed"),
            ),
            condition(
                "NamespaceFinalizersRemaining",
                (!self.finalizers.is_empty()).then(|| {
                    let names = listed(finalizers, ", ");
                    (
                        "SomeFinalizersRemain",
                        format!("Some content in the namespace has finalizers remaining: {names}"),
                    )
                }),
                (
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
            ),
        ]
    }
}

/// So many of the items as anybody reads.
fn listed(items: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let untold = items.len().saturating_sub(TOLD);
    let untold = (untold > 0).then(|| format!("{untold} others"));
    let told: Vec<String> = items.take(TOLD).chain(untold).collect();
    told.join(separator)
}

/// What an error says, as far as anybody reads it.
fn words(error: &kube::Error) -> String {
    let mut message = message_of(error);
    if message.len() > WORDS {
        message.truncate(message.floor_char_boundary(WORDS));
        message.push_str("...");
    }
    message
}

/// Deletes everything once: the other kinds when no pod is left that may count on them, as network policies.
pub(super) async fn empty(client: &kube::Client, namespace: &str) -> Remains {
    let mut remains = Remains::default();
    let found = match ServedKinds::discover(client).await {
        Ok(found) => found,
        Err(error) => {
            remains.undiscovered = Some(message_of(&error.source));
            return remains;
        }
    };
    if !found.failures.is_empty() {
        remains.undiscovered = Some(discovery_failure(&found.failures));
    }
    let deletable = found.kinds.iter().filter(|kind| is_deletable(kind));
    let (pods, others): (Vec<_>, Vec<_>) = deletable.partition(|kind| is_pods(kind));
    let slow = SlowGroups::default();
    for round in [pods, others] {
        let mut of_kinds = Vec::new();
        for kind in round {
            of_kinds.push(empty_in_time(client, namespace, kind, &slow));
        }
        let mut of_kinds = stream::iter(of_kinds).buffer_unordered(AT_ONCE);
        while let Some(kind) = of_kinds.next().await {
            remains.add(kind);
        }
        if !remains.objects.is_empty() || !remains.failures.is_empty() {
            break;
        }
    }
    remains
}

/// How many kinds of each group took too long in this round.
#[derive(Default)]
struct SlowGroups(Mutex<HashMap<String, usize>>);

async fn empty_in_time(
    client: &kube::Client,
    namespace: &str,
    kind: &ServedKind,
    slow: &SlowGroups,
) -> Remains {
    let resource = &kind.resource;
    let name = match resource.group.as_str() {
        "" => format!("{}.", resource.plural),
        group => format!("{}.{group}", resource.plural),
    };
    let mut remains = Remains::default();
    if slow.0.lock().get(&resource.group) >= Some(&SLOW_KINDS) {
        let why =
            format!("{name}: not looked at, as {SLOW_KINDS} kinds of its group took too long");
        remains.failures.push(why);
        return remains;
    }
    let emptied = empty_kind(client, namespace, kind, &name, &mut remains);
    if tokio::time::timeout(KIND_DEADLINE, emptied).await.is_err() {
        *slow.0.lock().entry(resource.group.clone()).or_default() += 1;
        let why = format!("{name}: not emptied within {KIND_DEADLINE:?}");
        remains.failures.push(why);
    }
    remains
}

async fn empty_kind(
    client: &kube::Client,
    namespace: &str,
    kind: &ServedKind,
    name: &str,
    remains: &mut Remains,
) {
    let api: kube::Api<DynamicObject> =
        kube::Api::namespaced_with(client.clone(), namespace, &kind.resource);
    let at_once = kind.supports(verbs::DELETE_COLLECTION);
    let failed = |error: &kube::Error| format!("{name}: {}", words(error));
    let left = match Left::of(&api, !at_once).await {
        Ok(Some(left)) => left,
        Ok(None) => return,
        Err(error) => return remains.failures.push(failed(&error)),
    };
    if left.objects == 0 {
        return;
    }
    let deleted = if at_once {
        api.delete_collection(&DeleteParams::background(), &ListParams::default())
            .await
            .map(|_| ())
    } else {
        delete_each(&api, left.names.iter().map(String::as_str)).await
    };
    if let Err(error) = deleted {
        remains.failures.push(failed(&error));
    }
    match Left::of(&api, false).await {
        Ok(Some(left)) if left.objects > 0 => {
            remains.finalizers.extend(left.finalizers);
            remains.objects.push((name.to_owned(), left.objects));
        }
        Ok(_) => {}
        Err(error) => remains.failures.push(failed(&error)),
    }
}

/// What there is of a kind.
#[derive(Default)]
struct Left {
    objects: usize,
    names: Vec<String>,
    finalizers: BTreeMap<String, usize>,
}

impl Left {
    /// Looks page by page, and keeps names where they are wanted; none where the kind is gone.
    async fn of(
        api: &kube::Api<DynamicObject>,
        with_names: bool,
    ) -> Result<Option<Self>, kube::Error> {
        let mut left = Self::default();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let Some(page) = gone_is_none(api.list_metadata(&params).await)? else {
                return Ok(None);
            };
            left.objects += page.items.len();
            for object in page.items {
                if with_names {
                    left.names.extend(object.metadata.name);
                }
                for finalizer in object.metadata.finalizers.into_iter().flatten() {
                    *left.finalizers.entry(finalizer).or_default() += 1;
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Some(left)),
            }
        }
    }
}

async fn delete_each(
    api: &kube::Api<DynamicObject>,
    names: impl Iterator<Item = &str>,
) -> Result<(), kube::Error> {
    for name in names {
        gone_is_none(api.delete(name, &DeleteParams::background()).await)?;
    }
    Ok(())
}

fn discovery_failure(failures: &BTreeMap<String, String>) -> String {
    let each = failures.iter().map(|(version, why)| {
        let end = why.floor_char_boundary(WORDS);
        format!("{version}: {}", &why[..end])
    });
    format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        failures.len(),
        listed(each, ", ")
    )
}

fn is_pods(kind: &ServedKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

fn is_deletable(kind: &ServedKind) -> bool {
    kind.scope == Scope::Namespaced
        && kind.supports(verbs::LIST)
        && kind.supports(verbs::DELETE)
        // Events are removed like everything else, but they live in two groups: once is enough.
        && !(kind.resource.group == "events.k8s.io" && kind.resource.plural == "events")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// `slow` has a server of somebody else's, or a webhook that converts, which takes each connection and says nothing.
    async fn answer(request: http::Request<kube::client::Body>) -> Value {
        let kinds = |plurals: &[&str]| -> Vec<Value> {
            let verbs = ["list", "watch", "delete", "deletecollection"];
            let kind = |plural: &&str| {
                json!({"resource": plural, "scope": "Namespaced", "verbs": verbs,
                "singularResource": "", "responseKind": {"group": "", "version": "", "kind": "K"}})
            };
            plurals.iter().map(kind).collect()
        };
        let group = |name: &str, plurals: &[&str]| {
            json!({"kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [{
            "metadata": {"name": name}, "versions": [{"version": "v1", "resources": kinds(plurals)}]}]})
        };
        let objects = json!([{"metadata": {"name": "x", "namespace": "n"}}]);
        match request.uri().path() {
            "/api" => group("", &["configmaps"]),
            "/apis" => group("a.test", &["slow", "things"]),
            "/apis/a.test/v1/namespaces/n/slow" => std::future::pending().await,
            "/apis/a.test/v1/namespaces/n/things" => json!({"items": objects, "metadata": {}}),
            _ => json!({"items": [], "metadata": {}}),
        }
    }

    /// One server has a thousand kinds, and answers about none of them, or with megabytes of words.
    #[tokio::test(start_paused = true)]
    async fn many_kinds_of_a_server_that_does_not_answer_cost_as_few() {
        let of = |answers: bool| {
            let service = tower::service_fn(
                move |request: http::Request<kube::client::Body>| async move {
                    let plurals: Vec<String> = (0..1000).map(|n| format!("k{n}")).collect();
                    let kinds = plurals.iter().map(|plural| {
                    json!({"resource": plural, "scope": "Namespaced", "verbs": ["list", "delete"],
                        "responseKind": {"group": "", "version": "", "kind": "K"}})
                });
                    let (code, body) = match request.uri().path() {
                        "/apis" => (
                            200,
                            json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
                        "metadata": {}, "items": [{"metadata": {"name": "a.test"},
                        "versions": [{"version": "v1", "resources": kinds.collect::<Vec<_>>()}]}]}),
                        ),
                        "/api" => (
                            200,
                            json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
                        "metadata": {}, "items": []}),
                        ),
                        _ if answers => (
                            500,
                            json!({"kind": "Status", "status": "Failure", "code": 500,
                        "reason": "InternalError", "message": "x".repeat(100_000)}),
                        ),
                        _ => std::future::pending().await,
                    };
                    let answer = http::Response::builder()
                        .status(code)
                        .body(kube::client::Body::from(body.to_string().into_bytes()));
                    Ok::<_, std::convert::Infallible>(answer.unwrap())
                },
            );
            kube::Client::new(service, "n")
        };
        let begun = tokio::time::Instant::now();
        let remains = empty(&of(false), "n").await;
        assert!(
            begun.elapsed() <= 2 * KIND_DEADLINE,
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(remains.failures.len(), 1000);
        let remains = empty(&of(true), "n").await;
        assert_eq!(remains.failures.len(), 1000);
        let told = serde_json::to_string(&remains.conditions()).unwrap();
        assert!(told.len() < 200_000, "{}", told.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_whose_server_does_not_answer_holds_up_no_other() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let line = format!("{} {}", request.method(), request.uri().path());
            seen.lock().push(line);
            async {
                let body = answer(request).await.to_string().into_bytes();
                let answer = http::Response::builder()
                    .header(
                        "content-type",
                        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                    )
                    .body(kube::client::Body::from(body));
                Ok::<_, std::convert::Infallible>(answer.unwrap())
            }
        });
        let client = kube::Client::new(service, "n");
        let found = ServedKinds::discover(&client).await.unwrap();
        assert_eq!(found.kinds.len(), 3, "{found:?}");
        let began = tokio::time::Instant::now();
        let remains = empty(&client, "n").await;
        assert!(began.elapsed() <= KIND_DEADLINE);
        assert_eq!(remains.objects, [("things.a.test".to_owned(), 1)]);
        assert_eq!(remains.failures, ["slow.a.test: not emptied within 20s"]);
        let emptied = "DELETE /apis/a.test/v1/namespaces/n/things";
        assert!(asked.lock().iter().any(|line| line == emptied));
    }

    #[test]
    fn groups_that_were_not_discovered_are_named() {
        let why = "stale GroupVersion discovery: m.test/v1beta1".to_owned();
        assert_eq!(
            discovery_failure(&[("m.test/v1beta1".to_owned(), why)].into()),
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server \
             APIs: m.test/v1beta1: stale GroupVersion discovery: m.test/v1beta1"
        );
    }

    #[test]
    fn conditions_name_what_holds_the_namespace() {
        let remains = Remains {
            objects: vec![("pods.".to_owned(), 2)],
            finalizers: [("example.com/hold".to_owned(), 2)].into(),
            ..Remains::default()
        };
        assert!(!remains.is_empty());
        let conditions = remains.conditions();
        let status = |type_: &str| {
            conditions
                .iter()
                .find(|c| c.type_ == type_)
                .map(|c| c.status.as_str())
        };
        assert_eq!(status("NamespaceContentRemaining"), Some("True"));
        assert_eq!(status("NamespaceFinalizersRemaining"), Some("True"));
        assert_eq!(status("NamespaceDeletionDiscoveryFailure"), Some("False"));
        let message = conditions[3].message.clone().unwrap();
        assert_eq!(
            message,
            "Some resources are remaining: pods. has 2 resource instances"
        );
    }

    #[test]
    fn a_condition_has_room_for_its_finalizers() {
        let finalizers = (0..100_000).map(|n| (format!("a.b/{n:06}"), 1));
        let remains = Remains {
            finalizers: finalizers.collect(),
            ..Remains::default()
        };
        let message = remains.conditions()[4].message.clone().unwrap();
        assert!(message.len() < 10_000, "{} bytes", message.len());
        let wanted = "a.b/000099 in 1 resource instances, 99900 others";
        assert!(message.ends_with(wanted), "{message}");
    }
}
