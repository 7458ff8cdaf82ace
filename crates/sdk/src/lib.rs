//! Libraries for authors of programs that work beside a Kubernetes node agent.
//!
//! * [`deviceplugin`]: serve devices. Implement [`deviceplugin::DevicePlugin`], hand it to
//!   [`deviceplugin::PluginServer`]; registration, registration after the agent restarted, and a
//!   clean end are taken care of.
//! * [`podresources`]: ask which pod holds which devices.
//!
//! Both work with davit and with the kubelet.

#![forbid(unsafe_code)]

pub mod deviceplugin;
pub mod podresources;

/// For implementing [`deviceplugin::DevicePlugin`].
pub use async_trait::async_trait;
/// For the device list of [`deviceplugin::DevicePlugin::devices`].
pub use tokio::sync::watch;
