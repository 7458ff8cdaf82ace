//! What a root does when nobody interferes.
#![allow(clippy::unwrap_used)]

use davit_beneath::{Error, Links, Permissions, Procfs, Root, TargetKind};
use rustix::fs::FileType;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tempfile::TempDir;

fn setup(links: Links) -> (TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/secret"), "s").unwrap();
    let root = Root::open(dir.path().join("root"), links).unwrap();
    (dir, root)
}

#[test]
fn links_are_followed_inside_a_confined_root_only() {
    let (dir, root) = setup(Links::Confined);
    let at = dir.path().join("root");
    fs::create_dir(at.join("run")).unwrap();
    fs::create_dir(at.join("var")).unwrap();
    symlink("/run", at.join("var/run")).unwrap();
    symlink("../../../../outside", at.join("up")).unwrap();
    symlink(dir.path().join("outside"), at.join("abs")).unwrap();
    symlink("loop", at.join("loop")).unwrap();
    root.mkdir_all("/var/run/app/x", 0o755).unwrap();
    assert!(at.join("run/app/x").is_dir());
    // Outside is another place for the root: below the root itself.
    root.mkdir_all("up/x", 0o755).unwrap();
    assert!(at.join("outside/x").is_dir());
    root.target("abs/y", TargetKind::File).unwrap();
    let inside = at.join(dir.path().strip_prefix("/").unwrap());
    assert!(inside.join("outside/y").is_file());
    assert!(matches!(
        root.mkdir_all("loop/x", 0o755),
        Err(Error::Escapes(_))
    ));
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1);
    // `..` of the caller stays inside as well.
    root.mkdir_all("../../a", 0o755).unwrap();
    assert!(at.join("a").is_dir());
}

#[test]
fn links_to_what_is_not_there_yet_are_made_where_they_lead() {
    let (dir, root) = setup(Links::Confined);
    let at = dir.path().join("root");
    fs::create_dir(at.join("var")).unwrap();
    symlink("/run", at.join("var/run")).unwrap();
    symlink("b", at.join("a")).unwrap();
    symlink("a", at.join("b")).unwrap();
    symlink("later/file", at.join("f")).unwrap();
    root.mkdir_all("var/run/app", 0o755).unwrap();
    assert!(at.join("run/app").is_dir());
    root.target("f", TargetKind::File).unwrap();
    assert!(at.join("later/file").is_file());
    assert!(root.mkdir_all("a/x", 0o755).is_err());
}

#[test]
fn links_that_lead_out_are_refused_inside_a_volume() {
    let (dir, root) = setup(Links::Inside);
    let at = dir.path().join("root");
    fs::create_dir_all(at.join("in/deep")).unwrap();
    symlink("in/deep", at.join("good")).unwrap();
    symlink("../outside", at.join("up")).unwrap();
    symlink(dir.path().join("outside"), at.join("abs")).unwrap();
    symlink("../outside/new", at.join("new")).unwrap();
    root.mkdir_all("good/x", 0o755).unwrap();
    assert!(at.join("in/deep/x").is_dir());
    for path in ["up", "up/x", "abs/x", "../outside", "new", "new/x"] {
        assert!(
            matches!(root.mkdir_all(path, 0o755), Err(Error::Escapes(_))),
            "{path}"
        );
        assert!(root.target(path, TargetKind::File).is_err(), "{path}");
        assert!(
            root.write(format!("{path}/f"), b"", &Permissions::default())
                .is_err()
        );
    }
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1);
    let root = root.with_links(Links::Refused);
    assert!(matches!(root.entry("good"), Err(Error::Escapes(_))));
    assert_eq!(
        root.entry_itself("good").unwrap().kind().unwrap(),
        FileType::Symlink
    );
    assert_eq!(root.read_link("good").unwrap(), Path::new("in/deep"));
}

#[test]
fn only_regular_files_are_read_and_only_so_much() {
    let (dir, root) = setup(Links::Refused);
    let at = dir.path().join("root");
    fs::write(at.join("f"), "0123456789").unwrap();
    root.mknod("fifo", FileType::Fifo, 0, &Permissions::mode(0o666))
        .unwrap();
    symlink("/dev/null", at.join("l")).unwrap();
    assert_eq!(root.read_limited("f", 10).unwrap(), b"0123456789");
    assert!(matches!(
        root.read_limited("f", 9),
        Err(Error::TooLarge { limit: 9, .. })
    ));
    assert_eq!(root.read_tail("f", 3).unwrap(), b"789");
    assert_eq!(root.read_tail("f", 30).unwrap(), b"0123456789");
    // A FIFO would wait for a writer for ever.
    assert!(matches!(
        root.read_limited("fifo", 9),
        Err(Error::NotRegular(_))
    ));
    assert!(matches!(
        root.read_limited("", 9),
        Err(Error::NotRegular(_))
    ));
    assert!(matches!(root.read_limited("l", 9), Err(Error::Escapes(_))));
    assert!(root.read_limited("none", 9).unwrap_err().is_not_found());
    assert!(root.list("", 2).is_err());
    let mut names: Vec<_> = root
        .list("", 3)
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort();
    assert_eq!(names, ["f", "fifo", "l"]);
}

#[test]
fn files_are_replaced_at_once_and_links_are_not_written_through() {
    let (dir, root) = setup(Links::Confined);
    let at = dir.path().join("root");
    symlink(dir.path().join("outside/secret"), at.join("f")).unwrap();
    root.write("f", b"new", &Permissions::mode(0o2640)).unwrap();
    assert_eq!(fs::read(dir.path().join("outside/secret")).unwrap(), b"s");
    assert_eq!(fs::read(at.join("f")).unwrap(), b"new");
    assert_eq!(at.join("f").metadata().unwrap().mode() & 0o7777, 0o2640);
    assert!(root.create_new("f", 0o600).is_err());
    root.hard_link("f", "g").unwrap();
    root.rename("g", "h").unwrap();
    root.symlink("h", "i").unwrap();
    assert_eq!(root.read_limited("i", 9).unwrap(), b"new");
    root.remove_file("i").unwrap();
    assert!(at.join("h").exists() && !at.join("i").exists());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 2);
}

#[test]
fn directories_get_the_mode_that_was_asked_for() {
    let (dir, root) = setup(Links::Refused);
    root.mkdir_all("a/b", 0o777).unwrap();
    let mode = dir.path().join("root/a/b").metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o777);
    assert!(root.mkdir_all("..", 0o777).is_err());
}

#[test]
fn trees_are_removed_without_their_links_ends_however_deep() {
    let (dir, root) = setup(Links::Refused);
    let mut below = root.mkdir_all("tree", 0o755).unwrap();
    for level in 0..300 {
        below.symlink(dir.path().join("outside"), "link").unwrap();
        below.write("file", b"", &Permissions::default()).unwrap();
        below.mkdir_all(format!("other{level}/x"), 0o755).unwrap();
        below = below.mkdir_all("d", 0o755).unwrap();
    }
    assert!(matches!(
        root.walk(|_, _| Ok(())),
        Err(Error::TooLarge { .. })
    ));
    root.remove_tree("tree").unwrap();
    root.remove_tree("tree").unwrap();
    assert_eq!(fs::read_dir(dir.path().join("root")).unwrap().count(), 0);
    assert!(dir.path().join("outside/secret").exists());
    root.mkdir_all("x/y", 0o755).unwrap();
    root.clear().unwrap();
    assert_eq!(fs::read_dir(dir.path().join("root")).unwrap().count(), 0);
}

#[test]
fn a_walk_shows_everything_and_changes_by_descriptor() {
    let (dir, root) = setup(Links::Refused);
    let at = dir.path().join("root");
    fs::create_dir_all(at.join("a/b")).unwrap();
    fs::write(at.join("a/b/f"), "").unwrap();
    symlink(dir.path().join("outside/secret"), at.join("a/l")).unwrap();
    symlink(dir.path().join("outside"), at.join("a/ld")).unwrap();
    let before = dir.path().join("outside/secret").metadata().unwrap().mode();
    let mut seen = Vec::new();
    root.walk(|path, inode| {
        seen.push(path.to_string_lossy().into_owned());
        inode.set(&Permissions::mode(0o770))
    })
    .unwrap();
    seen.sort();
    assert_eq!(seen, ["", "a", "a/b", "a/b/f", "a/l", "a/ld"]);
    assert_eq!(
        at.join("a/b/f").metadata().unwrap().permissions().mode() & 0o777,
        0o770
    );
    assert_eq!(
        dir.path().join("outside/secret").metadata().unwrap().mode(),
        before
    );
}

#[test]
fn procfs_is_verified_and_its_magic_links_lead_nowhere() {
    let host = Procfs::of_host().unwrap();
    assert!(!host.read("self/status", 1 << 20).unwrap().is_empty());
    assert!(matches!(
        host.read("self/status", 10),
        Err(Error::TooLarge { .. })
    ));
    for path in ["self/root/etc/passwd", "self/cwd", "../etc/passwd"] {
        assert!(host.read(path, 1 << 20).is_err(), "{path}");
    }
    let dir = tempfile::tempdir().unwrap();
    let other = Root::open(dir.path(), Links::Refused).unwrap();
    assert!(Procfs::from_fd(other.into()).is_err());
    let below = Root::open("/proc/self", Links::Refused).unwrap();
    assert!(Procfs::from_fd(below.into()).is_err());
    let root = Root::open("/proc", Links::Confined).unwrap();
    assert!(matches!(
        root.entry("self/root/etc"),
        Err(Error::Escapes(_))
    ));
    let root = Root::open("/dev", Links::Refused).unwrap();
    assert!(root.entry("null").unwrap().is_char_device(1, 3));
    assert!(!root.entry("zero").unwrap().is_char_device(1, 3));
}
