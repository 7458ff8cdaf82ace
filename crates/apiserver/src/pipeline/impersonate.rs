//! Acting as somebody else (`kubectl --as`).
//!
//! Who may `impersonate` somebody may do everything that this one may. Constrained impersonation
//! asks for two permissions of other verbs: to be somebody, and to do as somebody what the request
//! does (KEP-5284).

use davit_access::{ANONYMOUS, MASTERS, RequestInfo, UNAUTHENTICATED, UserInfo, authz};
use davit_api::status::Status;
use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;

use super::authorize;
use crate::context::Context;
use crate::server::ApiServer;

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
    let whole = authorize_all(server, &context.user, &wanted).await;
    let user = match whole {
        Ok(()) => complete(wanted),
        // what is told is what the narrowest way lacks
        Err(refused) => match constrained(server, context, wanted).await {
            Ok(user) => user,
            Err(narrow) => return Err(narrow.map_or(refused, |narrow| *narrow)),
        },
    };
    tracing::debug!(by = context.user.name, user = user.name, "impersonation");
    context.user = user;
    davit_audit::impersonated(&context.user);
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

/// A part of whom the request is to be made as. Names of people and groups have letters of all languages; what is no text is not
/// left out: without it, it would be somebody else.
fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| Status::bad_request("an impersonation header is not UTF-8"))?;
    Ok(text.to_owned())
}

fn wanted(headers: &HeaderMap) -> Result<UserInfo, Status> {
    let one = |name: &str| headers.get(name).map(text).transpose();
    let mut user = UserInfo {
        name: one(USER)?.unwrap_or_default(),
        uid: one(UID)?.unwrap_or_default(),
        ..UserInfo::default()
    };
    let groups = headers.get_all(GROUP).iter().map(text);
    user.groups = groups.collect::<Result<_, _>>()?;
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
            user.extra.entry(key).or_default().push(text(value)?);
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
        authz::check(&server.authorizer(), caller, &request).await?;
    }
    Ok(())
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE: &str = "system:node:";
const NODES: &str = "system:nodes";
/// Whose node a service account's token was made on.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// A way of constrained impersonation: its name in verbs, and whom it is asked about.
struct Mode {
    name: &'static str,
    identity: Vec<RequestInfo>,
}

/// The ways in which a caller could be what is wanted, the narrowest first.
fn modes(caller: &UserInfo, wanted: &UserInfo) -> Vec<Mode> {
    let alone = wanted.groups.is_empty() && wanted.uid.is_empty() && wanted.extra.is_empty();
    let one = |resource: &str, name: &str| attribute(AUTHENTICATION, resource, name);
    if let Some(node) = wanted.name.strip_prefix(NODE) {
        let mut modes = Vec::new();
        if !alone || node.is_empty() {
            return modes;
        }
        let own = caller.extra.get(NODE_NAME).map(Vec::as_slice);
        if caller.name.starts_with(SERVICE_ACCOUNT) && own == Some(&[node.to_owned()]) {
            modes.push(Mode {
                name: "associated-node",
                identity: vec![one("nodes", "")],
            });
        }
        modes.push(Mode {
            name: "arbitrary-node",
            identity: vec![one("nodes", node)],
        });
        return modes;
    }
    if let Some(account) = wanted.name.strip_prefix(SERVICE_ACCOUNT) {
        let Some((namespace, name)) = account.split_once(':').filter(|_| alone) else {
            return Vec::new();
        };
        let mut request = one("serviceaccounts", name);
        request.namespace = Some(namespace.to_owned());
        return vec![Mode {
            name: "serviceaccount",
            identity: vec![request],
        }];
    }
    // nobody becomes an administrator this way
    if wanted.groups.iter().any(|group| group == MASTERS) {
        return Vec::new();
    }
    let mut identity = vec![one("users", &wanted.name)];
    identity.extend(wanted.groups.iter().map(|group| one("groups", group)));
    if !wanted.uid.is_empty() {
        identity.push(one("uids", &wanted.uid));
    }
    for (key, values) in &wanted.extra {
        for value in values {
            let mut request = one("userextras", value);
            request.subresource.clone_from(key);
            identity.push(request);
        }
    }
    vec![Mode {
        name: "user-info",
        identity,
    }]
}

/// The user as whom the request may be made by constrained impersonation.
///
/// # Errors
/// What the first way lacks, where there is one.
async fn constrained(
    server: &ApiServer,
    context: &Context,
    wanted: UserInfo,
) -> Result<UserInfo, Option<Box<Status>>> {
    let caller = &context.user;
    let mut refused = None;
    'modes: for Mode { name, identity } in modes(caller, &wanted) {
        let actions = authorize::demanded(context).map(|mut action| {
            action.verb = format!("impersonate-on:{name}:{}", action.verb);
            action
        });
        let identity = identity.into_iter().map(|mut request| {
            request.verb = format!("impersonate:{name}");
            request
        });
        for request in actions.chain(identity) {
            if let Err(lacks) = authz::check(&server.authorizer(), caller, &request).await {
                refused.get_or_insert(Box::new(lacks));
                continue 'modes;
            }
        }
        let mut user = complete(wanted);
        if user.name.starts_with(NODE) {
            user.add_group(NODES);
        }
        return Ok(user);
    }
    Err(refused)
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
        user.add_group(davit_access::AUTHENTICATED);
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_whom_is_wanted_is_left_out() {
        let of = |named: &[(&'static str, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in named {
                headers.append(*name, HeaderValue::from_bytes(value).unwrap());
            }
            wanted(&headers)
        };
        let user = of(&[
            (USER, "Zoë".as_bytes()),
            (GROUP, "Développeurs".as_bytes()),
            (GROUP, b"b"),
        ])
        .unwrap();
        assert_eq!(user.name, "Zoë");
        assert_eq!(user.groups, ["Développeurs", "b"]);
        for name in [UID, GROUP, "impersonate-extra-team"] {
            assert!(of(&[(USER, b"a"), (name, b"d\xe9")]).is_err(), "{name}");
        }
    }

    #[test]
    fn ways_of_constrained_impersonation_follow_from_the_name() {
        let names = |caller: &UserInfo, wanted: &UserInfo| -> Vec<&'static str> {
            modes(caller, wanted).iter().map(|mode| mode.name).collect()
        };
        let user = |name: &str| UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        };
        let mut agent = user("system:serviceaccount:kube-system:agent");
        assert_eq!(names(&agent, &user("jane")), ["user-info"]);
        assert_eq!(names(&agent, &user("system:node:n")), ["arbitrary-node"]);
        agent
            .extra
            .insert(NODE_NAME.to_owned(), vec!["n".to_owned()]);
        let both = ["associated-node", "arbitrary-node"];
        assert_eq!(names(&agent, &user("system:node:n")), both);
        assert_eq!(names(&agent, &user("system:node:m")), ["arbitrary-node"]);
        let account = user("system:serviceaccount:a:b");
        assert_eq!(names(&agent, &account), ["serviceaccount"]);
        let mut more = account.clone();
        more.groups.push("g".to_owned());
        assert!(names(&agent, &more).is_empty());
        let mut master = user("jane");
        master.groups.push(MASTERS.to_owned());
        assert!(names(&agent, &master).is_empty());
    }
}
