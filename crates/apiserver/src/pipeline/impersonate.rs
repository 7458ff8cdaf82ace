//! Acting as somebody else (`kubectl --as`).

use davit_api::status::Status;
use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::authorize;
use crate::context::Context;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::user::{ANONYMOUS, UNAUTHENTICATED, UserInfo};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Replaces the caller when impersonation headers are present and the caller may do that.
pub(super) async fn apply(server: &ApiServer, context: &mut Context) -> Result<(), Status> {
    let asked = context
        .headers
        .keys()
        .any(|name| name.as_str().starts_with("impersonate-"));
    if !asked {
        return Ok(());
    }
    let wanted = wanted(&context.headers)?;
    authorize_all(server, &context.user, &wanted).await?;
    tracing::debug!(by = context.user.name, user = wanted.name, "impersonation");
    context.user = complete(wanted);
    crate::audit::impersonated(&context.user);
    let names: Vec<_> = context
        .headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in names {
        context.headers.remove(name);
    }
    Ok(())
}

fn wanted(headers: &HeaderMap) -> Result<UserInfo, Status> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let mut user = UserInfo {
        name: text(USER),
        uid: text(UID),
        ..UserInfo::default()
    };
    user.groups = headers
        .get_all(GROUP)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
            let value = value.to_str().unwrap_or_default().to_owned();
            user.extra.entry(key).or_default().push(value);
        }
    }
    if user.name.is_empty() {
        return Err(Status::bad_request(
            "requested impersonation without impersonating a user",
        ));
    }
    Ok(user)
}

async fn authorize_all(
    server: &ApiServer,
    caller: &UserInfo,
    wanted: &UserInfo,
) -> Result<(), Status> {
    let mut requests = Vec::new();
    match wanted
        .name
        .strip_prefix(SERVICE_ACCOUNT)
        .and_then(|rest| rest.split_once(':'))
    {
        Some((namespace, name)) => {
            let mut request = attribute("", "serviceaccounts", name);
            request.namespace = Some(namespace.to_owned());
            requests.push(request);
        }
        None => requests.push(attribute("", "users", &wanted.name)),
    }
    requests.extend(
        wanted
            .groups
            .iter()
            .map(|group| attribute("", "groups", group)),
    );
    if !wanted.uid.is_empty() {
        requests.push(attribute("authentication.k8s.io", "uids", &wanted.uid));
    }
    for (key, values) in &wanted.extra {
        for value in values {
            let mut request = attribute("authentication.k8s.io", "userextras", value);
            request.subresource.clone_from(key);
            requests.push(request);
        }
    }
    for request in requests {
        authorize::check(server, caller, &request).await?;
    }
    Ok(())
}

fn attribute(group: &str, resource: &str, name: &str) -> RequestInfo {
    RequestInfo {
        verb: "impersonate".to_owned(),
        is_resource: true,
        prefix: "api".to_owned(),
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        ..RequestInfo::default()
    }
}

fn complete(mut user: UserInfo) -> UserInfo {
    if let Some((namespace, _)) = user
        .name
        .strip_prefix(SERVICE_ACCOUNT)
        .and_then(|rest| rest.split_once(':'))
        && user.groups.is_empty()
    {
        user.groups.push("system:serviceaccounts".to_owned());
        user.groups
            .push(format!("system:serviceaccounts:{namespace}"));
    }
    if user.name == ANONYMOUS {
        user.add_group(UNAUTHENTICATED);
    } else if !user.in_group(UNAUTHENTICATED) {
        user.add_group(crate::user::AUTHENTICATED);
    }
    user
}
