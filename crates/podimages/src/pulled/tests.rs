use super::*;

const IMAGE: &str = "reg.example:5000/team/app:1";
const ID: &str = "sha256:aa";

fn secret(namespace: &str, uid: &str, password: &str) -> Credential {
    Credential {
        auth: cri::AuthConfig {
            username: "u".to_owned(),
            password: password.to_owned(),
            ..cri::AuthConfig::default()
        },
        source: Source::Secret(CredentialOrigin {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: "pull".to_owned(),
        }),
    }
}

fn account(namespace: &str) -> Credential {
    let source = Source::ServiceAccount(CredentialOrigin {
        uid: "1".to_owned(),
        namespace: namespace.to_owned(),
        name: "default".to_owned(),
    });
    Credential {
        source,
        ..secret("", "", "token")
    }
}

fn of_source(source: Source) -> Credential {
    Credential {
        source,
        ..secret("", "", "p")
    }
}

fn opened() -> (tempfile::TempDir, PullRecords) {
    let dir = tempfile::tempdir().unwrap();
    let records = PullRecords::new(dir.path(), Verification::default());
    (dir, records)
}

fn pulled(records: &PullRecords, used: Option<&Credential>) {
    records.begin(IMAGE).unwrap().succeeded(ID, used);
}

fn may(records: &PullRecords, image: &str, shown: &[Credential]) -> bool {
    match records.access(image, ID) {
        Access::Open => true,
        Access::Asked(allowed) => allowed.admits(shown),
        Access::Pull => false,
    }
}

#[test]
fn who_has_what_it_was_pulled_with_may_use_an_image() {
    let (dir, records) = opened();
    assert!(may(&records, IMAGE, &[]), "an administrator's");
    pulled(&records, Some(&secret("a", "1", "p")));
    for records in [
        &records,
        &PullRecords::new(dir.path(), Verification::default()),
    ] {
        assert!(may(records, IMAGE, &[secret("a", "1", "p")]));
        assert!(
            may(records, IMAGE, &[secret("b", "2", "p")]),
            "the same password"
        );
        assert!(
            may(records, IMAGE, &[secret("a", "1", "new")]),
            "another password in the same Secret"
        );
        assert!(may(
            records,
            "reg.example:5000/team/app:2",
            &[secret("a", "1", "p")]
        ));
        for shown in [
            &[][..],
            &[secret("b", "2", "q")],
            &[secret("a", "2", "q")],
            &[account("a")],
            &[of_source(Source::Node)],
            &[of_source(Source::Pod)],
        ] {
            assert!(!may(records, IMAGE, shown), "{shown:?}");
        }
        // The same content by another name is another question to the registry.
        for other in ["other/app:1", ID, "reg.example/team/app:1"] {
            assert!(!may(records, other, &[secret("a", "1", "p")]), "{other}");
        }
    }
}

#[test]
fn accounts_and_nodes_have_images_too() {
    let (_dir, records) = opened();
    pulled(&records, Some(&account("a")));
    assert!(may(&records, IMAGE, &[account("a")]));
    assert!(!may(&records, IMAGE, &[account("b")]) && !may(&records, IMAGE, &[]));
    pulled(&records, Some(&of_source(Source::Pod)));
    assert!(
        !may(&records, IMAGE, &[of_source(Source::Pod)]),
        "its own only"
    );
    assert!(may(&records, IMAGE, &[account("a")]), "still");
    pulled(&records, None);
    assert!(may(&records, IMAGE, &[]), "without a password");
    pulled(&records, Some(&secret("a", "1", "p")));
    assert!(may(&records, IMAGE, &[]), "it stays everybody's");
    let (_dir, records) = opened();
    pulled(&records, Some(&of_source(Source::Node)));
    assert!(may(&records, IMAGE, &[]));
}

#[test]
fn a_pull_that_was_interrupted_opens_nothing() {
    let (dir, records) = opened();
    let (first, second) = (records.begin(IMAGE).unwrap(), records.begin(IMAGE).unwrap());
    assert_eq!(records.access(IMAGE, ID), Access::Pull, "under way");
    first.failed();
    assert_eq!(records.access(IMAGE, ID), Access::Pull, "one still is");
    drop(second);
    let again = PullRecords::new(dir.path(), Verification::default());
    assert_eq!(again.access(IMAGE, ID), Access::Pull, "after a crash");
    again.begin(IMAGE).unwrap().failed();
    assert_eq!(again.access(IMAGE, ID), Access::Open, "nothing came of it");
    let file = dir.path().join("pulled").join(file_name(ID));
    pulled(&again, None);
    std::fs::write(file, "{").unwrap();
    assert_eq!(
        again.access(IMAGE, ID),
        Access::Pull,
        "a record that cannot be read"
    );
}

#[test]
fn records_go_with_their_images() {
    let (dir, records) = opened();
    pulled(&records, Some(&secret("a", "1", "p")));
    drop(records.begin("b:1").unwrap());
    drop(records.begin("c:1").unwrap());
    let image = |id: &str, tag: &str| cri::Image {
        id: id.to_owned(),
        repo_tags: vec![tag.to_owned()],
        ..cri::Image::default()
    };
    let there = [
        image(ID, IMAGE),
        image("sha256:bb", "docker.io/library/b:1"),
    ];
    records.retain(&there, Timestamp::now());
    assert!(!may(&records, IMAGE, &[]));
    assert_eq!(records.access("b:1", "sha256:bb"), Access::Pull, "it came");
    assert_eq!(
        records.access("c:1", "sha256:cc"),
        Access::Open,
        "it did not"
    );
    records.retain(&[], Timestamp::UNIX_EPOCH);
    assert!(
        !may(&records, IMAGE, &[]),
        "it came while others were looked for"
    );
    records.retain(&[], Timestamp::now());
    assert!(may(&records, IMAGE, &[]), "whatever comes now is another");
    let left = files(&dir.path().join("pulled")).len() + files(&dir.path().join("pulling")).len();
    assert_eq!(left, 0);
}

#[test]
fn policies() {
    let list = Verification::NeverAllowlisted(vec![
        "reg.example:5000/*".to_owned(),
        "docker.io/library/a".to_owned(),
    ]);
    for (policy, image, pulled, asks) in [
        (Verification::Never, "x/y", true, false),
        (Verification::NeverPreloaded, "x/y", false, false),
        (Verification::NeverPreloaded, "x/y", true, true),
        (Verification::Always, "x/y", false, true),
        (list.clone(), "reg.example:5000/team/app", true, false),
        (list.clone(), "reg.example:50001/team", true, true),
        (list.clone(), "docker.io/library/a", true, false),
        (list, "docker.io/library/ab", false, true),
    ] {
        assert_eq!(policy.asks(image, pulled), asks, "{policy:?} {image}");
    }
    for (entry, fits) in [
        ("reg.example/team", true),
        ("reg.example/team/*", true),
        ("reg.example/*", true),
        ("reg.example/team:1", false),
        ("reg.example/*/app", false),
        ("busybox", false),
        ("*", false),
    ] {
        assert_eq!(is_allowlist_entry(entry), fits, "{entry}");
    }
}
