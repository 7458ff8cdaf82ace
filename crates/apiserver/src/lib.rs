//! The API server: request pipeline, handlers, writes, discovery, aggregation, custom kinds.
//!
//! [`ApiServer`] is made over a [`davit_store::Store`] and is called either through
//! [`ApiServer::serve`] (HTTPS) or, by components in the same process, through
//! [`ApiServer::call`] and the tower service of [`ApiServer::service`]; both take the same way
//! through the pipeline. Kinds are data: every resource is a row of the
//! [`davit_registry::Registry`], and one set of handlers serves all rows. What is particular to a kind is its strategy.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]
// every error of a request is a Status, which is made once and moved a few times on a cold path
#![allow(clippy::result_large_err)]

mod aggregation;
mod aggregator;
mod backup;
mod body;
mod components;
mod context;
mod crd;
mod discovery;
mod event_ttl;
mod flow_objects;
mod handlers;
mod health;
mod hop_headers;
mod in_flight;
mod metrics;
mod negotiate;
mod node_client;
mod node_rounds;
mod openapi;
mod ownership;
mod pipeline;
mod posted;
mod proxy;
mod resource_metrics;
mod respond;
mod root;
mod running;
mod server;
mod service_addresses;
mod service_endpoints;
mod stored_form;
mod subresources;
pub mod version;
mod virtuals;
mod websocket;
mod writes;

pub use body::{BoxError, ResponseBody};
pub use davit_netplan::{NodePorts, ServiceRange, ServiceRangeError, ServiceRanges};
pub use running::InProcess;
pub use server::{
    ApiServer, DEFAULT_ISSUER, Error, HTTP2_STREAMS, KubeletAuthority, MIN_REQUEST_TIMEOUT,
    Options, ServingFiles,
};
pub use stored_form::KubernetesForm;
