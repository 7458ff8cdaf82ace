//! Frames of WebSocket (RFC 6455) where a server only tells: its messages, and whether the client has closed.

use bytes::{BufMut, Bytes, BytesMut};

/// The first byte of a frame that closes the connection.
pub const CLOSE: u8 = 0x88;

/// Where in the client's frames what it says is, in whatever pieces it comes.
#[derive(Debug, Default)]
pub struct ClientFrames {
    /// The beginning of a frame, until its length is known.
    head: Vec<u8>,
    /// So many bytes of its payload are still to come.
    rest: u64,
}

impl ClientFrames {
    /// Whether a frame that closes the connection begins in the next piece.
    pub fn closes(&mut self, mut piece: &[u8]) -> bool {
        while let Some((first, after)) = piece.split_first() {
            if self.rest > 0 {
                let skipped = piece
                    .len()
                    .min(usize::try_from(self.rest).unwrap_or(usize::MAX));
                self.rest -= skipped as u64;
                piece = &piece[skipped..];
                continue;
            }
            self.head.push(*first);
            piece = after;
            let [kind, short, length @ ..] = &self.head[..] else {
                continue;
            };
            let wide = match short & 0x7f {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            if kind & 0x0f == CLOSE & 0x0f {
                return true;
            }
            if length.len() == wide {
                let number = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
                let short_length = u64::from(short & 0x7f) * u64::from(wide == 0);
                let mask = u64::from(short >> 7) * 4;
                self.rest = length
                    .iter()
                    .fold(short_length, number)
                    .saturating_add(mask);
                self.head.clear();
            }
        }
        false
    }
}

/// An unmasked, unfragmented message, as servers send them.
pub fn message(kind: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(payload.len() + 10);
    frame.put_u8(kind);
    match payload.len() {
        // the branches bound the length
        length @ 0..126 => frame.put_u8(length as u8),
        length @ 126..0x1_0000 => {
            frame.put_u8(126);
            frame.put_u16(length as u16);
        }
        length => {
            frame.put_u8(127);
            frame.put_u64(length as u64);
        }
    }
    frame.extend_from_slice(payload);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = message(kind, payload).to_vec();
        let head = frame.len() - payload.len();
        frame[1] |= 0x80;
        frame.splice(head..head, [0; 4]);
        frame
    }

    #[test]
    fn a_close_is_heard_behind_other_frames_and_in_pieces() {
        for size in [0, 5, 125, 126, 70_000] {
            // payloads that look like closes
            let said = [masked(0x89, &[CLOSE; 3]), masked(0x82, &vec![CLOSE; size])].concat();
            let end = masked(CLOSE, &1000_u16.to_be_bytes());
            for piece in [1, 7, 1024, usize::MAX] {
                let mut heard = ClientFrames::default();
                assert!(
                    !said.chunks(piece).any(|piece| heard.closes(piece)),
                    "{size} {piece}"
                );
                assert!(
                    end.chunks(piece).any(|piece| heard.closes(piece)),
                    "{size} {piece}"
                );
            }
        }
    }
}
