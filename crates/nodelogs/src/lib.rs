//! Logs of a node: of its containers ([`LogFile`], [`LogReader`], [`rotate_if_large`]), and of its services by query (KEP-2258, <https://kubernetes.io/docs/concepts/cluster-administration/system-logs/#log-query>):
//! what a request asks for ([`LogQuery`]), and the journal or the files below the directory of logs that answer it.
//!
//! A request names services, which the journal knows or which have a file of their name, or one file.
#![forbid(unsafe_code)]

mod answer;
mod containers;
mod files;
mod query;

pub use answer::answer;
pub use containers::{
    LogFile, LogReader, LogRotation, ShownLines, Writing, last_lines, remove_log, rotate_if_large,
};
pub use files::{LogPath, open, page};
pub use query::{Asked, LogQuery, QueryFault, ServiceQuery};
