//! Backups: all pairs of a store at one revision, in a file of this form.
//!
//! A line with name and version, the revision, the pairs in the order of the store's keys, an end with their number and the SHA-256 of all that
//! comes before it. Numbers are big-endian. Values are as the store has them: encrypted where they are encrypted at rest.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::KeyValue;

const MAGIC: &[u8; 16] = b"davit backup v1\n";
/// In the place of a key's length: there are no more pairs.
const END: u32 = u32::MAX;
const MAX_KEY: usize = 4096;
const MAX_VALUE: usize = 64 << 20;

/// How far revisions are moved on by a restore, so that no client has seen a later one. What etcd's tools use.
pub const REVISION_BUMP: u64 = 1_000_000_000;

/// The last revision that can be restored: revisions are signed numbers for clients, and go on.
const MAX_REVISION: u64 = i64::MAX.unsigned_abs() - 2 * REVISION_BUMP;

/// Why a file is no backup, or a damaged one.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// It does not begin like one.
    #[error("it is no backup of davit, or one of a newer version")]
    Foreign,
    /// It ends before its end.
    #[error("it is cut short")]
    Short,
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
}

impl From<io::Error> for BackupError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Short
        } else {
            Self::Read(error)
        }
    }
}

/// Makes the bytes of a backup, piece by piece.
pub struct BackupEncoder {
    hash: Sha256,
    count: u64,
}

impl BackupEncoder {
    /// Begins a backup of the state at `revision`.
    #[must_use]
    pub fn begin(revision: u64) -> (Self, Bytes) {
        let first = [MAGIC.as_slice(), &revision.to_be_bytes()].concat();
        let mut encoder = Self {
            hash: Sha256::new(),
            count: 0,
        };
        encoder.hash.update(&first);
        (encoder, first.into())
    }

    /// The next pairs.
    pub fn pairs(&mut self, pairs: &[KeyValue]) -> Bytes {
        let mut out = Vec::new();
        for pair in pairs {
            // Keys and values are far below four gigabytes.
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(END).to_be_bytes();
            out.extend_from_slice(&length(pair.key.as_bytes()));
            out.extend_from_slice(pair.key.as_bytes());
            out.extend_from_slice(&pair.create_revision.to_be_bytes());
            out.extend_from_slice(&pair.mod_revision.to_be_bytes());
            out.extend_from_slice(&length(&pair.value));
            out.extend_from_slice(&pair.value);
            self.count += 1;
        }
        self.hash.update(&out);
        out.into()
    }

    /// The end.
    #[must_use]
    pub fn end(mut self) -> Bytes {
        let mut out = END.to_be_bytes().to_vec();
        out.extend_from_slice(&self.count.to_be_bytes());
        self.hash.update(&out);
        out.extend_from_slice(&self.hash.finalize());
        out.into()
    }
}

/// Reads a backup. What it says is only sure when the last pair has been read without an error.
pub struct BackupReader<R> {
    input: R,
    hash: Sha256,
    revision: u64,
    count: u64,
    is_over: bool,
}

impl<R: Read> BackupReader<R> {
    /// Reads the beginning.
    ///
    /// # Errors
    /// It is none, or it cannot be read.
    pub fn new(mut input: R) -> Result<Self, BackupError> {
        let mut first = [0; 24];
        match input.read_exact(&mut first) {
            Ok(()) if first.starts_with(MAGIC) => {}
            Ok(()) => return Err(BackupError::Foreign),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BackupError::Foreign);
            }
            Err(error) => return Err(BackupError::Read(error)),
        }
        let mut hash = Sha256::new();
        hash.update(first);
        let mut revision = [0; 8];
        revision.copy_from_slice(&first[16..]);
        let revision = u64::from_be_bytes(revision);
        // There has to be room for a restore to move on, and for writes after it.
        if revision > MAX_REVISION {
            return Err(BackupError::Damaged("a revision is out of range"));
        }
        Ok(Self {
            input,
            hash,
            revision,
            count: 0,
            is_over: false,
        })
    }

    /// The revision whose state it is.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Reads to the end and answers with the number of pairs.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(mut self) -> Result<u64, BackupError> {
        while self.read()?.is_some() {}
        Ok(self.count)
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, BackupError> {
        // Grows with what is there, whatever the length says.
        let mut bytes = Vec::new();
        let limit = u64::try_from(length).unwrap_or(u64::MAX);
        (&mut self.input).take(limit).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(BackupError::Short);
        }
        self.hash.update(&bytes);
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| BackupError::Short)
    }

    fn length(&mut self, limit: usize) -> Result<Option<usize>, BackupError> {
        match u32::from_be_bytes(self.number()?) {
            END => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= limit => Ok(Some(length)),
                _ => Err(BackupError::Damaged("a length is out of range")),
            },
        }
    }

    fn read(&mut self) -> Result<Option<KeyValue>, BackupError> {
        if self.is_over {
            return Ok(None);
        }
        let Some(length) = self.length(MAX_KEY)? else {
            self.finish()?;
            return Ok(None);
        };
        let key = String::from_utf8(self.take(length)?);
        let key = key.map_err(|_| BackupError::Damaged("a key is no text"))?;
        let create_revision = u64::from_be_bytes(self.number()?);
        let mod_revision = u64::from_be_bytes(self.number()?);
        // The first that anything is written with is 1.
        if mod_revision == 0 || create_revision > mod_revision || mod_revision > self.revision {
            return Err(BackupError::Damaged("a revision is out of range"));
        }
        let length = self.length(MAX_VALUE)?;
        let length = length.ok_or(BackupError::Damaged("a value is missing"))?;
        let value = self.take(length)?.into();
        self.count += 1;
        Ok(Some(KeyValue {
            key: Arc::from(key),
            value,
            mod_revision,
            create_revision,
        }))
    }

    fn finish(&mut self) -> Result<(), BackupError> {
        if u64::from_be_bytes(self.number()?) != self.count {
            return Err(BackupError::Damaged("pairs are missing"));
        }
        let expected = std::mem::take(&mut self.hash).finalize();
        let found: [u8; 32] = self.number()?;
        if found[..] != expected[..] {
            return Err(BackupError::Damaged("the checksum is another"));
        }
        if self.input.read(&mut [0])? != 0 {
            return Err(BackupError::Damaged("something follows its end"));
        }
        self.is_over = true;
        Ok(())
    }
}

impl<R: Read> Iterator for BackupReader<R> {
    type Item = Result<KeyValue, BackupError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read();
        self.is_over |= next.is_err();
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: u64) -> KeyValue {
        KeyValue {
            key: format!("/k/{n}").into(),
            value: Bytes::from(vec![b'x'; n as usize]),
            mod_revision: n + 1,
            create_revision: n,
        }
    }

    fn backup() -> Vec<u8> {
        let (mut encoder, first) = BackupEncoder::begin(100);
        let pairs: Vec<KeyValue> = (0..50).map(pair).collect();
        let mut bytes = first.to_vec();
        for some in pairs.chunks(7) {
            bytes.extend_from_slice(&encoder.pairs(some));
        }
        bytes.extend_from_slice(&encoder.end());
        bytes
    }

    #[test]
    fn a_revision_without_room_above_is_refused() {
        for (revision, is_good) in [
            (MAX_REVISION, true),
            (MAX_REVISION + 1, false),
            (u64::MAX, false),
        ] {
            let (encoder, first) = BackupEncoder::begin(revision);
            let bytes = [first, encoder.end()].concat();
            assert_eq!(
                BackupReader::new(bytes.as_slice()).is_ok(),
                is_good,
                "{revision}"
            );
        }
    }

    /// A store that is made of it would not open.
    #[test]
    fn nothing_is_written_at_revision_nought() {
        let (mut encoder, first) = BackupEncoder::begin(100);
        let pair = KeyValue {
            mod_revision: 0,
            ..pair(0)
        };
        let pairs = encoder.pairs(&[pair]);
        let bytes = [first, pairs, encoder.end()].concat();
        let read = BackupReader::new(bytes.as_slice()).and_then(BackupReader::verify);
        assert!(matches!(read, Err(BackupError::Damaged(_))));
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = backup();
        let reader = BackupReader::new(bytes.as_slice()).unwrap();
        assert_eq!(reader.revision(), 100);
        let read: Vec<KeyValue> = reader.map(Result::unwrap).collect();
        assert_eq!(read, (0..50).map(pair).collect::<Vec<_>>());
    }

    #[test]
    fn any_damage_is_found() {
        let bytes = backup();
        let verify = |bytes: &[u8]| BackupReader::new(bytes).and_then(BackupReader::verify);
        assert_eq!(verify(&bytes).unwrap(), 50);
        for length in 0..bytes.len() {
            assert!(verify(&bytes[..length]).is_err(), "cut at {length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(verify(&changed).is_err(), "changed at {at}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(verify(&longer).is_err());
    }
}
