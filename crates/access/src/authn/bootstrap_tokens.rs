//! Bootstrap tokens: `id.secret`, kept in Secrets of kube-system, by which nodes join.
//!
//! Specified in <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>.

use crate::user::UserInfo;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::meta;
use davit_client::bootstrap_token::{BootstrapToken, SECRET_NAMESPACE, SECRET_TYPE, secret_name};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::TokenView;

const GROUP: &str = "system:bootstrappers";

/// Who a bootstrap token stands for.
pub(super) async fn authenticate(
    server: &dyn TokenView,
    token: &BootstrapToken,
) -> Result<UserInfo, String> {
    let name = secret_name(token.id());
    let found = server.object("", "secrets", SECRET_NAMESPACE, &name).await;
    let held = found
        .map_err(|status| status.message)?
        .ok_or_else(|| format!("no secret {name}"))?;
    user(&held, token, jiff::Timestamp::now())
}

fn user(held: &Value, token: &BootstrapToken, now: jiff::Timestamp) -> Result<UserInfo, String> {
    let field = |key: &str| -> String {
        let encoded = held["data"][key].as_str().unwrap_or_default();
        let bytes = STANDARD.decode(encoded).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    if meta::deletion_timestamp(held).is_some() || held["type"] != SECRET_TYPE {
        return Err("the secret is no bootstrap token".to_owned());
    }
    // digests, so that the time taken says nothing about the secret
    if field("token-id") != token.id()
        || Sha256::digest(field("token-secret")) != Sha256::digest(token.secret())
    {
        return Err("the token does not match".to_owned());
    }
    let expiration = field("expiration");
    if !expiration.is_empty() {
        let end: jiff::Timestamp = expiration
            .parse()
            .map_err(|_| "the expiration of the token cannot be read".to_owned())?;
        if end <= now {
            return Err("the token has expired".to_owned());
        }
    }
    if field("usage-bootstrap-authentication") != "true" {
        return Err("the token is not for authentication".to_owned());
    }
    let mut user = UserInfo {
        name: format!("system:bootstrap:{}", token.id()),
        ..UserInfo::default()
    };
    user.add_group(GROUP);
    for group in field("auth-extra-groups").split(',').map(str::trim) {
        if group.is_empty() {
            continue;
        }
        if !group.starts_with("system:bootstrappers:") {
            return Err(format!(
                "group {group:?} does not begin with system:bootstrappers:"
            ));
        }
        user.add_group(group);
    }
    user.add_group(crate::user::AUTHENTICATED);
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn item_184_bootstrap_tokens_give_their_groups_until_they_expire() {
        let token = |text: &str| text.parse::<BootstrapToken>().unwrap();
        let data = |text: &str| STANDARD.encode(text);
        let secret = json!({
            "type": SECRET_TYPE,
            "data": {
                "token-id": data("abcdef"),
                "token-secret": data("0123456789abcdef"),
                "expiration": data("2026-06-01T00:00:00Z"),
                "usage-bootstrap-authentication": data("true"),
                "auth-extra-groups": data("system:bootstrappers:edge"),
            },
        });
        let at = |text: &str| text.parse().unwrap();
        let early = at("2026-05-01T00:00:00Z");
        let found = user(&secret, &token("abcdef.0123456789abcdef"), early).unwrap();
        assert_eq!(found.name, "system:bootstrap:abcdef");
        assert_eq!(
            found.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:edge",
                "system:authenticated"
            ]
        );
        assert!(user(&secret, &token("abcdef.0123456789abcdee"), early).is_err());
        let late = at("2026-07-01T00:00:00Z");
        assert!(user(&secret, &token("abcdef.0123456789abcdef"), late).is_err());
    }
}
