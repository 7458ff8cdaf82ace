//! The controllers of volumes: claims and volumes bound, made, grown and protected, volumes attached to nodes.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod attach_detach;
mod ephemeral_volume;
mod local_volumes;
mod persistent_volume;
mod volume_expand;
mod volume_protection;

use davit_flexvolume::FlexDrivers;
use davit_reconcile::Spawner;
use std::sync::Arc;

/// Starts them all. Where `default_class` is set, davit's own provisioner makes the class that a cluster begins with;
/// `flex_drivers` are those that attach and grow volumes.
pub fn spawn(spawner: &mut Spawner<'_>, default_class: bool, flex_drivers: FlexDrivers) {
    persistent_volume::spawn(spawner);
    local_volumes::spawn(spawner, default_class);
    ephemeral_volume::spawn(spawner);
    let flex_drivers = Arc::new(flex_drivers);
    volume_expand::spawn(spawner, flex_drivers.clone());
    volume_protection::spawn(spawner);
    attach_detach::spawn(spawner, flex_drivers);
}
