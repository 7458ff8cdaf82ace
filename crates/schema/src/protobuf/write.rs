//! Writing messages: forwards where the parts are ready, backwards where lengths are not yet known.

/// Wire type of integers and booleans.
pub(super) const VARINT: u8 = 0;
/// Wire type of floating point numbers.
pub(super) const FIXED64: u8 = 1;
const BYTES: u8 = 2;

/// Appends a field of bytes, text or a message, with its tag and length.
pub(super) fn bytes_field(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(out, u64::from(number << 3 | u32::from(BYTES)));
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes from the end to the start, so that the length of a message is known when it is needed.
#[derive(Default)]
pub(super) struct Backwards {
    reversed: Vec<u8>,
}

impl Backwards {
    /// How many bytes there are; the difference of two marks is the length of what lies between.
    pub(super) fn mark(&self) -> usize {
        self.reversed.len()
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.reversed.extend(bytes.iter().rev());
    }

    pub(super) fn varint(&mut self, value: u64) {
        let mut buffer = [0; 10];
        let mut len = 0;
        let mut rest = value;
        while rest >= 0x80 {
            buffer[len] = rest as u8 | 0x80;
            rest >>= 7;
            len += 1;
        }
        buffer[len] = rest as u8;
        self.put(&buffer[..=len]);
    }

    pub(super) fn tag(&mut self, number: u16, wire: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    /// Puts length and tag before the bytes written since `mark`.
    pub(super) fn close(&mut self, number: u16, mark: usize) {
        self.varint((self.mark() - mark) as u64);
        self.tag(number, BYTES);
    }

    pub(super) fn bytes(&mut self, number: u16, value: &[u8]) {
        let mark = self.mark();
        self.put(value);
        self.close(number, mark);
    }

    pub(super) fn integer(&mut self, number: u16, value: i64) {
        // Negative numbers of 32 bits are written as those of 64: ten bytes.
        self.varint(value as u64);
        self.tag(number, VARINT);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }
}
