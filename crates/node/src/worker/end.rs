//! The end of a pod: hooks, signals, clean-up, the last status, removal.

use super::turns::{Turn, Turns};
use super::{Next, Stage, Worker};
use crate::context::Context;
use crate::hooks::run_hook;
use crate::runtime_state::{ContainerRecord, PodRuntime, keys};
use crate::worker_input::{Desired, WorkerInput};
use davit_beneath::{Links, Root};
use davit_oci::runtime::Error;
use davit_pods::paths::Paths;
use davit_pods::pod::{PodExt, Role};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use std::path::Path;
use std::time::{Duration, Instant};

/// A container always gets this long between its stop signal and SIGKILL.
const MIN_GRACE: Duration = Duration::from_secs(2);

impl Worker {
    /// Kills what still runs, then gives everything back.
    pub(super) async fn end(&mut self) -> Next {
        self.probes.stop_restarting();
        let runtime = match self.observe().await {
            Ok(runtime) => runtime,
            Err(error) => {
                return self.unobserved(&error);
            }
        };
        if !runtime.is_quiet() {
            self.publish(&runtime, false);
            let grace = self.grace();
            let shorter = wait_for_shorter(&self.input, grace);
            tokio::select! {
                () = self.kill_everything(&runtime, Some(grace)) => {}
                // Someone lost patience: once more with less time.
                () = shorter => return Next::Again,
                () = self.tell_meanwhile() => {}
            }
            return match self.observe().await {
                Ok(now) if now.is_quiet() => Next::Again,
                _ => self.retry_later(),
            };
        }
        self.finish(&runtime).await
    }

    /// Tells of containers that are not ready any more, or have ended, while the others take their time.
    async fn tell_meanwhile(&self) {
        let wake = self.input.wake();
        loop {
            wake.notified().await;
            // What cannot be seen now is told at the end.
            if let Ok(runtime) = self.look().await
                && !runtime.is_quiet()
            {
                self.publish(&runtime, false);
            }
        }
    }

    async fn finish(&mut self, runtime: &PodRuntime) -> Next {
        // Before the last status: once the pod is over its claims may go to others.
        if let Err(error) = self.ctx.devices.unprepare_claims(&self.uid).await {
            let text = format!("Failed to unprepare dynamic resources: {error}");
            if self.retries.is_news(&text) {
                tracing::warn!(pod = %self.pod.format(), %error, "cannot unprepare dynamic resources");
            }
            let reference = self.pod.reference();
            self.ctx
                .recorder
                .warning(&reference, "FailedUnprepareDynamicResources", text);
            self.publish(runtime, false);
            return self.retry_later();
        }
        let settled = self.pod.is_terminal()
            && self.ctx.status.get(&self.uid).is_none()
            && all_terminated(&self.pod);
        if !settled && self.final_status.is_none() {
            self.final_status = Some(self.publish(runtime, true));
        } else if settled {
            // A pod that ended before this node agent started: its status is final.
            self.ctx
                .status
                .set(&self.pod, self.pod.pod_status().clone());
        }
        if let Err(error) = self.ctx.volumes.unmount(&self.uid).await {
            if self.retries.is_news(&error.to_string()) {
                tracing::warn!(pod = %self.pod.format(), %error, "cannot take the pod's volumes down");
            }
            self.ctx
                .recorder
                .warning(&self.pod.reference(), "FailedUnMount", error.to_string());
            return self.retry_later();
        }
        self.retries.over();
        self.ctx.devices.release(&self.uid).await;
        self.ctx.pods.set_ended(&self.uid);
        self.ctx.status.finish(&self.uid);
        self.stage = Stage::Ended;
        Next::Again
    }

    /// Waits for the pod to vanish from its source, then removes what is left.
    pub(super) async fn ended(&mut self) -> Next {
        if !self.gone {
            // The status manager deletes the object as soon as it learns that deletion is wanted.
            if self.pod.is_deleting() {
                let status = self
                    .ctx
                    .status
                    .get(&self.uid)
                    .unwrap_or_else(|| self.pod.pod_status().clone());
                self.ctx.status.set(&self.pod, status);
                self.ctx.status.finish(&self.uid);
            }
            return Next::Wait(None);
        }
        if let Err(error) = remove_all(&self.ctx, &self.uid).await {
            if self.retries.is_news(&error) {
                tracing::warn!(pod = %self.pod.format(), %error, "cannot remove what is left of the pod");
            }
            return self.retry_later();
        }
        self.ctx.images.forget(&self.uid);
        self.ctx.status.remove(&self.uid);
        self.ctx.pods.remove(&self.uid);
        Next::Exit
    }

    /// Seconds the pod has to end, by the newest version of the pod.
    fn grace(&self) -> Duration {
        let Desired { pod, .. } = self.input.read();
        let own = Duration::from_secs(u64::try_from(pod.grace_seconds()).unwrap_or(0));
        match self.input.forced() {
            Some(forced) => own.min(forced.grace),
            None => own,
        }
    }

    /// Begins to end all containers at once: hooks run together. Then app containers are stopped, sidecars after them in
    /// the reverse of their order (KEP-753), and the sandboxes.
    pub(super) async fn kill_everything(&self, runtime: &PodRuntime, grace: Option<Duration>) {
        let grace = grace.unwrap_or_else(|| self.grace());
        let alive: Vec<&ContainerRecord> = runtime.alive().collect();
        let turns = Turns::new(&self.pod, alive.iter().map(|c| c.name.as_str()));
        join_all(alive.into_iter().map(|record| {
            let turn = turns.of(&record.name);
            self.kill_in_turn(runtime, record, grace, None, turn)
        }))
        .await;
        for sandbox in runtime.sandboxes.iter().filter(|s| s.ready) {
            if let Err(error) = self.ctx.runtime.stop_pod_sandbox(&sandbox.id).await {
                tracing::warn!(pod = %self.pod.format(), %error, "cannot stop the sandbox");
                let message = format!("error killing pod: {error}");
                self.ctx
                    .recorder
                    .warning(&self.pod.reference(), "FailedKillPod", message);
            }
        }
    }

    /// Runs the preStop hook and stops one container.
    pub(super) async fn kill_container(
        &self,
        runtime: &PodRuntime,
        record: &ContainerRecord,
        grace: Duration,
        message: Option<&str>,
    ) {
        self.kill_in_turn(runtime, record, grace, message, Turn::default())
            .await;
    }

    async fn kill_in_turn(
        &self,
        runtime: &PodRuntime,
        record: &ContainerRecord,
        grace: Duration,
        message: Option<&str>,
        turn: Turn,
    ) {
        let ctx = &self.ctx;
        let found = self.pod.container(&record.name);
        let role = found.as_ref().map_or(Role::Main, |(role, _)| *role);
        let reference = self.pod.container_reference(role, &record.name);
        let text = message.map_or_else(
            || format!("Stopping container {}", record.name),
            str::to_owned,
        );
        ctx.recorder.normal(&reference, "Killing", text);
        let begun = Instant::now();
        let from_spec = found
            .as_ref()
            .and_then(|(_, c)| c.lifecycle.as_ref()?.pre_stop.clone());
        // The pod in hand may be too old to have it, or be only what the runtime remembers.
        let hook = from_spec.or_else(|| {
            record
                .annotations
                .get(keys::PRE_STOP)
                .and_then(|h| serde_json::from_str::<LifecycleHandler>(h).ok())
        });
        let reach = self.reach(runtime);
        let hook = async {
            let Some(hook) = hook.filter(|_| !grace.is_zero()) else {
                return Ok(());
            };
            let empty = Container::default();
            let container = found.as_ref().map_or(&empty, |(_, c)| &**c);
            let (runtime, pod) = (&*ctx.runtime, &self.pod);
            // As in the kubelet it goes on until its container is killed.
            let limit = grace + MIN_GRACE;
            run_hook(runtime, pod, container, &record.id, &reach, &hook, limit).await
        };
        tokio::pin!(hook);
        let ended = tokio::time::timeout(grace, &mut hook).await.ok();
        let failed = match &ended {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.clone()),
            None => Some(format!("hook did not finish within {grace:?}")),
        };
        if let Some(error) = failed {
            let text = format!("PreStopHook failed: {error}");
            ctx.recorder.warning(&reference, "FailedPreStopHook", text);
        }
        turn.come(grace.saturating_sub(begun.elapsed())).await;
        let left = grace.saturating_sub(begun.elapsed()).max(MIN_GRACE);
        let stop = ctx.runtime.stop_container(&record.id, left);
        tokio::pin!(stop);
        let stopped = if ended.is_some() {
            stop.await
        } else {
            tokio::select! {
                stopped = &mut stop => stopped,
                _ = &mut hook => stop.await,
            }
        };
        match stopped {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(pod = %self.pod.format(), container = %record.name, %error, "cannot stop the container");
                ctx.recorder.warning(
                    &reference,
                    "FailedKillPod",
                    format!("error killing container: {error}"),
                );
            }
        }
    }
}

/// Resolves when the pod's grace period has become shorter than `grace`.
async fn wait_for_shorter(input: &WorkerInput, grace: Duration) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Desired { pod, .. } = input.read();
        let now = Duration::from_secs(u64::try_from(pod.grace_seconds()).unwrap_or(0));
        if now < grace {
            return;
        }
    }
}

fn all_terminated(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let done = |s: &k8s_openapi::api::core::v1::ContainerStatus| {
        s.state.as_ref().is_some_and(|x| x.terminated.is_some())
    };
    let status = pod.pod_status();
    status.container_statuses.iter().flatten().all(done)
}

/// Removes everything of a pod from the runtime and the disk.
pub(crate) async fn remove_all(ctx: &Context, uid: &str) -> Result<(), String> {
    let runtime = crate::runtime_state::observe(&*ctx.runtime, uid)
        .await
        .map_err(|e| e.to_string())?;
    for container in &runtime.containers {
        ctx.runtime
            .remove_container(&container.id)
            .await
            .map_err(|e| format!("container {}: {e}", container.id))?;
    }
    for sandbox in &runtime.sandboxes {
        ctx.runtime
            .stop_pod_sandbox(&sandbox.id)
            .await
            .map_err(|e| format!("sandbox {}: {e}", sandbox.id))?;
        ctx.runtime
            .remove_pod_sandbox(&sandbox.id)
            .await
            .map_err(|e| format!("sandbox {}: {e}", sandbox.id))?;
    }
    ctx.volumes
        .teardown(uid)
        .await
        .map_err(|e| format!("volumes: {e}"))?;
    remove_cgroup(ctx, uid).await;
    remove_logs(&ctx.paths, uid).map_err(|e| format!("logs: {e}"))
}

/// The pod's own cgroup, where the runtime has left it. Something that is still in it is no reason to keep the pod.
async fn remove_cgroup(ctx: &Context, uid: &str) {
    let Some(groups) = ctx.cgroups.clone() else {
        return;
    };
    let uid = uid.to_owned();
    let removed = tokio::task::spawn_blocking(move || groups.remove(&uid)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, "the pod's cgroup stays");
    }
}

/// Entries of the directories of logs that are looked at.
const MAX_LOGS: usize = 100_000;

/// Log directories end with the pod's UID; links point into them. Others may write there, too: nothing is followed.
fn remove_logs(paths: &Paths, uid: &str) -> davit_beneath::Result<()> {
    let logs = match Root::open_itself(paths.log_root(), Links::Refused) {
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error @ davit_beneath::Error::Escapes(_)) => {
            tracing::warn!(%error, "logs of a pod that has ended are not looked for");
            return Ok(());
        }
        opened => opened?,
    };
    let suffix = format!("_{uid}");
    let own = logs.list("", MAX_LOGS)?.into_iter().map(|entry| entry.name);
    for name in own.filter(|name| name.as_encoded_bytes().ends_with(suffix.as_bytes())) {
        if let Err(error) = remove_links(paths, &paths.log_root().join(&name)) {
            tracing::debug!(%error, "links to logs stay");
        }
        logs.remove_tree(name)?;
    }
    Ok(())
}

/// Removes the links for log collectors that lead to a pod's logs.
fn remove_links(paths: &Paths, to: &Path) -> davit_beneath::Result<()> {
    let links = paths.open_container_logs()?;
    for entry in links.list("", MAX_LOGS)? {
        if links
            .read_link(&entry.name)
            .is_ok_and(|says| says.starts_with(to))
        {
            links.remove_file(&entry.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Pods with the directory of logs as a volume of theirs write there.
    #[test]
    fn logs_are_removed_where_they_are_and_not_behind_links() {
        let tmp = tempfile::tempdir().unwrap();
        let (log, host) = (tmp.path().join("log"), tmp.path().join("host"));
        let paths = Paths::new(tmp.path().join("kubelet"), log.join("pods"));
        let make = |dir: &Path| {
            std::fs::create_dir_all(dir.join("ns_p_u/c")).unwrap();
            std::fs::write(dir.join("ns_p_u/c/0.log"), "x").unwrap();
        };
        make(&log.join("pods"));
        make(&host);
        let links = paths.open_container_logs().unwrap();
        links
            .symlink(log.join("pods/ns_p_u/c/0.log"), "p_ns_c-1.log")
            .unwrap();
        links.symlink("/elsewhere", "other.log").unwrap();
        remove_logs(&paths, "u").unwrap();
        let left = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        assert_eq!(
            (left(&log.join("pods")), left(&log.join("containers"))),
            (0, 1)
        );
        remove_logs(&paths, "u").unwrap();

        for name in ["pods", "containers"] {
            std::fs::remove_dir_all(log.join(name)).unwrap();
            symlink(&host, log.join(name)).unwrap();
        }
        remove_logs(&paths, "u").unwrap();
        assert!(paths.open_container_logs().is_err());
        assert!(host.join("ns_p_u/c/0.log").exists());
        std::fs::remove_file(log.join("pods")).unwrap();
        remove_logs(&paths, "u").unwrap();
    }
}
