//! What a container gets for its devices.

use davit_proto::deviceplugin::v1beta1 as pb;

/// What a container's configuration gets for its devices; built step by step.
///
/// ```
/// use davit_sdk::deviceplugin::Allocation;
///
/// let given = Allocation::new()
///     .env("FOO_DEVICES", "0,1")
///     .device("/dev/foo0", "/dev/foo/0", "rw")
///     .read_only_mount("/opt/foo/lib", "/usr/lib/foo")
///     .annotation("foo.example/devices", "0,1")
///     .cdi("foo.example/device=0");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct Allocation(pb::ContainerAllocateResponse);

impl Allocation {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An environment variable. The pod's own variable of the same name wins.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.envs.insert(name.into(), value.into());
        self
    }

    /// A device node of the host. `permissions` are letters of `r`, `w` and `m` (mknod).
    pub fn device(
        mut self,
        host_path: impl Into<String>,
        container_path: impl Into<String>,
        permissions: impl Into<String>,
    ) -> Self {
        self.0.devices.push(pb::DeviceSpec {
            container_path: container_path.into(),
            host_path: host_path.into(),
            permissions: permissions.into(),
        });
        self
    }

    /// A file or folder of the host.
    pub fn mount(self, host_path: impl Into<String>, container_path: impl Into<String>) -> Self {
        self.any_mount(host_path.into(), container_path.into(), false)
    }

    /// A file or folder of the host that the container cannot change.
    pub fn read_only_mount(
        self,
        host_path: impl Into<String>,
        container_path: impl Into<String>,
    ) -> Self {
        self.any_mount(host_path.into(), container_path.into(), true)
    }

    fn any_mount(mut self, host_path: String, container_path: String, read_only: bool) -> Self {
        self.0.mounts.push(pb::Mount {
            container_path,
            host_path,
            read_only,
        });
        self
    }

    /// An annotation of the container in the runtime.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.annotations.insert(key.into(), value.into());
        self
    }

    /// A fully qualified CDI device name, `vendor.example/class=name`.
    pub fn cdi(mut self, name: impl Into<String>) -> Self {
        self.0.cdi_devices.push(pb::CdiDevice { name: name.into() });
        self
    }

    pub(super) fn into_message(self) -> pb::ContainerAllocateResponse {
        self.0
    }
}
