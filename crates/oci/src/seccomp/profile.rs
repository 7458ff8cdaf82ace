//! Profiles as files, in the JSON format of runtimes and in Docker's. What such a file says and is not built is refused, and so
//! is what nobody knows: a rule that is misspelt would not hold.

use super::{Error, Listed, Programs, compat, compile, compile_error, syscalls};
use crate::caps::{CapSet, Capability};
use crate::kernel;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The programs of a profile, and how they are installed.
#[derive(Debug, Clone, Default)]
pub struct CompiledProfile {
    /// The programs.
    pub programs: Programs,
    /// Flags of `seccomp(2)`.
    pub flags: u32,
}

/// `SECCOMP_FILTER_FLAG_LOG`
const LOG: u32 = 1 << 1;
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`
const SPEC_ALLOW: u32 = 1 << 2;

/// A profile in the JSON format that Docker, containerd and the `Localhost` type of Kubernetes use.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    /// The same by its name, which containers/common writes beside the number.
    #[serde(default)]
    default_errno: Option<String>,
    #[serde(default)]
    flags: Option<Vec<String>>,
    #[serde(default)]
    listener_path: Option<String>,
    #[serde(default)]
    listener_metadata: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    arch_map: Vec<ArchMap>,
    #[serde(default)]
    syscalls: Vec<Entry>,
    /// For people.
    #[serde(default, rename = "comment")]
    _comment: IgnoredAny,
}

/// The architectures that come with one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchMap {
    architecture: String,
    #[serde(default)]
    sub_architectures: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    name: Option<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    errno: Option<String>,
    #[serde(default)]
    args: Option<Vec<Arg>>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
    /// For people.
    #[serde(default, rename = "comment")]
    _comment: IgnoredAny,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arg {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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

/// The architectures there are (`libseccomp`); programs of those that this processor does not run are not there.
const ARCHITECTURES: [&str; 17] = [
    "SCMP_ARCH_X86",
    "SCMP_ARCH_X86_64",
    "SCMP_ARCH_X32",
    "SCMP_ARCH_ARM",
    "SCMP_ARCH_AARCH64",
    "SCMP_ARCH_MIPS",
    "SCMP_ARCH_MIPS64",
    "SCMP_ARCH_MIPS64N32",
    "SCMP_ARCH_MIPSEL",
    "SCMP_ARCH_MIPSEL64",
    "SCMP_ARCH_MIPSEL64N32",
    "SCMP_ARCH_PPC",
    "SCMP_ARCH_PPC64",
    "SCMP_ARCH_PPC64LE",
    "SCMP_ARCH_RISCV64",
    "SCMP_ARCH_S390",
    "SCMP_ARCH_S390X",
];

/// The same in the lists of architectures.
pub(super) const NATIVE: &str = if cfg!(target_arch = "aarch64") {
    "SCMP_ARCH_AARCH64"
} else {
    "SCMP_ARCH_X86_64"
};

impl Conditions {
    /// An `includes` block holds when all of its parts do.
    fn included(&self, caps: CapSet) -> Result<bool, Error> {
        let needed = self.caps.iter().flatten();
        let arches = self.arches.as_deref().unwrap_or_default();
        Ok(needed.into_iter().all(|name| is_held(name, caps))
            && (arches.is_empty() || arches.iter().any(|arch| arch == ARCH))
            && self.has_kernel()?.unwrap_or(true))
    }

    /// An `excludes` block holds when any of its parts does.
    fn excluded(&self, caps: CapSet) -> Result<bool, Error> {
        Ok(self.caps.iter().flatten().any(|name| is_held(name, caps))
            || self.arches.iter().flatten().any(|arch| arch == ARCH)
            || self.has_kernel()?.unwrap_or(false))
    }

    /// This kernel is one of those that are meant, where only some are.
    fn has_kernel(&self) -> Result<Option<bool>, Error> {
        let Some(text) = self.min_kernel.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let wrong = || Error::Unsupported(format!("kernel {text}"));
        let (major, minor) = text.split_once('.').ok_or_else(wrong)?;
        let number = |part: &str| part.parse::<u32>().map_err(|_| wrong());
        Ok(Some(kernel::version() >= (number(major)?, number(minor)?)))
    }
}

fn is_held(name: &str, caps: CapSet) -> bool {
    Capability::parse(name).is_some_and(|cap| caps.has(cap))
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

impl Profile {
    /// Reads a profile from JSON.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Compiles the profile for a container with these capabilities. Calls that an architecture does not have are
    /// skipped, as every runtime does. 32-bit programs may run if the profile names their architecture.
    pub fn compile(&self, caps: CapSet) -> Result<CompiledProfile, Error> {
        self.check()?;
        let native = self.listed(caps, syscalls::number)?;
        let compat = if self.lists(compat::NAME) {
            Some(self.listed(caps, compat::number)?)
        } else {
            None
        };
        let default = action(&self.default_action, self.default_errno_ret)?;
        Ok(CompiledProfile {
            programs: compile(&default, &native, compat.as_deref())?,
            flags: self.flags()?,
        })
    }

    /// What is said anywhere is known and built.
    fn check(&self) -> Result<(), Error> {
        let refused = |what: &str| Err(Error::Unsupported(what.to_owned()));
        for (name, value) in [
            ("listenerPath", &self.listener_path),
            ("listenerMetadata", &self.listener_metadata),
        ] {
            if value.as_ref().is_some_and(|text| !text.is_empty()) {
                return refused(name);
            }
        }
        if self.default_errno.is_some() && self.default_errno_ret.is_none() {
            return refused("defaultErrno without defaultErrnoRet");
        }
        let mut named = self.syscalls.iter();
        if named.any(|entry| entry.errno.is_some() && entry.errno_ret.is_none()) {
            return refused("errno without errnoRet");
        }
        let mapped = self.arch_map.iter().flat_map(|map| {
            let others = map.sub_architectures.iter().flatten();
            std::iter::once(&map.architecture).chain(others)
        });
        let mut all = self.architectures.iter().chain(mapped);
        match all.find(|name| !ARCHITECTURES.contains(&name.as_str())) {
            Some(name) => refused(&format!("architecture {name}")),
            None => Ok(()),
        }
    }

    fn flags(&self) -> Result<u32, Error> {
        let mut flags = 0;
        for name in self.flags.iter().flatten() {
            flags |= match name.as_str() {
                // there is one thread when the programs are installed
                "SECCOMP_FILTER_FLAG_TSYNC" => 0,
                "SECCOMP_FILTER_FLAG_LOG" => LOG,
                "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => SPEC_ALLOW,
                other => return Err(Error::Unsupported(format!("flag {other}"))),
            };
        }
        Ok(flags)
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
            let included = entry.includes.as_ref().map(|c| c.included(caps));
            let excluded = entry.excludes.as_ref().map(|c| c.excluded(caps));
            let is_in_force =
                included.transpose()?.unwrap_or(true) && !excluded.transpose()?.unwrap_or(false);
            // also of what is not in force
            let action = action(&entry.action, entry.errno_ret)?;
            let conditions = rules(entry.args.as_deref().unwrap_or_default())?;
            if !is_in_force {
                continue;
            }
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
