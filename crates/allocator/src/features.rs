//! The feature gates of allocation.

/// The feature gates that matter here. The default is that of 1.36.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one feature gate, on or off"
)]
pub struct Features {
    /// DRAAdminAccess.
    pub admin_access: bool,
    /// DRAPrioritizedList.
    pub prioritized_list: bool,
    /// DRAPartitionableDevices.
    pub partitionable_devices: bool,
    /// DRADeviceTaints.
    pub device_taints: bool,
    /// DRADeviceBindingConditions together with DRAResourceClaimDeviceStatus.
    pub binding_conditions: bool,
    /// DRAConsumableCapacity.
    pub consumable_capacity: bool,
    /// DRAListTypeAttributes.
    pub list_attributes: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            admin_access: true,
            prioritized_list: true,
            partitionable_devices: true,
            device_taints: true,
            binding_conditions: true,
            consumable_capacity: true,
            list_attributes: false,
        }
    }
}
