//! Runs the runtime contract on the embedded runtime and on containerd, and what only the embedded runtime does.
//!
//! Needs root and busybox; prints a skip otherwise. A name on the command line selects tests that contain it.

#![allow(clippy::unwrap_used)] // tests

mod confinement;
mod containerd;
mod embedded;
mod image;

use davit_oci::contract::{Setup, TESTS, Test};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

fn main() {
    davit_oci::monitor::main_if_invoked();
    embedded::helper_if_invoked();
    confinement::helper_if_invoked();
    let mut filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    filters.retain(|filter| filter != "contract");
    if !rustix_is_root() {
        println!("skipped: the container runtime needs root");
        return;
    }
    let Some(busybox) = image::busybox() else {
        println!("skipped: no busybox (package busybox-static)");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let failed = runtime.block_on(async {
        embedded::run(&busybox, &filters).await + containerd::run(&busybox, &filters).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    if failed > 0 {
        println!("{failed} failed");
        std::process::exit(101);
    }
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Runs tests one after the other; answers with the number that failed.
async fn run_tests(kind: &str, setup: &Setup, tests: &[Test], filters: &[String]) -> usize {
    let mut failed = 0;
    for (name, body) in tests {
        let name = format!("{kind}::{name}");
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter)) {
            continue;
        }
        let begin = Instant::now();
        let body = AssertUnwindSafe(body(setup.clone()));
        let outcome = tokio::time::timeout(
            Duration::from_secs(120),
            futures::FutureExt::catch_unwind(body),
        )
        .await;
        let shown = match outcome {
            Ok(Ok(())) => "ok".to_owned(),
            Ok(Err(_)) => "FAILED".to_owned(),
            Err(_) => "FAILED: no end within two minutes".to_owned(),
        };
        failed += usize::from(shown != "ok");
        println!("test {name} ... {shown} ({:?})", begin.elapsed());
    }
    failed
}

/// The tests of the contract.
fn contract() -> &'static [Test] {
    TESTS
}

/// Removes what is left of the cgroups of test pods: those that are empty.
fn remove_cgroups(prefix: &str) {
    let dirs = |path: &std::path::Path| {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    for parent in
        dirs("/sys/fs/cgroup".as_ref()).flat_map(|hierarchy| dirs(&hierarchy).collect::<Vec<_>>())
    {
        if parent
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        {
            dirs(&parent).for_each(|child| drop(std::fs::remove_dir(child)));
            let _ = std::fs::remove_dir(&parent);
        }
    }
}
