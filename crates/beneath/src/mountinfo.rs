//! What is mounted, as the kernel lists it and as it can be asked of one path.
//!
//! Containers name what sub-paths of volumes are made of, and the kernel prints such names as they are: a list of mounts
//! is bytes, not text.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One row of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's number of it.
    pub id: u64,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of the file system.
    pub fs_type: String,
    /// Options of the file system (not of this mount).
    pub options: Vec<String>,
    /// The group of its peers: what is mounted on it, or unmounted, is so on those, too, and the reverse.
    pub peers: Option<u64>,
}

/// All mounts of this process, in the kernel's order: later ones may stand on earlier ones.
///
/// # Errors
/// There is no `/proc`.
pub fn mount_table() -> io::Result<Vec<MountEntry>> {
    read_table(BufReader::new(File::open("/proc/self/mountinfo")?))
}

/// Where something is mounted, in the order of [`mount_table`].
///
/// # Errors
/// There is no `/proc`.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    Ok(mount_table()?.into_iter().map(|row| row.point).collect())
}

/// A mount, as far as it goes by where it is and what is mounted on it.
struct Placed {
    id: u64,
    parent: u64,
    /// Device and root of the file system.
    what: Vec<u8>,
    entry: MountEntry,
}

fn placed(table: &[u8]) -> Vec<Placed> {
    let one = |line: &[u8]| {
        let mut fields = line.splitn(5, |b| *b == b' ');
        let mut number = || str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        Some(Placed {
            id,
            parent,
            what: [fields.next()?, fields.next()?].join(&b' '),
            entry: row(line)?,
        })
    };
    table.split(|b| *b == b'\n').filter_map(one).collect()
}

/// The mounts at and below a path on which something is mounted that is on a peer elsewhere, too.
fn with_peers_outside(table: &[Placed], root: &Path) -> Vec<PathBuf> {
    let is_below = |mount: &Placed| mount.entry.point.starts_with(root);
    let peers: HashMap<u64, u64> = table
        .iter()
        .filter_map(|mount| Some((mount.id, mount.entry.peers?)))
        .collect();
    // By the peers of what it is mounted on. What is hidden by another mount of the same path is not elsewhere.
    let on = |mount: &Placed| Some((*peers.get(&mount.parent)?, mount.what.clone()));
    let outside = table.iter().filter(|mount| !is_below(mount));
    let outside: HashSet<(u64, Vec<u8>)> = outside.filter_map(on).collect();
    let below = table.iter().filter(|mount| is_below(mount));
    let both = below.filter(|mount| on(mount).is_some_and(|on| outside.contains(&on)));
    let parents: HashSet<u64> = both.map(|mount| mount.parent).collect();
    let parents = table.iter().filter(|mount| parents.contains(&mount.id));
    let parents = parents.filter(|mount| is_below(mount));
    parents.map(|mount| mount.entry.point.clone()).collect()
}

/// Before what is mounted below a path is unmounted: mounts there that are peers of mounts elsewhere are parted from them. A
/// part of the host's file system that a pod had, or that a driver has bound there, is such a peer, and what is unmounted
/// on it, a disk that the administrator has mounted since or `/proc`, would be unmounted on the host. Peers in other
/// namespaces of mounts stay: they are to lose what is unmounted.
///
/// # Errors
/// There is no `/proc`, or what the kernel says.
pub fn part_from_outside(root: &Path) -> io::Result<()> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    for point in with_peers_outside(&placed(&table), root) {
        match mount_change(&point, MountPropagationFlags::PRIVATE) {
            // Another mount has hidden it, or it is gone.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads what is in the form of `/proc/PID/mountinfo`. Only what is kept of a row takes memory, besides the longest row.
///
/// # Errors
/// Those of reading; rows that are none are left out.
pub fn read_table(mut from: impl BufRead) -> io::Result<Vec<MountEntry>> {
    let (mut table, mut line) = (Vec::new(), Vec::new());
    while from.read_until(b'\n', &mut line)? > 0 {
        table.extend(row(line.strip_suffix(b"\n").unwrap_or(&line)));
        line.clear();
    }
    Ok(table)
}

/// Whether something is mounted exactly on `path`. Asked of the kernel for this one path, so what else is mounted does not
/// matter; the file system that is mounted there is not asked, so one that hangs holds nobody up. A link at the path is
/// not followed, those on the way are.
///
/// # Errors
/// What the kernel says; nothing is mounted on what is not there.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(ask(path)? == Some(true))
}

/// Whether anything is at `path`, a link or a mount included, without asking what is mounted there.
///
/// # Errors
/// What the kernel says.
pub fn is_there(path: &Path) -> io::Result<bool> {
    Ok(ask(path)?.is_some())
}

/// Whether what is at `path` is a mount; `None` where nothing is.
fn ask(path: &Path) -> io::Result<Option<bool>> {
    let Some(name) = path.file_name() else {
        return Ok(Some(path.has_root()));
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let asked = rustix::fs::openat(CWD, parent, flags | OFlags::DIRECTORY, Mode::empty())
        .and_then(|parent| openat2(parent, name, flags, Mode::empty(), rules));
    match asked {
        // Of one name that is no link, only a mount leads to another one.
        Err(Errno::XDEV) => Ok(Some(true)),
        Ok(_) | Err(Errno::LOOP) => Ok(Some(false)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether what is mounted below a path is mounted on peers of the mount that it lies on, too. Links are followed.
///
/// # Errors
/// The path is not there, or there is no `/proc`.
pub fn is_shared(path: &Path) -> io::Result<bool> {
    let id = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?.stx_mnt_id;
    Ok(mount_table()?
        .iter()
        .any(|row| row.id == id && row.peers.is_some()))
}

/// `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn row(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?)));
    let tags = fields.by_ref().skip(1).take_while(|field| *field != b"-");
    // To their end: the rest is the file system's.
    let number = |tag: &[u8]| {
        str::from_utf8(tag.strip_prefix(b"shared:")?)
            .ok()?
            .parse()
            .ok()
    };
    let peers = tags.fold(None, |peers, tag| peers.or_else(|| number(tag)));
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let fs_type = text(fields.next()?);
    let options = fields.nth(1).unwrap_or_default();
    Some(MountEntry {
        id,
        point,
        fs_type,
        options: options.split(|b| *b == b',').map(text).collect(),
        peers,
    })
}

/// The kernel writes some bytes (space, tab, newline, backslash, `#`) as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn names_that_are_no_text_hide_nothing() {
        let table = b"30 25 0:26 / /a\\040b\\134\\012\xc3\xa4 rw - tmpfs tmpfs rw\n\
            31 30 0:27 /vol/a\xff /pods/x/volume-subpaths/v/c/0 rw master:1 - ext4 /dev/a\xfe rw,x=\xff\n\
            nonsense\n\
            32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 master:1 - cgroup cgroup rw,cpu,cpuacct\n";
        let table = read_table(&table[..]).unwrap();
        let points: Vec<&[u8]> = table
            .iter()
            .map(|row| row.point.as_os_str().as_bytes())
            .collect();
        assert_eq!(points[0], b"/a b\\\n\xc3\xa4");
        assert_eq!(points[1], b"/pods/x/volume-subpaths/v/c/0");
        assert_eq!(table[2].fs_type, "cgroup");
        assert_eq!(table[2].options, ["rw", "cpu", "cpuacct"]);
        assert_eq!(table.len(), 3);
        let peers: Vec<Option<u64>> = table.iter().map(|row| row.peers).collect();
        assert_eq!(peers, [None, None, Some(3)]);
    }

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(name in prop::collection::vec(1_u8.., 0..40)) {
            let escape = |b: &u8| match b {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}").into_bytes(),
                b => vec![*b],
            };
            let escaped: Vec<u8> = name.iter().flat_map(escape).collect();
            prop_assert_eq!(unescaped(&escaped), name);
        }
    }

    #[test]
    fn only_what_has_peers_elsewhere_is_parted_from_them() {
        let table = b"1 0 8:1 / / rw shared:1 - ext4 d rw\n\
            2 1 8:1 /pods /pods rw shared:2 - ext4 d rw\n\
            3 2 8:1 /mnt /pods/u/a rw shared:1 - ext4 d rw\n\
            4 3 8:2 / /pods/u/a/disk rw shared:4 - ext4 d rw\n\
            5 1 8:2 / /mnt/disk rw shared:4 - ext4 d rw\n\
            6 2 0:9 / /pods/u/b rw shared:6 - tmpfs t rw\n\
            7 2 0:9 / /pods/u/c rw shared:6 - tmpfs t rw\n\
            8 2 0:9 / /pods/u/d rw master:1 - tmpfs t rw\n\
            9 2 8:1 /srv /pods/u/e rw shared:1 - ext4 d rw\n\
            10 9 0:7 / /pods/u/e/own rw shared:7 - tmpfs t rw\n\
            11 1 0:8 / /pods/u/b/x rw shared:8 - tmpfs t rw\n\
            12 3 0:8 / /pods/u/a/x rw shared:8 - tmpfs t rw\n";
        // The last but one is hidden by what is mounted on the path, and goes with the last.
        let parted = with_peers_outside(&placed(table), Path::new("/pods/u"));
        assert_eq!(parted, [Path::new("/pods/u/a")]);
        assert!(with_peers_outside(&placed(table), Path::new("/pods/u/e")).is_empty());
    }

    #[test]
    fn mount_points_are_known_one_by_one() {
        for point in ["/", "/proc"] {
            assert!(is_mount_point(Path::new(point)).unwrap(), "{point}");
        }
        let tmp = tempfile::tempdir().unwrap();
        assert!(!is_mount_point(tmp.path()).unwrap());
        assert!(!is_mount_point(&tmp.path().join("none/at/all")).unwrap());
        std::os::unix::fs::symlink("/proc", tmp.path().join("link")).unwrap();
        assert!(!is_mount_point(&tmp.path().join("link")).unwrap());
        std::fs::write(tmp.path().join("file"), "").unwrap();
        assert!(!is_mount_point(&tmp.path().join("file")).unwrap());
        assert!(!is_mount_point(&tmp.path().join("file/below")).unwrap());
        for (name, there) in [("link", true), ("file", true), ("none", false)] {
            assert_eq!(is_there(&tmp.path().join(name)).unwrap(), there, "{name}");
        }
        assert!(is_there(Path::new("/proc")).unwrap());
        assert!(mount_points().unwrap().contains(&PathBuf::from("/proc")));
    }
}
