//! How long a request may take.

use std::time::Duration;

use davit_access::RequestInfo;
use davit_access::query::Query;
use davit_api::status::Status;

const LIMIT: Duration = Duration::from_secs(60);

/// The request's time limit: 60 s, shortened by `?timeout=`; none for long-running requests.
pub(super) fn of(info: &RequestInfo, query: &Query) -> Result<Option<Duration>, Status> {
    if info.is_long_running() {
        return Ok(None);
    }
    let Some(text) = query.text("timeout") else {
        return Ok(Some(LIMIT));
    };
    let asked = davit_api::time::parse_duration(text).map_err(|_| {
        Status::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration \"{text}\""
        ))
    })?;
    let asked = Duration::from_nanos(u64::try_from(asked).unwrap_or(0));
    if asked.is_zero() {
        return Ok(Some(LIMIT));
    }
    Ok(Some(asked.min(LIMIT)))
}
