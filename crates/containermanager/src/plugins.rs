//! The plugin registry: sockets in `<root>/plugins_registry` whose owners want to be used.
//!
//! The folder is looked through twice a second, subfolders included; each socket found is
//! asked who it is (pluginregistration v1) and registered or told why not. A socket that is
//! made anew at the same path is a new plugin. Device plugins, DRA drivers and CSI drivers
//! are served.

mod register;
mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::unix;
use davit_task::Task;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::devices::Manager;
use crate::dra;
use crate::plugin_handler::PluginHandler;
use scan::Generation;

/// The folder below the agent's root.
const PLUGINS_REGISTRY: &str = "plugins_registry";

const PERIOD: Duration = Duration::from_millis(500);
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(122);
/// Registrations under way at once; others wait for the next look.
const MAX_RUNNING: usize = 64;

/// Starts watching the registry.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn serve(
    manager: &Arc<Manager>,
    dra: Option<&Arc<dra::Manager>>,
    csi: Option<&Arc<dyn PluginHandler>>,
    tasks: &mut JoinSet<()>,
) -> Result<(), unix::Error> {
    let dir = manager.config.root_dir.join(PLUGINS_REGISTRY);
    unix::create_dir(&dir)?;
    let handlers = Handlers {
        devices: manager.clone(),
        dra: dra.cloned(),
        csi: csi.cloned(),
    };
    let watcher = Task::new("node", "plugin-watcher", manager.cancel.clone());
    tasks.spawn(watcher.retry(move || watch(handlers.clone(), dir.clone())));
    Ok(())
}

/// Who takes plugins into service.
#[derive(Clone)]
struct Handlers {
    devices: Arc<Manager>,
    dra: Option<Arc<dra::Manager>>,
    csi: Option<Arc<dyn PluginHandler>>,
}

impl Handlers {
    /// Ends what came by a socket of the registry.
    fn disconnect(&self, registry_socket: &Path) {
        self.devices.disconnect_registry(registry_socket);
        if let Some(dra) = &self.dra {
            dra.disconnect_registry(registry_socket);
        }
        if let Some(csi) = &self.csi {
            csi.clone().disconnect(registry_socket);
        }
    }
}

/// What is known about one socket path.
#[derive(Debug)]
struct Entry {
    generation: Generation,
    state: State,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be registered from then on.
    Due(Instant),
    Running,
    Registered,
}

/// The registry as a state machine over sockets. Pure; the loop carries out what it says.
#[derive(Debug, Default)]
struct Registry {
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    deregister: Vec<PathBuf>,
    register: Vec<(PathBuf, Generation)>,
}

impl Registry {
    /// Compares with what is there now. A path under registration is left alone until that ends.
    fn plan(&mut self, found: &BTreeMap<PathBuf, Generation>, now: Instant) -> Plan {
        let mut plan = Plan::default();
        self.entries.retain(|path, entry| {
            let same = found.get(path) == Some(&entry.generation);
            if same || entry.state == State::Running {
                return true;
            }
            if entry.state == State::Registered {
                plan.deregister.push(path.clone());
            }
            false
        });
        let running = |entry: &&Entry| entry.state == State::Running;
        let running = self.entries.values().filter(running).count();
        let mut due = Vec::new();
        for (path, generation) in found {
            let entry = self.entries.entry(path.clone()).or_insert_with(|| Entry {
                generation: *generation,
                state: State::Due(now),
                failures: 0,
            });
            if let State::Due(at) = entry.state
                && at <= now
            {
                due.push((at, path));
            }
        }
        // Who has waited longest comes first: whoever makes his socket anew each time waits anew.
        due.sort();
        for (_, path) in due.into_iter().take(MAX_RUNNING.saturating_sub(running)) {
            if let Some(entry) = self.entries.get_mut(path) {
                entry.state = State::Running;
                plan.register.push((path.clone(), entry.generation));
            }
        }
        plan
    }

    fn ended(&mut self, path: &Path, registered: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(path) else {
            return;
        };
        if registered {
            entry.state = State::Registered;
            entry.failures = 0;
        } else {
            let factor = 2u32.saturating_pow(entry.failures.min(16));
            entry.state = State::Due(now + BACKOFF_FIRST.saturating_mul(factor).min(BACKOFF_MAX));
            entry.failures += 1;
        }
    }
}

async fn watch(handlers: Handlers, dir: PathBuf) {
    let manager = handlers.devices.clone();
    let mut registry = Registry::default();
    let mut running: JoinSet<(PathBuf, bool)> = JoinSet::new();
    let mut too_many = false;
    loop {
        let found = scan::sockets(&dir, registry.entries.keys());
        // Once, and not twice a second.
        if found.too_many && !too_many {
            tracing::warn!(dir = %dir.display(), "too many files in the plugin registry; new plugins may be left out");
        }
        too_many = found.too_many;
        let plan = registry.plan(&found.sockets, Instant::now());
        for path in &plan.deregister {
            tracing::info!(socket = %path.display(), "plugin socket is gone or new");
            handlers.disconnect(path);
        }
        for (path, _) in plan.register {
            let handlers = handlers.clone();
            running.spawn(async move {
                let result = register::register(&handlers, &path).await;
                if let Err(e) = &result {
                    tracing::warn!(socket = %path.display(), error = %e, "plugin not registered");
                }
                (path, result.is_ok())
            });
        }
        report(&manager, &registry);
        let next = Instant::now() + PERIOD;
        loop {
            tokio::select! {
                () = manager.cancel.cancelled() => return,
                () = tokio::time::sleep_until(next) => break,
                Some(ended) = running.join_next() => match ended {
                    Ok((path, registered)) => registry.ended(&path, registered, Instant::now()),
                    Err(e) => tracing::error!(error = %e, "plugin registration has panicked"),
                },
            }
        }
    }
}

fn report(manager: &Manager, registry: &Registry) {
    let plugins = &manager.metrics.plugins;
    plugins.clear();
    for (path, entry) in &registry.entries {
        let mut states = vec!["desired_state_of_world"];
        if entry.state == State::Registered {
            states.push("actual_state_of_world");
        }
        for state in states {
            let label = crate::devices::PluginLabel {
                socket_path: path.display().to_string(),
                state,
            };
            plugins.get_or_create(&label).set(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn items_026_and_027_new_sockets_and_backoff() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        let path = PathBuf::from("/p");
        let first = BTreeMap::from([(path.clone(), Generation::test(1))]);
        assert_eq!(registry.plan(&first, start).register.len(), 1);
        assert_eq!(registry.plan(&first, start), Plan::default());
        registry.ended(&path, true, start);
        assert_eq!(registry.plan(&first, start), Plan::default());
        let second = BTreeMap::from([(path.clone(), Generation::test(2))]);
        let plan = registry.plan(&second, start);
        assert_eq!((plan.deregister.len(), plan.register.len()), (1, 1));

        let (mut now, mut pauses) = (start, Vec::new());
        for _ in 0..12 {
            registry.ended(&path, false, now);
            let State::Due(at) = registry.entries[&path].state else {
                panic!("not waiting");
            };
            pauses.push((at - now).as_millis());
            assert_eq!(
                registry.plan(&second, at - Duration::from_millis(1)),
                Plan::default()
            );
            assert_eq!(registry.plan(&second, at).register.len(), 1);
            now = at;
        }
        assert_eq!(pauses[..3], [500, 1000, 2000]);
        assert_eq!(pauses[11], 122_000);
        assert!(registry.plan(&BTreeMap::new(), now).deregister.is_empty());
    }

    /// Somebody makes sockets that do not answer, by names that come first, and makes them anew as soon as they have failed.
    #[tokio::test]
    async fn sockets_that_are_made_anew_keep_no_other_waiting() {
        let (mut registry, mut now) = (Registry::default(), Instant::now());
        let other = PathBuf::from("/z");
        for round in 0..3 {
            let silent = |n: usize| PathBuf::from(format!("/a{n}"));
            let mut found: BTreeMap<_, _> = (0..2 * MAX_RUNNING)
                .map(|n| (silent(n), Generation::test(round)))
                .collect();
            found.insert(other.clone(), Generation::test(0));
            let plan = registry.plan(&found, now);
            assert_eq!(plan.register.len(), MAX_RUNNING);
            if plan.register.iter().any(|(path, _)| *path == other) {
                return assert_eq!(round, 1);
            }
            now += Duration::from_secs(10);
            for (path, _) in plan.register {
                registry.ended(&path, false, now);
            }
        }
        panic!("never asked");
    }
}
