//! What the machine's disks have done, as `/proc/diskstats` has it
//! (<https://docs.kernel.org/admin-guide/iostats.html>).

/// Bytes; the kernel's interface fixes them, whatever the disk has.
const SECTOR: u64 = 512;

/// One block device since boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskActivity {
    /// Its file.
    pub(crate) device: String,
    pub(crate) numbers: (u32, u32),
    pub(crate) reads: u64,
    pub(crate) reads_merged: u64,
    pub(crate) sectors_read: u64,
    pub(crate) read_millis: u64,
    pub(crate) writes: u64,
    pub(crate) writes_merged: u64,
    pub(crate) sectors_written: u64,
    pub(crate) write_millis: u64,
    /// Requests under way.
    pub(crate) current: u64,
    pub(crate) busy_millis: u64,
    /// The time of all requests together.
    pub(crate) weighted_millis: u64,
}

impl DiskActivity {
    /// Those of the machine that have done something since boot.
    #[must_use]
    pub fn of_machine() -> Vec<Self> {
        let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
        text.lines().filter_map(Self::parse).collect()
    }

    /// A line; nothing of devices that have done nothing.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let numbers = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let name = fields.next()?;
        let mut next = || fields.next()?.parse::<u64>().ok();
        let disk = Self {
            device: format!("/dev/{name}"),
            numbers,
            reads: next()?,
            reads_merged: next()?,
            sectors_read: next()?,
            read_millis: next()?,
            writes: next()?,
            writes_merged: next()?,
            sectors_written: next()?,
            write_millis: next()?,
            current: next()?,
            busy_millis: next()?,
            weighted_millis: next()?,
        };
        (disk.reads > 0 || disk.writes > 0).then_some(disk)
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.sectors_read.saturating_mul(SECTOR)
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.sectors_written.saturating_mul(SECTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel() {
        let line = " 254       0 vda 10 1 16 3 20 2 32 4 5 6 7 0 0 0 0 0 0";
        let disk = DiskActivity::parse(line).unwrap();
        assert_eq!((disk.device.as_str(), disk.numbers), ("/dev/vda", (254, 0)));
        assert_eq!((disk.reads, disk.writes, disk.current), (10, 20, 5));
        assert_eq!((disk.read_bytes(), disk.written_bytes()), (8192, 16384));
        assert_eq!((disk.busy_millis, disk.weighted_millis), (6, 7));
        assert_eq!(DiskActivity::parse("7 0 loop0 0 0 0 0 0 0 0 0 0 0 0"), None);
        assert_eq!(DiskActivity::parse("7 0 loop0 1 2"), None);
    }
}
