//! gRPC over unix sockets, as Go peers speak it.
//!
//! Go programs often dial a socket by its bare path and then send that path, raw or
//! percent-encoded, as `:authority`. The HTTP/2 stack below tonic resets such streams.
//! Every connection a [`Listener`] accepts therefore passes through [`Repaired`], which puts
//! `localhost` in the place of an authority that does not parse. Clients made here always
//! send `localhost`.

mod address;
mod authority;
mod client;
mod deadline;
mod listener;
mod seats;
mod stream;

pub use address::Address;
pub use authority::RepairError;
pub use client::{connect, connect_lazy, connect_observed, connect_once};
pub use deadline::{Deadline, DeadlineLayer};
pub use listener::{Layers, Listener, Peer, create_dir, remove_stale_sockets, serve, server};
pub use stream::Repaired;

use std::path::PathBuf;

/// Largest message to accept or send, in bytes: what podresources clients and container
/// runtimes of the field use. Pass it to `max_decoding_message_size` and
/// `max_encoding_message_size` of generated clients and servers, whose own default is 4 MiB.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Why a socket could not be served or reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file system operation on the socket or its folder failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// The operation, such as `bind`.
        what: &'static str,
        /// The file it was about.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// There is a file with the socket's name that is not a socket; it is left alone.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// Nobody accepted a connection in time.
    #[error("dial {path}: {cause} (gave up after {after:?})")]
    Dial {
        /// The socket.
        path: PathBuf,
        /// The last failure.
        cause: String,
        /// How long it was tried.
        after: std::time::Duration,
    },
    /// The server stopped with an error of its own.
    #[error("serve {path}: {source}")]
    Serve {
        /// The socket.
        path: PathBuf,
        /// What tonic reported.
        source: tonic::transport::Error,
    },
}

impl Error {
    fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            what,
            path: path.into(),
            source,
        }
    }
}
