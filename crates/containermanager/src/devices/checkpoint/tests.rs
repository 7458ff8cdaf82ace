use super::*;

/// As a kubelet writes it: a device on two nodes, an init container's device used again.
const UPSTREAM: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"p1","ContainerName":"init","ResourceName":"a.com/x","DeviceIDs":{"0":["d1"],"1":["d1"]},"AllocResp":"CgYKAUESATE="},{"PodUID":"p1","ContainerName":"main","ResourceName":"a.com/x","DeviceIDs":{"0":["d1"],"1":["d1"],"-1":["d2"]},"AllocResp":"CgYKAUESATE="},{"PodUID":"p2","ContainerName":"main","ResourceName":"a.com/x","DeviceIDs":{"-1":["d3"]},"AllocResp":""}],"RegisteredDevices":{"a.com/x":["d1","d2","d3"]}},"Checksum":3478712}"#;

#[test]
fn item_093_a_kubelets_checkpoint_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE), UPSTREAM).unwrap();
    let changes = import(dir.path());
    let ledger = crate::allocation::Ledger::open(&dir.path().join("log"), changes).unwrap();
    ledger.read(|t| {
        assert!(t.known().contains_key("a.com/x"));
        let main = t.held("p1", "main", "a.com/x").unwrap();
        let ids: Vec<_> = main
            .devices
            .iter()
            .map(|(id, n)| (id.as_str(), n.bits()))
            .collect();
        assert_eq!(ids, [("d1", 3), ("d2", 0)]);
        assert_eq!(main.response, b"\x0a\x06\x0a\x01A\x12\x011");
        assert_eq!(t.owner("a.com/x", &"d3".into()), Some("p2"));
        assert_eq!(t.holders().len(), 3);
    });
}

#[test]
fn item_092_a_corrupt_checkpoint_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    assert!(import(dir.path()).is_empty());
    std::fs::write(dir.path().join(FILE), &UPSTREAM[..100]).unwrap();
    assert!(import(dir.path()).is_empty());
}

#[test]
fn items_091_and_094_the_file_has_the_kubelets_form_and_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let upstream: Checkpoint = serde_json::from_str(UPSTREAM).unwrap();
    write(dir.path(), &encode(&upstream.data).unwrap()).unwrap();
    let bytes = std::fs::read(dir.path().join(FILE)).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    // All but the checksum is the same, byte by byte.
    let body = |t: &str| {
        t[..t.find("\"Checksum\"").unwrap()].replace(
            r#""DeviceIDs":{"0":["d1"],"1":["d1"],"-1":["d2"]}"#,
            r#""DeviceIDs":{"-1":["d2"],"0":["d1"],"1":["d1"]}"#,
        )
    };
    assert_eq!(body(&text), body(UPSTREAM));
    let empty = String::from_utf8(encode(&Data::default()).unwrap()).unwrap();
    assert!(
        empty
            .starts_with(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":"#)
    );
}
