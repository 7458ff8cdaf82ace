//! Rewrites the header blocks of one HTTP/2 connection so that every `:authority` parses.
//!
//! Pure: bytes of the client go in, bytes for the server come out. Frames other than HEADERS
//! and CONTINUATION pass unchanged. Header blocks are decoded (the client's compression state
//! must be followed anyway) and written again as literals without compression, which leaves
//! no state between this code and the server. RFC 9113 section 4, RFC 7541.

use bytes::{Buf, BufMut, BytesMut};
use fluke_hpack::Decoder;

const PREFACE_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 9;
/// The frame size every server accepts without announcing another.
const MAX_FRAME: usize = 16 * 1024;
/// Bound of one compressed header block, CONTINUATION frames included.
const MAX_BLOCK: usize = 64 * 1024;
/// Bound of one decoded header list; small references can stand for long values.
const MAX_LIST: usize = 64 * 1024;
/// Table size the server side announces by default, so the most a client may use.
const TABLE_SIZE: usize = 4096;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Why a connection cannot be followed any longer; it has to be closed.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A header block is larger than any peer of ours has reason to send.
    #[error("header block larger than {MAX_BLOCK} bytes")]
    BlockTooLarge,
    /// The decoded headers are larger than any peer of ours has reason to send.
    #[error("header list larger than {MAX_LIST} bytes")]
    ListTooLarge,
    /// The compressed headers do not decode.
    #[error("header block does not decode: {0}")]
    Compression(String),
    /// Frames in an order or form the protocol forbids.
    #[error("malformed frame: {0}")]
    Frame(&'static str),
}

/// A header block that is being collected.
struct Block {
    stream: [u8; 4],
    end_stream: bool,
    data: Vec<u8>,
}

enum Phase {
    /// The connection preface, then payload of frames that pass unchanged: so many bytes left.
    Pass(usize),
    /// At a frame boundary.
    Frame,
}

/// State of one connection, client to server.
pub(super) struct Repair {
    phase: Phase,
    input: BytesMut,
    block: Option<Block>,
    decoder: Decoder<'static>,
}

impl Repair {
    pub(super) fn new() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_SIZE);
        Self {
            phase: Phase::Pass(PREFACE_LEN),
            input: BytesMut::new(),
            block: None,
            decoder,
        }
    }

    /// Takes bytes from the client and appends what the server shall see to `out`.
    /// Holds back at most one frame header and one header frame.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut BytesMut) -> Result<(), RepairError> {
        self.input.extend_from_slice(bytes);
        loop {
            match self.phase {
                Phase::Pass(0) => self.phase = Phase::Frame,
                Phase::Pass(left) => {
                    if self.input.is_empty() {
                        return Ok(());
                    }
                    let n = left.min(self.input.len());
                    out.put(self.input.split_to(n));
                    self.phase = Phase::Pass(left - n);
                }
                Phase::Frame => {
                    if !self.frame(out)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Handles the frame at the front of the input; false when more bytes are needed.
    fn frame(&mut self, out: &mut BytesMut) -> Result<bool, RepairError> {
        let Some(header) = self.input.get(..FRAME_HEADER_LEN) else {
            return Ok(false);
        };
        let len =
            usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        let (kind, flags) = (header[3], header[4]);
        let stream = [header[5], header[6], header[7], header[8]];
        match (kind, &self.block) {
            (HEADERS, None) | (CONTINUATION, Some(_)) => {}
            (_, Some(_)) => return Err(RepairError::Frame("header block interrupted")),
            (_, None) => {
                self.phase = Phase::Pass(FRAME_HEADER_LEN + len);
                return Ok(true);
            }
        }
        if len > MAX_BLOCK {
            return Err(RepairError::BlockTooLarge);
        }
        if self.input.len() < FRAME_HEADER_LEN + len {
            return Ok(false);
        }
        self.input.advance(FRAME_HEADER_LEN);
        let payload = self.input.split_to(len);
        match &mut self.block {
            None => {
                self.block = Some(Block {
                    stream,
                    end_stream: flags & END_STREAM != 0,
                    data: fragment(&payload, flags)?.to_vec(),
                });
            }
            Some(block) if block.stream == stream => {
                if block.data.len() + payload.len() > MAX_BLOCK {
                    return Err(RepairError::BlockTooLarge);
                }
                block.data.extend_from_slice(&payload);
            }
            Some(_) => return Err(RepairError::Frame("continuation of another stream")),
        }
        if flags & END_HEADERS != 0
            && let Some(block) = self.block.take()
        {
            self.rewrite(&block, out)?;
        }
        Ok(true)
    }

    fn rewrite(&mut self, block: &Block, out: &mut BytesMut) -> Result<(), RepairError> {
        let mut list = BytesMut::with_capacity(block.data.len() * 2);
        let mut size = 0;
        self.decoder
            .decode_with_cb(&block.data, |name, value| {
                size += name.len() + value.len() + 32;
                if size <= MAX_LIST {
                    let value = if *name == *b":authority" && !usable(&value) {
                        b"localhost"
                    } else {
                        value.as_ref()
                    };
                    put_literal(&mut list, &name, value);
                }
            })
            .map_err(|e| RepairError::Compression(format!("{e:?}")))?;
        if size > MAX_LIST {
            return Err(RepairError::ListTooLarge);
        }
        write_frames(block, &list, out);
        Ok(())
    }
}

fn usable(authority: &[u8]) -> bool {
    http::uri::Authority::try_from(authority).is_ok()
}

/// The header block fragment of a HEADERS frame, without padding and priority.
fn fragment(mut payload: &[u8], flags: u8) -> Result<&[u8], RepairError> {
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (first, rest) = payload
            .split_first()
            .ok_or(RepairError::Frame("no pad length"))?;
        (padding, payload) = (usize::from(*first), rest);
    }
    if flags & PRIORITY != 0 {
        payload = payload
            .get(5..)
            .ok_or(RepairError::Frame("no priority fields"))?;
    }
    let end = payload
        .len()
        .checked_sub(padding)
        .ok_or(RepairError::Frame("padding longer than the frame"))?;
    Ok(&payload[..end])
}

fn write_frames(block: &Block, list: &[u8], out: &mut BytesMut) {
    let mut kind = HEADERS;
    let mut rest = list;
    loop {
        let (now, later) = rest.split_at(rest.len().min(MAX_FRAME));
        let mut flags = 0;
        if kind == HEADERS && block.end_stream {
            flags |= END_STREAM;
        }
        if later.is_empty() {
            flags |= END_HEADERS;
        }
        out.put_uint(now.len() as u64, 3);
        out.put_u8(kind);
        out.put_u8(flags);
        out.put_slice(&block.stream);
        out.put_slice(now);
        if later.is_empty() {
            return;
        }
        (kind, rest) = (CONTINUATION, later);
    }
}

/// Literal header field without indexing, new name (RFC 7541 section 6.2.2).
fn put_literal(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_u8(0);
    for text in [name, value] {
        put_length(out, text.len());
        out.put_slice(text);
    }
}

/// A string length with a 7 bit prefix (RFC 7541 section 5.1), no Huffman coding.
fn put_length(out: &mut BytesMut, len: usize) {
    if len < 127 {
        out.put_u8(len as u8);
        return;
    }
    out.put_u8(127);
    let mut rest = len - 127;
    while rest >= 128 {
        out.put_u8((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut f = BytesMut::new();
        f.put_uint(payload.len() as u64, 3);
        f.put_u8(kind);
        f.put_u8(flags);
        f.put_u32(stream);
        f.put_slice(payload);
        f.to_vec()
    }

    fn preface() -> Vec<u8> {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
    }

    /// Decodes the frames of `out` behind the preface into header lists.
    fn lists(out: &[u8]) -> Vec<Vec<(String, String)>> {
        let mut rest = &out[PREFACE_LEN..];
        let mut decoder = Decoder::new();
        let (mut block, mut found) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let len = (rest[0] as usize) << 16 | (rest[1] as usize) << 8 | rest[2] as usize;
            let (kind, flags) = (rest[3], rest[4]);
            if kind == HEADERS || kind == CONTINUATION {
                assert_eq!(flags & (PADDED | PRIORITY), 0);
                assert!(len <= MAX_FRAME);
                block.extend_from_slice(&rest[9..9 + len]);
                if flags & END_HEADERS != 0 {
                    let list = decoder.decode(&block).unwrap();
                    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
                    found.push(list.into_iter().map(|(n, v)| (text(n), text(v))).collect());
                    block.clear();
                }
            }
            rest = &rest[9 + len..];
        }
        found
    }

    fn authority_after(
        repair: &mut Repair,
        bytes: &[u8],
        step: usize,
    ) -> Result<BytesMut, RepairError> {
        let mut out = BytesMut::new();
        for chunk in bytes.chunks(step) {
            repair.push(chunk, &mut out)?;
        }
        Ok(out)
    }

    #[test]
    fn replaces_only_what_does_not_parse() {
        for (sent, seen) in [
            ("localhost", "localhost"),
            ("localhost:1234", "localhost:1234"),
            ("", "localhost"),
            ("/var/lib/kubelet/x.sock", "localhost"),
            ("%2Fvar%2Flib%2Fx.sock", "localhost"),
            ("unix:///x.sock", "localhost"),
            ("var/lib/x.sock", "localhost"),
            ("a b", "localhost"),
            ("[::]", "[::]"),
        ] {
            let mut encoder = fluke_hpack::Encoder::new();
            let mut bytes = preface();
            bytes.extend(frame(4, 0, 0, &[]));
            // Twice, so that the second block refers to the table the first one filled.
            for stream in [1, 3] {
                let block = encoder.encode([
                    (&b":method"[..], &b"POST"[..]),
                    (&b":authority"[..], sent.as_bytes()),
                    (&b"grpc-timeout"[..], &b"9999863u"[..]),
                ]);
                bytes.extend(frame(HEADERS, END_HEADERS, stream, &block));
                bytes.extend(frame(0, 1, stream, b"data"));
            }
            for step in [1, 7, 10_000] {
                let out = authority_after(&mut Repair::new(), &bytes, step).unwrap();
                for list in lists(&out) {
                    assert_eq!(list[1], (":authority".into(), seen.into()), "{sent}");
                    assert_eq!(list[2].1, "9999863u");
                }
                assert_eq!(lists(&out).len(), 2);
            }
        }
    }

    #[test]
    fn strips_padding_and_priority_and_joins_continuations() {
        let block = fluke_hpack::Encoder::new().encode([
            (&b":authority"[..], &b"/x"[..]),
            (&b"long"[..], &[b'a'; 20_000][..]),
        ]);
        let (first, second) = block.split_at(100);
        let mut payload = vec![3, 0, 0, 0, 1, 16];
        payload.extend_from_slice(first);
        payload.extend_from_slice(&[0; 3]);
        let mut bytes = preface();
        bytes.extend(frame(HEADERS, PADDED | PRIORITY | END_STREAM, 1, &payload));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 1, second));
        let out = authority_after(&mut Repair::new(), &bytes, 999).unwrap();
        let list = &lists(&out)[0];
        assert_eq!(list[0].1, "localhost");
        assert_eq!(list[1].1.len(), 20_000);
        assert_eq!(out[PREFACE_LEN + 4] & END_STREAM, END_STREAM);
    }

    #[test]
    fn bounds_hold() {
        let mut bytes = preface();
        bytes.extend(frame(HEADERS, 0, 1, &[0; 60_000]));
        bytes.extend(frame(CONTINUATION, 0, 1, &[0; 60_000]));
        assert!(matches!(
            authority_after(&mut Repair::new(), &bytes, 4096),
            Err(RepairError::BlockTooLarge)
        ));

        // One long table entry, then many one-byte references to it.
        let mut block = BytesMut::new();
        block.put_u8(0x40);
        put_length(&mut block, 1);
        block.put_u8(b'x');
        put_length(&mut block, 3000);
        block.put_bytes(b'y', 3000);
        block.put_bytes(0x80 | 62, 1000);
        let mut bytes = preface();
        bytes.extend(frame(HEADERS, END_HEADERS, 1, &block));
        assert!(matches!(
            authority_after(&mut Repair::new(), &bytes, 4096),
            Err(RepairError::ListTooLarge)
        ));

        let mut bytes = preface();
        bytes.extend(frame(HEADERS, 0, 1, &[]));
        bytes.extend(frame(0, 0, 1, b"x"));
        assert!(authority_after(&mut Repair::new(), &bytes, 4096).is_err());
    }
}
