//! The connections of a server that strangers reach.
//!
//! Everybody may connect, so connections are what is easiest to exhaust. They are held in three pools: those of strangers
//! on the network, those of strangers on this machine, and those whose client has shown who it is. Within a pool everybody
//! may hold as many as are still free, so that somebody who takes all they can get leaves as many for the others; who
//! wants more than that loses the own connection that is worth least. A connection that is accepted is never the one that
//! must wait: the accept loop does not stop.
//!
//! TLS handshakes are worked on in turns, by address, so that whoever begins most of them waits for his own only.
//!
//! A connection on which nothing is asked for is closed after a while, and so is one whose client asks and does not take
//! the answer, piece by piece where it goes on. What answers hold until they are taken is counted by user, in the same way as
//! connections; so are upgraded connections, which are closed when nothing has come or gone for long.
//!
//! A browser shows its client certificate whichever page asks: what another site's page asks for is told apart ([`cross_site`]).
//!
//! What servers tell of themselves has one form, too: pages of metrics, and what came of their health checks.
#![forbid(unsafe_code)]

mod accept;
pub mod addresses;
mod body;
mod connections;
pub mod cross_site;
mod entry;
mod exchange;
mod exposition;
mod handshakes;
#[cfg(test)]
mod heads;
mod health;
mod http;
mod limits;
mod passed_on;
mod pool;
mod resource_page;
mod samples;
mod shares;
mod socket;
mod tls;
mod unread;
mod unsent;
pub mod websocket;

pub use accept::accept;
pub use body::TrackedBody;
pub use connections::{Connections, Lease};
pub use exchange::{AnswerKind, Busy, Exchange};
pub use exposition::{PROMETHEUS, metrics_page};
pub use handshakes::handshake;
pub use health::HealthTallies;
pub use http::{HttpLimits, http};
pub use limits::{ConnectionLimits, IDLE};
pub use passed_on::{ON_BEHALF_OF, counted_as};
pub use resource_page::{ContainerUseKey, MeasuredUse, ResourceScrape, read_resource_page};
pub use samples::MetricSample;
pub use shares::{Share, Shares};
pub use socket::Socket;
pub use tls::{TlsPolicy, TlsPolicyError};
pub use unread::{ReturnedBody, UnreadBody};
