//! The child's side of starting a process: from the fork to `execve`.

use super::mounts::{self, NewRoot};
use super::namespaces::{self, Namespaces, Pids};
use super::{Bundle, directory, hooks, procfs, protocol, terminal, userns};
use crate::caps::{CapSet, Capability};
use crate::cgroup::Hierarchies;
use crate::sys;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid};
use oci_spec::runtime::{Capabilities, LinuxNamespaceType, PosixRlimitType, Spec};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, major, minor};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::CString;
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
    /// Another process goes on in the place of the one that was forked.
    Moved {
        /// Its ID in the monitor's pid namespace.
        pid: i32,
        /// It waits for one byte.
        waits: bool,
    },
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
    /// How readily the kernel ends it for want of memory.
    pub oom_score_adj: Option<i32>,
    /// It runs in a user namespace that is not the host's.
    own_users: bool,
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
            own_users: spec
                .linux()
                .iter()
                .flat_map(|linux| linux.namespaces().iter().flatten())
                .any(|ns| ns.typ() == LinuxNamespaceType::User),
            tty: process.terminal().unwrap_or(false),
            oom_score_adj: process.oom_score_adj(),
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
        let passwd = user_list();
        let uid = self.uid.to_string();
        let home = passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.len() > 5 && fields[2] == uid)
            .map_or("/", |fields| fields[5]);
        self.env.retain(|pair| !pair.starts_with("HOME="));
        self.env.push(format!("HOME={home}"));
    }

    /// The user it runs as.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Takes on the identity, runs the hooks whose programs are the image's, with no more than the container has, and then the
    /// program. Returns only on failure.
    fn run(
        mut self,
        socket: &UnixStream,
        bundle: &Bundle,
        last: &Last,
        hooks: impl FnOnce() -> Result<()>,
    ) -> Result<Infallible> {
        self.add_home();
        for (kind, soft, hard) in &self.rlimits {
            // A hard limit above ours cannot be had without CAP_SYS_RESOURCE; the container runs with what there is.
            let _ = setrlimit(*kind, *soft, *hard);
        }
        // Before the program is looked for: the container names it, and `execve` follows `/proc/self/fd` to whatever is
        // open, before close-on-exec means anything (CVE-2024-21626). A socket leads nowhere.
        sys::close_all_but(socket).map_err(|e| format!("close descriptors: {e}"))?;
        // Without no_new_privs a filter needs CAP_SYS_ADMIN, so it goes in before the capabilities are dropped.
        if !self.no_new_privileges {
            install(bundle)?;
        }
        self.become_user()?;
        if let Last::Join = last {
            namespaces::go_on_as_sibling(socket, false)?;
            self.lead_session()?;
        }
        // Cleared by the change of user, so set after it: a container does not outlive its monitor.
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        if self.no_new_privileges {
            install(bundle)?;
        }
        hooks()?;
        sys::reset_signals();
        Err(self.exec())
    }

    /// User, groups, capabilities, working directory: after this the process is no more than the container's own.
    fn become_user(&self) -> Result<()> {
        let os = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let errno =
            |what: &'static str| move |e: nix::errno::Errno| format!("{what}: {}", e.desc());
        sys::limit_bounding_set(self.bounding).map_err(os("bounding capabilities"))?;
        prctl::set_keepcaps(true).map_err(errno("keep capabilities"))?;
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        nix::unistd::setgroups(&groups).map_err(errno("set groups"))?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // As root a directory that its own user may not see can still be entered; the other way round works as user.
        let entered = directory::enter(&self.cwd);
        nix::unistd::setresgid(gid, gid, gid).map_err(errno("set group"))?;
        nix::unistd::setresuid(uid, uid, uid).map_err(errno("set user"))?;
        if entered.is_err() {
            directory::enter(&self.cwd)
                .map_err(|e| format!("chdir to cwd ({:?}): {e}", self.cwd))?;
        }
        prctl::set_keepcaps(false).map_err(errno("keep capabilities"))?;
        sys::set_caps(self.effective, self.permitted, self.inheritable)
            .map_err(os("set capabilities"))?;
        sys::set_ambient(self.ambient.and(self.inheritable))
            .map_err(os("set ambient capabilities"))?;
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        if self.no_new_privileges {
            prctl::set_no_new_privs().map_err(errno("no_new_privs"))?;
        }
        // The change of user may have set it again.
        prctl::set_dumpable(false).map_err(errno("dumpable"))
    }

    /// A session of its own, with the terminal that it may have been given.
    fn lead_session(&self) -> Result<()> {
        match nix::unistd::setsid() {
            Ok(_) if self.tty => terminal::control(),
            Ok(_) => Ok(()),
            // A profile may refuse the call; only a terminal needs the session.
            Err(_) if !self.tty => Ok(()),
            Err(error) => Err(format!("setsid: {}", error.desc())),
        }
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

/// How a process that has become what it should be gets to its program.
enum Last {
    /// At once.
    Program,
    /// By a fork into the pid namespace that was chosen for children, in which others are.
    Join,
}

/// The container's list of users. It is the container's file: of any kind, of any size.
fn user_list() -> String {
    const LIMIT: u64 = 1 << 20;
    let open = || -> std::io::Result<String> {
        let file = rustix::fs::openat2(
            rustix::fs::CWD,
            "/etc/passwd",
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_MAGICLINKS,
        )?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let mut text = Vec::new();
        std::fs::File::from(file)
            .take(LIMIT)
            .read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    open().unwrap_or_default()
}

fn install(bundle: &Bundle) -> Result<()> {
    let mut programs = bundle.seccomp.iter();
    programs
        .try_for_each(|program| sys::install_seccomp(program, bundle.seccomp_flags))
        .map_err(|e| format!("seccomp: {e}"))
}

/// The process's standard descriptors when it has no terminal.
pub(super) struct Stdio<'a>(pub [BorrowedFd<'a>; 3]);

pub(super) fn use_stdio(stdio: &Stdio<'_>) -> Result<()> {
    let [stdin, stdout, stderr] = stdio.0;
    rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr))
        .map_err(|e| format!("standard descriptors: {}", std::io::Error::from(e)))
}

/// The same, inside the container's root: what is the host's `/dev/null` becomes the container's. Through a descriptor
/// of the host's file its mode could be changed for everybody.
fn use_stdio_inside(stdio: &Stdio<'_>) -> Result<()> {
    use_stdio(stdio)?;
    let failed =
        |error: rustix::io::Errno| format!("standard descriptors: {}", std::io::Error::from(error));
    if is_null(rustix::stdio::stdin()) {
        // A container whose /dev is its own affair reads the end at once, too.
        let stdin = open_null().or_else(|_| Ok(pipe_with(PipeFlags::CLOEXEC)?.0));
        rustix::stdio::dup2_stdin(stdin.map_err(failed)?).map_err(failed)?;
    }
    let no_null = |_| "the container's /dev/null is not the device that it should be".to_owned();
    if is_null(rustix::stdio::stdout()) {
        rustix::stdio::dup2_stdout(open_null().map_err(no_null)?).map_err(failed)?;
    }
    if is_null(rustix::stdio::stderr()) {
        rustix::stdio::dup2_stderr(open_null().map_err(no_null)?).map_err(failed)?;
    }
    Ok(())
}

/// The device 1:3, whatever its name.
fn is_null(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        device && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
    })
}

fn open_null() -> rustix::io::Result<OwnedFd> {
    let null = rustix::fs::openat2(
        rustix::fs::CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    if is_null(&null) {
        Ok(null)
    } else {
        Err(rustix::io::Errno::NODEV)
    }
}

/// Waits for a byte of the monitor's.
pub(super) fn wait_for_parent(mut socket: &UnixStream) -> Result<()> {
    socket
        .read_exact(&mut [0])
        .map_err(|_| "the monitor went away".to_owned())
}

/// First steps of every child, still with the host's view. It is not dumpable, as the monitor is not.
fn detach(socket: &UnixStream) -> Result<()> {
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    wait_for_parent(socket)
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
    let hooks = spec.hooks().as_ref();
    let announce = || -> Result<()> {
        if hooks.is_some_and(|h| h.create_runtime().is_some()) {
            protocol::send(socket, &FromChild::Namespaces, &[]).map_err(|e| e.to_string())?;
            wait_for_parent(socket)?;
        }
        Ok(())
    };
    let namespaces = Namespaces::open(spec, bundle)?;
    let own_users = namespaces.users.is_some();
    let mut sources;
    let pids;
    if let Some(users) = &namespaces.users {
        // In a mount namespace of the host's: what this one mounts, the container may not take apart.
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|e| format!("make a mount namespace: {}", e.desc()))?;
        let owner = userns::Owner::of(spec)?;
        sources = mounts::open_sources(spec)?;
        mounts::map_ids(&sources, users)?;
        mounts::detach_propagation()?;
        rustix::process::umask(Mode::empty());
        mounts::supply(&mut sources, "tmpfs", userns::dev(spec, owner)?);
        mounts::mount_images(&bundle.images, &mut sources, Some(users))?;
        mounts::mount_root(&userns::map_root(&bundle.rootfs, users, owner)?)?;
        // Goes along into the next mount namespace, where the path may not be walked.
        std::env::set_current_dir(bundle.rootfs.target()).map_err(|e| format!("root: {e}"))?;
        pids = enter(namespaces, socket)?;
        announce()?;
        userns::own_root()?;
    } else {
        pids = enter(namespaces, socket)?;
        announce()?;
        sources = mounts::open_sources(spec)?;
        mounts::detach_propagation()?;
        rustix::process::umask(Mode::empty());
        mounts::mount_images(&bundle.images, &mut sources, None)?;
        mounts::mount_root(&bundle.rootfs)?;
        std::env::set_current_dir(bundle.rootfs.target()).map_err(|e| format!("root: {e}"))?;
    }
    if let Pids::Shared(namespace) = &pids {
        mounts::supply(&mut sources, "proc", procfs::mount_of(namespace)?);
    }
    let mut root = NewRoot::open(Path::new("."))?;
    root.mount_all(sources, cgroups)?;
    if !own_users {
        root.devices(spec)?;
    }
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
        Some(stdio) if !process.tty => use_stdio_inside(&stdio)?,
        _ => terminal::make(socket, &process, true)?,
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A working directory that the image lacks is made, before the root may become read-only.
    let _ = directory::make(&process.cwd);
    mounts::protect(spec)?;
    let last = match pids {
        Pids::Host | Pids::New => {
            process.lead_session()?;
            Last::Program
        }
        Pids::Shared(namespace) => {
            setns(namespace, CloneFlags::CLONE_NEWPID)
                .map_err(|e| format!("join the pid namespace: {}", e.desc()))?;
            Last::Join
        }
    };
    let in_container = || {
        hooks::run(
            hooks.and_then(|h| h.start_container().as_ref()),
            &bundle.id,
            "created",
            pid,
            dir,
        )
    };
    process.run(socket, bundle, &last, in_container)
}

fn enter(namespaces: Namespaces, socket: &UnixStream) -> Result<Pids> {
    let pids = namespaces.enter()?;
    if let Pids::New = pids {
        namespaces::into_new_pids(socket)?;
    }
    Ok(pids)
}

/// Runs in the new child: becomes one more process of a running container.
pub(super) fn exec(
    socket: &UnixStream,
    container: BorrowedFd<'_>,
    process: Process,
    stdio: Option<&Stdio<'_>>,
    bundle: &Bundle,
) -> ! {
    report(
        socket,
        exec_steps(socket, container, process, stdio, bundle),
    )
}

fn exec_steps(
    socket: &UnixStream,
    container: BorrowedFd<'_>,
    process: Process,
    stdio: Option<&Stdio<'_>>,
    bundle: &Bundle,
) -> Result<Infallible> {
    detach(socket)?;
    let all = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP
        | CloneFlags::CLONE_NEWPID;
    // The pid namespace is that of the fork which runs the program.
    let users = if process.own_users {
        CloneFlags::CLONE_NEWUSER
    } else {
        CloneFlags::empty()
    };
    setns(container, all | users).map_err(|e| format!("enter the container: {}", e.desc()))?;
    if process.own_users {
        userns::become_root()?;
    }
    match stdio {
        Some(stdio) => use_stdio_inside(stdio)?,
        None => terminal::make(socket, &process, false)?,
    }
    process.run(socket, bundle, &Last::Join, || Ok(()))
}
