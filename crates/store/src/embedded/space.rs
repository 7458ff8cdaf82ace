//! Room on the disk, so that the database never meets a full one.
//!
//! Before each batch the free space is looked at. When it runs low, writes that need room are refused while deletions go on;
//! they, and what the database writes in the background, are given room from a reserve: a file that holds blocks for nothing
//! else. When there is room again, the reserve is made whole first, and then all writes are taken.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FallocateFlags, StatVfs, fallocate, fstatvfs};

/// Blocks that are kept for deletions.
pub(super) const RESERVE: u64 = 16 << 20;

/// What must be free for writes that need room: the database may be writing a table beside its journal.
pub(super) const MARGIN: u64 = 16 << 20;

/// What must be free, with some of the reserve given up, for deletions.
pub(super) const LEAST: u64 = 2 << 20;

/// What a batch may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// All writes.
    Enough,
    /// Deletions only.
    Little,
    /// Nothing.
    None,
}

/// The decision of one look at the disk.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// How large the reserve shall be.
    reserve: u64,
    room: Room,
}

/// The free space of a directory's file system, and the reserve there.
pub(super) struct Space {
    reserve: File,
    /// The reserve was once refused by the file system and is done without.
    unreserved: bool,
    low: bool,
}

impl Space {
    /// Looks at the file system of `dir`, which has or gets the reserve.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let reserve = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("reserve"))?;
        Ok(Self {
            reserve,
            unreserved: false,
            low: false,
        })
    }

    /// What may be written now, with `bytes` to come; gives up some of the reserve, or makes it whole, as needed.
    pub(super) fn room(&mut self, bytes: u64) -> io::Result<Room> {
        let free = self.free()?;
        let held = self.reserve.metadata()?.len();
        let wanted = if self.unreserved { 0 } else { RESERVE };
        let plan = plan(free, held, wanted, bytes, self.low);
        if plan.reserve < held {
            self.reserve.set_len(plan.reserve)?;
        } else if plan.reserve > held {
            self.hold(plan.reserve);
        }
        let low = plan.room != Room::Enough;
        if low != self.low {
            self.low = low;
            if low {
                tracing::warn!(
                    free,
                    "no space left for the store: only deletions are taken"
                );
            } else {
                tracing::info!(free, "space for the store again: all writes are taken");
            }
        }
        Ok(plan.room)
    }

    /// Makes the reserve whole. A file system that cannot, or that was faster filled, leaves it as it is.
    fn hold(&mut self, size: u64) {
        match fallocate(&self.reserve, FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {}
            Err(error) => {
                self.unreserved = true;
                tracing::warn!(%error, "cannot keep space for deletions from the store");
            }
        }
    }

    fn free(&self) -> io::Result<u64> {
        let stat: StatVfs = fstatvfs(&self.reserve)?;
        // What file systems keep for root is free for root.
        let blocks = if rustix::process::geteuid().is_root() {
            stat.f_bfree
        } else {
            stat.f_bavail
        };
        Ok(blocks.saturating_mul(stat.f_frsize))
    }
}

/// Decides by what is `free`, what the reserve holds and what it shall hold at most. Once space was `low`, all must be well
/// before it is no longer.
fn plan(free: u64, held: u64, wanted: u64, bytes: u64, low: bool) -> Plan {
    let missing = wanted.saturating_sub(held);
    if free >= MARGIN + bytes + missing {
        return Plan {
            reserve: held.max(wanted),
            room: Room::Enough,
        };
    }
    if free >= MARGIN + bytes && !low {
        return Plan {
            reserve: held,
            room: Room::Enough,
        };
    }
    let need = LEAST + bytes;
    let given = need.saturating_sub(free);
    Plan {
        reserve: held.saturating_sub(given),
        room: if given <= held {
            Room::Little
        } else {
            Room::None
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_given_up_bit_by_bit_and_made_whole_before_writes() {
        let plenty = MARGIN + RESERVE;
        let whole = |room| Plan {
            reserve: RESERVE,
            room,
        };
        assert_eq!(plan(plenty, 0, RESERVE, 0, false), whole(Room::Enough));
        assert_eq!(plan(plenty, 0, RESERVE, 0, true), whole(Room::Enough));
        assert_eq!(plan(MARGIN, RESERVE, RESERVE, 0, true), whole(Room::Enough));
        // too little for both: a small disk works without a reserve, a full one stays full
        let empty = |room| Plan { reserve: 0, room };
        assert_eq!(plan(MARGIN, 0, RESERVE, 0, false), empty(Room::Enough));
        assert_eq!(plan(MARGIN, 0, RESERVE, 0, true), empty(Room::Little));
        assert_eq!(
            plan(MARGIN - 1, RESERVE, RESERVE, 0, false),
            whole(Room::Little)
        );
        let half = Plan {
            reserve: RESERVE - LEAST,
            room: Room::Little,
        };
        assert_eq!(plan(0, RESERVE, RESERVE, 0, true), half);
        assert_eq!(plan(0, LEAST, RESERVE, 0, true), empty(Room::Little));
        assert_eq!(plan(0, LEAST - 1, RESERVE, 0, true), empty(Room::None));
    }
}
