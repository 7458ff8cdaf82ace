//! The objects of a migration: which there are, and writing them anew.

use super::NAME;
use davit_client::served_kinds::{ServedKind, ServedKinds};
use davit_client::{ObjectKey, message_of};
use davit_reconcile::{Context, Error};
use futures::StreamExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::discovery::ApiResource;
use serde_json::json;
use std::cmp::Ordering;

/// What a resource must be able to do.
const VERBS: [&str; 3] = ["update", "patch", "list"];
/// How many objects are listed at once, and written before it is looked again at the migration.
const PAGE: u32 = 500;
/// How many are written at once.
const AT_ONCE: usize = 8;

/// The resource as it is served, in the version that its group prefers.
pub(super) async fn served(
    client: &kube::Client,
    key: &ObjectKey,
) -> Result<Option<ServedKind>, Error> {
    let kinds = ServedKinds::discover(client).await?.kinds.into_iter();
    let is_it = |kind: &ServedKind| {
        let resource = &kind.resource;
        let is_classic = resource.api_version == davit_api::classic::API_VERSION;
        !is_classic && (&resource.group, &resource.plural) == (&key.namespace, &key.name)
    };
    let mut kinds = kinds.filter(is_it);
    Ok(kinds.next())
}

/// Why the objects of a resource cannot be written anew, if they cannot.
pub(super) fn cannot_be_migrated(kind: &ServedKind) -> Option<String> {
    let can = VERBS.iter().all(|verb| kind.supports(verb));
    let ApiResource {
        api_version,
        plural,
        ..
    } = &kind.resource;
    let verbs = VERBS.join(" ");
    let words = format!(
        "resource \"{api_version}, Resource={plural}\" does not support discovery operations: [{verbs}]"
    );
    (!can).then_some(words)
}

/// The resource version of now.
pub(super) async fn latest_version(
    client: &kube::Client,
    kind: &ServedKind,
) -> Result<String, Error> {
    let api: kube::Api<DynamicObject> = kube::Api::all_with(client.clone(), &kind.resource);
    let listed = api.list_metadata(&ListParams::default().limit(1)).await;
    let listed = listed.context(|| format!("list {}", kind.resource.plural))?;
    Ok(listed.metadata.resource_version.unwrap_or_default())
}

/// Whether a text is a resource version that can be compared with others.
pub(super) fn is_version(text: &str) -> bool {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    is_number && !text.is_empty() && !text.starts_with('0')
}

/// As numbers of any length.
fn compare(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// An object that is to be written, as it was listed.
#[derive(Debug, Clone)]
struct Item {
    namespace: Option<String>,
    name: String,
    uid: String,
    version: String,
}

/// What a migration has still to do.
#[derive(Debug)]
pub(super) struct Work {
    resource: ApiResource,
    left: Vec<Item>,
}

/// What became of a part of the work.
#[derive(Debug)]
pub(super) enum Batch {
    /// All objects are written.
    Done,
    /// Some are left.
    More,
    /// The API server could not take them now.
    TryAgain(Error),
    /// An object cannot be written; why.
    Failed(String),
}

/// What became of one object.
enum Outcome {
    Written,
    TryAgain(Error),
    Failed(String),
}

impl Work {
    /// All objects that were not written after `version`.
    pub(super) async fn gather(
        client: &kube::Client,
        kind: &ServedKind,
        version: &str,
    ) -> Result<Self, Error> {
        let resource = kind.resource.clone();
        let api: kube::Api<DynamicObject> = kube::Api::all_with(client.clone(), &resource);
        let (mut left, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let page = api.list_metadata(&params).await;
            let page = page.context(|| format!("list {}", resource.plural))?;
            left.extend(page.items.into_iter().filter_map(|object| {
                let meta = object.metadata;
                let item = Item {
                    namespace: meta.namespace,
                    name: meta.name?,
                    uid: meta.uid?,
                    version: meta.resource_version?,
                };
                compare(&item.version, version).is_le().then_some(item)
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Self { resource, left }),
            }
        }
    }

    /// Writes some of the objects.
    pub(super) async fn batch(&mut self, client: &kube::Client) -> Batch {
        let resource = &self.resource;
        let size = usize::try_from(PAGE).unwrap_or(usize::MAX);
        let items = self.left.split_off(self.left.len().saturating_sub(size));
        let writes = items.into_iter().map(|item| async move {
            let outcome = write(client, resource, &item).await;
            (item, outcome)
        });
        let mut outcomes = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
        let (mut again, mut failed) = (None, None);
        while let Some((item, outcome)) = outcomes.next().await {
            match outcome {
                Outcome::Written => {}
                Outcome::TryAgain(error) => {
                    self.left.push(item);
                    again = Some(error);
                }
                Outcome::Failed(words) => failed = Some(words),
            }
        }
        match (failed, again) {
            (Some(words), _) => Batch::Failed(words),
            (None, Some(error)) => Batch::TryAgain(error),
            (None, None) if self.left.is_empty() => Batch::Done,
            (None, None) => Batch::More,
        }
    }
}

/// Applies nothing to an object as it was listed. With its UID nothing is made that has gone; with its version nothing is
/// written that somebody else has written since.
async fn write(client: &kube::Client, resource: &ApiResource, item: &Item) -> Outcome {
    let api: kube::Api<DynamicObject> = match &item.namespace {
        Some(namespace) => kube::Api::namespaced_with(client.clone(), namespace, resource),
        None => kube::Api::all_with(client.clone(), resource),
    };
    let nothing = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"uid": item.uid, "resourceVersion": item.version},
    });
    let params = PatchParams::apply(NAME);
    let written = api
        .patch_metadata(&item.name, &params, &Patch::Apply(&nothing))
        .await;
    match written {
        Ok(_) => Outcome::Written,
        Err(error) => judge(error, item),
    }
}

fn judge(error: kube::Error, item: &Item) -> Outcome {
    let code = match &error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    match code {
        // It was written since, or has gone: it is not of the old version any more.
        Some(404 | 409) => Outcome::Written,
        None | Some(429 | 500 | 503 | 504) => Outcome::TryAgain(Error::Api {
            what: format!("write {} anew", item.name),
            source: error,
        }),
        Some(_) => Outcome::Failed(message_of(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_of_any_length() {
        assert!(is_version("7") && is_version("123456789012345678901234567890"));
        assert!(!is_version("") && !is_version("07") && !is_version("1a"));
        assert_eq!(compare("9", "10"), Ordering::Less);
        assert_eq!(
            compare("100000000000000000001", "100000000000000000000"),
            Ordering::Greater
        );
    }

    #[test]
    fn what_was_written_meanwhile_is_done_and_what_is_refused_is_told() {
        let item = Item {
            namespace: None,
            name: "a".to_owned(),
            uid: String::new(),
            version: String::new(),
        };
        let of = |code: u16| {
            let status =
                json!({"status": "Failure", "code": code, "reason": "R", "message": "why"});
            let status = Box::new(serde_json::from_value(status).unwrap());
            judge(kube::Error::Api(status), &item)
        };
        assert!(matches!(of(409), Outcome::Written) && matches!(of(404), Outcome::Written));
        assert!(matches!(of(503), Outcome::TryAgain(_)));
        assert!(matches!(of(422), Outcome::Failed(words) if words == "why"));
    }
}
