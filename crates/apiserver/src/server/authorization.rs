//! Who decides about requests, as configured, and read again when its file changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use davit_access::authz::rbac::Rbac;
use davit_access::authz::{Authorization, AuthorizationError, Chain, Mode, Sources, chain};
use davit_webhook::Webhooks;

/// The chain of authorizers in force, and what it is made of.
pub(super) struct Authorizers {
    sources: Sources,
    configured: Authorization,
    in_force: ArcSwap<Chain>,
    restricts_nodes: AtomicBool,
    uses_rbac: bool,
}

impl Authorizers {
    /// The authorizers of the configuration.
    ///
    /// # Errors
    /// It cannot be read or used.
    pub(super) fn new(
        configured: Authorization,
        sources: Sources,
        webhooks: &Webhooks,
    ) -> Result<Self, AuthorizationError> {
        let modes = configured.modes()?;
        let chain = chain(modes.as_deref(), &sources, webhooks.tasks())?;
        Ok(Self {
            sources,
            configured,
            in_force: ArcSwap::from_pointee(chain),
            restricts_nodes: AtomicBool::new(has(modes.as_deref(), &Mode::Node)),
            uses_rbac: has(modes.as_deref(), &Mode::Rbac),
        })
    }

    /// Whether roles decided when the server started.
    pub(super) fn uses_rbac(&self) -> bool {
        self.uses_rbac
    }

    pub(super) fn chain(&self) -> Arc<Chain> {
        self.in_force.load_full()
    }

    /// The roles and bindings.
    pub(super) fn rbac(&self) -> &Rbac {
        &self.sources.rbac
    }

    pub(super) fn restricts_nodes(&self) -> bool {
        self.restricts_nodes.load(Ordering::Relaxed)
    }

    pub(super) fn file(&self) -> Option<&Path> {
        self.configured.config_file()
    }

    /// Reads the configuration again; it stays as it was if it cannot be used.
    pub(super) fn reload(&self, webhooks: &Webhooks) {
        let read = self.configured.modes().and_then(|modes| {
            let chain = chain(modes.as_deref(), &self.sources, webhooks.tasks())?;
            Ok((chain, has(modes.as_deref(), &Mode::Node)))
        });
        match read {
            Ok((chain, restricts_nodes)) => {
                self.in_force.store(Arc::new(chain));
                self.restricts_nodes
                    .store(restricts_nodes, Ordering::Relaxed);
                tracing::info!("authorization configuration read again");
            }
            Err(error) => tracing::error!(%error, "authorization configuration is kept as it was"),
        }
    }
}

fn has(modes: Option<&[Mode]>, mode: &Mode) -> bool {
    modes.into_iter().flatten().any(|known| known == mode)
}
