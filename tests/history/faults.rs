//! Three servers, an etcd of three members, and what can happen to them.

use crate::etcd::server::Server;
use crate::harness::Cluster;
use davit_faults::Dice;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::watch;

/// What befalls whom.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// `kill -9` of an API server, which is started again.
    ServerKilled(usize),
    /// An API server stands still.
    ServerPaused(usize),
    /// `kill -9` of a member of etcd, which is started again.
    MemberKilled(usize),
    /// A member of etcd stands still.
    MemberPaused(usize),
    /// All members but one stand still: etcd answers nobody.
    QuorumPaused(usize),
    /// Nothing, or nothing in one direction, passes between a server and all of etcd.
    Cut(usize, Directions),
}

/// Which directions of a connection are cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Directions {
    to_etcd: bool,
    from_etcd: bool,
}

impl Fault {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 6;

    pub(crate) fn choose(turn: usize, dice: &mut Dice) -> Self {
        let who = dice.below(3);
        match turn % Self::KINDS {
            0 => Self::ServerKilled(who),
            1 => Self::MemberKilled(who),
            2 => Self::ServerPaused(who),
            3 => Self::MemberPaused(who),
            4 => Self::QuorumPaused(who),
            _ => {
                let kind = dice.below(3);
                Self::Cut(
                    who,
                    Directions {
                        to_etcd: kind != 1,
                        from_etcd: kind != 2,
                    },
                )
            }
        }
    }
}

/// The servers, the members, and the wires between each two of them.
pub(crate) struct Three {
    servers: Vec<Cluster>,
    members: Vec<Server>,
    /// Of each server.
    wires: Vec<watch::Sender<Directions>>,
}

impl Three {
    pub(crate) async fn start(members: Vec<Server>) -> Self {
        let addresses: Vec<SocketAddr> = members.iter().map(Server::address).collect();
        let (mut wires, mut urls) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let wire = watch::Sender::new(Directions::default());
            let mut ends = Vec::new();
            for member in &addresses {
                ends.push(format!("http://{}", lay(*member, wire.subscribe()).await));
            }
            wires.push(wire);
            urls.push(ends.join(","));
        }
        let servers = tokio::task::spawn_blocking(move || servers(&urls));
        Self {
            servers: servers.await.unwrap(),
            members,
            wires,
        }
    }

    pub(crate) fn kubeconfigs(&self) -> Vec<PathBuf> {
        self.servers
            .iter()
            .map(|server| server.kubeconfig.clone())
            .collect()
    }

    /// Has something happen, and heals it after a while. Blocks.
    pub(crate) fn suffer(&mut self, fault: Fault, lasting: Duration) {
        let wait = || std::thread::sleep(lasting);
        match fault {
            Fault::ServerKilled(who) => {
                self.servers[who].kill();
                wait();
                self.servers[who].start_again();
            }
            Fault::MemberKilled(who) => {
                self.members[who].kill();
                wait();
                self.members[who].run();
            }
            Fault::ServerPaused(who) => paused(&[self.servers[who].pid()], wait),
            Fault::MemberPaused(who) => paused(&[self.members[who].pid().unwrap()], wait),
            Fault::QuorumPaused(but) => {
                let members = self.members.iter().enumerate();
                let others = members.filter(|(number, _)| *number != but);
                let pids: Vec<u32> = others.filter_map(|(_, member)| member.pid()).collect();
                paused(&pids, wait);
            }
            Fault::Cut(who, directions) => {
                self.wires[who].send_replace(directions);
                wait();
                self.wires[who].send_replace(Directions::default());
            }
        }
    }
}

fn paused(pids: &[u32], wait: impl Fn()) {
    let all = |signal| {
        for pid in pids {
            kill(Pid::from_raw(i32::try_from(*pid).unwrap()), signal).unwrap();
        }
    };
    all(Signal::SIGSTOP);
    wait();
    all(Signal::SIGCONT);
}

/// The first one makes the keys that the others have.
fn servers(urls: &[String]) -> Vec<Cluster> {
    let first = server(&urls[0], 0, None);
    let pki = first.dir.path().join("data/pki");
    let others = std::thread::scope(|scope| {
        let others = [1, 2].map(|number| {
            let pki = pki.as_path();
            scope.spawn(move || server(&urls[number], number, Some(pki)))
        });
        others.map(|other| other.join().unwrap())
    });
    std::iter::once(first).chain(others).collect()
}

fn server(urls: &str, number: usize, pki: Option<&Path>) -> Cluster {
    let address = format!("192.0.2.{}", 21 + number);
    let flags = [
        "--no-node",
        "--etcd-servers",
        urls,
        "--etcd-shared",
        "--advertise-address",
        &address,
    ];
    let mut server = Cluster::up_after(&flags, |dir| {
        let Some(pki) = pki else { return };
        std::fs::create_dir_all(dir.join("data")).unwrap();
        crate::harness::run(
            std::process::Command::new("cp")
                .arg("-r")
                .arg(pki)
                .arg(dir.join("data")),
        );
    });
    server.keep_port();
    server
}

/// A wire to a member; where it begins.
async fn lay(member: SocketAddr, cut: watch::Receiver<Directions>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begin = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            tokio::spawn(connect(near, member, cut.clone()));
        }
    });
    begin
}

async fn connect(near: TcpStream, member: SocketAddr, mut cut: watch::Receiver<Directions>) {
    // What is sent while a wire is cut waits, as TCP would send it again.
    if cut.wait_for(|cut| !cut.to_etcd).await.is_err() {
        return;
    }
    let Ok(far) = TcpStream::connect(member).await else {
        return;
    };
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    // Either end takes the other one with it.
    tokio::select! {
        () = pass(near_in, far_out, cut.clone(), |cut| cut.to_etcd) => {}
        () = pass(far_in, near_out, cut, |cut| cut.from_etcd) => {}
    }
}

async fn pass(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<Directions>,
    is_cut: impl Fn(&Directions) -> bool,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if cut.wait_for(|cut| !is_cut(cut)).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
