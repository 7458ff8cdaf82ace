//! Device rules, as v1 lines and as a v2 device program.

use serde::{Deserialize, Serialize};

/// Which device files a rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// Both kinds.
    All,
    /// Character devices.
    Char,
    /// Block devices.
    Block,
}

/// One entry of a container's device list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// Allow or refuse.
    pub allow: bool,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Major number, `None` for any.
    pub major: Option<u32>,
    /// Minor number, `None` for any.
    pub minor: Option<u32>,
    /// Read.
    pub read: bool,
    /// Write.
    pub write: bool,
    /// Make the device file.
    pub mknod: bool,
}

impl DeviceRule {
    /// A rule that allows a device with permissions such as `rw`.
    #[must_use]
    pub fn allow(kind: DeviceKind, major: Option<u32>, minor: Option<u32>, access: &str) -> Self {
        DeviceRule {
            allow: true,
            kind,
            major,
            minor,
            read: access.contains('r'),
            write: access.contains('w'),
            mknod: access.contains('m'),
        }
    }

    /// The line that v1's `devices.allow` and `devices.deny` take.
    pub(super) fn v1(&self) -> String {
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        let kind = match self.kind {
            // `a` ignores numbers and access in v1 and would allow everything.
            DeviceKind::All if self.major.is_none() && self.minor.is_none() => {
                return "a".to_owned();
            }
            DeviceKind::All | DeviceKind::Char => 'c',
            DeviceKind::Block => 'b',
        };
        let mut access = String::new();
        for (on, letter) in [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')] {
            if on {
                access.push(letter);
            }
        }
        format!(
            "{kind} {}:{} {access}",
            number(self.major),
            number(self.minor)
        )
    }
}

/// What every container may use: making any device file (using it is another matter), and the harmless ones.
#[must_use]
pub fn default_rules() -> Vec<DeviceRule> {
    let any = |kind| DeviceRule::allow(kind, None, None, "m");
    let char = |major, minor| DeviceRule::allow(DeviceKind::Char, Some(major), minor, "rwm");
    vec![
        any(DeviceKind::Char),
        any(DeviceKind::Block),
        char(1, Some(3)), // null
        char(1, Some(5)), // zero
        char(1, Some(7)), // full
        char(1, Some(8)), // random
        char(1, Some(9)), // urandom
        char(5, Some(0)), // tty
        char(5, Some(1)), // console
        char(5, Some(2)), // ptmx
        char(136, None),  // pts
    ]
}

// eBPF, as much of it as a list of comparisons needs. One instruction is op:8 dst:4 src:4 off:16 imm:32.
const LDX_W: u8 = 0x61;
const AND_IMM: u8 = 0x54; // 32 bit
const RSH_IMM: u8 = 0x74;
const MOV_IMM: u8 = 0xb7;
const MOV_REG: u8 = 0xbc; // 32 bit
const JNE_IMM: u8 = 0x56; // 32 bit
const JEQ_IMM: u8 = 0x16;
const JNE_REG: u8 = 0x5e;
const EXIT: u8 = 0x95;

fn instruction(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    let regs = if cfg!(target_endian = "little") {
        src << 4 | dst
    } else {
        dst << 4 | src
    };
    let mut bytes = [0; 8];
    bytes[0] = op;
    bytes[1] = regs;
    bytes[2..4].copy_from_slice(&off.to_ne_bytes());
    bytes[4..].copy_from_slice(&imm.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The v2 device program for the list: the last rule that matches decides, nothing matching is a refusal.
pub(super) fn program(rules: &[DeviceRule]) -> Vec<u64> {
    // r1 = context { access_type, major, minor }; r2 = kind, r3 = access, r4 = major, r5 = minor
    let mut code = vec![
        instruction(LDX_W, 2, 1, 0, 0),
        instruction(MOV_REG, 3, 2, 0, 0),
        instruction(AND_IMM, 2, 0, 0, 0xffff),
        instruction(RSH_IMM, 3, 0, 0, 16),
        instruction(LDX_W, 4, 1, 4, 0),
        instruction(LDX_W, 5, 1, 8, 0),
    ];
    for rule in rules.iter().rev() {
        code.extend(block(rule));
    }
    code.push(instruction(MOV_IMM, 0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

/// One rule: comparisons that jump past the block, then the verdict.
fn block(rule: &DeviceRule) -> Vec<u64> {
    const KIND_BLOCK: i32 = 1;
    const KIND_CHAR: i32 = 2;
    let access = i32::from(rule.mknod) | i32::from(rule.read) << 1 | i32::from(rule.write) << 2;
    // Jumps get their distance at the end; here they hold op, registers and value.
    let mut tests: Vec<Vec<(u8, u8, u8, i32)>> = Vec::new();
    match rule.kind {
        DeviceKind::All => {}
        DeviceKind::Char => tests.push(vec![(JNE_IMM, 2, 0, KIND_CHAR)]),
        DeviceKind::Block => tests.push(vec![(JNE_IMM, 2, 0, KIND_BLOCK)]),
    }
    if access != 0b111 {
        let masked = [(MOV_REG, 1, 3, 0), (AND_IMM, 1, 0, access)];
        // An allowance must cover all that is asked, a refusal any part of it.
        let jump = if rule.allow {
            (JNE_REG, 1, 3, 0)
        } else {
            (JEQ_IMM, 1, 0, 0)
        };
        tests.push(masked.into_iter().chain([jump]).collect());
    }
    if let Some(major) = rule.major {
        tests.push(vec![(JNE_IMM, 4, 0, major as i32)]);
    }
    if let Some(minor) = rule.minor {
        tests.push(vec![(JNE_IMM, 5, 0, minor as i32)]);
    }
    let flat: Vec<_> = tests.into_iter().flatten().collect();
    let length = flat.len() + 2;
    let mut code = Vec::with_capacity(length);
    for (at, (op, dst, src, imm)) in flat.into_iter().enumerate() {
        let jumps = matches!(op, JNE_IMM | JEQ_IMM | JNE_REG);
        let off = if jumps { (length - at - 1) as i16 } else { 0 };
        code.push(instruction(op, dst, src, off, imm));
    }
    code.push(instruction(MOV_IMM, 0, 0, 0, i32::from(rule.allow)));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small interpreter of the instructions above, so that the program is tested without a v2 machine.
    fn run(program: &[u64], kind: u32, access: u32, major: u32, minor: u32) -> bool {
        let mut r = [0u64; 11];
        let context = [access << 16 | kind, major, minor];
        let mut pc = 0usize;
        loop {
            let b = program[pc].to_ne_bytes();
            let (dst, src) = ((b[1] & 15) as usize, (b[1] >> 4) as usize);
            let off = i16::from_ne_bytes([b[2], b[3]]);
            let imm = u32::from_ne_bytes([b[4], b[5], b[6], b[7]]);
            pc += 1;
            let jump = match b[0] {
                LDX_W => {
                    r[dst] = u64::from(context[off as usize / 4]);
                    false
                }
                MOV_REG => {
                    r[dst] = r[src];
                    false
                }
                MOV_IMM => {
                    r[dst] = u64::from(imm);
                    false
                }
                AND_IMM => {
                    r[dst] &= u64::from(imm);
                    false
                }
                RSH_IMM => {
                    r[dst] >>= imm;
                    false
                }
                JNE_IMM => r[dst] != u64::from(imm),
                JEQ_IMM => r[dst] == u64::from(imm),
                JNE_REG => r[dst] != r[src],
                EXIT => return r[0] == 1,
                other => panic!("unknown instruction {other:#x}"),
            };
            if jump {
                pc += off as usize;
            }
        }
    }

    #[test]
    fn programs_decide_as_the_list_says() {
        let mut rules = default_rules();
        rules.push(DeviceRule::allow(
            DeviceKind::Char,
            Some(10),
            Some(200),
            "rw",
        ));
        rules.push(DeviceRule {
            allow: false,
            ..DeviceRule::allow(DeviceKind::Char, Some(1), Some(9), "w")
        });
        let program = program(&rules);
        let (mknod, read, write) = (1, 2, 4);
        let (block, char) = (1, 2);
        assert!(run(&program, char, read | write, 1, 3));
        assert!(run(&program, char, read | write, 10, 200));
        assert!(
            run(&program, char, mknod, 10, 200),
            "making is allowed by the general rule"
        );
        assert!(
            !run(&program, char, mknod | read, 10, 200),
            "mknod is not in rw"
        );
        assert!(!run(&program, char, read, 10, 201));
        assert!(!run(&program, block, read, 8, 0));
        assert!(run(&program, block, mknod, 8, 0));
        assert!(run(&program, char, read, 136, 7));
        assert!(run(&program, char, read, 1, 9));
        assert!(!run(&program, char, write, 1, 9), "the later refusal wins");
    }

    #[test]
    fn v1_lines() {
        assert_eq!(
            DeviceRule::allow(DeviceKind::Char, Some(1), None, "rwm").v1(),
            "c 1:* rwm"
        );
        assert_eq!(
            DeviceRule::allow(DeviceKind::All, None, None, "rwm").v1(),
            "a"
        );
    }

    #[test]
    fn the_kernel_takes_the_program() {
        let Some(root) = crate::cgroup::Hierarchies::detect()
            .ok()
            .and_then(|h| h.unified_root().map(std::path::Path::to_owned))
        else {
            eprintln!("skipped: no cgroup2 mount");
            return;
        };
        let dir = root.join(format!("davit-device-test-{}", std::process::id()));
        if std::fs::create_dir(&dir).is_err() {
            eprintln!("skipped: cannot make a cgroup");
            return;
        }
        let result = crate::sys::attach_device_program(
            std::fs::File::open(&dir).unwrap(),
            &program(&default_rules()),
        );
        std::fs::remove_dir(&dir).unwrap();
        if let Err(error) = &result
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            eprintln!("skipped: no right to load programs");
            return;
        }
        result.unwrap();
    }
}
