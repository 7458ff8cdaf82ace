//! `kubectl cp` from a container that lies: what it sends is an archive of its own making. The stream carries it as it is;
//! links and paths that lead out are the client's to refuse, which kubectl does (CVE-2018-1002100, CVE-2019-1002101,
//! CVE-2019-11246, CVE-2019-11249, CVE-2019-11251).

use crate::pods::{Kube, harness};
use base64::Engine;
use std::path::Path;

type Archive = tar::Builder<Vec<u8>>;

fn entry(archive: &mut Archive, kind: tar::EntryType, name: &str, target: &str, content: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    // Written as it is: a builder would refuse some names.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_size(content.len() as u64);
    header.set_mode(0o4755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    archive.append(&header, content.as_bytes()).unwrap();
}

/// Links to `outside`, files through them, and files beside the place that is copied to.
fn hostile(outside: &Path) -> Vec<u8> {
    use tar::EntryType as Kind;
    let outside = outside.display().to_string();
    let mut archive = tar::Builder::new(Vec::new());
    let to = &mut archive;
    entry(to, Kind::Directory, "tmp/data/", "", "");
    entry(
        to,
        Kind::Regular,
        "tmp/data/plain",
        "",
        "what was asked for",
    );
    entry(to, Kind::Symlink, "tmp/data/link", &outside, "");
    entry(to, Kind::Regular, "tmp/data/link/planted", "", "x");
    entry(to, Kind::Symlink, "tmp/data/up", "../..", "");
    entry(to, Kind::Regular, "tmp/data/up/planted", "", "x");
    entry(
        to,
        Kind::Link,
        "tmp/data/hard",
        &format!("{outside}/own"),
        "",
    );
    entry(to, Kind::Regular, "tmp/data/hard", "", "x");
    entry(to, Kind::Regular, "../planted", "", "x");
    entry(to, Kind::Regular, "tmp/data/../../../planted", "", "x");
    entry(to, Kind::Regular, &format!("{outside}/planted"), "", "x");
    archive.into_inner().unwrap()
}

/// A container whose `tar` answers with an archive, whatever it is asked.
const LIAR: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: liar}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, "echo ARCHIVE | base64 -d > /evil/archive; printf '#!/bin/sh\ncat /evil/archive\n' > /evil/tar; chmod 755 /evil/tar; touch /evil/there; exec sleep 1000"]
    env: [{name: PATH, value: "/evil:/usr/bin:/bin"}]
    readinessProbe: {exec: {command: [test, -e, /evil/there]}, periodSeconds: 1}
    volumeMounts: [{name: evil, mountPath: /evil}]
  volumes: [{name: evil, emptyDir: {}}]
"#;

pub(crate) fn scenario() {
    let Some(kube) = Kube::up("1.36", &[]) else {
        return;
    };
    let dir = harness::temp_dir();
    let (outside, place) = (dir.path().join("out"), dir.path().join("a/b"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("own"), "untouched").unwrap();
    std::fs::create_dir_all(&place).unwrap();
    let archive = hostile(&outside);
    let text = base64::engine::general_purpose::STANDARD.encode(&archive);
    kube.create(&LIAR.replace("ARCHIVE", &text));
    kube.wait_ready("liar");
    // The stream neither reads nor changes what goes through it.
    let sent = harness::output(&mut kube.command(["exec", "liar", "--", "tar", "cf", "-", "/tmp"]));
    assert_eq!(sent.stdout, archive);
    let to = place.join("data").display().to_string();
    let copied = harness::output(&mut kube.command(["cp", "liar:/tmp/data", &to]));
    let said = String::from_utf8_lossy(&copied.stderr).into_owned();
    let plain = std::fs::read_to_string(place.join("data/plain"));
    assert_eq!(plain.ok().as_deref(), Some("what was asked for"), "{said}");
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().flatten();
        entries
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(names(&outside), ["own"], "{said}");
    let own = std::fs::read_to_string(outside.join("own"));
    assert_eq!(own.unwrap(), "untouched", "{said}");
    assert_eq!(names(&place), ["data"], "{said}");
    let (above, top) = (names(&dir.path().join("a")), names(dir.path()));
    assert_eq!(
        (above.as_slice(), top.len()),
        (&["b".to_owned()][..], 2),
        "{said}"
    );
    kube.clean_up();
}
