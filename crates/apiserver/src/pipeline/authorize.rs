//! The authorization stage.

use davit_api::status::{Qualified, Status};

use crate::authz::{self, Attributes, Decision};
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::user::UserInfo;

/// Refuses (403) what no authorizer allows.
pub(crate) async fn check(
    server: &ApiServer,
    user: &UserInfo,
    request: &RequestInfo,
) -> Result<(), Status> {
    match server
        .authorizer()
        .decide(&Attributes { user, request })
        .await
    {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(refused(user, request, &reason))
        }
    }
}

pub(super) fn refused(user: &UserInfo, request: &RequestInfo, reason: &str) -> Status {
    let why = authz::refusal(user, request, reason);
    let why = why
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if request.is_resource {
        Status::forbidden(
            Qualified::new(&request.group, &request.resource),
            &request.name,
            why,
        )
    } else {
        Status::forbidden(Qualified::new("", ""), "", why)
    }
}
