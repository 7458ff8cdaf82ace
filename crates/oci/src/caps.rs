//! Linux capabilities: names, sets and the set a container gets by default.

use std::fmt;

macro_rules! capabilities {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A Linux capability; the discriminant is the kernel's number.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(missing_docs)] // the kernel's names, described in capabilities(7)
        pub enum Capability { $($variant),* }

        impl Capability {
            /// All capabilities this code knows, in the kernel's order.
            pub const ALL: &'static [Capability] = &[$(Capability::$variant),*];

            /// The name without the `CAP_` prefix.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Capability::$variant => $name),* }
            }
        }
    };
}

capabilities! {
    Chown = "CHOWN", DacOverride = "DAC_OVERRIDE", DacReadSearch = "DAC_READ_SEARCH", Fowner = "FOWNER",
    Fsetid = "FSETID", Kill = "KILL", Setgid = "SETGID", Setuid = "SETUID", Setpcap = "SETPCAP",
    LinuxImmutable = "LINUX_IMMUTABLE", NetBindService = "NET_BIND_SERVICE", NetBroadcast = "NET_BROADCAST",
    NetAdmin = "NET_ADMIN", NetRaw = "NET_RAW", IpcLock = "IPC_LOCK", IpcOwner = "IPC_OWNER",
    SysModule = "SYS_MODULE", SysRawio = "SYS_RAWIO", SysChroot = "SYS_CHROOT", SysPtrace = "SYS_PTRACE",
    SysPacct = "SYS_PACCT", SysAdmin = "SYS_ADMIN", SysBoot = "SYS_BOOT", SysNice = "SYS_NICE",
    SysResource = "SYS_RESOURCE", SysTime = "SYS_TIME", SysTtyConfig = "SYS_TTY_CONFIG", Mknod = "MKNOD",
    Lease = "LEASE", AuditWrite = "AUDIT_WRITE", AuditControl = "AUDIT_CONTROL", Setfcap = "SETFCAP",
    MacOverride = "MAC_OVERRIDE", MacAdmin = "MAC_ADMIN", Syslog = "SYSLOG", WakeAlarm = "WAKE_ALARM",
    BlockSuspend = "BLOCK_SUSPEND", AuditRead = "AUDIT_READ", Perfmon = "PERFMON", Bpf = "BPF",
    CheckpointRestore = "CHECKPOINT_RESTORE",
}

impl Capability {
    /// Reads a name with or without `CAP_`, in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        Self::ALL.iter().copied().find(|cap| cap.name() == name)
    }
}

/// A set of capabilities as the kernel's bit mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CapSet(pub u64);

impl CapSet {
    /// What a container holds unless it asks for more or less: the set that Docker and containerd share.
    pub const DEFAULT: CapSet = CapSet::of(&[
        Capability::Chown,
        Capability::DacOverride,
        Capability::Fsetid,
        Capability::Fowner,
        Capability::Mknod,
        Capability::NetRaw,
        Capability::Setgid,
        Capability::Setuid,
        Capability::Setfcap,
        Capability::Setpcap,
        Capability::NetBindService,
        Capability::SysChroot,
        Capability::Kill,
        Capability::AuditWrite,
    ]);

    /// The set of the given capabilities.
    #[must_use]
    pub const fn of(caps: &[Capability]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < caps.len() {
            bits |= 1 << caps[i] as u8;
            i += 1;
        }
        CapSet(bits)
    }

    /// Every capability this code knows.
    #[must_use]
    pub const fn all() -> Self {
        CapSet::of(Capability::ALL)
    }

    /// Whether the capability is in the set.
    #[must_use]
    pub fn has(self, cap: Capability) -> bool {
        self.0 & (1 << cap as u8) != 0
    }

    /// With one more.
    #[must_use]
    pub fn with(self, cap: Capability) -> Self {
        CapSet(self.0 | 1 << cap as u8)
    }

    /// With one less.
    #[must_use]
    pub fn without(self, cap: Capability) -> Self {
        CapSet(self.0 & !(1 << cap as u8))
    }

    /// What both sets hold.
    #[must_use]
    pub fn and(self, other: CapSet) -> Self {
        CapSet(self.0 & other.0)
    }

    /// The names with `CAP_` prefix, in the kernel's order.
    pub fn names(self) -> impl Iterator<Item = String> {
        Capability::ALL
            .iter()
            .filter(move |cap| self.has(**cap))
            .map(|cap| format!("CAP_{}", cap.name()))
    }

    /// Applies Kubernetes' add and drop lists; `ALL` stands for every capability. The text of the error names the
    /// first capability that does not exist.
    pub fn adjusted(self, add: &[String], drop: &[String]) -> Result<Self, UnknownCapability> {
        let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
        let mut set = self;
        if add.iter().any(is_all) {
            set = CapSet::all();
        }
        if drop.iter().any(is_all) {
            set = CapSet(0);
        }
        for name in add.iter().filter(|n| !is_all(n)) {
            set = set.with(Capability::parse(name).ok_or_else(|| UnknownCapability(name.clone()))?);
        }
        for name in drop.iter().filter(|n| !is_all(n)) {
            set = set
                .without(Capability::parse(name).ok_or_else(|| UnknownCapability(name.clone()))?);
        }
        Ok(set)
    }
}

/// A capability name the kernel does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCapability(pub String);

impl fmt::Display for UnknownCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown capability {:?}", self.0)
    }
}

impl std::error::Error for UnknownCapability {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(Capability::SysAdmin as u8, 21);
        assert_eq!(Capability::CheckpointRestore as u8, 40);
        assert_eq!(CapSet::DEFAULT.0, 0xa804_25fb);
    }

    #[test]
    fn add_and_drop() {
        let s = |v: &[&str]| v.iter().map(|x| (*x).to_owned()).collect::<Vec<_>>();
        let set = CapSet::DEFAULT
            .adjusted(&s(&["NET_ADMIN"]), &s(&["cap_kill"]))
            .unwrap();
        assert!(set.has(Capability::NetAdmin) && !set.has(Capability::Kill));
        let only = CapSet::DEFAULT
            .adjusted(&s(&["CHOWN"]), &s(&["ALL"]))
            .unwrap();
        assert_eq!(only, CapSet::of(&[Capability::Chown]));
        let all_but = CapSet::DEFAULT
            .adjusted(&s(&["ALL"]), &s(&["SYS_ADMIN"]))
            .unwrap();
        assert!(all_but.has(Capability::SysTime) && !all_but.has(Capability::SysAdmin));
        assert!(CapSet::DEFAULT.adjusted(&s(&["NOPE"]), &[]).is_err());
    }
}
