//! Loop devices: block devices whose content is a file.
//!
//! Which device a file has is asked of the kernel each time, by the file's inode: nothing has to be remembered over a
//! restart, and a file gets no second device.

mod loop_device;
mod sys;

pub use loop_device::{Error, LoopDevice, attach, detach, find};
