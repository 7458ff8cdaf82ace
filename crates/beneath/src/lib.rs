//! Files below a directory that a container, an image or a volume can write.
//!
//! Whoever writes a directory can at any moment exchange one of its entries for a symbolic link, also between a look
//! at a path and its use. So a path below such a directory is never handed to the kernel as a string that is resolved
//! from `/`: [`Root`] holds the directory open, every path is resolved by the kernel below that descriptor
//! (`openat2`), what is found is an [`Inode`], and all looking, reading, making, changing, mounting and removing goes by
//! descriptor and a single name.
//!
//! Nothing here waits for the other side of a FIFO or touches a device by opening it. A file of a file system in user
//! space may still answer as slowly as it likes: call from a thread that may wait, with a deadline.
#![forbid(unsafe_code)]

mod error;
mod inode;
mod make;
pub mod mount;
pub mod mountinfo;
mod private;
mod procfs;
mod resolve;
mod root;
mod shared_usage;
mod tree;
mod usage;

pub use error::{Error, Result};
pub use inode::{Inode, Permissions};
pub use private::{
    open_own, open_own_for_writing, ours, private_dir, private_dir_below, private_dir_itself,
    read_given, read_own, remove_tree, write_durably, write_durably_in, write_private,
};
pub use procfs::Procfs;
pub use root::{DirectoryEntry, Links, Root, TargetKind};
pub use shared_usage::disk_use;
pub use usage::{DiskUse, measure_tree};
