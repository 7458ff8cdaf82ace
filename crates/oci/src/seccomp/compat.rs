//! The system calls of the 32-bit architecture whose programs this one runs, too: i386 on x86-64, ARM on AArch64.

use super::caps::Capability;
use super::syscalls::{ARCH, COMMON, Policy};

/// The kernel's name for the architecture in seccomp's data.
pub(crate) const AUDIT_ARCH: u32 = if cfg!(target_arch = "aarch64") {
    0x4000_0028
} else {
    0x4000_0003
};
/// Its name in profiles.
pub(crate) const NAME: &str = if cfg!(target_arch = "aarch64") {
    "SCMP_ARCH_ARM"
} else {
    "SCMP_ARCH_X86"
};

/// Calls without a counterpart that goes by the same name: what they do, others do that are allowed.
const OWN: [&str; 25] = [
    "_llseek",
    "_newselect",
    "arm_fadvise64_64",
    "arm_sync_file_range",
    "breakpoint",
    "cacheflush",
    "get_tls",
    "ipc",
    "mmap2",
    "nice",
    "readdir",
    "recv",
    "send",
    "set_tls",
    "sigaction",
    "sigpending",
    "sigprocmask",
    "sigreturn",
    "sigsuspend",
    "time",
    "ugetrlimit",
    "umask",
    "usr26",
    "usr32",
    "waitpid",
];

/// How the default profile treats the call: as it treats the one that does the same for 64-bit programs.
fn policy(name: &str) -> Policy {
    let by_name = |name: &str| {
        let mut rows = COMMON.iter().chain(ARCH);
        rows.find(|row| row.0 == name).map(|row| row.2)
    };
    match name {
        "stime" => return Policy::Gated(&[Capability::SysTime]),
        "umount" => return Policy::Gated(&[Capability::SysAdmin]),
        "socketcall" => return Policy::Special,
        name if OWN.contains(&name) => return Policy::Always,
        _ => {}
    }
    let plain = ["_time64", "_64", "64", "32"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    by_name(name)
        .or_else(|| by_name(plain?))
        .unwrap_or(Policy::Never)
}

/// All calls with the policies of the default profile.
pub(crate) fn rows() -> impl Iterator<Item = (&'static str, i64, Policy)> {
    NUMBERS
        .iter()
        .map(|(name, number)| (*name, *number, policy(name)))
}

/// The number of a system call, `None` when there is none of that name.
pub(crate) fn number(name: &str) -> Option<i64> {
    NUMBERS.iter().find(|row| row.0 == name).map(|row| row.1)
}

#[cfg(not(target_arch = "aarch64"))]
#[rustfmt::skip]
const NUMBERS: &[(&str, i64)] = &[
    ("restart_syscall", 0), ("exit", 1), ("fork", 2), ("read", 3), ("write", 4), ("open", 5), ("close", 6),
    ("waitpid", 7), ("creat", 8), ("link", 9), ("unlink", 10), ("execve", 11), ("chdir", 12), ("time", 13),
    ("mknod", 14), ("chmod", 15), ("lchown", 16), ("break", 17), ("oldstat", 18), ("lseek", 19), ("getpid", 20),
    ("mount", 21), ("umount", 22), ("setuid", 23), ("getuid", 24), ("stime", 25), ("ptrace", 26), ("alarm", 27),
    ("oldfstat", 28), ("pause", 29), ("utime", 30), ("stty", 31), ("gtty", 32), ("access", 33), ("nice", 34),
    ("ftime", 35), ("sync", 36), ("kill", 37), ("rename", 38), ("mkdir", 39), ("rmdir", 40), ("dup", 41),
    ("pipe", 42), ("times", 43), ("prof", 44), ("brk", 45), ("setgid", 46), ("getgid", 47), ("signal", 48),
    ("geteuid", 49), ("getegid", 50), ("acct", 51), ("umount2", 52), ("lock", 53), ("ioctl", 54), ("fcntl", 55),
    ("mpx", 56), ("setpgid", 57), ("ulimit", 58), ("oldolduname", 59), ("umask", 60), ("chroot", 61), ("ustat", 62),
    ("dup2", 63), ("getppid", 64), ("getpgrp", 65), ("setsid", 66), ("sigaction", 67), ("sgetmask", 68),
    ("ssetmask", 69), ("setreuid", 70), ("setregid", 71), ("sigsuspend", 72), ("sigpending", 73), ("sethostname", 74),
    ("setrlimit", 75), ("getrlimit", 76), ("getrusage", 77), ("gettimeofday", 78), ("settimeofday", 79),
    ("getgroups", 80), ("setgroups", 81), ("select", 82), ("symlink", 83), ("oldlstat", 84), ("readlink", 85),
    ("uselib", 86), ("swapon", 87), ("reboot", 88), ("readdir", 89), ("mmap", 90), ("munmap", 91), ("truncate", 92),
    ("ftruncate", 93), ("fchmod", 94), ("fchown", 95), ("getpriority", 96), ("setpriority", 97), ("profil", 98),
    ("statfs", 99), ("fstatfs", 100), ("ioperm", 101), ("socketcall", 102), ("syslog", 103), ("setitimer", 104),
    ("getitimer", 105), ("stat", 106), ("lstat", 107), ("fstat", 108), ("olduname", 109), ("iopl", 110),
    ("vhangup", 111), ("idle", 112), ("vm86old", 113), ("wait4", 114), ("swapoff", 115), ("sysinfo", 116),
    ("ipc", 117), ("fsync", 118), ("sigreturn", 119), ("clone", 120), ("setdomainname", 121), ("uname", 122),
    ("modify_ldt", 123), ("adjtimex", 124), ("mprotect", 125), ("sigprocmask", 126), ("create_module", 127),
    ("init_module", 128), ("delete_module", 129), ("get_kernel_syms", 130), ("quotactl", 131), ("getpgid", 132),
    ("fchdir", 133), ("bdflush", 134), ("sysfs", 135), ("personality", 136), ("afs_syscall", 137), ("setfsuid", 138),
    ("setfsgid", 139), ("_llseek", 140), ("getdents", 141), ("_newselect", 142), ("flock", 143), ("msync", 144),
    ("readv", 145), ("writev", 146), ("getsid", 147), ("fdatasync", 148), ("_sysctl", 149), ("mlock", 150),
    ("munlock", 151), ("mlockall", 152), ("munlockall", 153), ("sched_setparam", 154), ("sched_getparam", 155),
    ("sched_setscheduler", 156), ("sched_getscheduler", 157), ("sched_yield", 158), ("sched_get_priority_max", 159),
    ("sched_get_priority_min", 160), ("sched_rr_get_interval", 161), ("nanosleep", 162), ("mremap", 163),
    ("setresuid", 164), ("getresuid", 165), ("vm86", 166), ("query_module", 167), ("poll", 168), ("nfsservctl", 169),
    ("setresgid", 170), ("getresgid", 171), ("prctl", 172), ("rt_sigreturn", 173), ("rt_sigaction", 174),
    ("rt_sigprocmask", 175), ("rt_sigpending", 176), ("rt_sigtimedwait", 177), ("rt_sigqueueinfo", 178),
    ("rt_sigsuspend", 179), ("pread64", 180), ("pwrite64", 181), ("chown", 182), ("getcwd", 183), ("capget", 184),
    ("capset", 185), ("sigaltstack", 186), ("sendfile", 187), ("getpmsg", 188), ("putpmsg", 189), ("vfork", 190),
    ("ugetrlimit", 191), ("mmap2", 192), ("truncate64", 193), ("ftruncate64", 194), ("stat64", 195), ("lstat64", 196),
    ("fstat64", 197), ("lchown32", 198), ("getuid32", 199), ("getgid32", 200), ("geteuid32", 201), ("getegid32", 202),
    ("setreuid32", 203), ("setregid32", 204), ("getgroups32", 205), ("setgroups32", 206), ("fchown32", 207),
    ("setresuid32", 208), ("getresuid32", 209), ("setresgid32", 210), ("getresgid32", 211), ("chown32", 212),
    ("setuid32", 213), ("setgid32", 214), ("setfsuid32", 215), ("setfsgid32", 216), ("pivot_root", 217),
    ("mincore", 218), ("madvise", 219), ("getdents64", 220), ("fcntl64", 221), ("gettid", 224), ("readahead", 225),
    ("setxattr", 226), ("lsetxattr", 227), ("fsetxattr", 228), ("getxattr", 229), ("lgetxattr", 230),
    ("fgetxattr", 231), ("listxattr", 232), ("llistxattr", 233), ("flistxattr", 234), ("removexattr", 235),
    ("lremovexattr", 236), ("fremovexattr", 237), ("tkill", 238), ("sendfile64", 239), ("futex", 240),
    ("sched_setaffinity", 241), ("sched_getaffinity", 242), ("set_thread_area", 243), ("get_thread_area", 244),
    ("io_setup", 245), ("io_destroy", 246), ("io_getevents", 247), ("io_submit", 248), ("io_cancel", 249),
    ("fadvise64", 250), ("exit_group", 252), ("lookup_dcookie", 253), ("epoll_create", 254), ("epoll_ctl", 255),
    ("epoll_wait", 256), ("remap_file_pages", 257), ("set_tid_address", 258), ("timer_create", 259),
    ("timer_settime", 260), ("timer_gettime", 261), ("timer_getoverrun", 262), ("timer_delete", 263),
    ("clock_settime", 264), ("clock_gettime", 265), ("clock_getres", 266), ("clock_nanosleep", 267),
    ("statfs64", 268), ("fstatfs64", 269), ("tgkill", 270), ("utimes", 271), ("fadvise64_64", 272), ("vserver", 273),
    ("mbind", 274), ("get_mempolicy", 275), ("set_mempolicy", 276), ("mq_open", 277), ("mq_unlink", 278),
    ("mq_timedsend", 279), ("mq_timedreceive", 280), ("mq_notify", 281), ("mq_getsetattr", 282), ("kexec_load", 283),
    ("waitid", 284), ("add_key", 286), ("request_key", 287), ("keyctl", 288), ("ioprio_set", 289),
    ("ioprio_get", 290), ("inotify_init", 291), ("inotify_add_watch", 292), ("inotify_rm_watch", 293),
    ("migrate_pages", 294), ("openat", 295), ("mkdirat", 296), ("mknodat", 297), ("fchownat", 298),
    ("futimesat", 299), ("fstatat64", 300), ("unlinkat", 301), ("renameat", 302), ("linkat", 303), ("symlinkat", 304),
    ("readlinkat", 305), ("fchmodat", 306), ("faccessat", 307), ("pselect6", 308), ("ppoll", 309), ("unshare", 310),
    ("set_robust_list", 311), ("get_robust_list", 312), ("splice", 313), ("sync_file_range", 314), ("tee", 315),
    ("vmsplice", 316), ("move_pages", 317), ("getcpu", 318), ("epoll_pwait", 319), ("utimensat", 320),
    ("signalfd", 321), ("timerfd_create", 322), ("eventfd", 323), ("fallocate", 324), ("timerfd_settime", 325),
    ("timerfd_gettime", 326), ("signalfd4", 327), ("eventfd2", 328), ("epoll_create1", 329), ("dup3", 330),
    ("pipe2", 331), ("inotify_init1", 332), ("preadv", 333), ("pwritev", 334), ("rt_tgsigqueueinfo", 335),
    ("perf_event_open", 336), ("recvmmsg", 337), ("fanotify_init", 338), ("fanotify_mark", 339), ("prlimit64", 340),
    ("name_to_handle_at", 341), ("open_by_handle_at", 342), ("clock_adjtime", 343), ("syncfs", 344),
    ("sendmmsg", 345), ("setns", 346), ("process_vm_readv", 347), ("process_vm_writev", 348), ("kcmp", 349),
    ("finit_module", 350), ("sched_setattr", 351), ("sched_getattr", 352), ("renameat2", 353), ("seccomp", 354),
    ("getrandom", 355), ("memfd_create", 356), ("bpf", 357), ("execveat", 358), ("socket", 359), ("socketpair", 360),
    ("bind", 361), ("connect", 362), ("listen", 363), ("accept4", 364), ("getsockopt", 365), ("setsockopt", 366),
    ("getsockname", 367), ("getpeername", 368), ("sendto", 369), ("sendmsg", 370), ("recvfrom", 371),
    ("recvmsg", 372), ("shutdown", 373), ("userfaultfd", 374), ("membarrier", 375), ("mlock2", 376),
    ("copy_file_range", 377), ("preadv2", 378), ("pwritev2", 379), ("pkey_mprotect", 380), ("pkey_alloc", 381),
    ("pkey_free", 382), ("statx", 383), ("arch_prctl", 384), ("io_pgetevents", 385), ("rseq", 386), ("semget", 393),
    ("semctl", 394), ("shmget", 395), ("shmctl", 396), ("shmat", 397), ("shmdt", 398), ("msgget", 399),
    ("msgsnd", 400), ("msgrcv", 401), ("msgctl", 402), ("clock_gettime64", 403), ("clock_settime64", 404),
    ("clock_adjtime64", 405), ("clock_getres_time64", 406), ("clock_nanosleep_time64", 407), ("timer_gettime64", 408),
    ("timer_settime64", 409), ("timerfd_gettime64", 410), ("timerfd_settime64", 411), ("utimensat_time64", 412),
    ("pselect6_time64", 413), ("ppoll_time64", 414), ("io_pgetevents_time64", 416), ("recvmmsg_time64", 417),
    ("mq_timedsend_time64", 418), ("mq_timedreceive_time64", 419), ("semtimedop_time64", 420),
    ("rt_sigtimedwait_time64", 421), ("futex_time64", 422), ("sched_rr_get_interval_time64", 423),
    ("pidfd_send_signal", 424), ("io_uring_setup", 425), ("io_uring_enter", 426), ("io_uring_register", 427),
    ("open_tree", 428), ("move_mount", 429), ("fsopen", 430), ("fsconfig", 431), ("fsmount", 432), ("fspick", 433),
    ("pidfd_open", 434), ("clone3", 435), ("close_range", 436), ("openat2", 437), ("pidfd_getfd", 438),
    ("faccessat2", 439), ("process_madvise", 440), ("epoll_pwait2", 441), ("mount_setattr", 442),
    ("quotactl_fd", 443), ("landlock_create_ruleset", 444), ("landlock_add_rule", 445),
    ("landlock_restrict_self", 446), ("memfd_secret", 447), ("process_mrelease", 448), ("futex_waitv", 449),
    ("set_mempolicy_home_node", 450), ("cachestat", 451), ("fchmodat2", 452), ("map_shadow_stack", 453),
    ("futex_wake", 454), ("futex_wait", 455), ("futex_requeue", 456), ("statmount", 457), ("listmount", 458),
    ("lsm_get_self_attr", 459), ("lsm_set_self_attr", 460), ("lsm_list_modules", 461), ("mseal", 462),
    ("setxattrat", 463), ("getxattrat", 464), ("listxattrat", 465), ("removexattrat", 466), ("open_tree_attr", 467),
];

#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
const NUMBERS: &[(&str, i64)] = &[
    ("restart_syscall", 0), ("exit", 1), ("fork", 2), ("read", 3), ("write", 4), ("open", 5), ("close", 6),
    ("creat", 8), ("link", 9), ("unlink", 10), ("execve", 11), ("chdir", 12), ("mknod", 14), ("chmod", 15),
    ("lchown", 16), ("lseek", 19), ("getpid", 20), ("mount", 21), ("setuid", 23), ("getuid", 24), ("ptrace", 26),
    ("pause", 29), ("access", 33), ("nice", 34), ("sync", 36), ("kill", 37), ("rename", 38), ("mkdir", 39),
    ("rmdir", 40), ("dup", 41), ("pipe", 42), ("times", 43), ("brk", 45), ("setgid", 46), ("getgid", 47),
    ("geteuid", 49), ("getegid", 50), ("acct", 51), ("umount2", 52), ("ioctl", 54), ("fcntl", 55), ("setpgid", 57),
    ("umask", 60), ("chroot", 61), ("ustat", 62), ("dup2", 63), ("getppid", 64), ("getpgrp", 65), ("setsid", 66),
    ("sigaction", 67), ("setreuid", 70), ("setregid", 71), ("sigsuspend", 72), ("sigpending", 73),
    ("sethostname", 74), ("setrlimit", 75), ("getrusage", 77), ("gettimeofday", 78), ("settimeofday", 79),
    ("getgroups", 80), ("setgroups", 81), ("symlink", 83), ("readlink", 85), ("uselib", 86), ("swapon", 87),
    ("reboot", 88), ("munmap", 91), ("truncate", 92), ("ftruncate", 93), ("fchmod", 94), ("fchown", 95),
    ("getpriority", 96), ("setpriority", 97), ("statfs", 99), ("fstatfs", 100), ("syslog", 103), ("setitimer", 104),
    ("getitimer", 105), ("stat", 106), ("lstat", 107), ("fstat", 108), ("vhangup", 111), ("wait4", 114),
    ("swapoff", 115), ("sysinfo", 116), ("fsync", 118), ("sigreturn", 119), ("clone", 120), ("setdomainname", 121),
    ("uname", 122), ("adjtimex", 124), ("mprotect", 125), ("sigprocmask", 126), ("init_module", 128),
    ("delete_module", 129), ("quotactl", 131), ("getpgid", 132), ("fchdir", 133), ("bdflush", 134), ("sysfs", 135),
    ("personality", 136), ("setfsuid", 138), ("setfsgid", 139), ("_llseek", 140), ("getdents", 141),
    ("_newselect", 142), ("flock", 143), ("msync", 144), ("readv", 145), ("writev", 146), ("getsid", 147),
    ("fdatasync", 148), ("_sysctl", 149), ("mlock", 150), ("munlock", 151), ("mlockall", 152), ("munlockall", 153),
    ("sched_setparam", 154), ("sched_getparam", 155), ("sched_setscheduler", 156), ("sched_getscheduler", 157),
    ("sched_yield", 158), ("sched_get_priority_max", 159), ("sched_get_priority_min", 160),
    ("sched_rr_get_interval", 161), ("nanosleep", 162), ("mremap", 163), ("setresuid", 164), ("getresuid", 165),
    ("poll", 168), ("nfsservctl", 169), ("setresgid", 170), ("getresgid", 171), ("prctl", 172), ("rt_sigreturn", 173),
    ("rt_sigaction", 174), ("rt_sigprocmask", 175), ("rt_sigpending", 176), ("rt_sigtimedwait", 177),
    ("rt_sigqueueinfo", 178), ("rt_sigsuspend", 179), ("pread64", 180), ("pwrite64", 181), ("chown", 182),
    ("getcwd", 183), ("capget", 184), ("capset", 185), ("sigaltstack", 186), ("sendfile", 187), ("vfork", 190),
    ("ugetrlimit", 191), ("mmap2", 192), ("truncate64", 193), ("ftruncate64", 194), ("stat64", 195), ("lstat64", 196),
    ("fstat64", 197), ("lchown32", 198), ("getuid32", 199), ("getgid32", 200), ("geteuid32", 201), ("getegid32", 202),
    ("setreuid32", 203), ("setregid32", 204), ("getgroups32", 205), ("setgroups32", 206), ("fchown32", 207),
    ("setresuid32", 208), ("getresuid32", 209), ("setresgid32", 210), ("getresgid32", 211), ("chown32", 212),
    ("setuid32", 213), ("setgid32", 214), ("setfsuid32", 215), ("setfsgid32", 216), ("getdents64", 217),
    ("pivot_root", 218), ("mincore", 219), ("madvise", 220), ("fcntl64", 221), ("gettid", 224), ("readahead", 225),
    ("setxattr", 226), ("lsetxattr", 227), ("fsetxattr", 228), ("getxattr", 229), ("lgetxattr", 230),
    ("fgetxattr", 231), ("listxattr", 232), ("llistxattr", 233), ("flistxattr", 234), ("removexattr", 235),
    ("lremovexattr", 236), ("fremovexattr", 237), ("tkill", 238), ("sendfile64", 239), ("futex", 240),
    ("sched_setaffinity", 241), ("sched_getaffinity", 242), ("io_setup", 243), ("io_destroy", 244),
    ("io_getevents", 245), ("io_submit", 246), ("io_cancel", 247), ("exit_group", 248), ("lookup_dcookie", 249),
    ("epoll_create", 250), ("epoll_ctl", 251), ("epoll_wait", 252), ("remap_file_pages", 253),
    ("set_tid_address", 256), ("timer_create", 257), ("timer_settime", 258), ("timer_gettime", 259),
    ("timer_getoverrun", 260), ("timer_delete", 261), ("clock_settime", 262), ("clock_gettime", 263),
    ("clock_getres", 264), ("clock_nanosleep", 265), ("statfs64", 266), ("fstatfs64", 267), ("tgkill", 268),
    ("utimes", 269), ("arm_fadvise64_64", 270), ("pciconfig_iobase", 271), ("pciconfig_read", 272),
    ("pciconfig_write", 273), ("mq_open", 274), ("mq_unlink", 275), ("mq_timedsend", 276), ("mq_timedreceive", 277),
    ("mq_notify", 278), ("mq_getsetattr", 279), ("waitid", 280), ("socket", 281), ("bind", 282), ("connect", 283),
    ("listen", 284), ("accept", 285), ("getsockname", 286), ("getpeername", 287), ("socketpair", 288), ("send", 289),
    ("sendto", 290), ("recv", 291), ("recvfrom", 292), ("shutdown", 293), ("setsockopt", 294), ("getsockopt", 295),
    ("sendmsg", 296), ("recvmsg", 297), ("semop", 298), ("semget", 299), ("semctl", 300), ("msgsnd", 301),
    ("msgrcv", 302), ("msgget", 303), ("msgctl", 304), ("shmat", 305), ("shmdt", 306), ("shmget", 307),
    ("shmctl", 308), ("add_key", 309), ("request_key", 310), ("keyctl", 311), ("semtimedop", 312), ("vserver", 313),
    ("ioprio_set", 314), ("ioprio_get", 315), ("inotify_init", 316), ("inotify_add_watch", 317),
    ("inotify_rm_watch", 318), ("mbind", 319), ("get_mempolicy", 320), ("set_mempolicy", 321), ("openat", 322),
    ("mkdirat", 323), ("mknodat", 324), ("fchownat", 325), ("futimesat", 326), ("fstatat64", 327), ("unlinkat", 328),
    ("renameat", 329), ("linkat", 330), ("symlinkat", 331), ("readlinkat", 332), ("fchmodat", 333),
    ("faccessat", 334), ("pselect6", 335), ("ppoll", 336), ("unshare", 337), ("set_robust_list", 338),
    ("get_robust_list", 339), ("splice", 340), ("arm_sync_file_range", 341), ("tee", 342), ("vmsplice", 343),
    ("move_pages", 344), ("getcpu", 345), ("epoll_pwait", 346), ("kexec_load", 347), ("utimensat", 348),
    ("signalfd", 349), ("timerfd_create", 350), ("eventfd", 351), ("fallocate", 352), ("timerfd_settime", 353),
    ("timerfd_gettime", 354), ("signalfd4", 355), ("eventfd2", 356), ("epoll_create1", 357), ("dup3", 358),
    ("pipe2", 359), ("inotify_init1", 360), ("preadv", 361), ("pwritev", 362), ("rt_tgsigqueueinfo", 363),
    ("perf_event_open", 364), ("recvmmsg", 365), ("accept4", 366), ("fanotify_init", 367), ("fanotify_mark", 368),
    ("prlimit64", 369), ("name_to_handle_at", 370), ("open_by_handle_at", 371), ("clock_adjtime", 372),
    ("syncfs", 373), ("sendmmsg", 374), ("setns", 375), ("process_vm_readv", 376), ("process_vm_writev", 377),
    ("kcmp", 378), ("finit_module", 379), ("sched_setattr", 380), ("sched_getattr", 381), ("renameat2", 382),
    ("seccomp", 383), ("getrandom", 384), ("memfd_create", 385), ("bpf", 386), ("execveat", 387),
    ("userfaultfd", 388), ("membarrier", 389), ("mlock2", 390), ("copy_file_range", 391), ("preadv2", 392),
    ("pwritev2", 393), ("pkey_mprotect", 394), ("pkey_alloc", 395), ("pkey_free", 396), ("statx", 397), ("rseq", 398),
    ("io_pgetevents", 399), ("migrate_pages", 400), ("kexec_file_load", 401), ("clock_gettime64", 403),
    ("clock_settime64", 404), ("clock_adjtime64", 405), ("clock_getres_time64", 406), ("clock_nanosleep_time64", 407),
    ("timer_gettime64", 408), ("timer_settime64", 409), ("timerfd_gettime64", 410), ("timerfd_settime64", 411),
    ("utimensat_time64", 412), ("pselect6_time64", 413), ("ppoll_time64", 414), ("io_pgetevents_time64", 416),
    ("recvmmsg_time64", 417), ("mq_timedsend_time64", 418), ("mq_timedreceive_time64", 419),
    ("semtimedop_time64", 420), ("rt_sigtimedwait_time64", 421), ("futex_time64", 422),
    ("sched_rr_get_interval_time64", 423), ("pidfd_send_signal", 424), ("io_uring_setup", 425),
    ("io_uring_enter", 426), ("io_uring_register", 427), ("open_tree", 428), ("move_mount", 429), ("fsopen", 430),
    ("fsconfig", 431), ("fsmount", 432), ("fspick", 433), ("pidfd_open", 434), ("clone3", 435), ("close_range", 436),
    ("openat2", 437), ("pidfd_getfd", 438), ("faccessat2", 439), ("process_madvise", 440), ("epoll_pwait2", 441),
    ("mount_setattr", 442), ("quotactl_fd", 443), ("landlock_create_ruleset", 444), ("landlock_add_rule", 445),
    ("landlock_restrict_self", 446), ("memfd_secret", 447), ("process_mrelease", 448), ("futex_waitv", 449),
    ("set_mempolicy_home_node", 450), ("cachestat", 451), ("fchmodat2", 452), ("map_shadow_stack", 453),
    ("futex_wake", 454), ("futex_wait", 455), ("futex_requeue", 456), ("statmount", 457), ("listmount", 458),
    ("lsm_get_self_attr", 459), ("lsm_set_self_attr", 460), ("lsm_list_modules", 461), ("mseal", 462),
    ("setxattrat", 463), ("getxattrat", 464), ("listxattrat", 465), ("removexattrat", 466), ("open_tree_attr", 467),
    ("breakpoint", 983041), ("cacheflush", 983042), ("usr26", 983043), ("usr32", 983044), ("set_tls", 983045),
    ("get_tls", 983046),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_follow_those_of_the_same_calls() {
        for name in [
            "chown32",
            "stat64",
            "clock_gettime64",
            "futex_time64",
            "waitpid",
            "mmap2",
        ] {
            assert_eq!(policy(name), Policy::Always, "{name}");
        }
        for name in [
            "keyctl",
            "add_key",
            "vm86",
            "create_module",
            "swapon",
            "no_such",
        ] {
            assert_eq!(policy(name), Policy::Never, "{name}");
        }
        for name in [
            "mount",
            "umount",
            "umount2",
            "stime",
            "clock_settime64",
            "setns",
            "bpf",
        ] {
            assert!(matches!(policy(name), Policy::Gated(_)), "{name}");
        }
        assert_eq!(policy("clone"), Policy::Special);
    }
}
