//! What is on a disk after a power cut.
//!
//! A program works below a [`Recorder`], a file system (FUSE) that keeps everything in memory and writes down each change
//! in order: bytes written, lengths, names, and syncs. From this [`Recording`] any number of [`Image`]s is made: what the
//! disk may hold if the power went at a moment. What was synced is there. Of the rest any part may be: of each block the
//! first changes up to some moment, of each file's lengths and of names likewise, independently of one another
//! ([`Survival`]).

mod image;
mod protocol;
mod recorder;
mod tree;

pub use image::{Image, Survival};
pub use recorder::Recorder;
pub use tree::{Event, Node, Recording};
