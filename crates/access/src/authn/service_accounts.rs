//! Who a service account token stands for: signature and times, then whether what it is bound to
//! still exists.

use crate::tokens::{Claims, ObjectRef, TokenKeys};
use davit_api::meta;
use serde_json::Value;

use super::TokenView;
use crate::user::UserInfo;
use crate::warnings::Warnings;

/// A user and the audiences, of those asked for, that the token is good for.
#[derive(Debug, Clone)]
pub struct AuthenticatedToken {
    /// The user.
    pub user: UserInfo,
    /// For whom it is good.
    pub audiences: Vec<String>,
    pub(crate) note: Note,
}

impl AuthenticatedToken {
    /// The same with no audiences but those asked for.
    ///
    /// # Errors
    /// When the token is good for none of them.
    pub(super) fn good_for(mut self, asked: &[String]) -> Result<Self, String> {
        self.audiences.retain(|audience| asked.contains(audience));
        if self.audiences.is_empty() && !asked.is_empty() {
            return Err(format!("the token is not good for the audiences {asked:?}"));
        }
        Ok(self)
    }
}

/// What the user and the audit log are told of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// A warning for the user.
    pub(crate) warning: Option<String>,
    /// Key and value for the audit log.
    pub(crate) annotation: Option<(&'static str, String)>,
}

impl Note {
    /// Tells it.
    pub(crate) fn tell(self, warnings: &Warnings) {
        if let Some(warning) = self.warning {
            warnings.add(warning);
        }
        if let Some((key, text)) = self.annotation {
            warnings.annotate(key, text);
        }
    }
}

const STALE: &str = "authentication.k8s.io/stale-token";

pub(super) async fn authenticate(
    server: &dyn TokenView,
    keys: &TokenKeys,
    token: &str,
    audiences: &[String],
) -> Result<AuthenticatedToken, String> {
    let claims = keys
        .verify(token, audiences)
        .map_err(|error| error.to_string())?;
    let namespace = &claims.kubernetes.namespace;
    let account = &claims.kubernetes.serviceaccount;
    bound(server, "serviceaccounts", namespace, account).await?;
    if let Some(pod) = &claims.kubernetes.pod {
        bound(server, "pods", namespace, pod).await?;
    }
    if let Some(secret) = &claims.kubernetes.secret {
        bound(server, "secrets", namespace, secret).await?;
    }
    if let Some(node) = claims
        .kubernetes
        .node
        .as_ref()
        .filter(|_| claims.kubernetes.pod.is_none())
    {
        bound(server, "nodes", "", node).await?;
    }
    let good_for = claims.aud.as_slice();
    let audiences = audiences
        .iter()
        .filter(|a| good_for.contains(a))
        .cloned()
        .collect();
    Ok(AuthenticatedToken {
        user: user(&claims),
        audiences,
        note: staleness(server, &claims),
    })
}

/// Tokens live on beyond the time they were asked for; who uses one then is told of.
fn staleness(server: &dyn TokenView, claims: &Claims) -> Note {
    let metrics = server.access_metrics();
    let late = claims.kubernetes.warnafter.and_then(|warn| {
        let late = jiff::Timestamp::now().as_second() - warn;
        (late > 0).then_some(late)
    });
    let Some(late) = late else {
        metrics.valid_tokens.inc();
        return Note::default();
    };
    metrics.stale_tokens.inc();
    let text = format!(
        "subject: {}, seconds after warning threshold: {late}",
        claims.sub
    );
    Note {
        warning: None,
        annotation: Some((STALE, text)),
    }
}

/// The object a token is bound to must be the one it was bound to.
async fn bound(
    server: &dyn TokenView,
    plural: &str,
    namespace: &str,
    wanted: &ObjectRef,
) -> Result<(), String> {
    let found = server.object("", plural, namespace, &wanted.name).await;
    let found = found.map_err(|status| status.message)?;
    match found {
        Some(held) if meta::uid(&held) == wanted.uid && has_ended(&held) => {
            Err(format!("{plural} {} is being deleted", wanted.name))
        }
        Some(held) if meta::uid(&held) == wanted.uid => Ok(()),
        Some(_) => Err(format!(
            "{plural} {} was deleted and made anew",
            wanted.name
        )),
        None => Err(format!("{plural} {} does not exist any more", wanted.name)),
    }
}

/// How long after its deletion time the tokens of an object that is still there are good, seconds.
const AFTER_DELETION: i64 = 60;

/// Whether an object's tokens have ended because it is being deleted: finalizers may keep it for ever.
pub(super) fn has_ended(held: &Value) -> bool {
    let Some(deleted) = held["metadata"]["deletionTimestamp"].as_str() else {
        return false;
    };
    let deleted = deleted.parse::<jiff::Timestamp>();
    let now = jiff::Timestamp::now().as_second();
    deleted.map_or(true, |at| at.as_second() + AFTER_DELETION < now)
}

fn user(claims: &Claims) -> UserInfo {
    let bound = &claims.kubernetes;
    let namespace = &bound.namespace;
    let mut user = UserInfo::service_account(namespace, &bound.serviceaccount.name);
    user.uid.clone_from(&bound.serviceaccount.uid);
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(
                format!("authentication.kubernetes.io/{key}"),
                vec![value.to_owned()],
            );
        }
    };
    if !claims.jti.is_empty() {
        extra("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &bound.pod {
        extra("pod-name", &pod.name);
        extra("pod-uid", &pod.uid);
    }
    if let Some(node) = &bound.node {
        extra("node-name", &node.name);
        extra("node-uid", &node.uid);
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A reviewer took a token for this server for one of its own.
    #[test]
    fn a_token_is_good_for_an_audience_that_was_asked_for() {
        let list = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
        let token = || AuthenticatedToken {
            user: UserInfo::new("u", &[]),
            audiences: list(&["here", "there"]),
            note: Note::default(),
        };
        assert!(token().good_for(&list(&["vault"])).is_err());
        let good = token().good_for(&list(&["vault", "there"])).unwrap();
        assert_eq!(good.audiences, ["there"]);
    }

    #[test]
    fn tokens_end_a_minute_after_the_deletion_of_what_they_are_bound_to() {
        let now = jiff::Timestamp::now();
        let deleted = |seconds: i64| {
            let at = now + jiff::SignedDuration::from_secs(seconds);
            json!({"metadata": {"deletionTimestamp": davit_api::time::format(at)}})
        };
        assert!(!has_ended(&json!({"metadata": {}})));
        assert!(!has_ended(&deleted(30)) && !has_ended(&deleted(-30)));
        assert!(has_ended(&deleted(-90)));
        assert!(has_ended(&json!({"metadata": {"deletionTimestamp": "?"}})));
    }
}
