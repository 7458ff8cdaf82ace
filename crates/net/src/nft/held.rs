//! Tables that say by being there that a process lives: the kernel takes them away when their socket is closed.

use super::{CREATE, NEWTABLE, Socket, TABLE_NAME, Table, edges, message};
use std::io;

const TABLE_FLAGS: u16 = 2;
/// Nobody else changes or removes the table, and it ends with the socket that made it. Since Linux 5.12.
const OWNER: u32 = 0x2;

/// A table that is there as long as this is. Only who has CAP_NET_ADMIN in the network namespace can make it, unlike a
/// socket with a name.
#[derive(Debug)]
pub struct HeldTable {
    _socket: Socket,
}

impl Table {
    /// Makes the table, empty, and holds it. Blocks.
    ///
    /// # Errors
    /// What the kernel says: `EPERM` when somebody else holds it, `EOPNOTSUPP` when it knows no such tables.
    pub fn hold(&self) -> io::Result<HeldTable> {
        let mut made = message(self.version, NEWTABLE, super::SILENT | CREATE);
        made.put_name(TABLE_NAME, &self.name)
            .put_be32(TABLE_FLAGS, OWNER);
        let mut socket = Self::open()?;
        let (messages, answered) = edges(vec![made]);
        socket.ask_all(&messages, answered)?;
        Ok(HeldTable { _socket: socket })
    }
}
