//! The crate with a driver at the other end of a socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod mock;
mod requests;
