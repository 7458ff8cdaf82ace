//! The cluster's DNS server: names of Services, endpoints and pods from informers, all others from upstream.
//!
//! [`zone`] decides and does no I/O, [`message`] is the wire format, [`server`] listens, [`forward`] asks others.
//! Specification: "Kubernetes DNS-Based Service Discovery" 1.1.0; codes as CoreDNS answers.
#![forbid(unsafe_code)]

pub mod forward;
pub mod message;
pub mod metrics;
pub mod resolv_conf;
pub mod server;
pub mod zone;

pub use forward::{ForwardError, Forwarder, Times, Upstreams};
pub use message::{Outcome, Request, Transport};
pub use metrics::Metrics;
pub use server::{Limits, Server};
pub use zone::{Answer, Zone, ZoneError};
