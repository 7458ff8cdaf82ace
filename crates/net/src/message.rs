//! Messages of netlink(7): a header, the header of the family, attributes that may nest.

use std::io;

/// Length of a `nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Attributes that hold attributes are marked so.
const NESTED: u16 = 1 << 15;
/// The bits of an attribute's type that name it.
const TYPE: u16 = 0x3fff;

fn round(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A message under construction: its type, and everything after the `nlmsghdr`.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// A message of this type and these flags, that begins with the header of its family.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        Self {
            kind,
            flags,
            body: header.to_vec(),
        }
    }

    /// Appends an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nest_as(kind, |body| body.body.extend(value))
    }

    /// Appends a name, which ends with a zero byte.
    pub(crate) fn put_name(&mut self, kind: u16, name: &str) -> &mut Self {
        let mut value = name.as_bytes().to_vec();
        value.push(0);
        self.put(kind, &value)
    }

    /// Appends a number in network byte order, as netfilter has them.
    pub(crate) fn put_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Appends an attribute made of attributes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.nest_as(kind | NESTED, fill)
    }

    /// Appends an attribute whose value `fill` appends.
    pub(crate) fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.body.len();
        self.body.extend([0; 2]);
        self.body.extend(kind.to_ne_bytes());
        fill(self);
        // Callers keep what they nest below 64 KiB; a longer one would be refused by the kernel.
        let length = u16::try_from(self.body.len() - start).unwrap_or(u16::MAX);
        self.body[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.body.resize(round(self.body.len()), 0);
        self
    }

    /// Appends bytes that are no attribute: the header of something nested.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend(bytes);
        self
    }

    /// Appends the whole message to what is sent.
    pub(crate) fn write(&self, to: &mut Vec<u8>, sequence: u32) -> io::Result<()> {
        let length = u32::try_from(HEADER + self.body.len()).map_err(io::Error::other)?;
        to.extend(length.to_ne_bytes());
        to.extend(self.kind.to_ne_bytes());
        to.extend(self.flags.to_ne_bytes());
        to.extend(sequence.to_ne_bytes());
        to.extend(0_u32.to_ne_bytes());
        to.extend(&self.body);
        to.resize(round(to.len()), 0);
        Ok(())
    }
}

pub(crate) fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes([bytes[0], bytes[1]]))
}

pub(crate) fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Type and value of each attribute.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (number16(bytes, 0), number16(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else {
            break;
        };
        found.push((kind & TYPE, value));
        bytes = bytes.get(round(length)..).unwrap_or_default();
    }
    found
}

/// The attribute of this type.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = attributes(bytes).into_iter();
    all.find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

/// A name, without the zero byte at its end.
pub(crate) fn name(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_nest_and_are_read_back() {
        let mut message = Message::new(7, 5, &[1, 2, 3, 4]);
        message.put_name(3, "eth0").nest(9, |inner| {
            inner.put_be32(1, 0x0102_0304).put(2, &[9]);
        });
        let mut bytes = Vec::new();
        message.write(&mut bytes, 11).unwrap();
        assert_eq!(number32(&bytes, 0), u32::try_from(bytes.len()).ok());
        assert_eq!(number32(&bytes, 8), Some(11));
        let body = &bytes[HEADER + 4..];
        assert_eq!(name(attribute(body, 3).unwrap()), "eth0");
        let inner = attribute(body, 9).unwrap();
        assert_eq!(attributes(inner), [(1, &[1, 2, 3, 4][..]), (2, &[9][..])]);
        assert_eq!(attribute(inner, 5), None);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let mut message = Message::new(0, 0, &[]);
        message.put(1, &[1; 4]).put(2, &[2; 4]);
        let mut bytes = Vec::new();
        message.write(&mut bytes, 0).unwrap();
        for end in HEADER..bytes.len() {
            assert!(attributes(&bytes[HEADER..end]).len() < 2);
        }
        assert_eq!(attributes(&[0; 8]), []);
    }
}
