//! SPDY/3.1 frames on the wire, and the zlib-compressed header blocks inside them.

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::io;

pub(crate) const FLAG_FIN: u8 = 0x01;
/// Largest header block taken, compressed.
const MAX_HEADER_BLOCK: usize = 64 * 1024;
/// Of a stream's headers, which are kept as long as the stream: a type, a port, a number.
const MAX_HEADERS: usize = 16 * 1024;
const VERSION: u16 = 3;

/// One frame; header blocks are already decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    SynStream {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    SynReply {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    Reset {
        id: u32,
        status: u32,
    },
    Ping {
        id: u32,
    },
    GoAway {
        last_good: u32,
        status: u32,
    },
    Headers {
        id: u32,
        fin: bool,
    },
    Data {
        id: u32,
        payload: Bytes,
        fin: bool,
    },
    /// SETTINGS, WINDOW_UPDATE, CREDENTIAL: read and passed over. Peers of this protocol send no windows.
    Other,
}

pub(crate) type Headers = Vec<(String, String)>;

/// What the first eight bytes of a frame announce.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data(u32),
    Control(u16),
}

impl Head {
    pub(crate) fn parse(bytes: [u8; 8]) -> io::Result<Self> {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        let kind = if word & 0x8000_0000 == 0 {
            Kind::Data(word)
        } else {
            let version = (word >> 16) & 0x7fff;
            if version != u32::from(VERSION) {
                return Err(invalid(format!("SPDY version {version}")));
            }
            let kind = Kind::Control((word & 0xffff) as u16);
            if length > MAX_HEADER_BLOCK {
                return Err(invalid(format!("control frame of {length} bytes")));
            }
            kind
        };
        Ok(Self {
            kind,
            flags: bytes[4],
            length,
        })
    }
}

/// Encodes and decodes control frames; header compression is stateful in each direction.
pub(crate) struct Codec {
    inflate: Decompress,
    deflate: Compress,
}

impl Codec {
    pub(crate) fn new() -> Self {
        Self {
            inflate: Decompress::new(true),
            deflate: Compress::new(Compression::fast(), true),
        }
    }

    pub(crate) fn decode_control(
        &mut self,
        kind: u16,
        flags: u8,
        payload: &[u8],
    ) -> io::Result<Frame> {
        let word = |at: usize| {
            let bytes = payload
                .get(at..at + 4)
                .ok_or_else(|| invalid(format!("control frame {kind} cut short")))?;
            Ok::<u32, io::Error>(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let fin = flags & FLAG_FIN != 0;
        let id = |at: usize| word(at).map(|w| w & 0x7fff_ffff);
        Ok(match kind {
            1 => {
                let block = payload
                    .get(10..)
                    .ok_or_else(|| invalid("SYN_STREAM cut short"))?;
                Frame::SynStream {
                    id: id(0)?,
                    headers: self.inflate_headers(block)?,
                    fin,
                }
            }
            2 => {
                let block = payload
                    .get(4..)
                    .ok_or_else(|| invalid("SYN_REPLY cut short"))?;
                Frame::SynReply {
                    id: id(0)?,
                    headers: self.inflate_headers(block)?,
                    fin,
                }
            }
            3 => Frame::Reset {
                id: id(0)?,
                status: word(4)?,
            },
            6 => Frame::Ping { id: word(0)? },
            7 => Frame::GoAway {
                last_good: id(0)?,
                status: word(4)?,
            },
            8 => {
                let block = payload
                    .get(4..)
                    .ok_or_else(|| invalid("HEADERS cut short"))?;
                // Decoded although unused: the compression state runs through all header blocks.
                self.inflate_headers(block)?;
                Frame::Headers { id: id(0)?, fin }
            }
            _ => Frame::Other,
        })
    }

    pub(crate) fn encode(&mut self, frame: &Frame, out: &mut BytesMut) -> io::Result<()> {
        match frame {
            Frame::SynStream { id, headers, fin } => {
                let block = self.deflate_headers(headers)?;
                control(out, 1, flag(*fin), 10 + block.len());
                out.put_u32(*id);
                out.put_u32(0);
                out.put_u16(0);
                out.put_slice(&block);
            }
            Frame::SynReply { id, headers, fin } => {
                let block = self.deflate_headers(headers)?;
                control(out, 2, flag(*fin), 4 + block.len());
                out.put_u32(*id);
                out.put_slice(&block);
            }
            Frame::Reset { id, status } => {
                control(out, 3, 0, 8);
                out.put_u32(*id);
                out.put_u32(*status);
            }
            Frame::Ping { id } => {
                control(out, 6, 0, 4);
                out.put_u32(*id);
            }
            Frame::GoAway { last_good, status } => {
                control(out, 7, 0, 8);
                out.put_u32(*last_good);
                out.put_u32(*status);
            }
            Frame::Data { id, payload, fin } => {
                out.put_u32(*id);
                put_flags_and_length(out, flag(*fin), payload.len());
                out.put_slice(payload);
            }
            Frame::Headers { .. } | Frame::Other => {}
        }
        Ok(())
    }

    fn inflate_headers(&mut self, block: &[u8]) -> io::Result<Headers> {
        let mut text = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            if text.capacity() - text.len() < 512 {
                text.reserve(4096);
            }
            if text.len() > MAX_HEADERS {
                return Err(invalid("headers too large"));
            }
            let (read_before, len_before) = (self.inflate.total_in(), text.len());
            match self
                .inflate
                .decompress_vec(rest, &mut text, FlushDecompress::Sync)
            {
                Ok(Status::StreamEnd) => break,
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    let used = usize::try_from(self.inflate.total_in() - read_before)
                        .unwrap_or(rest.len());
                    rest = rest.get(used..).unwrap_or_default();
                    self.inflate
                        .set_dictionary(&dictionary())
                        .map_err(|e| invalid(e.to_string()))?;
                    continue;
                }
                Err(error) => return Err(invalid(format!("header block: {error}"))),
            }
            let used = usize::try_from(self.inflate.total_in() - read_before).unwrap_or(rest.len());
            rest = rest.get(used..).unwrap_or_default();
            if rest.is_empty()
                && (used == 0 || text.len() == len_before || text.len() < text.capacity())
            {
                break;
            }
            if used == 0 && text.len() == len_before {
                return Err(invalid("header block does not decompress"));
            }
        }
        parse_headers(&text)
    }

    fn deflate_headers(&mut self, headers: &Headers) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        text.put_u32(u32::try_from(headers.len()).map_err(|_| invalid("too many headers"))?);
        for (name, value) in headers {
            for part in [name, value] {
                text.put_u32(u32::try_from(part.len()).map_err(|_| invalid("header too long"))?);
                text.put_slice(part.as_bytes());
            }
        }
        let mut block = Vec::with_capacity(text.len() + 64);
        let before = self.deflate.total_in();
        loop {
            let used = usize::try_from(self.deflate.total_in() - before).unwrap_or(text.len());
            let free_before = block.capacity() - block.len();
            self.deflate
                .compress_vec(
                    text.get(used..).unwrap_or_default(),
                    &mut block,
                    FlushCompress::Sync,
                )
                .map_err(|e| invalid(e.to_string()))?;
            let all_read = usize::try_from(self.deflate.total_in() - before).unwrap_or(text.len())
                == text.len();
            if all_read && block.len() < block.capacity() {
                return Ok(block);
            }
            block.reserve(free_before.max(256));
        }
    }
}

fn control(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    put_flags_and_length(out, flags, length);
}

fn put_flags_and_length(out: &mut BytesMut, flags: u8, length: usize) {
    // Writers cut data into pieces far below the 24-bit limit.
    let length = u32::try_from(length).unwrap_or(u32::MAX) & 0x00ff_ffff;
    out.put_u32(u32::from(flags) << 24 | length);
}

fn flag(fin: bool) -> u8 {
    if fin { FLAG_FIN } else { 0 }
}

fn parse_headers(text: &[u8]) -> io::Result<Headers> {
    let word = |at: usize| {
        let bytes = text
            .get(at..at + 4)
            .ok_or_else(|| invalid("header block cut short"))?;
        Ok::<usize, io::Error>(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    let (count, mut from) = (word(0)?, 4);
    let mut headers = Vec::with_capacity(count.min(64));
    let string = |from: &mut usize| {
        let length = word(*from)?;
        let start = *from + 4;
        let bytes = start
            .checked_add(length)
            .and_then(|end| text.get(start..end));
        let bytes = bytes.ok_or_else(|| invalid("header block cut short"))?;
        *from = start + length;
        String::from_utf8(bytes.to_vec()).map_err(|_| invalid("header is not UTF-8"))
    };
    for _ in 0..count {
        let name = string(&mut from)?;
        // Several values of one name are separated by NUL.
        for value in string(&mut from)?.split('\0') {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    Ok(headers)
}

pub(crate) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// The compression dictionary that SPDY/3 fixes (section 2.6.10.1): length-prefixed common names, then common text.
fn dictionary() -> Vec<u8> {
    const WORDS: [&str; 65] = [
        "options",
        "head",
        "post",
        "put",
        "delete",
        "trace",
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "accept-ranges",
        "age",
        "allow",
        "authorization",
        "cache-control",
        "connection",
        "content-base",
        "content-encoding",
        "content-language",
        "content-length",
        "content-location",
        "content-md5",
        "content-range",
        "content-type",
        "date",
        "etag",
        "expect",
        "expires",
        "from",
        "host",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "last-modified",
        "location",
        "max-forwards",
        "pragma",
        "proxy-authenticate",
        "proxy-authorization",
        "range",
        "referer",
        "retry-after",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "vary",
        "via",
        "warning",
        "www-authenticate",
        "method",
        "get",
        "status",
        "200 OK",
        "version",
        "HTTP/1.1",
        "url",
        "public",
        "set-cookie",
        "keep-alive",
        "origin",
    ];
    const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
        203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
        403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
        Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
        chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
        text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS {
        bytes.put_u32(u32::try_from(word.len()).unwrap_or_default());
        bytes.put_slice(word.as_bytes());
    }
    bytes.put_slice(TEXT.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionary_is_the_one_of_spdy_3() {
        let dictionary = dictionary();
        assert_eq!(dictionary.len(), 1423);
        let (mut a, mut b) = (1u32, 0u32);
        for byte in &dictionary {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(
            b << 16 | a,
            0xe3c6_a7c2,
            "the dictionary id that SPDY/3 header blocks carry"
        );
    }

    #[test]
    fn header_blocks_round_trip_through_one_compression_state() {
        let (mut sender, mut receiver) = (Codec::new(), Codec::new());
        for id in [1, 3, 5] {
            let long = "x".repeat(id as usize * 3000);
            let headers = vec![
                ("streamtype".to_owned(), "stdin".to_owned()),
                ("long".to_owned(), long),
            ];
            let mut wire = BytesMut::new();
            let frame = Frame::SynStream {
                id,
                headers,
                fin: false,
            };
            sender.encode(&frame, &mut wire).unwrap();
            let head = Head::parse(wire[..8].try_into().unwrap()).unwrap();
            assert_eq!(head.length, wire.len() - 8);
            let Kind::Control(kind) = head.kind else {
                panic!("control frame expected")
            };
            assert_eq!(
                receiver
                    .decode_control(kind, head.flags, &wire[8..])
                    .unwrap(),
                frame
            );
        }
    }

    #[test]
    fn block_compressed_with_the_dictionary_is_read() {
        let mut deflate = Compress::new(Compression::best(), true);
        deflate.set_dictionary(&dictionary()).unwrap();
        let mut text = Vec::new();
        text.put_u32(1);
        for part in ["streamtype", "stdin"] {
            text.put_u32(part.len() as u32);
            text.put_slice(part.as_bytes());
        }
        let mut block = Vec::with_capacity(4096);
        deflate
            .compress_vec(&text, &mut block, FlushCompress::Sync)
            .unwrap();
        let headers = Codec::new().inflate_headers(&block).unwrap();
        assert_eq!(headers, [("streamtype".to_owned(), "stdin".to_owned())]);
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(Codec::new().inflate_headers(&[0xff; 40]).is_err());
        assert!(Codec::new().decode_control(3, 0, &[0, 0]).is_err());
        assert!(parse_headers(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
