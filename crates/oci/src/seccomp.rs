//! Seccomp: from a profile (the default one, or a file) to filter programs.
//!
//! One BPF program from `seccompiler` knows two outcomes, match and mismatch. A profile with more actions becomes
//! several programs that the kernel runs one after the other, taking the strictest answer: the first decides between
//! the default action and "listed", each further one adds a listed action of its own.
//!
//! A processor runs programs of more than one architecture, whose system calls have other numbers, so each program judges
//! calls of one architecture and lets others pass; one more program ([`guard`]) ends whoever calls by any further one.

mod compat;
mod profile;
mod syscalls;

pub(crate) use crate::caps;
use crate::caps::{CapSet, Capability};
pub use profile::{CompiledProfile, Profile};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
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

/// Whose system calls a program judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Those of this architecture.
    Native,
    /// Those of its 32-bit programs.
    Compat,
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
    use super::profile::NATIVE;
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
        // and all flags that a profile may have
        let json = br#"{"defaultAction":"SCMP_ACT_ALLOW","flags":["SECCOMP_FILTER_FLAG_LOG","SECCOMP_FILTER_FLAG_SPEC_ALLOW"]}"#;
        let profile = Profile::parse(json).unwrap();
        let flags = profile.compile(CapSet::all()).unwrap().flags;
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
                        .all(|program| crate::sys::install_seccomp(program, flags).is_ok());
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
        let count = |caps| profile.compile(caps).unwrap().programs.len();
        assert_eq!(count(CapSet::DEFAULT), 3 + 1);
        assert_eq!(count(CapSet::all()), 2 + 1);
        let also = |list: String| {
            let json = String::from_utf8_lossy(json).into_owned();
            let json = json.replace("\"architectures\":[\"SCMP_ARCH_X86_64\"]", &list);
            let profile = Profile::parse(json.as_bytes()).unwrap();
            profile.compile(CapSet::all()).unwrap().programs.len()
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
    }

    /// Profiles of an attacker are none; but one that says more than is built protects from less than it says.
    #[test]
    fn what_a_profile_says_and_is_not_known_is_refused() {
        let of = |more: &str| {
            let json = format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","comment":"x",{more}}}"#);
            Profile::parse(json.as_bytes())?.compile(CapSet::DEFAULT)
        };
        for more in [
            r#""syscals":[]"#,
            r#""flags":["SECCOMP_FILTER_FLAG_NEW_LISTENER"]"#,
            r#""flags":["LOG"]"#,
            r#""listenerPath":"/run/agent.sock""#,
            r#""listenerMetadata":"x""#,
            r#""defaultErrno":"ENOSYS""#,
            r#""architectures":["SCMP_ARCH_VAX"]"#,
            r#""archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_VAX"]}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NOTIFY"}]"#,
            r#""syscalls":[{"names":["mkdir"],"acton":"SCMP_ACT_ERRNO","action":"SCMP_ACT_ALLOW"}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errno":"EACCES"}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","args":[{"index":0,"value":1,"op":"SCMP_CMP_XX"}]}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","args":[{"index":6,"value":1,"op":"SCMP_CMP_EQ"}]}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","includes":{"minKernel":"new"}}]"#,
            r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NONE","excludes":{"arches":["amd64","arm64"]}}]"#,
        ] {
            assert!(of(more).is_err(), "{more}");
        }
        let flags = |list| of(&format!(r#""flags":{list}"#)).unwrap().flags;
        assert_eq!(flags("null"), 0);
        assert_eq!(flags(r#"["SECCOMP_FILTER_FLAG_TSYNC"]"#), 0);
        assert_eq!(
            flags(r#"["SECCOMP_FILTER_FLAG_LOG","SECCOMP_FILTER_FLAG_SPEC_ALLOW"]"#),
            6
        );
        // What is meant for kernels that are not there yet is not in force, and what is for those before them is.
        let programs = |conditions: &str| {
            let rule = format!(
                r#""syscalls":[{{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":1,"errno":"EPERM",{conditions}}}]"#
            );
            of(&rule).unwrap().programs.len()
        };
        assert_eq!(programs(r#""includes":{"minKernel":"4.8"}"#), 2);
        assert_eq!(programs(r#""includes":{"minKernel":"4294967295.0"}"#), 0);
        assert_eq!(programs(r#""excludes":{"minKernel":"4.8"}"#), 0);
        assert_eq!(programs(r#""excludes":{"minKernel":"4294967295.0"}"#), 2);
    }

    #[test]
    fn an_empty_allow_profile_needs_no_program() {
        let profile = Profile::parse(br#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).unwrap();
        let filter = profile.compile(CapSet::DEFAULT).unwrap();
        assert!(filter.programs.is_empty());
    }
}
