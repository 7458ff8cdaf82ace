//! The processes of a container and what they have open. The kernel counts neither descriptors nor sockets for a cgroup, so
//! each process is looked at, as far as that is little work.

use davit_beneath::Procfs;
use davit_oci::cgroup::Cgroup;
use rustix::fs::{Dir, OFlags, readlinkat};

/// So many processes and descriptors are looked at for one page, of all containers together.
const MOST: u64 = 20_000;
/// The main process of a container is among its first ones.
const FIRST: usize = 16;
/// The longest file of a process that is read.
const FILE_MAX: u64 = 1 << 16;

/// What may still be looked at.
#[derive(Debug)]
pub struct Effort(u64);

impl Effort {
    /// As much as one page is worth.
    #[must_use]
    pub fn of_one_page() -> Self {
        Self(MOST)
    }

    fn take(&mut self, amount: u64) -> Option<()> {
        self.0 = self.0.checked_sub(amount)?;
        Some(())
    }
}

/// The processes of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processes {
    pub(crate) count: u64,
    /// Open descriptors, and how many of them are sockets; `None` where there are too many to look at.
    pub(crate) open: Option<Open>,
    /// How many descriptors the main process may have.
    pub(crate) most_open: Option<Most>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) descriptors: u64,
    pub(crate) sockets: u64,
}

/// A limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Most {
    Unlimited,
    Of(u64),
}

impl Processes {
    /// Those in a cgroup itself, not below it.
    pub fn of(group: &Cgroup, effort: &mut Effort) -> Option<Self> {
        // Those of another namespace have none here.
        let here = |pid: i32| (pid > 0).then_some(pid);
        let pids = group.pids().into_iter();
        let mut pids: Vec<i32> = pids.filter_map(|pid| here(pid.as_raw())).collect();
        pids.sort_unstable();
        let proc = Procfs::of_host().ok()?;
        let mut open = Some(Open::default());
        for pid in &pids {
            open = open.and_then(|open| open.with(proc, *pid, effort));
        }
        Some(Self {
            count: pids.len() as u64,
            open,
            most_open: main_process(proc, &pids).and_then(|pid| {
                let limits = read(proc, pid, "limits")?;
                most_open(&limits)
            }),
        })
    }
}

impl Open {
    /// With those of a process; nothing when that is too much.
    fn with(mut self, proc: &Procfs, pid: i32, effort: &mut Effort) -> Option<Self> {
        effort.take(1)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = proc.open(format!("{pid}/fd"), flags).ok();
        // One that has ended meanwhile has nothing open.
        let Some(mut entries) = dir.and_then(|dir| Dir::new(dir).ok()) else {
            return Some(self);
        };
        while let Some(Ok(entry)) = entries.read() {
            if entry.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            effort.take(1)?;
            self.descriptors += 1;
            let target = entries
                .fd()
                .ok()
                .map(|dir| readlinkat(dir, entry.file_name(), Vec::new()));
            if let Some(Ok(target)) = target {
                self.sockets += u64::from(target.to_bytes().starts_with(b"socket:"));
            }
        }
        Some(self)
    }
}

fn read(proc: &Procfs, pid: i32, file: &str) -> Option<String> {
    let text = proc.read(format!("{pid}/{file}"), FILE_MAX).ok()?;
    String::from_utf8(text).ok()
}

/// The one that is the first in its namespace, or the only one.
fn main_process(proc: &Procfs, pids: &[i32]) -> Option<i32> {
    if let [only] = pids {
        return Some(*only);
    }
    let mut first = pids.iter().take(FIRST).copied();
    first.find(|pid| read(proc, *pid, "status").is_some_and(|status| is_first(&status)))
}

/// Whether a `/proc/PID/status` is that of the first process of a namespace below ours.
fn is_first(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = line.and_then(|line| line.split_whitespace().nth_back(0));
    last == Some("1")
}

/// The soft limit of open files in a `/proc/PID/limits`.
fn most_open(limits: &str) -> Option<Most> {
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Most::Unlimited),
        number => number.parse().ok().map(Most::Of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn descriptors_and_sockets_are_counted_as_far_as_they_are_few() {
        let proc = Procfs::of_host().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let listeners: Vec<_> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let open = Open::default().with(proc, own, &mut Effort::of_one_page());
        let open = open.unwrap();
        assert!(
            open.sockets >= 3 && open.descriptors > open.sockets,
            "{open:?}"
        );
        assert_eq!(Open::default().with(proc, own, &mut Effort(4)), None);
        drop(listeners);
    }

    #[test]
    fn the_main_process_is_the_first_of_its_namespace() {
        assert!(is_first("Name:\tx\nNSpid:\t512\t1\n"));
        assert!(!is_first("NSpid:\t512\t17\n"));
        assert!(!is_first(""));
    }

    #[test]
    fn limits_of_a_process() {
        let of = |soft: &str| {
            format!("Limit  Soft\nMax open files            {soft}     4096   files\n")
        };
        assert_eq!(most_open(&of("1024")), Some(Most::Of(1024)));
        assert_eq!(most_open(&of("unlimited")), Some(Most::Unlimited));
        assert_eq!(most_open(""), None);
    }
}
