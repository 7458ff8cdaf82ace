//! Starting sandboxes and containers.

use super::Worker;
use crate::container_config::{self, ContainerParts};
use crate::hooks::run_hook;
use crate::plan::{Start, backoff_key};
use crate::runtime_conditions::network_problem;
use crate::runtime_state::{PodRuntime, State};
use crate::se_linux;
use davit_nodelogs::{LogFile, remove_log};
use davit_podimages::{ImageVolumes, Present};
use davit_pods::paths::Paths;
use davit_pods::pod::Waiting;
use davit_pods::pod::{PodExt, Role};
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::node::v1::RuntimeClass;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long a postStart hook may take.
const POST_START: Duration = Duration::from_secs(10 * 60);
/// How long a container waits for the list of services.
const SERVICES: Duration = Duration::from_secs(2);
/// Ended instances of one container that are kept for `kubectl logs --previous`.
const KEPT: usize = 1;

fn waiting(reason: &str, message: impl Into<String>) -> Waiting {
    Waiting {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

impl Worker {
    pub(super) async fn start_sandbox(&mut self, attempt: u32) -> Result<(), ()> {
        if !self.pod.host_network()
            && let Some(problem) = network_problem(&*self.ctx.runtime).await
        {
            let message = format!("network is not ready: {problem}");
            if self.retries.is_news(&message) {
                tracing::warn!(pod = %self.pod.format(), %message);
            }
            let reference = self.pod.reference();
            self.ctx
                .recorder
                .warning(&reference, "NetworkNotReady", message);
            return Err(());
        }
        if let Err(error) = self.ctx.limit_pod(&self.pod) {
            let message = format!("unable to ensure pod container exists: {error}");
            if self.retries.is_news(&message) {
                tracing::warn!(pod = %self.pod.format(), %error, "failed to make the pod's cgroup");
            }
            let reference = self.pod.reference();
            self.ctx
                .recorder
                .warning(&reference, "FailedCreatePodContainer", message);
            return Err(());
        }
        let made = match container_config::sandbox(&self.ctx, &self.pod, attempt) {
            Ok(config) => self.try_sandbox(config).await,
            Err(error) => Err(error.to_string()),
        };
        match made {
            Ok(id) => {
                tracing::debug!(pod = %self.pod.format(), %id, "sandbox is up");
                self.ctx.metrics.pod_started(&self.pod);
                let options = &self.ctx.options;
                let labels = se_linux::missing(&self.pod, options.se_linux, se_linux::is_on);
                for (reason, text) in options.network.missing(&self.pod).into_iter().chain(labels) {
                    let pod = self.pod.reference();
                    self.ctx.recorder.warning(&pod, reason, text);
                }
                Ok(())
            }
            Err(error) => {
                self.ctx.metrics.pod_failed(&self.pod);
                let message = format!("Failed to create pod sandbox: {error}");
                if self.retries.is_news(&message) {
                    tracing::warn!(pod = %self.pod.format(), %error, "failed to create the pod's sandbox");
                }
                self.ctx
                    .recorder
                    .warning(&self.pod.reference(), "FailedCreatePodSandBox", message);
                Err(())
            }
        }
    }

    async fn try_sandbox(&self, config: cri::PodSandboxConfig) -> Result<String, String> {
        let handler = self.runtime_handler().await?;
        if self.pod.pod_spec().host_users == Some(false) {
            self.check_users(&handler).await?;
        }
        let log = LogFile::new(
            &self.ctx.paths,
            &Path::new(&config.log_directory).join("0.log"),
        );
        let made = tokio::task::spawn_blocking(move || log.make_dir()).await;
        made.map_err(io::Error::other)
            .flatten()
            .map_err(|e| format!("cannot make log directory {:?}: {e}", config.log_directory))?;
        self.ctx
            .runtime
            .run_pod_sandbox(config, &handler)
            .await
            .map_err(|e| e.to_string())
    }

    /// Running the pod as the host's users would be less than what was asked for.
    async fn check_users(&self, handler: &str) -> Result<(), String> {
        let status = self.ctx.runtime.status().await.map_err(|e| e.to_string())?;
        let mut handlers = status.runtime_handlers.into_iter();
        let features = handlers
            .find(|known| known.name == handler)
            .and_then(|known| known.features);
        if features.is_some_and(|features| features.user_namespaces) {
            return Ok(());
        }
        Err(format!(
            "the handler {handler:?} does not support user namespaces"
        ))
    }

    async fn runtime_handler(&self) -> Result<String, String> {
        let Some(name) = self
            .pod
            .pod_spec()
            .runtime_class_name
            .as_deref()
            .filter(|n| !n.is_empty())
        else {
            return Ok(String::new());
        };
        let api: kube::Api<RuntimeClass> = kube::Api::all(self.ctx.client.clone());
        match tokio::time::timeout(Duration::from_secs(15), api.get_opt(name)).await {
            Ok(Ok(Some(class))) => Ok(class.handler),
            Ok(Ok(None)) => Err(format!(
                "failed to get sandbox runtime: RuntimeClass {name:?} not found"
            )),
            Ok(Err(error)) => Err(format!("failed to get sandbox runtime: {error}")),
            Err(_) => {
                Err("failed to get sandbox runtime: no answer from the API server".to_owned())
            }
        }
    }

    /// Starts one container. `Err(None)` means that the pod has to end first.
    pub(super) async fn start_container(
        &mut self,
        runtime: &PodRuntime,
        start: &Start,
    ) -> Result<(), Option<Waiting>> {
        let pod = self.pod.clone();
        let Some((role, container)) = pod.container(&start.name) else {
            return Err(None);
        };
        let (ctx, input) = (self.ctx.clone(), self.input.clone());
        let images = async {
            let image = ctx.images.ensure(&pod, role, &container).await?;
            Ok((image, ctx.images.volumes(&pod, role, &container).await?))
        };
        let images = tokio::select! {
            images = images => images.map_err(Some)?,
            () = input.ending() => return Err(None),
        };
        if let Some(after) = start.after {
            self.backoff
                .next(&backoff_key(&container), after, Timestamp::now());
        }
        let id = self
            .create(runtime, start, role, &container, &images)
            .await
            .map_err(Some)?;
        let reference = pod.container_reference(role, &container.name);
        if let Err(error) = ctx.runtime.start_container(&id).await {
            ctx.metrics.start_failed(&pod);
            ctx.recorder
                .warning(&reference, "Failed", format!("Error: {error}"));
            return Err(Some(waiting("RunContainerError", error.to_string())));
        }
        ctx.metrics.started_containers.inc();
        if !std::mem::replace(&mut self.started_once, true) {
            ctx.metrics
                .pod_start
                .observe(self.seen.elapsed().as_secs_f64());
        }
        ctx.recorder
            .normal(&reference, "Started", "Container started");
        self.waiting.remove(&container.name);
        self.link_log(&container, &id, start.restart_count);
        self.remove_old(runtime, &container.name).await;
        self.remove_old_sandboxes(runtime).await;
        self.post_start(runtime, role, &container, &id)
            .await
            .map_err(Some)
    }

    async fn create(
        &self,
        runtime: &PodRuntime,
        start: &Start,
        role: Role,
        container: &Container,
        (image, image_volumes): &(Present, ImageVolumes),
    ) -> Result<String, Waiting> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let reference = pod.container_reference(role, &container.name);
        let config_error = |error: container_config::Error| {
            ctx.recorder
                .warning(&reference, "Failed", format!("Error: {error}"));
            waiting("CreateContainerConfigError", error.to_string())
        };
        let Some(sandbox) = runtime.ready_sandbox() else {
            return Err(waiting("CreateContainerError", "the pod's sandbox is gone"));
        };
        let devices = match role {
            // It has no devices, but stays off the CPUs of others.
            Role::Ephemeral => davit_containermanager::ContainerOptions {
                compute: ctx.devices.compute_options(pod.uid(), &container.name),
                ..Default::default()
            },
            _ => ctx
                .devices
                .container_options(pod, &container.name)
                .await
                .map_err(|e| config_error(e.into()))?,
        };
        // Service variables need the services; without an API server a static pod starts without them.
        if let Err(error) = ctx.services.wait_synced(SERVICES).await {
            tracing::warn!(pod = %pod.format(), %error, "services are not known, their variables are left out");
        }
        let facts = ctx.facts(pod, &sandbox.ips);
        let parts = ContainerParts {
            pod,
            role,
            container,
            restart_count: start.restart_count,
            runtime,
            image,
            image_volumes,
            volumes: &self.volumes,
            facts: &facts,
            devices,
        };
        let config = container_config::container(ctx, parts)
            .await
            .map_err(config_error)?;
        let log_dir = ctx
            .paths
            .pod_log_dir(pod.ns(), pod.pod_name(), pod.uid())
            .join(&container.name);
        let log = LogFile::new(&ctx.paths, &log_dir.join("0.log"));
        let made = tokio::task::spawn_blocking(move || log.make_dir()).await;
        made.map_err(io::Error::other).flatten().map_err(|source| {
            config_error(container_config::Error::Io {
                what: "cannot make the log directory",
                source,
            })
        })?;
        let sandbox_config =
            container_config::sandbox(ctx, pod, sandbox.attempt).map_err(config_error)?;
        match ctx
            .runtime
            .create_container(&sandbox.id, config, sandbox_config)
            .await
        {
            Ok(id) => {
                ctx.recorder
                    .normal(&reference, "Created", "Container created");
                Ok(id)
            }
            Err(error) => {
                ctx.metrics.start_failed(pod);
                ctx.recorder
                    .warning(&reference, "Failed", format!("Error: {error}"));
                Err(waiting("CreateContainerError", error.to_string()))
            }
        }
    }

    /// The link that log collectors follow; it is only a convenience, so failing to make it is not an error.
    fn link_log(&self, container: &Container, id: &str, restart_count: u32) {
        let (paths, pod) = (&self.ctx.paths, &self.pod);
        let log = paths
            .pod_log_dir(pod.ns(), pod.pod_name(), pod.uid())
            .join(&container.name)
            .join(format!("{restart_count}.log"));
        let link = Paths::container_log_link(pod.ns(), pod.pod_name(), &container.name, id);
        let links = paths.open_container_logs();
        let made = links.and_then(|links| match links.symlink(&log, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        });
        if let Err(error) = made {
            tracing::debug!(pod = %pod.format(), %error, "cannot link the container's log");
        }
    }

    /// Removes ended instances but the newest, with their logs.
    async fn remove_old(&self, runtime: &PodRuntime, name: &str) {
        let ended = runtime
            .containers
            .iter()
            .filter(|c| c.name == name && c.state != State::Running);
        for record in ended.skip(KEPT) {
            if let Err(error) = self.ctx.runtime.remove_container(&record.id).await {
                tracing::warn!(pod = %self.pod.format(), container = %name, %error, "cannot remove an old container");
                continue;
            }
            let (paths, pod) = (&self.ctx.paths, &self.pod);
            let link = Paths::container_log_link(pod.ns(), pod.pod_name(), name, &record.id);
            if let Ok(links) = paths.open_container_logs() {
                let _gone_already = links.remove_file(&link);
            }
            let log = paths
                .pod_log_dir(pod.ns(), pod.pod_name(), pod.uid())
                .join(name);
            let log = log.join(format!("{}.log", record.restart_count));
            let log = LogFile::new(paths, &log);
            let removed = tokio::task::spawn_blocking(move || remove_log(&log)).await;
            if let Err(error) = removed.map_err(io::Error::other).flatten() {
                tracing::warn!(pod = %pod.format(), container = %name, %error, "the log of an old container stays");
            }
        }
    }

    /// Removes sandboxes that are down and have no container left, whose log may still be asked for.
    async fn remove_old_sandboxes(&self, runtime: &PodRuntime) {
        for sandbox in runtime.sandboxes.iter().skip(1).filter(|s| !s.ready) {
            let filter = cri::ContainerFilter {
                pod_sandbox_id: sandbox.id.clone(),
                ..cri::ContainerFilter::default()
            };
            match self.ctx.runtime.list_containers(Some(filter)).await {
                Ok(left) if left.is_empty() => {}
                _ => continue,
            }
            if let Err(error) = self.ctx.runtime.remove_pod_sandbox(&sandbox.id).await {
                tracing::warn!(pod = %self.pod.format(), %error, "cannot remove an old sandbox");
            }
        }
    }

    async fn post_start(
        &self,
        runtime: &PodRuntime,
        role: Role,
        container: &Container,
        id: &str,
    ) -> Result<(), Waiting> {
        let Some(hook) = container
            .lifecycle
            .as_ref()
            .and_then(|l| l.post_start.as_ref())
        else {
            return Ok(());
        };
        let (ctx, pod) = (&self.ctx, &self.pod);
        let reach = self.reach(runtime);
        let Err(error) =
            run_hook(&*ctx.runtime, pod, container, id, &reach, hook, POST_START).await
        else {
            return Ok(());
        };
        let reference = pod.container_reference(role, &container.name);
        ctx.recorder.warning(
            &reference,
            "FailedPostStartHook",
            format!("PostStartHook failed: {error}"),
        );
        let grace = Duration::from_secs(u64::try_from(pod.grace_seconds()).unwrap_or(30));
        if let Err(error) = ctx.runtime.stop_container(id, grace).await {
            tracing::warn!(pod = %pod.format(), container = %container.name, %error, "cannot stop the container after its postStart hook failed");
        }
        Err(waiting("PostStartHookError", "PostStartHookError"))
    }
}
