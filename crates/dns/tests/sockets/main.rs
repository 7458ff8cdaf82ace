//! The server and the forwarder over real sockets of the loopback link.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod forward;
mod server;
mod upstream;
