//! The wire format: numbered values of a message.

use super::ProtobufError;

/// A value as it stands in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl Wire<'_> {
    /// The number of the wire type.
    pub(super) fn number(self) -> u8 {
        match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32(_) => 5,
        }
    }
}

const SHORT: ProtobufError = ProtobufError::Malformed("unexpected EOF");

/// Reads the fields of a message in order.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    /// Number and value of the next field.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtobufError> {
        let Some(key) = self.varint_or_end()? else {
            return Ok(None);
        };
        let number = u32::try_from(key >> 3)
            .ok()
            .filter(|number| *number > 0)
            .ok_or(ProtobufError::Malformed("illegal tag 0"))?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint_or_end()?.ok_or(SHORT)?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = self.varint_or_end()?.ok_or(SHORT)?;
                let length = usize::try_from(length).map_err(|_| SHORT)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ProtobufError::Malformed("illegal wireType")),
        };
        Ok(Some((number, value)))
    }

    /// The next varint; none at the end.
    pub(super) fn varint_or_end(&mut self) -> Result<Option<u64>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(SHORT)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(Some(value));
            }
        }
        Err(ProtobufError::Malformed("integer overflow"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }
}

/// Text, which must be UTF-8.
pub(super) fn text(bytes: &[u8]) -> Result<String, ProtobufError> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| ProtobufError::Malformed("string field contains invalid UTF-8"))
}

/// The last value of a number that is a varint.
pub(super) fn varint_field(message: &[u8], wanted: u32) -> Result<Option<u64>, ProtobufError> {
    let mut found = None;
    let mut reader = Reader::new(message);
    while let Some((number, value)) = reader.next()? {
        if let (true, Wire::Varint(value)) = (number == wanted, value) {
            found = Some(value);
        }
    }
    Ok(found)
}

/// The last value of a number that is bytes.
pub(super) fn bytes_field(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, ProtobufError> {
    all_bytes(message, wanted).map(|mut all| all.pop())
}

/// All values of a number that are bytes.
pub(super) fn all_bytes(message: &[u8], wanted: u32) -> Result<Vec<&[u8]>, ProtobufError> {
    let mut found = Vec::new();
    let mut reader = Reader::new(message);
    while let Some((number, value)) = reader.next()? {
        if let (true, Wire::Bytes(value)) = (number == wanted, value) {
            found.push(value);
        }
    }
    Ok(found)
}
