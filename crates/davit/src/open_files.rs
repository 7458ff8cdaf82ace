//! How many files the process may open: a connection is one, and so is whatever stands behind it.

use std::sync::OnceLock;

use davit_oci::OpenFiles;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// What the process was started with.
static GIVEN: OnceLock<OpenFiles> = OnceLock::new();

/// Takes as many files as may be had. Containers get what davit was given ([`given`]): programs that use `select`, or close
/// all descriptors they could have, are not to suffer from it.
///
/// # Errors
/// The kernel's.
pub(crate) fn raise() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // the kernel takes no limit back that is none
    if soft == RLIM_INFINITY || hard == RLIM_INFINITY {
        return Ok(());
    }
    let _only_once = GIVEN.set(OpenFiles { soft, hard });
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

/// What the process was started with; `None` when that was without limits.
pub(crate) fn given() -> Option<OpenFiles> {
    GIVEN.get().copied()
}
