//! The child's side of starting a process: from the fork to `execve`.

use super::mounts::{self, Root};
use super::protocol;
use super::{Bundle, hooks};
use crate::caps::{CapSet, Capability};
use crate::cgroup::Hierarchies;
use crate::sys;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid};
use oci_spec::runtime::{Capabilities, LinuxNamespaceType, PosixRlimitType, Spec};
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

type Result<T, E = String> = std::result::Result<T, E>;

/// What the child tells its parent before the program runs. The end of the stream means that it does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromChild {
    /// The namespaces exist: hooks that belong outside may run; the child waits for one byte.
    Namespaces,
    /// The master side of the terminal comes along.
    Terminal,
    /// It failed.
    Failed(String),
}

/// A process to be run in a container.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub args: Vec<String>,
    env: Vec<String>,
    cwd: PathBuf,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    umask: u32,
    bounding: CapSet,
    effective: CapSet,
    permitted: CapSet,
    inheritable: CapSet,
    ambient: CapSet,
    no_new_privileges: bool,
    rlimits: Vec<(Resource, u64, u64)>,
    pub tty: bool,
    pub size: Option<(u16, u16)>,
}

fn set(names: Option<&Capabilities>) -> CapSet {
    let mut caps = CapSet::default();
    for name in names.into_iter().flatten() {
        if let Some(cap) = Capability::parse(&name.to_string()) {
            caps = caps.with(cap);
        }
    }
    caps
}

fn resource(kind: PosixRlimitType) -> Option<Resource> {
    Some(match kind {
        PosixRlimitType::RlimitCpu => Resource::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => Resource::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => Resource::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => Resource::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => Resource::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => Resource::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => Resource::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => Resource::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => Resource::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => Resource::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => Resource::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => Resource::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => Resource::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => Resource::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => Resource::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => Resource::RLIMIT_RTTIME,
    })
}

impl Process {
    /// Reads the process part of the configuration.
    pub(super) fn from_spec(spec: &Spec) -> Result<Self> {
        let process = spec
            .process()
            .as_ref()
            .ok_or("the configuration has no process")?;
        let user = process.user();
        let caps = process.capabilities().as_ref();
        // What davit itself lacks it cannot give.
        let available = sys::permitted_caps().map_err(|e| format!("capabilities: {e}"))?;
        let cap = |names: Option<&Capabilities>| set(names).and(available);
        Ok(Process {
            args: process.args().clone().unwrap_or_default(),
            env: process.env().clone().unwrap_or_default(),
            cwd: process.cwd().clone(),
            uid: user.uid(),
            gid: user.gid(),
            groups: user.additional_gids().clone().unwrap_or_default(),
            umask: user.umask().unwrap_or(0o022),
            bounding: cap(caps.and_then(|c| c.bounding().as_ref())),
            effective: cap(caps.and_then(|c| c.effective().as_ref())),
            permitted: cap(caps.and_then(|c| c.permitted().as_ref())),
            inheritable: cap(caps.and_then(|c| c.inheritable().as_ref())),
            ambient: cap(caps.and_then(|c| c.ambient().as_ref())),
            no_new_privileges: process.no_new_privileges().unwrap_or(false),
            rlimits: process
                .rlimits()
                .iter()
                .flatten()
                .filter_map(|limit| Some((resource(limit.typ())?, limit.soft(), limit.hard())))
                .collect(),
            tty: process.terminal().unwrap_or(false),
            size: process.console_size().map(|size| {
                (
                    size.width().try_into().unwrap_or(80),
                    size.height().try_into().unwrap_or(24),
                )
            }),
        })
    }

    fn env(&self, name: &str) -> Option<&str> {
        self.env
            .iter()
            .rev()
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// `HOME` from the container's own user list, as every runtime sets it.
    fn add_home(&mut self) {
        if self.env("HOME").is_some_and(|home| !home.is_empty()) {
            return;
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let uid = self.uid.to_string();
        let home = passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.len() > 5 && fields[2] == uid)
            .map_or("/", |fields| fields[5]);
        self.env.retain(|pair| !pair.starts_with("HOME="));
        self.env.push(format!("HOME={home}"));
    }

    /// Takes on the identity and runs the program. Returns only on failure.
    fn run(mut self, seccomp: &[Vec<u64>]) -> Result<Infallible> {
        let os = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let errno =
            |what: &'static str| move |e: nix::errno::Errno| format!("{what}: {}", e.desc());
        self.add_home();
        for (kind, soft, hard) in &self.rlimits {
            // A hard limit above ours cannot be had without CAP_SYS_RESOURCE; the container runs with what there is.
            let _ = setrlimit(*kind, *soft, *hard);
        }
        // Without no_new_privs a filter needs CAP_SYS_ADMIN, so it goes in before the capabilities are dropped.
        if !self.no_new_privileges {
            install(seccomp)?;
        }
        sys::limit_bounding_set(self.bounding).map_err(os("bounding capabilities"))?;
        prctl::set_keepcaps(true).map_err(errno("keep capabilities"))?;
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        nix::unistd::setgroups(&groups).map_err(errno("set groups"))?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // As root a directory that its own user may not see can still be entered; the other way round works as user.
        let entered = std::env::set_current_dir(&self.cwd);
        nix::unistd::setresgid(gid, gid, gid).map_err(errno("set group"))?;
        nix::unistd::setresuid(uid, uid, uid).map_err(errno("set user"))?;
        if entered.is_err() {
            std::env::set_current_dir(&self.cwd)
                .map_err(|e| format!("chdir to cwd ({:?}): {e}", self.cwd))?;
        }
        prctl::set_keepcaps(false).map_err(errno("keep capabilities"))?;
        sys::set_caps(self.effective, self.permitted, self.inheritable)
            .map_err(os("set capabilities"))?;
        sys::set_ambient(self.ambient.and(self.inheritable))
            .map_err(os("set ambient capabilities"))?;
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        // Cleared by the change of user, so set after it: a container does not outlive its monitor.
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        if self.no_new_privileges {
            prctl::set_no_new_privs().map_err(errno("no_new_privs"))?;
            install(seccomp)?;
        }
        sys::reset_signals();
        sys::close_on_exec_from(3).map_err(os("close descriptors"))?;
        Err(self.exec())
    }

    /// `execve`, with a look through `PATH` for a bare name. The texts are those that runc gives.
    fn exec(&self) -> String {
        let Some(name) = self.args.first().filter(|name| !name.is_empty()) else {
            return "no command specified".to_owned();
        };
        let c = |text: &String| CString::new(text.as_bytes());
        let (Ok(args), Ok(env)) = (
            self.args.iter().map(c).collect::<Result<Vec<_>, _>>(),
            self.env.iter().map(c).collect::<Result<Vec<_>, _>>(),
        ) else {
            return format!("exec: {name:?}: an argument or variable holds a NUL byte");
        };
        let attempt = |path: &Path| {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
                return Errno::EINVAL;
            };
            match nix::unistd::execve(&path, &args, &env) {
                Err(errno) => errno,
                Ok(never) => match never {},
            }
        };
        use nix::errno::Errno;
        if name.contains('/') {
            return match attempt(Path::new(name)) {
                Errno::ENOENT => format!("exec: {name:?}: stat {name}: no such file or directory"),
                Errno::EACCES => format!("exec: {name:?}: permission denied"),
                errno => format!("exec {name}: {}", errno.desc().to_lowercase()),
            };
        }
        let mut denied = false;
        for dir in self
            .env("PATH")
            .unwrap_or_default()
            .split(':')
            .filter(|dir| !dir.is_empty())
        {
            match attempt(&Path::new(dir).join(name)) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                Errno::EACCES => denied = true,
                errno => return format!("exec {name}: {}", errno.desc().to_lowercase()),
            }
        }
        if denied {
            format!("exec: {name:?}: permission denied")
        } else {
            format!("exec: {name:?}: executable file not found in $PATH")
        }
    }
}

fn install(programs: &[Vec<u64>]) -> Result<()> {
    programs
        .iter()
        .try_for_each(|program| sys::install_seccomp(program))
        .map_err(|e| format!("seccomp: {e}"))
}

/// The process's standard descriptors when it has no terminal.
pub(super) struct Stdio<'a>(pub [BorrowedFd<'a>; 3]);

fn use_stdio(stdio: &Stdio<'_>) -> Result<()> {
    let [stdin, stdout, stderr] = stdio.0;
    rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr))
        .map_err(|e| format!("standard descriptors: {}", std::io::Error::from(e)))
}

/// Makes a terminal from the container's own devpts, takes it as controlling terminal and sends its other side away.
fn use_terminal(socket: &UnixStream, process: &Process, console: bool) -> Result<()> {
    let failed = |what: &'static str| {
        move |e: rustix::io::Errno| format!("terminal: {what}: {}", std::io::Error::from(e))
    };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = open("/dev/pts/ptmx", flags, Mode::empty())
        .or_else(|_| open("/dev/ptmx", flags, Mode::empty()))
        .map_err(failed("open ptmx"))?;
    rustix::pty::unlockpt(&master).map_err(failed("unlock"))?;
    let name = rustix::pty::ptsname(&master, Vec::new()).map_err(failed("name"))?;
    let slave: OwnedFd = open(name.as_c_str(), flags, Mode::empty()).map_err(failed("open"))?;
    // The user of the process must be able to open its terminal by name.
    let _ = nix::unistd::fchown(&slave, Some(Uid::from_raw(process.uid)), None);
    if let Some((width, height)) = process.size {
        let size = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let _ = tcsetwinsize(&slave, size);
    }
    if console {
        mounts::console(Path::new(name.to_str().unwrap_or_default()))?;
    }
    rustix::process::ioctl_tiocsctty(&slave).map_err(failed("make controlling"))?;
    use_stdio(&Stdio([slave.as_fd(), slave.as_fd(), slave.as_fd()]))?;
    protocol::send(socket, &FromChild::Terminal, &[master.as_fd()])
        .map_err(|e| format!("terminal: {e}"))
}

fn wait_for_parent(mut socket: &UnixStream) -> Result<()> {
    socket
        .read_exact(&mut [0])
        .map_err(|_| "the monitor went away".to_owned())
}

/// First steps of every child, still with the host's view.
fn detach(socket: &UnixStream) -> Result<()> {
    // Nobody in the container may look into this process before it is the container's own program.
    let _ = prctl::set_dumpable(false);
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    wait_for_parent(socket)?;
    nix::unistd::setsid()
        .map(drop)
        .map_err(|e| format!("setsid: {}", e.desc()))
}

fn report(socket: &UnixStream, outcome: Result<Infallible>) -> ! {
    let Err(message) = outcome;
    let _ = protocol::send(socket, &FromChild::Failed(message), &[]);
    sys::exit_now(1)
}

/// Everything the container's first process needs.
pub(super) struct Container<'a> {
    pub dir: &'a Path,
    pub bundle: &'a Bundle,
    pub spec: &'a Spec,
    pub process: Process,
    pub cgroups: &'a Hierarchies,
    pub stdio: Option<Stdio<'a>>,
}

/// Runs in the new child: becomes the container's first process.
pub(super) fn container(socket: &UnixStream, container: Container<'_>) -> ! {
    report(socket, container_steps(socket, container))
}

fn container_steps(socket: &UnixStream, container: Container<'_>) -> Result<Infallible> {
    detach(socket)?;
    let Container {
        dir,
        bundle,
        spec,
        process,
        cgroups,
        stdio,
    } = container;
    join_namespaces(spec)?;
    let hooks = spec.hooks().as_ref();
    if hooks.is_some_and(|h| h.create_runtime().is_some()) {
        protocol::send(socket, &FromChild::Namespaces, &[]).map_err(|e| e.to_string())?;
        wait_for_parent(socket)?;
    }
    let sources = mounts::open_sources(spec)?;
    mounts::detach_propagation()?;
    rustix::process::umask(Mode::empty());
    mounts::mount_root(&bundle.rootfs)?;
    let root = Root::open(bundle.rootfs.target())?;
    root.mount_all(sources, cgroups)?;
    root.devices(spec)?;
    // The host's /proc is still there and tells the ID that davit and hooks know this process by.
    let pid = std::fs::read_link("/proc/self")
        .ok()
        .and_then(|p| p.to_str()?.parse().ok())
        .unwrap_or(0);
    hooks::run(
        hooks.and_then(|h| h.create_container().as_ref()),
        &bundle.id,
        "created",
        pid,
        dir,
    )?;
    root.pivot()?;
    match stdio {
        Some(stdio) if !process.tty => use_stdio(&stdio)?,
        _ => use_terminal(socket, &process, true)?,
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A working directory that the image lacks is made, before the root may become read-only.
    let _ = std::fs::create_dir_all(&process.cwd);
    mounts::protect(spec)?;
    hooks::run(
        hooks.and_then(|h| h.start_container().as_ref()),
        &bundle.id,
        "created",
        pid,
        dir,
    )?;
    process.run(&bundle.seccomp)
}

/// Joins the namespaces that have a path and makes those that have none. The pid namespace is the parent's business.
fn join_namespaces(spec: &Spec) -> Result<()> {
    let mut new = CloneFlags::empty();
    for namespace in spec
        .linux()
        .iter()
        .flat_map(|linux| linux.namespaces().iter().flatten())
    {
        let flag = match namespace.typ() {
            LinuxNamespaceType::Mount => CloneFlags::CLONE_NEWNS,
            LinuxNamespaceType::Cgroup => CloneFlags::CLONE_NEWCGROUP,
            LinuxNamespaceType::Network => CloneFlags::CLONE_NEWNET,
            LinuxNamespaceType::Ipc => CloneFlags::CLONE_NEWIPC,
            LinuxNamespaceType::Uts => CloneFlags::CLONE_NEWUTS,
            LinuxNamespaceType::Pid => continue,
            other => return Err(format!("{other} namespaces are not supported")),
        };
        match namespace.path() {
            Some(path) => {
                let file =
                    File::open(path).map_err(|e| format!("namespace {}: {e}", path.display()))?;
                setns(file, flag)
                    .map_err(|e| format!("join namespace {}: {}", path.display(), e.desc()))?;
            }
            None => new |= flag,
        }
    }
    unshare(new).map_err(|e| format!("make namespaces: {}", e.desc()))
}

/// Runs in the new child: becomes one more process of a running container.
pub(super) fn exec(
    socket: &UnixStream,
    container: BorrowedFd<'_>,
    process: Process,
    stdio: Option<&Stdio<'_>>,
    seccomp: &[Vec<u64>],
) -> ! {
    report(
        socket,
        exec_steps(socket, container, process, stdio, seccomp),
    )
}

fn exec_steps(
    socket: &UnixStream,
    container: BorrowedFd<'_>,
    process: Process,
    stdio: Option<&Stdio<'_>>,
    seccomp: &[Vec<u64>],
) -> Result<Infallible> {
    detach(socket)?;
    let all = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    setns(container, all).map_err(|e| format!("enter the container: {}", e.desc()))?;
    match stdio {
        Some(stdio) => use_stdio(stdio)?,
        None => use_terminal(socket, &process, false)?,
    }
    process.run(seccomp)
}
