//! The monitor's life: one loop over its sockets, the container's output and the ends of processes.

use super::attach::{Attached, Sink};
use super::exec;
use super::init::Process;
use super::logs::{LogFile, Stream};
use super::protocol::{self, Request, Response};
use super::{Bundle, ExitRecord, RunState, hooks, now_nanos, write_exit};
use crate::cgroup::Cgroup;
use crate::rdt;
use crate::sys;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use oci_spec::runtime::Hook;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the rest of the output of a container that has ended is waited for.
const DRAIN: Duration = Duration::from_secs(2);
/// How long clients may take for what is still on its way to them when all is over.
const LINGER: Duration = Duration::from_secs(5);
/// A client must send its request, and take an answer, within this time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Our ends of the container's standard descriptors.
pub(super) struct Output {
    stdin: Option<Sink>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
}

impl Output {
    pub(super) fn new(
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
        terminal: Option<OwnedFd>,
    ) -> io::Result<Self> {
        for fd in [&stdin, &stdout, &stderr, &terminal].into_iter().flatten() {
            ioctl_fionbio(fd, true)?;
        }
        // A terminal is both ends in one; the copy is read, the original written.
        let (stdin, stdout) = match &terminal {
            Some(terminal) => (Some(terminal.try_clone()?), Some(terminal.try_clone()?)),
            None => (stdin, stdout),
        };
        Ok(Output {
            stdin: stdin.map(Sink::new),
            stdout,
            stderr,
            terminal,
        })
    }
}

/// What a connection is for, once its request has been read.
enum Role {
    New,
    Watcher,
    Exec(Pid),
    Attach(Attached),
    Done,
}

struct Client {
    stream: UnixStream,
    role: Role,
}

impl Client {
    fn answer(&self, response: &Response, fds: &[std::os::fd::BorrowedFd<'_>]) {
        // A client that is gone is noticed by its hang-up.
        let _ = protocol::send(&self.stream, response, fds);
    }
}

/// What a poll result belongs to.
#[derive(Clone, Copy)]
enum Token {
    Listener,
    Signals,
    Output(Stream),
    Stdin,
    Client(usize),
    Input(usize),
    Sink(usize),
}

/// The running monitor.
pub(super) struct Monitor {
    dir: PathBuf,
    bundle: Bundle,
    process: Process,
    pub(super) state: RunState,
    handle: OwnedFd,
    cgroup: Option<Cgroup>,
    rdt: rdt::Joined,
    log: LogFile,
    output: Output,
    signals: SignalFd,
    listener: UnixListener,
    poststop: Option<Vec<Hook>>,
    /// The container has a pid namespace of its own: all its processes end with the first.
    private_pids: bool,
    clients: Vec<Client>,
    ended: Option<i32>,
    buffer: Vec<u8>,
}

impl Monitor {
    #[allow(clippy::too_many_arguments)] // called once, each part made in another way
    pub(super) fn new(
        dir: &Path,
        bundle: Bundle,
        process: Process,
        state: RunState,
        handle: OwnedFd,
        cgroup: Option<Cgroup>,
        rdt: rdt::Joined,
        log: LogFile,
        output: Output,
        signals: SignalFd,
        listener: UnixListener,
        poststop: Option<Vec<Hook>>,
        private_pids: bool,
    ) -> Self {
        let dir = dir.to_owned();
        let (clients, ended, buffer) = (Vec::new(), None, vec![0; 16 * 1024]);
        Monitor {
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
            clients,
            ended,
            buffer,
        }
    }

    /// A connection that waits for the container's end.
    pub(super) fn add_watcher(&mut self, stream: UnixStream) {
        self.add_client(stream, Role::Watcher);
    }

    fn add_client(&mut self, stream: UnixStream, role: Role) {
        let limits = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(CLIENT_TIMEOUT)))
            .and_then(|()| stream.set_write_timeout(Some(CLIENT_TIMEOUT)));
        if limits.is_ok() {
            self.clients.push(Client { stream, role });
        }
    }

    /// Runs until the container has ended, its record is written and everybody has been told.
    pub(super) fn serve(mut self) {
        // The container may have ended before the signal was looked at for the first time.
        self.reap();
        let mut drain_until = None;
        loop {
            if self.ended.is_some() {
                let until = *drain_until.get_or_insert_with(|| {
                    if !self.private_pids
                        && let Some(cgroup) = &self.cgroup
                    {
                        cgroup.kill();
                    }
                    Instant::now() + DRAIN
                });
                if (self.output.stdout.is_none() && self.output.stderr.is_none())
                    || Instant::now() >= until
                {
                    break;
                }
            }
            self.turn(Duration::from_secs(if self.ended.is_some() {
                0
            } else {
                3600
            }));
        }
        self.finish();
    }

    /// One round: waits until something happens, or `patience` is over, and handles it.
    fn turn(&mut self, patience: Duration) {
        let busy = self.ended.is_none()
            && self
                .clients
                .iter()
                .any(|c| matches!(&c.role, Role::Attach(a) if a.is_full()));
        let mut tokens = Vec::with_capacity(8 + self.clients.len());
        let mut fds = Vec::with_capacity(tokens.capacity());
        let mut add = |token, fd, flags| {
            tokens.push(token);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        add(Token::Listener, self.listener.as_fd(), PollFlags::IN);
        add(Token::Signals, self.signals.as_fd(), PollFlags::IN);
        if !busy {
            for (stream, fd) in [
                (Stream::Stdout, &self.output.stdout),
                (Stream::Stderr, &self.output.stderr),
            ] {
                if let Some(fd) = fd {
                    add(Token::Output(stream), fd.as_fd(), PollFlags::IN);
                }
            }
        }
        let input_room = self
            .output
            .stdin
            .as_ref()
            .is_some_and(|sink| !sink.is_pending());
        if let Some(sink) = self.output.stdin.as_ref().filter(|sink| sink.is_pending()) {
            add(Token::Stdin, sink.fd(), PollFlags::OUT);
        }
        let mut pending = busy;
        for (index, client) in self.clients.iter().enumerate() {
            add(Token::Client(index), client.stream.as_fd(), PollFlags::IN);
            if let Role::Attach(attached) = &client.role {
                if let Some(fd) = attached.input.as_ref().filter(|_| input_room) {
                    add(Token::Input(index), fd.as_fd(), PollFlags::IN);
                }
                for sink in [&attached.stdout, &attached.stderr]
                    .into_iter()
                    .flatten()
                    .filter(|sink| sink.is_pending())
                {
                    pending = true;
                    add(Token::Sink(index), sink.fd(), PollFlags::OUT);
                }
            }
        }
        let patience = if self.ended.is_some() {
            Duration::from_millis(20)
        } else if pending {
            Duration::from_secs(1)
        } else {
            patience
        };
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        let ready: Vec<Token> = tokens
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(token, _)| token)
            .collect();
        drop(fds);
        for token in ready {
            self.handle(token);
        }
        for client in &mut self.clients {
            if let Role::Attach(attached) = &mut client.role {
                attached.sweep();
                if attached.is_leaving && !attached.is_pending() {
                    client.answer(&Response::Ended { code: 0 }, &[]);
                    client.role = Role::Done;
                }
            }
        }
        self.clients
            .retain(|client| !matches!(client.role, Role::Done));
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Listener => {
                while let Ok((stream, _)) = self.listener.accept() {
                    self.add_client(stream, Role::New);
                }
            }
            Token::Signals => {
                while matches!(self.signals.read_signal(), Ok(Some(_))) {}
                self.reap();
            }
            Token::Output(stream) => self.read_output(stream),
            Token::Stdin => {
                if self.output.stdin.as_mut().is_some_and(|sink| !sink.flush()) {
                    self.output.stdin = None;
                }
            }
            Token::Client(index) => self.client_ready(index),
            Token::Input(index) => self.read_input(index),
            Token::Sink(index) => {
                if let Role::Attach(attached) = &mut self.clients[index].role {
                    for sink in attached.sinks() {
                        if sink.as_mut().is_some_and(|sink| !sink.flush()) {
                            *sink = None;
                        }
                    }
                }
            }
        }
    }

    fn reap(&mut self) {
        while let Some(ended) = sys::reap() {
            if ended.pid.as_raw() == self.state.pid {
                self.ended = Some(ended.code);
                continue;
            }
            for client in &mut self.clients {
                if matches!(client.role, Role::Exec(pid) if pid == ended.pid) {
                    client.answer(&Response::Ended { code: ended.code }, &[]);
                    client.role = Role::Done;
                }
            }
        }
    }

    /// Copies what the container wrote to the log and to attached clients.
    fn read_output(&mut self, stream: Stream) {
        let source = match stream {
            Stream::Stdout => &mut self.output.stdout,
            Stream::Stderr => &mut self.output.stderr,
        };
        let Some(fd) = source else { return };
        let count = match read(&*fd, &mut self.buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            // A terminal whose last user is gone reports an I/O error.
            Err(_) => 0,
        };
        if count == 0 {
            *source = None;
            self.log.finish(stream);
            return;
        }
        let bytes = &self.buffer[..count];
        self.log.write(stream, bytes);
        for client in &mut self.clients {
            if let Role::Attach(attached) = &mut client.role
                && !attached.is_leaving
            {
                let sink = match stream {
                    Stream::Stdout => &mut attached.stdout,
                    Stream::Stderr => &mut attached.stderr,
                };
                if sink.as_mut().is_some_and(|sink| !sink.push(bytes)) {
                    *sink = None;
                }
            }
        }
    }

    /// Copies what an attached client wrote to the container.
    fn read_input(&mut self, index: usize) {
        let Role::Attach(attached) = &mut self.clients[index].role else {
            return;
        };
        let Some(input) = &attached.input else { return };
        match read(input, &mut self.buffer) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => {
                attached.input = None;
                // As with containerd: a client whose input is not the container's whole input goes when it has nothing more to say.
                attached.is_leaving = !self.bundle.input_is_one_clients();
                self.input_gone();
            }
            Ok(count) => {
                if self
                    .output
                    .stdin
                    .as_mut()
                    .is_some_and(|sink| !sink.push(&self.buffer[..count]))
                {
                    self.output.stdin = None;
                }
            }
        }
    }

    /// The end of a client's input ends the container's only if it asked for that; a terminal stays open anyway.
    fn input_gone(&mut self) {
        if self.bundle.input_is_one_clients() {
            if let Some(sink) = &mut self.output.stdin {
                sink.flush();
            }
            self.output.stdin = None;
        }
    }

    fn client_ready(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if matches!(client.role, Role::New) {
            match protocol::receive::<Request>(&client.stream) {
                Ok(Some((request, fds))) => self.request(index, request, fds),
                Ok(None) | Err(_) => client.role = Role::Done,
            }
            return;
        }
        // Nothing more is expected on the connection: it has been closed.
        match std::mem::replace(&mut client.role, Role::Done) {
            Role::Exec(pid) => {
                let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
            }
            Role::Attach(attached) if attached.input.is_some() => self.input_gone(),
            _ => {}
        }
    }

    fn request(&mut self, index: usize, request: Request, fds: Vec<OwnedFd>) {
        let result = match request {
            Request::Watch => {
                let client = &mut self.clients[index];
                client.answer(&Response::Running(self.state.clone()), &[]);
                client.role = Role::Watcher;
                return;
            }
            Request::Exec { args, tty, size } => self.exec(index, args, tty, size, fds),
            Request::Attach {
                stdin,
                stdout,
                stderr,
            } => self.attach(index, [stdin, stdout, stderr], fds),
            Request::Kill { signal, all } => self.kill(index, signal, all),
            Request::Resize { width, height } => {
                let size = Winsize {
                    ws_row: height,
                    ws_col: width,
                    ws_xpixel: 0,
                    ws_ypixel: 0,
                };
                match &self.output.terminal {
                    Some(terminal) => tcsetwinsize(terminal, size).map_err(|e| e.to_string()),
                    None => Err("the container has no terminal".to_owned()),
                }
                .map(|()| self.done(index))
            }
            Request::ReopenLog => self
                .log
                .reopen()
                .map_err(|e| format!("log file: {e}"))
                .map(|()| self.done(index)),
        };
        if let Err(message) = result {
            let client = &mut self.clients[index];
            client.answer(
                &Response::Failed {
                    start: false,
                    message,
                },
                &[],
            );
            client.role = Role::Done;
        }
    }

    fn done(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.answer(&Response::Ok, &[]);
        client.role = Role::Done;
    }

    fn kill(&mut self, index: usize, signal: i32, all: bool) -> Result<(), String> {
        if self.ended.is_none() {
            // The first process is our child and not yet reaped, so the number is still its own.
            // SIGRTMIN and above are legal stop signals that the typed wrapper does not know.
            sys::kill(Pid::from_raw(self.state.pid), signal).map_err(|e| format!("kill: {e}"))?;
        }
        if all && let Some(cgroup) = &self.cgroup {
            if signal == Signal::SIGKILL as i32 {
                cgroup.kill();
            } else {
                for pid in cgroup.pids() {
                    let _ = sys::kill(pid, signal);
                }
            }
        }
        self.done(index);
        Ok(())
    }

    fn exec(
        &mut self,
        index: usize,
        args: Vec<String>,
        tty: bool,
        size: Option<(u16, u16)>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        if self.ended.is_some() {
            return Err("the container is not running".to_owned());
        }
        let mut process = self.process.clone();
        (process.args, process.tty, process.size) = (args, tty, size);
        let stdio: Option<[OwnedFd; 3]> = if tty {
            None
        } else {
            Some(fds.try_into().map_err(|_| "three descriptors are needed")?)
        };
        let spawned = exec::exec(
            self.handle.as_fd(),
            self.cgroup.as_ref(),
            process,
            stdio.as_ref(),
            &self.bundle,
        );
        let client = &mut self.clients[index];
        match spawned {
            Ok(spawned) => {
                let pid = spawned.pid.as_raw();
                let terminal: Vec<_> = spawned.terminal.iter().map(AsFd::as_fd).collect();
                client.answer(&Response::Started { pid }, &terminal);
                client.role = Role::Exec(spawned.pid);
            }
            Err(message) => {
                let message = format!("unable to start container process: {message}");
                client.answer(
                    &Response::Failed {
                        start: true,
                        message,
                    },
                    &[],
                );
                client.role = Role::Done;
            }
        }
        Ok(())
    }

    fn attach(&mut self, index: usize, wanted: [bool; 3], fds: Vec<OwnedFd>) -> Result<(), String> {
        if fds.len() != wanted.iter().filter(|w| **w).count() {
            return Err("the descriptors do not fit the request".to_owned());
        }
        for fd in &fds {
            ioctl_fionbio(fd, true).map_err(|e| e.to_string())?;
        }
        let mut fds = fds.into_iter();
        let mut next = |on: bool| if on { fds.next() } else { None };
        let attached = Attached {
            input: next(wanted[0]),
            stdout: next(wanted[1]).map(Sink::new),
            stderr: next(wanted[2]).map(Sink::new),
            is_leaving: false,
        };
        let client = &mut self.clients[index];
        client.answer(&Response::Ok, &[]);
        client.role = Role::Attach(attached);
        Ok(())
    }

    /// The container has ended: the record first, then the news, then the clearing up.
    fn finish(mut self) {
        self.log.finish(Stream::Stdout);
        self.log.finish(Stream::Stderr);
        let code = self.ended.unwrap_or(255);
        let oom = self
            .cgroup
            .as_ref()
            .is_some_and(|cgroup| cgroup.oom_kills() > 0);
        let reason = match code {
            _ if oom => "OOMKilled",
            0 => "Completed",
            _ => "Error",
        };
        let record = ExitRecord {
            code,
            started_at: self.state.started_at,
            finished_at: now_nanos(),
            reason: reason.to_owned(),
            message: String::new(),
        };
        // Without a place to write it (a full disk) those who are connected still hear of it.
        let _ = write_exit(&self.dir, &record);
        let _ = std::fs::remove_file(&self.bundle.socket);
        let news = Response::Exited(record);
        for client in &self.clients {
            if matches!(client.role, Role::Watcher) {
                client.answer(&news, &[]);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.linger(&news);
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.remove(LINGER);
        }
        self.rdt.leave();
        let _ = hooks::run(
            self.poststop.as_ref(),
            &self.bundle.id,
            "stopped",
            self.state.pid,
            &self.dir,
        );
    }

    /// Waits for the ends of exec'd processes and for attached clients that still read.
    fn linger(&mut self, news: &Response) {
        let until = Instant::now() + LINGER;
        self.clients
            .retain(|client| matches!(client.role, Role::Exec(_) | Role::Attach(_) | Role::New));
        loop {
            self.reap();
            for client in &mut self.clients {
                if matches!(&client.role, Role::Attach(attached) if !attached.is_pending()) {
                    client.answer(news, &[]);
                    client.role = Role::Done;
                }
            }
            self.clients
                .retain(|client| !matches!(client.role, Role::Done));
            if self.clients.is_empty() || Instant::now() >= until {
                return;
            }
            self.turn(Duration::from_millis(20));
        }
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor")
            .field("id", &self.bundle.id)
            .field("handle", &self.handle.as_raw_fd())
            .finish()
    }
}
