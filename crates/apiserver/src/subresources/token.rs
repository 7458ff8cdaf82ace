//! `serviceaccounts/{name}/token`: a token on request.

use davit_access::tokens;
use davit_access::tokens::{
    Audiences, Claims, DEFAULT_EXPIRATION_SECONDS, KubernetesClaims, MAX_EXPIRATION_SECONDS,
    MIN_EXPIRATION_SECONDS, ObjectRef,
};
use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use davit_registry::{ResourceInfo, errors, object};
use http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{Expected, WriteOptions, decode_body, format, read_body};
use crate::respond;
use crate::server::ApiServer;

const GROUP: &str = "authentication.k8s.io";

/// `POST serviceaccounts/{name}/token`.
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let options = WriteOptions::parse(context, "CreateOptions", false)?;
    let expected = Expected::built_in(GROUP, "v1", "TokenRequest")?;
    let format = format(&context.headers)?;
    let bytes = read_body(request.into_body()).await?;
    let mut wanted = decode_body(context, &bytes, format, &expected, options.validation)?;
    let (namespace, name) = (context.namespace(), context.info.name.as_str());
    check_place(&wanted, namespace, name)?;
    let Some(account) = server
        .object("", "serviceaccounts", namespace, name)
        .await?
    else {
        return Err(Status::not_found(resource.qualified(), name));
    };
    check_uid(&wanted, &account)?;
    crate::posted::posted(
        server,
        context,
        resource,
        davit_admission::Operation::Create,
        name,
        options.dry_run,
        &mut wanted,
    )
    .await?;
    let keys = server.authenticator().token_keys();
    let (seconds, shortened) = keys.life().shortened(expiration(&wanted)?);
    if shortened {
        context.warnings.add(format!(
            "requested expiration of {} seconds shortened to {seconds} seconds",
            expiration(&wanted)?
        ));
    }
    let audiences = audiences(&wanted, keys.audiences());
    let now = jiff::Timestamp::now().as_second();
    object::set_meta(&mut wanted, "uid", object::uid(&account));
    let account = ObjectRef {
        name: name.to_owned(),
        uid: object::uid(&account).to_owned(),
    };
    let mut kubernetes = bound_claims(server, namespace, account, &wanted).await?;
    let here = audiences.iter().all(|a| keys.audiences().contains(a));
    let prolonged = keys.life().prolonged(seconds);
    let prolonged = prolonged.filter(|_| here && kubernetes.pod.is_some());
    if prolonged.is_some() {
        kubernetes.warnafter = Some(now + seconds);
    }
    let claims = Claims {
        aud: Audiences::Many(audiences.clone()),
        exp: now + prolonged.unwrap_or(seconds),
        iat: now,
        iss: keys.issuer().to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        kubernetes,
        nbf: now,
        sub: tokens::subject(namespace, name),
    };
    let token = keys.sign(&claims).map_err(Status::internal)?;
    let expires = jiff::Timestamp::from_second(now + seconds).map_err(Status::internal)?;
    object::set_meta(&mut wanted, "name", name);
    object::set_meta(&mut wanted, "namespace", namespace);
    object::set_meta(&mut wanted, "creationTimestamp", object::now());
    wanted["spec"]["audiences"] = json!(audiences);
    wanted["spec"]["expirationSeconds"] = json!(seconds);
    wanted["status"] = json!({ "token": token, "expirationTimestamp": object::seconds(expires) });
    respond::document(context, StatusCode::CREATED, &wanted)
}

fn kind() -> Qualified<'static> {
    Qualified::new(GROUP, "TokenRequest")
}

fn check_place(wanted: &Value, namespace: &str, name: &str) -> Result<(), Status> {
    let held = object::namespace(wanted);
    if !held.is_empty() && held != namespace {
        return Err(Status::bad_request(errors::NAMESPACE_MISMATCH));
    }
    let named = object::name(wanted);
    if !named.is_empty() && named != name {
        let path = Path::new("metadata").child("name");
        let why = "must match the service account name if specified";
        let fault = FieldError::invalid(&path, named, why);
        return Err(Status::invalid(kind(), name, &[fault]));
    }
    Ok(())
}

/// A request for an account of that name that was made again since is not for this one
/// (TokenRequestServiceAccountUIDValidation).
fn check_uid(wanted: &Value, account: &Value) -> Result<(), Status> {
    let (asked, held) = (object::uid(wanted), object::uid(account));
    if asked.is_empty() || asked == held {
        return Ok(());
    }
    let why = format!(
        "the UID in the token request ({asked}) does not match the UID of the service account ({held})"
    );
    Err(Status::conflict(kind(), object::name(account), why))
}

fn expiration(wanted: &Value) -> Result<i64, Status> {
    let asked = wanted
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_i64);
    let seconds = asked.unwrap_or(DEFAULT_EXPIRATION_SECONDS);
    let path = Path::new("spec").child("expirationSeconds");
    let why = match seconds {
        ..MIN_EXPIRATION_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_EXPIRATION_SECONDS..=MAX_EXPIRATION_SECONDS => return Ok(seconds),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let fault = FieldError::invalid(&path, seconds, why);
    Err(Status::invalid(kind(), "", &[fault]))
}

fn audiences(wanted: &Value, default: &[String]) -> Vec<String> {
    let asked: Vec<String> = wanted
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if asked.is_empty() {
        default.to_vec()
    } else {
        asked
    }
}

/// The object the token lives and dies with.
async fn bound_claims(
    server: &ApiServer,
    namespace: &str,
    account: ObjectRef,
    wanted: &Value,
) -> Result<KubernetesClaims, Status> {
    let mut claims = KubernetesClaims {
        namespace: namespace.to_owned(),
        node: None,
        pod: None,
        secret: None,
        serviceaccount: account,
        warnafter: None,
    };
    let Some(bound) = wanted
        .pointer("/spec/boundObjectRef")
        .filter(|bound| bound.is_object())
    else {
        return Ok(claims);
    };
    let text = |key: &str| bound[key].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let version = text("apiVersion");
    // any version of the core group names the same kinds
    let (group, version) = davit_api::kinds::split_api_version(version);
    let (plural, place) = match (group, kind) {
        ("", "Pod") => ("pods", namespace),
        ("", "Secret") => ("secrets", namespace),
        ("", "Node") => ("nodes", ""),
        (_, kind) => {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let resource = Qualified::new("", plural);
    let Some(held) = server.object("", plural, place, name).await? else {
        return Err(Status::not_found(resource, name));
    };
    if !uid.is_empty() && uid != object::uid(&held) {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        );
        return Err(Status::conflict(Qualified::new("", kind), name, why));
    }
    let reference = ObjectRef {
        name: name.to_owned(),
        uid: object::uid(&held).to_owned(),
    };
    match kind {
        "Pod" => {
            check_pod(&held, name, &claims.serviceaccount.name)?;
            claims.node = node_of(server, &held).await?;
            claims.pod = Some(reference);
        }
        "Secret" => claims.secret = Some(reference),
        _ => claims.node = Some(reference),
    }
    Ok(claims)
}

fn check_pod(pod: &Value, name: &str, account: &str) -> Result<(), Status> {
    let runs_as = pod
        .pointer("/spec/serviceAccountName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if runs_as == account {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "cannot bind token for serviceaccount \"{account}\" to pod \"{name}\" running with \
         different serviceaccount name."
    )))
}

async fn node_of(server: &ApiServer, pod: &Value) -> Result<Option<ObjectRef>, Status> {
    let Some(name) = pod
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .filter(|n| !n.is_empty())
    else {
        return Ok(None);
    };
    let node = server.object("", "nodes", "", name).await?;
    let uid = node
        .map(|node| object::uid(&node).to_owned())
        .unwrap_or_default();
    Ok(Some(ObjectRef {
        name: name.to_owned(),
        uid,
    }))
}
