//! The plans over a store in memory that behaves as the API server does: versions, and status apart from the rest.

mod crashes;
mod model;
mod rules;
