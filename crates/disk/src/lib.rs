//! What a node has on its own disks for volumes: their directories and images, copies of them, files that are published
//! together, and loop devices.
//!
//! Loop devices are block devices whose content is a file. Which device a file has is asked of the kernel each time, by the
//! file's inode: nothing has to be remembered over a restart, and a file gets no second device.

mod copy;
mod directories;
mod loop_device;
pub mod nested;
pub mod published;
mod sys;

pub use directories::{Directories, DirectoryError, VolumeForm, VolumeRecord};
pub use loop_device::{Error, LoopDevice, attach, detach, find};
