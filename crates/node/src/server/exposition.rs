//! Answers in Prometheus' text format.

use super::{set_type, text};
use davit_streaming::Body;
use http::{Response, StatusCode};

/// The answer with such a text.
pub(super) fn serve_text(encoded: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, encoded);
    set_type(&mut response, davit_listen::PROMETHEUS);
    response
}
