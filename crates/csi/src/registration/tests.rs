use super::*;
use davit_proto::csi::v1::Topology;
use proptest::prelude::*;

fn info(node_id: &str, limit: i64, segments: &[(&str, &str)]) -> NodeGetInfoResponse {
    let segments = segments
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    NodeGetInfoResponse {
        node_id: node_id.to_owned(),
        max_volumes_per_node: limit,
        accessible_topology: Some(Topology {
            segments: segments.collect(),
        }),
    }
}

#[test]
fn item_071_the_entry_in_csinode() {
    let entry = csi_node_driver("d", &info("n", 0, &[("b", "1"), ("a", "2")])).unwrap();
    assert_eq!(entry.topology_keys.as_deref().unwrap(), ["a", "b"]);
    assert_eq!(entry.allocatable, None);
    let count = |limit| {
        let entry = csi_node_driver("d", &info("n", limit, &[])).unwrap();
        entry.allocatable.and_then(|a| a.count)
    };
    assert_eq!(count(16), Some(16));
    assert_eq!(count(-1), None);
    assert_eq!(count(i64::MAX), Some(i32::MAX));
    assert_eq!(
        csi_node_driver("d", &info("", 0, &[]))
            .unwrap_err()
            .to_string(),
        "error adding CSI driver node info: driverNodeID must not be empty"
    );
}

#[test]
fn item_076_an_entry_that_says_the_same_changes_nothing() {
    let entry = |id| csi_node_driver("d", &info(id, 3, &[("b", "1"), ("a", "2")])).unwrap();
    let drivers = with_driver(&[], &entry("n")).unwrap();
    assert_eq!(with_driver(&drivers, &entry("n")), None);
    let mut turned = drivers.clone();
    turned[0].topology_keys.as_mut().unwrap().reverse();
    assert_eq!(with_driver(&turned, &entry("n")), None);
    assert_eq!(with_driver(&drivers, &entry("m")).unwrap(), [entry("m")]);
    assert_eq!(without_driver(&drivers, "other"), None);
    assert_eq!(without_driver(&drivers, "d"), Some(Vec::new()));
}

#[test]
fn item_073_a_label_with_another_value() {
    let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let labels = texts(&[("zone", "z1"), ("rack", "7")]);
    assert_eq!(
        topology_labels(&labels, &texts(&[("row", "3"), ("zone", "z2")]))
            .unwrap_err()
            .to_string(),
        "detected topology value collision: driver reported \"zone\":\"z2\" but existing label is \"zone\":\"z1\""
    );
    let missing = topology_labels(&labels, &texts(&[("row", "3"), ("zone", "z1")]));
    assert_eq!(missing.unwrap(), texts(&[("row", "3")]));
}

#[test]
fn an_annotation_that_is_none_of_ours_is_left() {
    let error = annotation_with(Some("[1]"), "d", "n")
        .unwrap_err()
        .to_string();
    let begin = "failed to parse node's \"csi.volume.kubernetes.io/nodeid\" annotation value (\"[1]\") err=";
    assert!(error.starts_with(begin), "{error}");
    assert!(annotation_without(Some("{"), "d").is_err());
    let set = AnnotationChange::Set("{\"d\":\"n\"}".to_owned());
    assert_eq!(annotation_with(Some("null"), "d", "n").unwrap(), set);
    assert_eq!(
        annotation_with(Some("{\"d\":\"n\"}"), "d", "n").unwrap(),
        AnnotationChange::Keep
    );
    assert_eq!(
        annotation_without(None, "d").unwrap(),
        AnnotationChange::Keep
    );
}

proptest! {
    #[test]
    fn drivers_that_come_and_go_leave_the_annotation_of_the_others(
        steps in prop::collection::vec((0..4u8, prop::option::of("[a-z]{1,3}")), 0..20),
    ) {
        let (mut text, mut model) = (None::<String>, BTreeMap::new());
        for (driver, id) in steps {
            let driver = format!("d{driver}");
            let change = match &id {
                Some(id) => annotation_with(text.as_deref(), &driver, id),
                None => annotation_without(text.as_deref(), &driver),
            }.unwrap();
            match id {
                Some(id) => { model.insert(driver, id); }
                None => { model.remove(&driver); }
            }
            match change {
                AnnotationChange::Keep => {}
                AnnotationChange::Set(new) => text = Some(new),
                AnnotationChange::Remove => text = None,
            }
            prop_assert_eq!(parse(text.as_deref()).unwrap(), model.clone());
            prop_assert_eq!(text.is_none(), model.is_empty());
        }
    }
}

#[test]
fn item_038_the_number_of_volumes_is_told_anew() {
    let info = |limit| NodeGetInfoResponse {
        node_id: "n".to_owned(),
        max_volumes_per_node: limit,
        accessible_topology: None,
    };
    let first = with_driver(&[], &csi_node_driver("d", &info(5)).unwrap()).unwrap();
    assert_eq!(with_allocatable(&first, "d", &info(5)), None);
    assert_eq!(with_allocatable(&first, "other", &info(3)), None);
    let changed = with_allocatable(&first, "d", &info(3)).unwrap();
    let count = |drivers: &[CSINodeDriver]| drivers[0].allocatable.as_ref().and_then(|a| a.count);
    assert_eq!(count(&changed), Some(3));
    let unlimited = with_allocatable(&changed, "d", &info(0)).unwrap();
    assert_eq!(unlimited[0].allocatable, None);
}
