//! The authorization stage.

use davit_access::authz::{self, Attributes, Decision};
use davit_access::{RequestInfo, UserInfo};
use davit_api::status::Status;
use http::header::UPGRADE;

use crate::context::Context;
use crate::proxy::only_reads;
use crate::server::ApiServer;

/// What the caller must be allowed: the request as it is, and `create` besides where by whatever
/// method it opens a stream into a container or has a node's agent do something.
pub(super) fn demanded(context: &Context) -> impl Iterator<Item = RequestInfo> {
    let info = &context.info;
    let acts = match (
        info.group.as_str(),
        info.resource.as_str(),
        info.subresource.as_str(),
    ) {
        ("", "pods", "exec" | "attach" | "portforward") => true,
        ("", "nodes", "proxy") => {
            context.headers.contains_key(UPGRADE) || !(info.verb == "get" && only_reads(&info.rest))
        }
        _ => false,
    };
    let besides = (acts && info.verb != "create").then(|| RequestInfo {
        verb: "create".to_owned(),
        ..info.clone()
    });
    std::iter::once(info.clone()).chain(besides)
}

/// As [`check`], for the request itself: the audit log learns of the decision.
pub(super) async fn request(server: &ApiServer, context: &Context) -> Result<(), Status> {
    for demanded in demanded(context) {
        one(server, &context.user, &demanded).await?;
    }
    Ok(())
}

async fn one(server: &ApiServer, user: &UserInfo, request: &RequestInfo) -> Result<(), Status> {
    let began = std::time::Instant::now();
    let asked = Attributes { user, request };
    let decision = server.authorizer().decide(&asked).await;
    let (word, reason, result) = match &decision {
        Decision::Allow(reason) => ("allow", reason, "allowed"),
        Decision::Deny(reason) => ("forbid", reason, "denied"),
        Decision::NoOpinion(reason) => ("forbid", reason, "no-opinion"),
    };
    let metrics = &server.metrics().access;
    metrics.authorized(result, began.elapsed());
    davit_audit::annotate("authorization.k8s.io/decision", word);
    davit_audit::annotate("authorization.k8s.io/reason", reason);
    match &decision {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(authz::refused(user, request, reason))
        }
    }
}
