//! Real executables in temporary directories.

use super::*;
use crate::{FlexDrivers, Outcome};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use tempfile::TempDir;

/// Writes every call to the file `calls` beside it, one argument a line, a line `.` at the end.
const RECORD: &str = r#"for a in "$@"; do echo "$a"; done >> "$(dirname "$0")/calls"; echo . >> "$(dirname "$0")/calls""#;
const SUCCESS: &str = r#"echo '{"status":"Success"}'"#;

struct Installed {
    tmp: TempDir,
    drivers: FlexDrivers,
}

impl Installed {
    fn new(body: &str) -> Self {
        Self::with_limits(body, CallLimits::default())
    }

    fn with_limits(body: &str, limits: CallLimits) -> Self {
        let tmp = tempfile::tempdir().unwrap();
        let drivers = FlexDrivers::with_limits(tmp.path().join("exec"), limits);
        drivers.make_dir().unwrap();
        let installed = Self { tmp, drivers };
        installed.install(body);
        installed
    }

    fn dir(&self) -> PathBuf {
        self.drivers.dir().join("acme~mem")
    }

    fn install(&self, body: &str) {
        std::fs::create_dir_all(self.dir()).unwrap();
        let (hidden, path) = (self.dir().join(".mem"), self.dir().join("mem"));
        std::fs::write(&hidden, format!("#!/bin/sh\n{RECORD}\n{body}\n")).unwrap();
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(hidden, path).unwrap();
    }

    async fn get(&self) -> Result<Arc<FlexDriver>, Error> {
        self.drivers.get("acme/mem").await
    }

    /// The recorded calls, arguments joined by blanks; they are forgotten.
    fn calls(&self) -> Vec<String> {
        let path = self.dir().join("calls");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        let calls = text.split("\n.\n").filter(|call| !call.is_empty());
        calls.map(|call| call.replace('\n', " ")).collect()
    }
}

/// A driver that answers by command; the patterns are those of `case`.
fn answering(cases: &str) -> String {
    format!("case \"$1\" in\ninit) {SUCCESS} ;;\n{cases}\nesac")
}

#[tokio::test]
async fn item_098_drivers_come_change_and_go_without_restart() {
    let installed = Installed::new(SUCCESS);
    assert!(installed.get().await.unwrap().capabilities().attach);
    installed.get().await.unwrap();
    assert_eq!(installed.calls(), ["init"], "asked once");

    installed.install(r#"echo '{"status":"Success","capabilities":{"attach":false}}'"#);
    assert!(!installed.get().await.unwrap().capabilities().attach);
    assert_eq!(installed.calls(), ["init"]);

    std::fs::remove_file(installed.dir().join("mem")).unwrap();
    let error = installed.get().await.unwrap_err();
    assert!(error.is_not_installed());
    assert_eq!(error.outcome(), Outcome::NotAsked);
    assert!(error.to_string().contains("acme/mem is not installed in"));
    for name in ["../exec/acme~mem", ".hidden/x", "nobody/here"] {
        assert!(
            installed
                .drivers
                .get(name)
                .await
                .unwrap_err()
                .is_not_installed()
        );
    }
    assert!(installed.tmp.path().join("exec").is_dir());
}

#[tokio::test]
async fn an_init_that_fails_is_tried_again() {
    let installed = Installed::new(
        r#"test -e "$(dirname "$0")/ready" && echo '{"status":"Success"}' || echo '{"status":"Failure","message":"not yet"}'"#,
    );
    assert_eq!(
        installed.get().await.unwrap_err().to_string(),
        "error creating Flexvolume plugin from directory acme~mem, skipping. Error: init command failed, status: Failure, \
         reason: not yet"
    );
    std::fs::write(installed.dir().join("ready"), "").unwrap();
    installed.get().await.unwrap();
    assert_eq!(installed.calls().len(), 2);
}

#[tokio::test]
async fn item_099_arguments_have_their_order() {
    let installed = Installed::new(
        r#"echo '{"status":"Success","device":"/dev/x","attached":true,"volumeNewSize":7}'"#,
    );
    let driver = installed.get().await.unwrap();
    let (mount, o) = (Path::new("/m"), "{\"a\":\"b c\"}");
    assert!(driver.get_volume_name(o).await.unwrap());
    assert_eq!(driver.attach(o, "node").await.unwrap().unwrap(), "/dev/x");
    assert!(driver.detach("pv", "node").await.unwrap());
    assert_eq!(
        driver.wait_for_attach("/dev/a", o).await.unwrap(),
        AttachWait::Device("/dev/x".to_owned())
    );
    assert_eq!(driver.is_attached(o, "node").await.unwrap(), Some(true));
    assert!(driver.mount_device(mount, "/dev/x", o).await.unwrap());
    assert!(driver.unmount_device(mount).await.unwrap());
    assert!(driver.mount(mount, o).await.unwrap());
    assert!(driver.unmount(mount).await.unwrap());
    assert_eq!(driver.expand_volume(o, mount, 9, 8).await.unwrap(), Some(7));
    assert!(driver.expand_fs(o, "/dev/x", mount, 9, 8).await.unwrap());
    assert_eq!(
        installed.calls(),
        [
            "init",
            "getvolumename {\"a\":\"b c\"}",
            "attach {\"a\":\"b c\"} node",
            "detach pv node",
            "waitforattach /dev/a {\"a\":\"b c\"}",
            "isattached {\"a\":\"b c\"} node",
            "mountdevice /m /dev/x {\"a\":\"b c\"}",
            "unmountdevice /m",
            "mount /m {\"a\":\"b c\"}",
            "unmount /m",
            "expandvolume {\"a\":\"b c\"} /m 9 8",
            "expandfs {\"a\":\"b c\"} /dev/x /m 9 8",
        ]
    );
}

#[tokio::test]
async fn item_101_what_is_not_supported_is_not_asked_again() {
    let body = answering(r#"*) echo '{"status":"Not supported"}'; exit 1 ;;"#);
    let installed = Installed::new(&body);
    let driver = installed.get().await.unwrap();
    for _ in 0..2 {
        assert!(!driver.mount(Path::new("/m"), "{}").await.unwrap());
        assert_eq!(driver.attach("{}", "n").await.unwrap(), None);
        let waited = driver.wait_for_attach("", "{}").await.unwrap();
        assert_eq!(waited, AttachWait::NotSupported);
    }
    assert_eq!(installed.calls().len(), 4);
    installed.install(&answering(&format!("*) {SUCCESS} ;;")));
    let driver = installed.get().await.unwrap();
    assert!(driver.mount(Path::new("/m"), "{}").await.unwrap());
}

#[tokio::test]
async fn items_103_and_104_failures_have_upstreams_words() {
    let failing = async |cases: &str| {
        let installed = Installed::new(&answering(cases));
        let driver = installed.get().await.unwrap();
        driver
            .mount(Path::new("/m"), "{}")
            .await
            .map_err(|e| (e.to_string(), e.outcome()))
    };
    assert_eq!(
        failing(r#"mount) echo '{"status":"Failure","message":"x"}'; exit 1 ;;"#).await,
        Err((
            "mount command failed, status: Failure, reason: x".to_owned(),
            Outcome::Final
        ))
    );
    assert_eq!(
        failing(&format!("mount) {SUCCESS}; exit 1 ;;")).await,
        Err(("exit status 1".to_owned(), Outcome::Uncertain))
    );
    assert_eq!(
        failing(&format!("mount) echo noise >&2; {SUCCESS} ;;")).await,
        Ok(true)
    );
    let (text, outcome) = failing("mount) echo no json; exit 3 ;;").await.unwrap_err();
    assert_eq!(outcome, Outcome::Uncertain);
    assert!(
        text.starts_with("FlexVolume driver acme/mem gave no answer to mount (exit status 3): ")
    );
    assert!(text.ends_with("it wrote \"no json\""), "{text}");
    let flood = "mount) head -c 3000000 /dev/zero ;;";
    assert_eq!(failing(flood).await.unwrap_err().1, Outcome::Uncertain);
}

#[tokio::test]
async fn item_105_what_hangs_is_ended_with_all_that_it_started() {
    let limits = CallLimits {
        call: Duration::from_secs(2),
        ..CallLimits::default()
    };
    let body = answering(r#"mount) sleep 600 & echo $! > "$(dirname "$0")/child"; wait ;;"#);
    let installed = Installed::with_limits(&body, limits);
    let driver = installed.get().await.unwrap();
    let error = driver.mount(Path::new("/m"), "{}").await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Uncertain);
    assert_eq!(
        error.to_string(),
        "timeout: FlexVolume driver acme/mem did not end mount within 2 s"
    );
    let child = std::fs::read_to_string(installed.dir().join("child")).unwrap();
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        stat.ok()
            .and_then(|s| s.rsplit(") ").next().map(|s| s.starts_with('Z')))
    };
    let ended = async {
        while state() == Some(false) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_program_left_in_the_background_lives_and_holds_up_nobody() {
    let body = answering(&format!(
        r#"mount) sleep 600 & echo $! > "$(dirname "$0")/child"; {SUCCESS} ;;"#
    ));
    let installed = Installed::new(&body);
    let driver = installed.get().await.unwrap();
    assert!(driver.mount(Path::new("/m"), "{}").await.unwrap());
    let child = std::fs::read_to_string(installed.dir().join("child")).unwrap();
    let pid = rustix::process::Pid::from_raw(child.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
