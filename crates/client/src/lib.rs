//! Kubernetes clients over HTTPS or in process, informers, events, leases.
