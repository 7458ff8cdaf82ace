//! The calls on loop devices. Every `unsafe` of the crate is in this file.
#![allow(unsafe_code)]

use nix::libc;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The numbers of the calls, from `linux/loop.h`.
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4C04;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;

/// The device loses its file when it is closed for the last time.
pub(crate) const AUTOCLEAR: u32 = 4;
/// What is written goes past the page cache of the file.
pub(crate) const DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Info {
    /// The file system of the file, as `stat` numbers it.
    pub(crate) device: u64,
    /// The file's inode.
    pub(crate) inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(crate) flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    /// All of a file, with these flags. `name` is what tools show; what is too long of it is cut off.
    pub(crate) fn new(name: &[u8], flags: u32) -> Self {
        let mut file_name = [0; 64];
        let length = name.len().min(file_name.len() - 1);
        file_name[..length].copy_from_slice(&name[..length]);
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

fn check(result: libc::c_int) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The number of a device that has no file, made if there is none. It may have one a moment later.
pub(crate) fn free_number(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the call takes no argument.
    check(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE as _) })
}

/// Gives a device its file. [`io::ErrorKind::ResourceBusy`] where it has one.
pub(crate) fn configure(device: impl AsFd, file: impl AsFd, info: Info) -> io::Result<()> {
    let fd = u32::try_from(file.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let config = Config {
        fd,
        block_size: 0,
        info,
        reserved: [0; 8],
    };
    let device = device.as_fd().as_raw_fd();
    // SAFETY: the kernel reads a `struct loop_config`, which outlives the call.
    check(unsafe { libc::ioctl(device, LOOP_CONFIGURE as _, &raw const config) }).map(drop)
}

/// What a device has; an error with [`libc::ENXIO`] where that is no file.
pub(crate) fn status(device: impl AsFd) -> io::Result<Info> {
    let mut info = Info::new(b"", 0);
    let device = device.as_fd().as_raw_fd();
    // SAFETY: the kernel writes a `struct loop_info64`, for which there is room, and any bytes are one.
    check(unsafe { libc::ioctl(device, LOOP_GET_STATUS64 as _, &raw mut info) })?;
    Ok(info)
}

/// Changes the flags of a device that has a file.
pub(crate) fn set_status(device: impl AsFd, info: &Info) -> io::Result<()> {
    let device = device.as_fd().as_raw_fd();
    // SAFETY: the kernel reads a `struct loop_info64`, which outlives the call.
    check(unsafe { libc::ioctl(device, LOOP_SET_STATUS64 as _, &raw const *info) }).map(drop)
}

/// Makes a device as large as its file.
pub(crate) fn set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY as _) }).map(drop)
}

/// Takes the file from a device, now or when it is closed for the last time.
pub(crate) fn clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CLR_FD as _) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
