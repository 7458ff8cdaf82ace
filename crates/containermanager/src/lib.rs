//! Everything that pods hold exclusively on a node: devices of plugins and of resource claims, CPUs and memory.
//!
//! The node agent talks to [`ContainerManager`] and hands in what this crate does not know: the pods ([`ActivePods`]), who
//! takes CSI drivers in ([`PluginHandler`]), where claims are read ([`dra::ClaimApi`]). Inside stand the allocation log
//! ([`allocation`]), the device manager ([`devices`]), the CPU and memory managers ([`compute`]), dynamic resource allocation
//! ([`dra`]), the plugin registry and the podresources service ([`podresources`]).
//!
//! Order of calls: [`ContainerManager::start`], [`adopt`](ContainerManager::adopt) with what
//! the runtime runs, [`sources_ready`](ContainerManager::sources_ready) once the pods of the
//! node are known; then for each pod [`admit`](ContainerManager::admit), for each container
//! at each of its starts [`container_options`](ContainerManager::container_options), and
//! [`release`](ContainerManager::release) when the pod is gone or terminal and its containers
//! have ended.
#![forbid(unsafe_code)]

pub mod allocation;
mod answer;
mod checksum;
pub mod compute;
mod config;
mod container_manager;
mod counted_names;
pub mod devices;
pub mod dra;
mod plugin_handler;
mod plugins;
pub mod podresources;
mod rate;

pub use answer::{ContainerOptions, FoundContainer, OptionsError, Rejection, ResourceCount};
pub use config::{ActivePods, Config, StartError};
pub use container_manager::ContainerManager;
pub use plugin_handler::{PluginHandler, PluginHandlerError};
pub use rate::{Limit, NotARate, Rate};
