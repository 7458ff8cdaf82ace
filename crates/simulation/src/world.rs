//! What the process takes from the operating system, made to depend on a seed: the time, random numbers, and the process
//! itself, which a run gets a copy of.
//!
//! The standard library and most crates call `clock_gettime` and `getrandom` of libc. A program that defines functions of
//! these names is linked to its own: so the clocks of everything in it, `Instant`, `SystemTime`, and the keys of hash maps
//! are simulated without a seam in the code under test. Both pass on to the kernel until [`enter`] is called.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{c_int, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// The simulated wall clock at the start: 1 January 2026, 00:00 UTC, in seconds.
const EPOCH: u64 = 1_767_225_600;
/// The monotonic clock at the start, in seconds.
const BOOTED: u64 = 1_000_000;

static SIMULATED: AtomicBool = AtomicBool::new(false);
/// Nanoseconds since the start of the simulation.
static ELAPSED: AtomicU64 = AtomicU64::new(0);
/// The state of the generator of what `getrandom` gives.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// From now on time stands still unless [`set_elapsed`] moves it, and random numbers follow from `seed`.
pub fn enter(seed: u64) {
    reseed(seed);
    SIMULATED.store(true, Ordering::SeqCst);
}

/// Other random numbers from now on.
pub fn reseed(seed: u64) {
    RANDOM.store(seed, Ordering::SeqCst);
    rand::rng().reseed().ok();
}

/// How long the simulation has run by its own clock.
pub fn elapsed() -> Duration {
    Duration::from_nanos(ELAPSED.load(Ordering::Relaxed))
}

/// Moves the clocks.
pub fn set_elapsed(elapsed: Duration) {
    let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    ELAPSED.store(nanos, Ordering::Relaxed);
}

/// What a copy of the process leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its exit code; none if it was killed: it took longer than it may, ran out of memory, or crashed.
    pub code: Option<i32>,
    /// What it wrote.
    pub text: String,
}

/// Runs `work` in a copy of this process and waits for it: it begins with exactly what is in memory now. Only this thread is
/// copied; there must be no other that matters. The copy is killed when it uses more than `seconds` of processor time.
///
/// # Errors
/// When no copy can be made.
pub async fn in_copy<F>(seconds: u64, work: F) -> std::io::Result<Left>
where
    F: Future<Output = (i32, String)>,
{
    let (mut reader, mut writer) = std::io::pipe()?;
    // SAFETY: the program has one thread, so that no lock can be held by one that is not copied.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(writer);
            let mut text = String::new();
            reader.read_to_string(&mut text)?;
            let code = match waitpid(child, None)? {
                WaitStatus::Exited(_, code) => Some(code),
                _ => None,
            };
            Ok(Left { code, text })
        }
        ForkResult::Child => {
            let limit = libc::rlimit {
                rlim_cur: seconds,
                rlim_max: seconds,
            };
            // SAFETY: the structure is whole; a limit that cannot be set is none.
            unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) };
            let (code, text) = work.await;
            let written = writer.write_all(text.as_bytes());
            // SAFETY: it ends the process, whatever its state; nothing of the parent's is to be undone by its copy.
            unsafe { libc::_exit(written.map_or(3, |()| code)) }
        }
    }
}

/// `clock_gettime(2)`.
///
/// # Safety
/// As of the function of libc: `out` points to a timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, out: *mut timespec) -> c_int {
    let base = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => EPOCH,
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => BOOTED,
        // the time of processes and threads
        _ => 0,
    };
    if base == 0 || !SIMULATED.load(Ordering::Relaxed) {
        // SAFETY: passed on as it came.
        let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) };
        return if answer == 0 { 0 } else { -1 };
    }
    let nanos = ELAPSED.load(Ordering::Relaxed);
    let (seconds, nanos) = (base + nanos / 1_000_000_000, nanos % 1_000_000_000);
    // SAFETY: the caller gives a timespec to be filled.
    unsafe {
        (*out).tv_sec = seconds.cast_signed();
        (*out).tv_nsec = nanos.cast_signed();
    }
    0
}

/// `getrandom(2)`.
///
/// # Safety
/// As of the function of libc: `out` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(out: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if !SIMULATED.load(Ordering::Relaxed) {
        // SAFETY: passed on as it came.
        let answer = unsafe { libc::syscall(libc::SYS_getrandom, out, len, flags) };
        return ssize_t::try_from(answer).unwrap_or(-1);
    }
    if len > 0 {
        // SAFETY: the caller gives so many bytes to be filled.
        let bytes = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), len) };
        for piece in bytes.chunks_mut(8) {
            let random = next().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
    len.cast_signed()
}

/// The next number of SplitMix64.
fn next() -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut z = RANDOM.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
