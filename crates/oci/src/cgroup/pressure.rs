//! How long the processes of a cgroup wait for what others use (PSI,
//! <https://docs.kernel.org/accounting/psi.html>).

use super::Cgroup;
use std::fs;

/// What processes may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contended {
    /// Processors.
    Cpu,
    /// Memory.
    Memory,
    /// Disks.
    Io,
}

impl Contended {
    fn file(self) -> &'static str {
        match self {
            Self::Cpu => "cpu.pressure",
            Self::Memory => "memory.pressure",
            Self::Io => "io.pressure",
        }
    }
}

/// The time in which processes waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StallTime {
    /// Percent of the last ten seconds.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
    /// Microseconds since the beginning.
    pub total: u64,
}

/// How much processes wait for one thing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// At least one process waited.
    pub some: StallTime,
    /// All that had something to do waited. Old kernels do not tell it of processors, where it means nothing for a machine.
    pub full: StallTime,
}

impl Pressure {
    /// Reads a file of the kernel; `None` where it is none, as where PSI is switched off.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let line = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            let field = |key: &str| {
                let mut fields = line.split_whitespace();
                fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
            };
            Some(StallTime {
                avg10: field("avg10")?.parse().ok()?,
                avg60: field("avg60")?.parse().ok()?,
                avg300: field("avg300")?.parse().ok()?,
                total: field("total")?.parse().ok()?,
            })
        };
        Some(Self {
            some: line("some ")?,
            full: line("full ").unwrap_or_default(),
        })
    }

    /// Of the whole machine.
    #[must_use]
    pub fn of_machine(of: Contended) -> Option<Self> {
        let name = match of {
            Contended::Cpu => "cpu",
            Contended::Memory => "memory",
            Contended::Io => "io",
        };
        Self::parse(&fs::read_to_string(format!("/proc/pressure/{name}")).ok()?)
    }
}

impl Cgroup {
    /// How much the cgroup's processes wait; `None` where the machine has no v2 tree or the kernel does not count it.
    #[must_use]
    pub fn pressure(&self, of: Contended) -> Option<Pressure> {
        let file = self.v2()?.join(of.file());
        Pressure::parse(&fs::read_to_string(file).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchies;
    use std::collections::BTreeMap;

    #[test]
    fn pressure_is_told_by_the_v2_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let text = "some avg10=1.50 avg60=2.67 avg300=1.00 total=1890\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=7\n";
        fs::write(dir.path().join("a/io.pressure"), text).unwrap();
        let old = text.lines().next().unwrap();
        fs::write(dir.path().join("a/cpu.pressure"), old).unwrap();
        let hybrid = Hierarchies {
            v1: BTreeMap::from([("memory".to_owned(), "/nowhere".into())]),
            unified: Some(dir.path().to_owned()),
        };
        let group = hybrid.cgroup("/a");
        let io = group.pressure(Contended::Io).unwrap();
        assert!((io.some.avg10 - 1.5).abs() < 1e-9 && io.some.total == 1890);
        assert!((io.full.avg10 - 0.25).abs() < 1e-9 && io.full.total == 7);
        let cpu = group.pressure(Contended::Cpu).unwrap();
        assert_eq!(cpu.full, StallTime::default());
        assert_eq!(group.pressure(Contended::Memory), None);
        assert_eq!(Pressure::parse("some avg10=x"), None);
    }
}
