//! The words of the kernel's FUSE interface, version 7.31.

/// What the kernel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    Lookup,
    /// Nobody waits for an answer.
    Forget,
    Getattr,
    Setattr,
    Mkdir,
    Remove,
    Rename,
    Rename2,
    Open,
    Read,
    Write,
    Statfs,
    Nothing,
    Sync,
    Init,
    Readdir,
    Create,
    Fallocate,
    Unknown,
}

impl Opcode {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Lookup,
            2 | 42 => Self::Forget,
            3 => Self::Getattr,
            4 => Self::Setattr,
            9 => Self::Mkdir,
            10 | 11 => Self::Remove,
            12 => Self::Rename,
            14 | 27 => Self::Open,
            15 => Self::Read,
            16 => Self::Write,
            17 => Self::Statfs,
            // release, flush, releasedir, access, interrupt
            18 | 25 | 29 | 34 | 36 => Self::Nothing,
            20 | 30 => Self::Sync,
            26 => Self::Init,
            28 => Self::Readdir,
            35 => Self::Create,
            43 => Self::Fallocate,
            45 => Self::Rename2,
            _ => Self::Unknown,
        }
    }
}

/// A question.
pub(super) struct Question<'a> {
    pub(super) opcode: Opcode,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) body: &'a [u8],
}

const IN_HEADER: usize = 40;

impl<'a> Question<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let body = bytes.get(IN_HEADER..)?;
        let head = Question {
            opcode: Opcode::Unknown,
            unique: 0,
            node: 0,
            body: bytes,
        };
        Some(Self {
            opcode: Opcode::of(head.u32(4)),
            unique: head.u64(8),
            node: head.u64(16),
            body,
        })
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        let bytes = self.body.get(at..at + 4).unwrap_or(&[0; 4]);
        u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        let bytes = self.body.get(at..at + 8).unwrap_or(&[0; 8]);
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// The names from `at` on.
    pub(super) fn names(&self, at: usize) -> impl Iterator<Item = String> {
        let bytes = self.body.get(at..).unwrap_or_default();
        let names = bytes.split(|byte| *byte == 0);
        names.map(|name| String::from_utf8_lossy(name).into_owned())
    }
}

/// An answer, put together.
#[derive(Default)]
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    pub(super) fn attributes(&mut self, node: u64, len: u64, is_dir: bool) -> &mut Self {
        const BLOCK: u64 = 512;
        let mode = if is_dir { 0o040_700 } else { 0o100_600 };
        self.u64(node).u64(len).u64(len.div_ceil(BLOCK));
        self.u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
        self.u32(mode).u32(1);
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        self.u32(user.as_raw()).u32(group.as_raw());
        self.u32(0).u32(4096).u32(0)
    }

    /// Of a name. Nothing is kept by the kernel.
    pub(super) fn entry(&mut self, node: u64, len: u64, is_dir: bool) -> &mut Self {
        self.u64(node).u64(0).u64(0).u64(0).u32(0).u32(0);
        self.attributes(node, len, is_dir)
    }

    pub(super) fn dir_entry(&mut self, node: u64, next: u64, name: &str, is_dir: bool) {
        self.u64(node).u64(next).u32(name.len() as u32);
        self.u32(if is_dir { 4 } else { 8 });
        self.0.extend_from_slice(name.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// With its header.
    pub(super) fn sent(self, unique: u64) -> Vec<u8> {
        whole(unique, 0, &self.0)
    }
}

/// An error, as the kernel numbers it.
pub(super) fn refusal(unique: u64, error: rustix::io::Errno) -> Vec<u8> {
    whole(unique, -error.raw_os_error(), &[])
}

fn whole(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend((16 + body.len() as u32).to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}
