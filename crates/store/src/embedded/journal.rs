//! A look at the database's journal before the database opens it.
//!
//! The database tolerates a journal that simply ends, but two cases need care:
//!
//! - After a power loss the last batch may be there in part, with some of its pages
//!   never written. The database then refuses to open over a checksum. Every batch
//!   is made durable before the next is begun, so a batch that is broken and has no
//!   whole batch after it was never acknowledged and can be cut off.
//! - If bytes are damaged and whole batches follow, the database may cut the journal
//!   there and lose them without a word. That must be an error.
//!
//! The format is that of version 3 of the database: batches of a start (tag 1, item
//! count, sequence number), items (tag 2) or clears (tag 4), and an end (tag 3,
//! XXH3 of the items, magic); numbers little-endian.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 4] = *b"FJL\x03";

/// The state of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JournalState {
    /// Whole batches, then nothing but zeros.
    Sound,
    /// Whole batches up to byte `valid`, then one that was cut short.
    Torn { valid: u64 },
    /// A broken batch at byte `at` with whole ones after it.
    Damaged { at: u64 },
}

/// The journal that was being written, if the database is of the known version.
pub(super) fn active(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut marker = [0; 4];
    match File::open(dir.join("version")) {
        Ok(mut file) => match file.read_exact(&mut marker) {
            Ok(()) if marker == MAGIC => {}
            Ok(()) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".jnl"))
            .and_then(|number| number.parse().ok());
        if let Some(number) = number
            && newest.as_ref().is_none_or(|(other, _)| number > *other)
        {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Reads a journal and tells in what state it is.
pub(super) fn inspect(path: &Path) -> io::Result<JournalState> {
    let file = File::open(path)?;
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let mut valid = 0;
    let mut sequence = None;
    let mut scratch = Vec::new();
    while let Some(batch) = read_batch(&mut reader, sequence, &mut scratch)? {
        valid += batch.length;
        sequence = Some(batch.sequence);
    }
    let rest = read_rest(reader.into_inner(), valid)?;
    if rest.is_empty() {
        return Ok(JournalState::Sound);
    }
    if holds_batch(&rest)? {
        return Ok(JournalState::Damaged { at: valid });
    }
    Ok(JournalState::Torn { valid })
}

/// Cuts a journal off.
pub(super) fn truncate(path: &Path, length: u64) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_len(length)?;
    file.sync_all()
}

struct Batch {
    sequence: u64,
    length: u64,
}

/// Reads a batch; `None` if there is no whole and sound one with a sequence number
/// greater than `after`.
fn read_batch(
    reader: &mut impl Read,
    after: Option<u64>,
    scratch: &mut Vec<u8>,
) -> io::Result<Option<Batch>> {
    match try_read_batch(reader, after, scratch) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        result => result,
    }
}

fn try_read_batch(
    reader: &mut impl Read,
    after: Option<u64>,
    scratch: &mut Vec<u8>,
) -> io::Result<Option<Batch>> {
    let start: [u8; 13] = read_array(reader)?;
    let (tag, rest) = (start[0], &start[1..]);
    let count = number(&rest[..4]);
    let sequence = number(&rest[4..]);
    if tag != 1 || after.is_some_and(|after| sequence <= after) {
        return Ok(None);
    }
    let mut length = start.len() as u64;
    let mut hasher = Xxh3::new();
    for _ in 0..count {
        let Some(bytes) = read_item(reader, &mut hasher, scratch)? else {
            return Ok(None);
        };
        length += bytes;
    }
    let end: [u8; 13] = read_array(reader)?;
    length += end.len() as u64;
    let sound = end[0] == 3 && number(&end[1..9]) == hasher.digest() && end[9..] == MAGIC;
    Ok(sound.then_some(Batch { sequence, length }))
}

/// Reads an item into the hash and answers with its length; `None` if it is none.
fn read_item(
    reader: &mut impl Read,
    hasher: &mut Xxh3,
    scratch: &mut Vec<u8>,
) -> io::Result<Option<u64>> {
    const PIECE: u64 = 64 << 10;
    let [tag] = read_array(reader)?;
    hasher.update(&[tag]);
    match tag {
        4 => {
            let keyspace: [u8; 8] = read_array(reader)?;
            hasher.update(&keyspace);
            return Ok(Some(9));
        }
        2 => {}
        _ => return Ok(None),
    }
    // Kind, compression, keyspace (8), key length (2), value length (4), length of
    // the value as stored (4).
    let head: [u8; 20] = read_array(reader)?;
    hasher.update(&head);
    let payload = number(&head[10..12]) + number(&head[16..20]);
    let mut left = payload;
    while left > 0 {
        let piece = left.min(PIECE);
        scratch.resize(piece as usize, 0);
        reader.read_exact(scratch)?;
        hasher.update(scratch);
        left -= piece;
    }
    Ok(Some(1 + head.len() as u64 + payload))
}

fn read_array<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(little_endian: &[u8]) -> u64 {
    little_endian
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The bytes from `offset` to the last one that is not zero. The space that the
/// database reserves at the end is a hole in the file and is skipped as such.
fn read_rest(mut file: File, offset: u64) -> io::Result<Vec<u8>> {
    let mut rest = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let mut position = offset;
    while let Some(data) = next_data(&file, position)? {
        file.seek(SeekFrom::Start(data))?;
        let length = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(last) = piece[..length].iter().rposition(|byte| *byte != 0) {
            // What was skipped reads as zeros.
            rest.resize((data - offset) as usize, 0);
            rest.extend_from_slice(&piece[..=last]);
        }
        position = data + length as u64;
    }
    Ok(rest)
}

/// Where the next data of a file begins; `None` if only a hole is left.
fn next_data(file: &File, position: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(position)) {
        Ok(data) => Ok(Some(data)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        // Not every file system can tell; then everything is data.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(Some(position)),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is a whole batch anywhere in `bytes`, of whatever sequence number:
/// that number is not covered by the checksum and may be what is damaged.
fn holds_batch(bytes: &[u8]) -> io::Result<bool> {
    let mut scratch = Vec::new();
    for (offset, byte) in bytes.iter().enumerate() {
        if *byte == 1 && read_batch(&mut &bytes[offset..], None, &mut scratch)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sequence: u64, values: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![1];
        bytes.extend((values.len() as u32).to_le_bytes());
        bytes.extend(sequence.to_le_bytes());
        let mut items = Vec::new();
        for value in values {
            items.extend([2, 0, 0]);
            items.extend(1_u64.to_le_bytes());
            items.extend(3_u16.to_le_bytes());
            items.extend((value.len() as u32).to_le_bytes());
            items.extend((value.len() as u32).to_le_bytes());
            items.extend(b"key");
            items.extend_from_slice(value);
        }
        bytes.extend_from_slice(&items);
        bytes.push(3);
        bytes.extend(xxhash_rust::xxh3::xxh3_64(&items).to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    }

    fn verdict(bytes: &[u8]) -> JournalState {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.jnl");
        std::fs::write(&path, bytes).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(4 << 20)
            .unwrap();
        inspect(&path).unwrap()
    }

    #[test]
    fn whole_batches_are_sound() {
        assert_eq!(verdict(b""), JournalState::Sound);
        let two = [batch(1, &[b"one"]), batch(2, &[b"two", b"three"])].concat();
        assert_eq!(verdict(&two), JournalState::Sound);
    }

    #[test]
    fn every_cut_and_every_hole_in_the_last_batch_is_torn() {
        let first = batch(1, &[b"one"]);
        let last = batch(2, &[b"two", b"three"]);
        let valid = first.len() as u64;
        for cut in 1..last.len() {
            let bytes = [&first[..], &last[..cut]].concat();
            assert_eq!(
                verdict(&bytes),
                JournalState::Torn { valid },
                "cut at {cut}"
            );
        }
        // Real holes are whole pages: longer than the start of a batch, which the
        // checksum does not cover.
        for hole in 0..last.len() {
            let mut broken = last.clone();
            let end = last.len().min(hole + 16);
            broken[hole..end].fill(0);
            if broken == last {
                continue;
            }
            let bytes = [&first[..], &broken[..]].concat();
            assert_eq!(
                verdict(&bytes),
                JournalState::Torn { valid },
                "hole at {hole}"
            );
        }
    }

    #[test]
    fn damage_before_a_whole_batch_is_told() {
        let [first, middle, last] = [batch(1, &[b"1"]), batch(2, &[b"two"]), batch(3, &[b"3"])];
        for at in 0..middle.len() {
            let mut broken = middle.clone();
            broken[at] ^= 0x40;
            let bytes = [&first[..], &broken[..], &last[..]].concat();
            let verdict = verdict(&bytes);
            assert!(
                matches!(verdict, JournalState::Damaged { .. }),
                "damage at {at}: {verdict:?}"
            );
        }
    }
}
