use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn the_reserve_leaves_room_on_small_and_on_large_disks() {
    assert_eq!(reserve(0), 0);
    assert_eq!(reserve(8 << 30), (8 << 30) / 20);
    // 12 GiB free of 252: a twentieth would be more than all of it.
    assert_eq!(reserve(252 << 30), 1 << 30);
}

fn record(uid: &str) -> VolumeRecord {
    VolumeRecord {
        pv: "pvc-1".to_owned(),
        namespace: "ns".to_owned(),
        claim: "c".to_owned(),
        uid: uid.to_owned(),
    }
}

#[test]
fn items_123_and_126_made_once_and_removed_once() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = Directories::open(&tmp.path().join("volumes")).unwrap();
    let mine = record("a");
    assert!(matches!(dirs.find(&mine), Err(DirectoryError::Lost(_))));
    dirs.make(&mine, VolumeForm::Directory).unwrap();
    let data = dirs.data("pvc-1");
    std::fs::write(data.join("file"), "x").unwrap();
    dirs.make(&mine, VolumeForm::Directory).unwrap();
    dirs.find(&mine).unwrap();
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "x");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&data), mode(data.parent().unwrap())), (0o777, 0o700));

    assert!(matches!(
        dirs.make(&record("b"), VolumeForm::Directory),
        Err(DirectoryError::Foreign { .. })
    ));
    assert!(matches!(
        dirs.remove(&record("b")),
        Err(DirectoryError::Foreign { .. })
    ));
    assert!(data.join("file").exists());

    dirs.remove(&mine).unwrap();
    assert!(!data.exists());
    dirs.remove(&mine).unwrap();
    // A crash between the two: the trash is emptied by the next process.
    let again = Directories::open(&tmp.path().join("volumes")).unwrap();
    assert!(again.root().join(TRASH).join("pvc-1-a/data/file").exists());
    again.empty_trash().unwrap();
    assert!(!again.root().join(TRASH).join("pvc-1-a").exists());
    // The same name may be made anew.
    again.make(&record("b"), VolumeForm::Directory).unwrap();
    assert!(!again.data("pvc-1").join("file").exists());
}

#[test]
fn an_image_has_its_size_and_grows_and_never_shrinks() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = Directories::open(&tmp.path().join("volumes")).unwrap();
    let mine = record("a");
    let path = dirs.root().join("pvc-1").join(IMAGE);
    // A crash has left a part of it.
    std::fs::create_dir(dirs.root().join("pvc-1")).unwrap();
    std::fs::write(dirs.root().join("pvc-1").join(NEW_IMAGE), "x").unwrap();
    for (bytes, has) in [(5000, 8192), (5000, 8192), (9000, 12288), (1, 12288)] {
        dirs.make(&mine, VolumeForm::Image(bytes)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), has);
    }
    dirs.grow(&mine, VolumeForm::Image(12289)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 16384);
    assert!(matches!(
        dirs.grow(&record("b"), VolumeForm::Image(1)),
        Err(DirectoryError::Foreign { .. })
    ));
    dirs.detach("pvc-1").unwrap();
    dirs.remove(&mine).unwrap();
    assert!(matches!(
        dirs.grow(&mine, VolumeForm::Image(1)),
        Err(DirectoryError::Lost(_))
    ));
    dirs.detach("pvc-1").unwrap();
}

#[test]
fn a_volume_begins_as_a_copy_whatever_an_earlier_try_has_left() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = Directories::open(&tmp.path().join("volumes")).unwrap();
    let (source, mut copy) = (record("a"), record("b"));
    copy.pv = "pvc-2".to_owned();
    assert!(matches!(
        dirs.copy(&copy, VolumeForm::Directory, "pvc-1"),
        Err(DirectoryError::Lost(_))
    ));
    dirs.make(&source, VolumeForm::Directory).unwrap();
    std::fs::write(dirs.data("pvc-1").join("rows"), "rows").unwrap();
    let half = dirs.root().join("pvc-2").join(NEW_DATA);
    std::fs::create_dir_all(half.join("other")).unwrap();
    assert!(!dirs.is_whole(&copy, VolumeForm::Directory).unwrap());
    assert!(dirs.copy(&copy, VolumeForm::Directory, "pvc-1").unwrap());
    assert!(dirs.is_whole(&copy, VolumeForm::Directory).unwrap());
    std::fs::write(dirs.data("pvc-1").join("rows"), "more").unwrap();
    assert!(!dirs.copy(&copy, VolumeForm::Directory, "pvc-1").unwrap());
    let rows = std::fs::read_to_string(dirs.data("pvc-2").join("rows")).unwrap();
    assert_eq!(rows, "rows");
    let left = std::fs::read_dir(dirs.data("pvc-2")).unwrap();
    assert_eq!(left.count(), 1);
    dirs.make(&copy, VolumeForm::Directory).unwrap();
}

#[test]
fn item_127_nothing_outside_is_touched() {
    let tmp = tempfile::tempdir().unwrap();
    let outside = tmp.path().join("outside");
    std::fs::create_dir_all(outside.join(DATA)).unwrap();
    let text = serde_json::to_vec(&record("a")).unwrap();
    std::fs::write(outside.join(RECORD), text).unwrap();
    let dirs = Directories::open(&tmp.path().join("volumes")).unwrap();
    symlink(&outside, dirs.root().join("pvc-1")).unwrap();
    dirs.remove(&record("a")).unwrap_err();
    assert!(outside.join(DATA).exists());
    std::fs::remove_file(dirs.root().join("pvc-1")).unwrap();

    dirs.make(&record("a"), VolumeForm::Directory).unwrap();
    symlink(&outside, dirs.data("pvc-1").join("link")).unwrap();
    dirs.remove(&record("a")).unwrap();
    dirs.empty_trash().unwrap();
    assert!(outside.join(RECORD).exists());

    dirs.make(&record("a"), VolumeForm::Directory).unwrap();
    std::fs::write(dirs.root().join("pvc-1").join(RECORD), "{").unwrap();
    assert!(matches!(
        dirs.remove(&record("a")),
        Err(DirectoryError::NoRecord { .. })
    ));
    for name in ["", "..", ".trash", "a/b"] {
        let pv = name.to_owned();
        dirs.remove(&VolumeRecord { pv, ..record("a") })
            .unwrap_err();
    }
}

#[test]
fn a_part_of_the_file_system_is_kept_free() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = Directories::open(tmp.path()).unwrap();
    let storage = dirs.storage().unwrap();
    assert!(storage.available <= storage.size);
}
