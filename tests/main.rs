//! Tests of whole clusters: each module starts the real binary, with real parts. A part that the machine lacks is a printed skip.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod aggregation;
mod attacks;
mod auth;
mod backup;
mod cni;
mod components;
mod console;
mod controllers;
mod crash;
mod crds;
mod devices;
mod differential;
mod docs;
mod down;
mod dra;
mod dra_classic;
mod dra_crash;
mod dra_drivers;
mod elections;
mod envtest;
mod etcd;
mod gpu_harness;
mod harness;
mod history;
mod kubectl;
mod lab;
mod network;
mod node_harness;
mod packages;
mod peers;
mod plugins;
mod pods;
mod sampledb;
mod scheduler;
mod storage;
mod storage_migration;
mod testing;
mod webhooks;
