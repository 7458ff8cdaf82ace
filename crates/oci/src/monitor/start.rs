//! The monitor's beginning: from its command line to a running container.

use super::exec::{Expected, spawn};
use super::init::{self, Container, Process, Stdio};
use super::logs::LogFile;
use super::protocol::{self, Response};
use super::serve::{Monitor, Output};
use super::{Bundle, ExitRecord, RunState, files, hooks, load, now_nanos, start_ticks, write_exit};
use crate::cgroup::{Cgroup, Hierarchies};
use crate::rdt;
use crate::sys;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a container to reach its program; hooks (device vendors' programs) run within it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Exit code that runtimes give a container that could not be started.
const START_ERROR: i32 = 128;

/// Entry point; the first descriptor is a connection to the davit that started us, the second ([`files::STARTED`]) is held
/// open to the end.
pub(super) fn main(dir: &Path) -> i32 {
    let caller = UnixStream::from(sys::inherited_fd(0));
    match begin(dir, caller) {
        Ok(monitor) => {
            monitor.serve();
            0
        }
        Err(()) => 1,
    }
}

/// Becomes a process that nothing but its own end ends.
fn settle() -> Result<SignalFd, String> {
    let failed = |what: &'static str| move |e: nix::errno::Errno| format!("{what}: {}", e.desc());
    // A new session: neither a terminal's Ctrl-C nor the end of davit's process group reaches the container.
    let _ = nix::unistd::setsid();
    let _ = std::env::set_current_dir("/");
    prctl::set_child_subreaper(true).map_err(failed("become subreaper"))?;
    let _ = prctl::set_name(c"davit-monitor");
    // Nobody looks into this process or, before it is a container's own program, into one that it forks.
    prctl::set_dumpable(false).map_err(failed("dumpable"))?;
    // The container's processes have this one's: the keys of whoever started davit are not theirs, nor those of a container of the
    // same user. A name by which one joins would be found by all of that user.
    sys::own_session_keyring().map_err(|e| format!("session keyring: {e}"))?;
    // Under memory pressure the container goes first. Fails without CAP_SYS_RESOURCE, which is no harm.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block().map_err(failed("block signals"))?;
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGPIPE,
        Signal::SIGTTOU,
        Signal::SIGTTIN,
    ] {
        ignore(signal);
    }
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(failed("signalfd"))
}

fn ignore(signal: Signal) {
    let _ = sys::set_handler(signal, SigHandler::SigIgn);
}

fn begin(dir: &Path, caller: UnixStream) -> Result<Monitor, ()> {
    let fail = |message: String| {
        // A caller that is gone looks for the exit record.
        let _ = protocol::send(
            &caller,
            &Response::Failed {
                start: false,
                message,
            },
            &[],
        );
    };
    let signals = settle().map_err(&fail)?;
    let (bundle, spec) = load(dir).map_err(|e| fail(e.to_string()))?;
    if dir.join(files::EXIT).exists() {
        fail("the container has ended already".to_owned());
        return Err(());
    }
    // davit is told only after the socket is there: one that is restarted in this moment finds it.
    let listener = listen(&bundle.socket).map_err(|e| fail(format!("control socket: {e}")))?;
    match create(dir, bundle.clone(), &spec, signals, listener) {
        Ok(mut monitor) => {
            let _ = protocol::send(&caller, &Response::Running(monitor.state.clone()), &[]);
            monitor.add_watcher(caller);
            Ok(monitor)
        }
        Err(message) => {
            let now = now_nanos();
            let record = ExitRecord {
                code: START_ERROR,
                started_at: now,
                finished_at: now,
                reason: "StartError".to_owned(),
                message: message.clone(),
            };
            let _ = write_exit(dir, &record);
            let _ = std::fs::remove_file(&bundle.socket);
            let _ = protocol::send(
                &caller,
                &Response::Failed {
                    start: true,
                    message,
                },
                &[],
            );
            Err(())
        }
    }
}

/// Binds the control socket. Through the directory's descriptor, since socket paths may have 108 bytes only.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
    let fd = File::open(dir)?;
    let short = PathBuf::from(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&fd)
    ))
    .join(name);
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(short)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The container's ends of its standard descriptors, and ours.
struct Pipes {
    theirs: Option<[OwnedFd; 3]>,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

fn pipes(bundle: &Bundle) -> std::io::Result<Pipes> {
    if bundle.tty {
        return Ok(Pipes {
            theirs: None,
            stdin: None,
            stdout: None,
            stderr: None,
        });
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let (stdout, their_stdout) = pipe()?;
    let (stderr, their_stderr) = pipe()?;
    let (their_stdin, stdin) = if bundle.stdin {
        let (theirs, ours) = pipe()?;
        (theirs, Some(ours))
    } else {
        (File::open("/dev/null")?.into(), None)
    };
    // A program that opens /dev/stdout anew needs the right to, whoever it runs as.
    for fd in [&their_stdout, &their_stderr, &their_stdin] {
        if bundle.stdin || !std::ptr::eq(fd, &their_stdin) {
            rustix::fs::fchmod(fd, rustix::fs::Mode::from_raw_mode(0o666))?;
        }
    }
    Ok(Pipes {
        theirs: Some([their_stdin, their_stdout, their_stderr]),
        stdin,
        stdout: Some(stdout),
        stderr: Some(stderr),
    })
}

fn pid_namespace(spec: &Spec) -> Option<&oci_spec::runtime::LinuxNamespace> {
    spec.linux()
        .iter()
        .flat_map(|linux| linux.namespaces().iter().flatten())
        .find(|ns| ns.typ() == LinuxNamespaceType::Pid)
}

/// Whether the container's processes are in another pid namespace than the host's.
fn counts_its_own(spec: &Spec) -> bool {
    pid_namespace(spec).is_some()
}

/// Whether the container has a pid namespace of its own: all its processes end with the first.
fn has_private_pids(spec: &Spec) -> bool {
    pid_namespace(spec).is_some_and(|ns| ns.path().is_none())
}

fn make_cgroup(
    hierarchies: &Hierarchies,
    bundle: &Bundle,
    spec: &Spec,
) -> Result<Option<Cgroup>, String> {
    let Some(path) = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.cgroups_path().as_ref())
    else {
        return Ok(None);
    };
    let cgroup = hierarchies.cgroup(&path.to_string_lossy());
    let set = || {
        cgroup.create()?;
        cgroup.apply(&bundle.limits)?;
        bundle
            .devices
            .as_ref()
            .map_or(Ok(()), |rules| cgroup.set_devices(rules))
    };
    match set() {
        Ok(()) => Ok(Some(cgroup)),
        Err(error) => {
            let _ = cgroup.remove(Duration::ZERO);
            Err(error.to_string())
        }
    }
}

fn join_rdt(id: &str, spec: &Spec) -> Result<rdt::Joined, String> {
    let wanted = spec.linux().as_ref().and_then(|l| l.intel_rdt().as_ref());
    let joined = wanted.map(|wanted| rdt::join(wanted, id, std::process::id()));
    let joined = joined.transpose().map_err(|e| e.to_string())?;
    Ok(joined.unwrap_or_default())
}

fn create(
    dir: &Path,
    bundle: Bundle,
    spec: &Spec,
    signals: SignalFd,
    listener: UnixListener,
) -> Result<Monitor, String> {
    let process = Process::from_spec(spec)?;
    let log = LogFile::open(bundle.log_path.as_deref()).map_err(|e| format!("log file: {e}"))?;
    let pipes = pipes(&bundle).map_err(|e| format!("pipes: {e}"))?;
    let hierarchies = Hierarchies::detect().map_err(|e| e.to_string())?;
    // Everything that is forked from here on is in the group, too.
    let rdt = join_rdt(&bundle.id, spec)?;
    let cgroup = make_cgroup(&hierarchies, &bundle, spec).inspect_err(|_| rdt.leave())?;
    let hooks_before = |pid: nix::unistd::Pid| {
        let hooks = spec.hooks().as_ref();
        hooks::run(
            hooks.and_then(|h| h.create_runtime().as_ref()),
            &bundle.id,
            "creating",
            pid.as_raw(),
            dir,
        )
    };
    let spawned = spawn(
        cgroup.as_ref(),
        process.oom_score_adj,
        PATIENCE,
        Expected {
            moves: counts_its_own(spec),
            terminal: bundle.tty,
        },
        hooks_before,
        |socket| {
            let stdio = pipes
                .theirs
                .as_ref()
                .map(|[i, o, e]| Stdio([i.as_fd(), o.as_fd(), e.as_fd()]));
            let container = Container {
                dir,
                bundle: &bundle,
                spec,
                process: process.clone(),
                cgroups: &hierarchies,
                stdio,
            };
            init::container(socket, container)
        },
    );
    let started = spawned.and_then(|spawned| {
        let pid = spawned.pid;
        let state = RunState {
            pid: pid.as_raw(),
            start_ticks: start_ticks(pid.as_raw()).unwrap_or(0),
            monitor: std::process::id() as i32,
            started_at: now_nanos(),
        };
        let json = serde_json::to_vec(&state).map_err(|e| e.to_string())?;
        std::fs::write(dir.join(files::STATE), json)
            .map_err(|e| format!("{}: {e}", files::STATE))?;
        let handle = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(pid.as_raw()).ok_or("no process")?,
            rustix::process::PidfdFlags::empty(),
        )
        .map_err(|e| format!("pidfd: {e}"))?;
        let hooks = spec.hooks().as_ref();
        hooks::run(
            hooks.and_then(|h| h.poststart().as_ref()),
            &bundle.id,
            "running",
            pid.as_raw(),
            dir,
        )?;
        Ok((spawned, state, handle))
    });
    match started {
        Ok((spawned, state, handle)) => {
            let output = Output::new(pipes.stdin, pipes.stdout, pipes.stderr, spawned.terminal)
                .map_err(|e| format!("descriptors: {e}"))?;
            let poststop = spec.hooks().as_ref().and_then(|h| h.poststop().clone());
            let private_pids = has_private_pids(spec);
            Ok(Monitor::new(
                dir,
                bundle,
                process,
                state,
                handle,
                cgroup,
                rdt,
                log,
                output,
                signals,
                listener,
                poststop,
                private_pids,
            ))
        }
        Err(message) => {
            if let Some(cgroup) = &cgroup {
                cgroup.kill();
                while sys::reap().is_some() {}
                let _ = cgroup.remove(Duration::from_millis(500));
            }
            rdt.leave();
            Err(message)
        }
    }
}
