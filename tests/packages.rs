//! Packages of others on davit: what helm, cert-manager and metrics-server do on any cluster.
//!
//! The programs are built from their public modules (folders below `packages/`), their definitions and charts are read
//! from the same modules at test time.

mod cert_manager;
mod helm;
mod metrics_server;
mod programs;
