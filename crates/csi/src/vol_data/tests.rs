use super::*;
use proptest::prelude::*;

fn volume() -> CsiVolume {
    CsiVolume {
        name: "pv".to_owned(),
        driver: "b".to_owned(),
        handle: "a".to_owned(),
        ..CsiVolume::default()
    }
}

#[test]
fn records_are_the_lines_of_the_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(VOL_DATA);
    let id = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let text = || std::fs::read_to_string(&path).unwrap();
    write(&path, &StageData::of(&volume())).unwrap();
    assert_eq!(text(), "{\"driverName\":\"b\",\"volumeHandle\":\"a\"}\n");
    write(&path, &DeviceData::of(&volume(), "c")).unwrap();
    assert_eq!(
        text(),
        format!(
            "{{\"attachmentID\":\"{id}\",\"driverName\":\"b\",\"nodeName\":\"c\",\"specVolID\":\"pv\",\"volumeHandle\":\"a\"}}\n"
        )
    );
    let published = PublishData::of(&volume(), "c");
    write(&path, &published).unwrap();
    assert_eq!(
        text(),
        format!(
            "{{\"attachmentID\":\"{id}\",\"driverName\":\"b\",\"nodeName\":\"c\",\"specVolID\":\"pv\",\"volumeHandle\":\"a\",\
             \"volumeLifecycleMode\":\"Persistent\"}}\n"
        )
    );
    assert_eq!(read(&path).unwrap(), Loaded::Found(published));
    // Nothing but the record is left, so that the directory can be removed.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_is_not_there_cannot_be_looked_at_or_is_not_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(VOL_DATA);
    assert_eq!(read::<StageData>(&path).unwrap(), Loaded::Missing);
    for (text, why) in [
        ("", "empty"),
        (
            "{\"driverName\":\"b\"",
            "EOF while parsing an object at line 1 column 17",
        ),
        (
            "{\"driverName\":\"\",\"volumeHandle\":\"a\"}",
            "names no driver or no volume",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(
            read::<StageData>(&path).unwrap(),
            Loaded::Unknown(why.to_owned())
        );
    }
    let under_a_file = path.join(VOL_DATA);
    assert!(read::<StageData>(&under_a_file).is_err());
    let error = write(
        &dir.path().join("none").join(VOL_DATA),
        &StageData::of(&volume()),
    );
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("write volume data /")
    );
}

#[test]
fn a_record_of_another_release_is_read() {
    let line = br#"{"specVolID":"pv","volumeHandle":"a","driverName":"b","other":"x"}"#;
    let Loaded::Found(data) = parse::<PublishData>(line) else {
        panic!("not found");
    };
    assert_eq!(data.volume_lifecycle_mode, LifecycleMode::Persistent);
    assert_eq!(data.spec_vol_id, "pv");
}

proptest! {
    #[test]
    fn any_cut_of_a_record_is_unknown(handle in ".{1,20}", cut in 0..400usize) {
        let record = PublishData { volume_handle: handle, ..PublishData::of(&volume(), "c") };
        let line = serde_json::to_vec(&record).unwrap();
        prop_assert_eq!(parse(&line), Loaded::Found(record));
        let cut = cut.min(line.len() - 1);
        prop_assert!(matches!(parse::<PublishData>(&line[..cut]), Loaded::Unknown(_)));
    }
}
