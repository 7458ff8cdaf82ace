//! Libraries for authors of programs that work beside a Kubernetes node agent.
//!
//! * [`classic`]: be a driver of classic dynamic resource allocation (`v1alpha1`), which negotiates
//!   with the scheduler: its controller and its node plugin.
//! * [`deviceplugin`]: serve devices. Implement [`deviceplugin::DevicePlugin`], hand it to
//!   [`deviceplugin::PluginServer`]; registration, registration after the agent restarted, and a
//!   clean end are taken care of.
//! * [`dra`]: be a driver of dynamic resource allocation. Implement [`dra::Driver`], hand it to
//!   [`dra::NodePlugin`], and tell a [`dra::Publisher`] which devices there are.
//! * [`podresources`]: ask which pod holds which devices.
//!
//! All work with davit and with the kubelet.

#![forbid(unsafe_code)]

mod agent;
#[cfg(feature = "dra")]
pub mod classic;
pub mod deviceplugin;
#[cfg(feature = "dra")]
pub mod dra;
pub mod podresources;

/// For implementing [`deviceplugin::DevicePlugin`] and [`dra::Driver`].
pub use async_trait::async_trait;
/// For the device list of [`deviceplugin::DevicePlugin::devices`].
pub use tokio::sync::watch;
/// For handing objects of the Kubernetes API to [`dra`].
#[cfg(feature = "dra")]
pub use {k8s_openapi, kube};
