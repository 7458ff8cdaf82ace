//! Seccomp: from a profile (the default one, or a JSON file in Docker's format) to filter programs.
//!
//! One BPF program from `seccompiler` knows two outcomes, match and mismatch. A profile with more actions becomes
//! several programs that the kernel runs one after the other, taking the strictest answer: the first decides between
//! the default action and "listed", each further one adds a listed action of its own.
//!
//! A processor runs programs of more than one architecture, whose system calls have other numbers, so each program judges
//! calls of one architecture and lets others pass; one more program ([`guard`]) ends whoever calls by any further one.

mod compat;
mod syscalls;

pub(crate) use crate::caps;
use crate::caps::{CapSet, Capability};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use syscalls::Policy;

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a profile in Docker's JSON format.
    #[error("seccomp profile: {0}")]
    Parse(#[from] serde_json::Error),
    /// The profile asks for something that is not built.
    #[error("seccomp profile: {0} is not supported")]
    Unsupported(String),
    /// The filter compiler refused it.
    #[error("seccomp profile: {0}")]
    Compile(String),
}

/// Filter programs in the order they are installed; each element of a program is one kernel instruction.
pub type Programs = Vec<Vec<u64>>;

/// A profile in the JSON format that Docker, containerd and the `Localhost` type of Kubernetes use.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    arch_map: Vec<ArchMap>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

/// The architectures that come with one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: String,
    #[serde(default)]
    sub_architectures: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    name: Option<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Arg>>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arg {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conditions {
    #[serde(default)]
    caps: Option<Vec<String>>,
    #[serde(default)]
    arches: Option<Vec<String>>,
    #[serde(default)]
    min_kernel: Option<String>,
}

/// The architecture's name in profiles.
const ARCH: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};

/// The same in the lists of architectures.
const NATIVE: &str = if cfg!(target_arch = "aarch64") {
    "SCMP_ARCH_AARCH64"
} else {
    "SCMP_ARCH_X86_64"
};

/// Whose system calls a program judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Those of this architecture.
    Native,
    /// Those of its 32-bit programs.
    Compat,
}

impl Conditions {
    /// An `includes` block holds when all of its parts do.
    fn included(&self, caps: CapSet) -> bool {
        self.caps.as_ref().is_none_or(|names| {
            names.is_empty() || names.iter().all(|name| Capability::parse(name).is_some_and(|cap| caps.has(cap)))
        }) && self.arches.as_ref().is_none_or(|arches| arches.is_empty() || arches.iter().any(|arch| arch == ARCH))
        // Kernels older than any minimum in use cannot run this runtime at all (mount_setattr is 5.12).
        && self.min_kernel.as_ref().is_none_or(|_| true)
    }

    /// An `excludes` block holds when any of its parts does.
    fn excluded(&self, caps: CapSet) -> bool {
        self.caps
            .iter()
            .flatten()
            .any(|name| Capability::parse(name).is_some_and(|cap| caps.has(cap)))
            || self.arches.iter().flatten().any(|arch| arch == ARCH)
            || self.min_kernel.is_some()
    }
}

/// One rule: a call with the argument conditions under which it is listed, and what then happens.
struct Listed {
    number: i64,
    /// Alternatives; empty means "whatever the arguments".
    conditions: Vec<SeccompRule>,
    action: SeccompAction,
}

fn compile_error(error: impl std::fmt::Display) -> Error {
    Error::Compile(error.to_string())
}

fn action(name: &str, errno: Option<u32>) -> Result<SeccompAction, Error> {
    const EPERM: u32 = 1;
    Ok(match name {
        "SCMP_ACT_ALLOW" => SeccompAction::Allow,
        "SCMP_ACT_ERRNO" => SeccompAction::Errno(errno.unwrap_or(EPERM)),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => SeccompAction::KillThread,
        "SCMP_ACT_KILL_PROCESS" => SeccompAction::KillProcess,
        "SCMP_ACT_LOG" => SeccompAction::Log,
        "SCMP_ACT_TRAP" => SeccompAction::Trap,
        "SCMP_ACT_TRACE" => SeccompAction::Trace(errno.unwrap_or(EPERM)),
        other => return Err(Error::Unsupported(format!("action {other}"))),
    })
}

fn condition(arg: &Arg) -> Result<SeccompCondition, Error> {
    // Docker writes masked comparisons with the mask as `value` and the wanted bits as `valueTwo`.
    let (op, value) = match arg.op.as_str() {
        "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, arg.value),
        "SCMP_CMP_NE" => (SeccompCmpOp::Ne, arg.value),
        "SCMP_CMP_LT" => (SeccompCmpOp::Lt, arg.value),
        "SCMP_CMP_LE" => (SeccompCmpOp::Le, arg.value),
        "SCMP_CMP_GT" => (SeccompCmpOp::Gt, arg.value),
        "SCMP_CMP_GE" => (SeccompCmpOp::Ge, arg.value),
        "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(arg.value), arg.value_two),
        other => return Err(Error::Unsupported(format!("operator {other}"))),
    };
    SeccompCondition::new(arg.index, SeccompCmpArgLen::Qword, op, value).map_err(compile_error)
}

/// Conditions on different arguments must all hold; two on the same argument are alternatives (as in runc).
fn rules(args: &[Arg]) -> Result<Vec<SeccompRule>, Error> {
    if args.is_empty() {
        return Ok(Vec::new());
    }
    let repeated = args
        .iter()
        .enumerate()
        .any(|(i, a)| args[..i].iter().any(|b| a.index == b.index));
    let conditions = args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
    let groups = if repeated {
        conditions.into_iter().map(|c| vec![c]).collect()
    } else {
        vec![conditions]
    };
    groups
        .into_iter()
        .map(|group| SeccompRule::new(group).map_err(compile_error))
        .collect()
}

fn target_arch() -> Result<TargetArch, Error> {
    std::env::consts::ARCH.try_into().map_err(compile_error)
}

fn program(
    calls: Calls,
    listed: BTreeMap<i64, Vec<SeccompRule>>,
    mismatch: SeccompAction,
    on_match: SeccompAction,
) -> Result<Vec<u64>, Error> {
    let filter =
        SeccompFilter::new(listed, mismatch, on_match, target_arch()?).map_err(compile_error)?;
    let mut bpf: BpfProgram = filter.try_into().map_err(compile_error)?;
    // The program begins with a look at the architecture: load it, compare it, end the process if it is another.
    let [_, compare, other, ..] = bpf.as_mut_slice() else {
        return Err(Error::Compile("no look at the architecture".to_owned()));
    };
    if (compare.code, compare.k) != (JEQ, audit_arch()) || (other.code, other.k) != (RET, KILL) {
        return Err(Error::Compile("no look at the architecture".to_owned()));
    }
    other.k = ALLOW;
    if calls == Calls::Compat {
        compare.k = compat::AUDIT_ARCH;
    }
    Ok(bpf.iter().map(pack).collect())
}

/// `BPF_LD | BPF_W | BPF_ABS`
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JEQ | BPF_K`
const JEQ: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`
const JGE: u16 = 0x35;
/// `BPF_RET | BPF_K`
const RET: u16 = 0x06;
/// `SECCOMP_RET_ALLOW`
const ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_KILL_PROCESS`
const KILL: u32 = 0x8000_0000;

/// The kernel's name for this architecture in seccomp's data.
const fn audit_arch() -> u32 {
    if cfg!(target_arch = "aarch64") {
        0xc000_00b7
    } else if cfg!(target_arch = "riscv64") {
        0xc000_00f3
    } else {
        0xc000_003e
    }
}

/// Ends processes that make system calls of architectures that no other program judges. The calls of x32, which count as
/// x86-64's with a bit set, do not exist, as on kernels without them.
fn guard(compat: bool) -> Vec<u64> {
    const NR: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const X32: u32 = 0x4000_0000;
    const NOT_THERE: u32 = 0x0005_0000 | 38; // SECCOMP_RET_ERRNO with ENOSYS
    let step = |code, jt, jf, k| pack(&seccompiler::sock_filter { code, jt, jf, k });
    let mut program = vec![
        step(LOAD, 0, 0, ARCHITECTURE),
        step(JEQ, 3, 0, audit_arch()),
    ];
    // A number that no architecture has, where there is none to let pass.
    let second = if compat { compat::AUDIT_ARCH } else { 0 };
    program.push(step(JEQ, 1, 0, second));
    program.push(step(RET, 0, 0, KILL));
    program.push(step(RET, 0, 0, ALLOW));
    if cfg!(target_arch = "x86_64") {
        program.push(step(LOAD, 0, 0, NR));
        program.push(step(JGE, 0, 1, X32));
        program.push(step(RET, 0, 0, NOT_THERE));
    }
    program.push(step(RET, 0, 0, ALLOW));
    program
}

/// The instruction's eight bytes, in memory order, as one number.
fn pack(instruction: &seccompiler::sock_filter) -> u64 {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&instruction.code.to_ne_bytes());
    bytes[2] = instruction.jt;
    bytes[3] = instruction.jf;
    bytes[4..].copy_from_slice(&instruction.k.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Programs for the calls of this architecture and, where there is a list of them, of its 32-bit programs.
fn compile(
    default: &SeccompAction,
    native: &[Listed],
    compat: Option<&[Listed]>,
) -> Result<Programs, Error> {
    let native = compile_for(Calls::Native, default, native)?;
    if native.is_empty() {
        return Ok(native);
    }
    // The last one may refuse the call by which they are installed.
    let mut programs = vec![guard(compat.is_some())];
    if let Some(compat) = compat {
        programs.extend(compile_for(Calls::Compat, default, compat)?);
    }
    programs.extend(native);
    Ok(programs)
}

fn compile_for(
    calls: Calls,
    default: &SeccompAction,
    listed: &[Listed],
) -> Result<Programs, Error> {
    let mut base: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut others: Vec<(SeccompAction, BTreeMap<i64, Vec<SeccompRule>>)> = Vec::new();
    let insert = |map: &mut BTreeMap<i64, Vec<SeccompRule>>, item: &Listed| match map
        .get_mut(&item.number)
    {
        // An unconditional entry (no rules) stays unconditional.
        Some(rules) if rules.is_empty() => {}
        Some(rules) if item.conditions.is_empty() => rules.clear(),
        Some(rules) => rules.extend(item.conditions.iter().cloned()),
        None => drop(map.insert(item.number, item.conditions.clone())),
    };
    for item in listed.iter().filter(|item| item.action != *default) {
        if *default != SeccompAction::Allow {
            insert(&mut base, item);
        }
        if item.action != SeccompAction::Allow {
            match others.iter_mut().find(|(action, _)| *action == item.action) {
                Some((_, map)) => insert(map, item),
                None => {
                    let mut map = BTreeMap::new();
                    insert(&mut map, item);
                    others.push((item.action.clone(), map));
                }
            }
        }
    }
    let mut programs = Vec::new();
    for (on_match, map) in others {
        programs.push(program(calls, map, SeccompAction::Allow, on_match)?);
    }
    if *default != SeccompAction::Allow {
        programs.push(program(calls, base, default.clone(), SeccompAction::Allow)?);
    }
    Ok(programs)
}

impl Profile {
    /// Reads a profile from JSON.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Compiles the profile for a container with these capabilities. Calls that an architecture does not have are
    /// skipped, as every runtime does. 32-bit programs may run if the profile names their architecture.
    pub fn compile(&self, caps: CapSet) -> Result<Programs, Error> {
        let native = self.listed(caps, syscalls::number)?;
        let compat = if self.lists(compat::NAME) {
            Some(self.listed(caps, compat::number)?)
        } else {
            None
        };
        compile(
            &action(&self.default_action, self.default_errno_ret)?,
            &native,
            compat.as_deref(),
        )
    }

    fn lists(&self, architecture: &str) -> bool {
        let mapped = self
            .arch_map
            .iter()
            .filter(|map| map.architecture == NATIVE);
        self.architectures.iter().any(|name| name == architecture)
            || mapped
                .flat_map(|map| map.sub_architectures.iter().flatten())
                .any(|name| name == architecture)
    }

    fn listed(
        &self,
        caps: CapSet,
        number: impl Fn(&str) -> Option<i64>,
    ) -> Result<Vec<Listed>, Error> {
        let mut listed = Vec::new();
        for entry in &self.syscalls {
            if entry.includes.as_ref().is_some_and(|c| !c.included(caps))
                || entry.excludes.as_ref().is_some_and(|c| c.excluded(caps))
            {
                continue;
            }
            let action = action(&entry.action, entry.errno_ret)?;
            let conditions = rules(entry.args.as_deref().unwrap_or_default())?;
            for name in entry.names.iter().chain(&entry.name) {
                if let Some(number) = number(name) {
                    listed.push(Listed {
                        number,
                        conditions: conditions.clone(),
                        action: action.clone(),
                    });
                }
            }
        }
        Ok(listed)
    }
}

fn compare(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value).map_err(compile_error)
}

fn all(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, Error> {
    SeccompRule::new(conditions).map_err(compile_error)
}

fn when(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    all(vec![compare(index, op, value)?])
}

/// The default profile (`RuntimeDefault`) for a container with these capabilities.
pub fn default_profile(caps: CapSet) -> Result<Programs, Error> {
    const EPERM: u32 = 1;
    let rows = syscalls::COMMON.iter().chain(syscalls::ARCH).copied();
    let native = default_rules(caps, rows)?;
    let compat = default_rules(caps, compat::rows())?;
    let compat = cfg!(any(target_arch = "x86_64", target_arch = "aarch64")).then_some(compat);
    compile(&SeccompAction::Errno(EPERM), &native, compat.as_deref())
}

fn default_rules(
    caps: CapSet,
    rows: impl Iterator<Item = syscalls::Row>,
) -> Result<Vec<Listed>, Error> {
    /// The kernel's ciphers, by way of which any readable file could be changed in the page cache (CVE-2026-31431).
    const AF_ALG: u64 = 38;
    const AF_VSOCK: u64 = 40;
    const ENOSYS: u32 = 38;
    /// `CLONE_NEW*` of user, pid, net, ipc, uts, mount and cgroup namespaces.
    const NEW_NAMESPACES: u64 = 0x7e02_0000;
    let admin = caps.has(Capability::SysAdmin);
    let mut listed = Vec::new();
    for (name, number, policy) in rows {
        let mut action = SeccompAction::Allow;
        let conditions = match policy {
            Policy::Always => Vec::new(),
            Policy::Gated(needed) if needed.iter().any(|cap| caps.has(*cap)) => Vec::new(),
            Policy::Gated(_) | Policy::Never => continue,
            Policy::Special => match name {
                "socket" => {
                    let other = |family| compare(0, SeccompCmpOp::Ne, family);
                    vec![all(vec![other(AF_ALG)?, other(AF_VSOCK)?])?]
                }
                "socketcall" => {
                    // The family is behind a pointer; C libraries call what takes it as an argument.
                    action = SeccompAction::Errno(ENOSYS);
                    Vec::new()
                }
                "personality" => [0, 8, 0x20000, 0x20008, 0xffff_ffff]
                    .into_iter()
                    .map(|persona| when(0, SeccompCmpOp::Eq, persona))
                    .collect::<Result<_, _>>()?,
                "clone" if !admin => vec![when(0, SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)?],
                "clone3" if !admin => {
                    // Its flags are behind a pointer, so it cannot be judged; C libraries fall back to clone.
                    action = SeccompAction::Errno(ENOSYS);
                    Vec::new()
                }
                _ => Vec::new(),
            },
        };
        listed.push(Listed {
            number,
            conditions,
            action,
        });
    }
    Ok(listed)
}

/// A filter for a process of our own that makes only these calls.
pub(crate) fn only(names: &[&str]) -> Result<Programs, Error> {
    const EPERM: u32 = 1;
    let listed = names.iter().filter_map(|name| {
        Some(Listed {
            number: syscalls::number(name)?,
            conditions: Vec::new(),
            action: SeccompAction::Allow,
        })
    });
    compile(
        &SeccompAction::Errno(EPERM),
        &listed.collect::<Vec<_>>(),
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_compiles_for_any_capabilities() {
        for caps in [CapSet(0), CapSet::DEFAULT, CapSet::all()] {
            let programs = default_profile(caps).unwrap();
            assert!(
                !programs.is_empty() && programs.iter().all(|p| p.len() < 4096),
                "{programs:?}"
            );
        }
        // clone3 has its own action only without CAP_SYS_ADMIN
        // and each is there for 32-bit programs, too; one more looks at the architecture
        assert_eq!(default_profile(CapSet::DEFAULT).unwrap().len(), 2 * 2 + 1);
        // i386 has socketcall, which is unknown to all
        let socketcall = usize::from(cfg!(target_arch = "x86_64"));
        assert_eq!(
            default_profile(CapSet::all()).unwrap().len(),
            2 + 1 + socketcall
        );
    }

    #[test]
    fn the_default_profile_refuses_the_kernels_ciphers_and_vsock() {
        use rustix::net::{AddressFamily, SocketType, socket};
        let programs = default_profile(CapSet::all()).unwrap();
        for (family, refused) in [
            (AddressFamily::UNIX, false),
            (AddressFamily::INET6, false),
            (AddressFamily::from_raw(38), true),
            (AddressFamily::from_raw(40), true),
        ] {
            let Some(child) = crate::sys::fork().unwrap() else {
                let ready = nix::sys::prctl::set_no_new_privs().is_ok()
                    && programs
                        .iter()
                        .all(|program| crate::sys::install_seccomp(program).is_ok());
                let answer = socket(family, SocketType::DGRAM, None);
                let is_refused = answer.err() == Some(rustix::io::Errno::PERM);
                crate::sys::exit_now(if ready { i32::from(is_refused) } else { 2 })
            };
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            let nix::sys::wait::WaitStatus::Exited(_, code) = status else {
                panic!("{status:?}");
            };
            assert_eq!(code, i32::from(refused), "{family:?}");
        }
    }

    #[test]
    fn profiles_in_dockers_format() {
        let json = br#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64"],"syscalls":[
            {"names":["mkdir","mkdirat","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":13},
            {"names":["socket"],"action":"SCMP_ACT_ERRNO","args":[{"index":0,"value":40,"op":"SCMP_CMP_EQ"}]},
            {"names":["reboot"],"action":"SCMP_ACT_KILL_PROCESS","excludes":{"caps":["CAP_SYS_BOOT"]}}]}"#;
        let profile = Profile::parse(json).unwrap();
        assert_eq!(profile.compile(CapSet::DEFAULT).unwrap().len(), 3 + 1);
        assert_eq!(profile.compile(CapSet::all()).unwrap().len(), 2 + 1);
        let also = |list: String| {
            let json = String::from_utf8_lossy(json).into_owned();
            let json = json.replace("\"architectures\":[\"SCMP_ARCH_X86_64\"]", &list);
            let profile = Profile::parse(json.as_bytes()).unwrap();
            profile.compile(CapSet::all()).unwrap().len()
        };
        assert_eq!(
            also(format!("\"architectures\":[\"{}\"]", compat::NAME)),
            2 * 2 + 1
        );
        assert_eq!(
            also(format!(
                "\"archMap\":[{{\"architecture\":\"{NATIVE}\",\"subArchitectures\":[\"{}\"]}}]",
                compat::NAME
            )),
            2 * 2 + 1
        );
        assert!(Profile::parse(b"{}").is_err());
        let odd = Profile::parse(br#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#).unwrap();
        assert!(matches!(
            odd.compile(CapSet::DEFAULT),
            Err(Error::Unsupported(_))
        ));
    }

    #[test]
    fn an_empty_allow_profile_needs_no_program() {
        let profile = Profile::parse(br#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).unwrap();
        assert!(profile.compile(CapSet::DEFAULT).unwrap().is_empty());
    }
}
