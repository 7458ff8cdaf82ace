//! Node ports: which are taken is read from the Services once, on first use, and kept in memory after that. That is exact
//! for one API server over a store.

use std::collections::BTreeSet;
use std::sync::Arc;

use davit_api::status::Status;
use parking_lot::Mutex;
use rand::Rng;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::ranges::NodePorts;
use crate::writes::Writer;

/// A port, and whether it is one of UDP.
pub(super) type NodePort = (u16, bool);

/// The ports that there are, and those that are taken.
#[derive(Debug)]
pub(super) struct PortPool {
    ports: NodePorts,
    taken: Arc<Mutex<BTreeSet<NodePort>>>,
    loaded: OnceCell<()>,
}

/// Ports taken for a write that may still fail; given back when dropped.
#[derive(Debug, Default)]
pub(super) struct TakenPorts {
    pool: Option<Arc<Mutex<BTreeSet<NodePort>>>>,
    ports: Vec<NodePort>,
}

impl TakenPorts {
    /// The write succeeded.
    pub(super) fn keep(mut self) {
        self.pool = None;
    }
}

impl Drop for TakenPorts {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            let mut taken = pool.lock();
            for port in &self.ports {
                taken.remove(port);
            }
        }
    }
}

impl PortPool {
    pub(super) fn new(ports: NodePorts) -> Self {
        Self {
            ports,
            taken: Arc::default(),
            loaded: OnceCell::new(),
        }
    }

    /// Reads from the Services what is taken, once.
    pub(super) async fn load(&self, writer: &Writer<'_>) -> Result<(), Status> {
        let read = || async {
            let services = writer.server.objects("", "services", None).await?;
            self.taken.lock().extend(services.iter().flat_map(ports_of));
            Ok(())
        };
        self.loaded.get_or_try_init(read).await.map(|_| ())
    }

    /// For the ports of one write.
    pub(super) fn take(&self) -> TakenPorts {
        TakenPorts {
            pool: Some(Arc::clone(&self.taken)),
            ports: Vec::new(),
        }
    }

    /// Takes the port `asked`, or any for 0.
    pub(super) fn port(&self, asked: u16, udp: bool, own: &mut TakenPorts) -> Result<u16, String> {
        let mut taken = self.taken.lock();
        let port = if asked == 0 {
            let ports = &self.ports.0;
            let start = rand::rng().random_range(ports.clone());
            (start..=*ports.end())
                .chain(*ports.start()..start)
                .find(|port| !taken.contains(&(*port, udp)))
                .ok_or_else(|| "failed to allocate a nodePort: range is full".to_owned())?
        } else if self.ports.0.contains(&asked) {
            asked
        } else {
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {}",
                self.ports
            ));
        };
        if !taken.insert((port, udp)) {
            return Err("provided port is already allocated".to_owned());
        }
        own.ports.push((port, udp));
        Ok(port)
    }

    /// A stored Service changed: what it no longer holds is free.
    pub(super) fn changed(&self, old: &Value, new: &Value) {
        if !self.loaded.initialized() {
            return;
        }
        let (mut taken, ports) = (self.taken.lock(), ports_of(new));
        for port in ports_of(old) {
            if !ports.contains(&port) {
                taken.remove(&port);
            }
        }
    }
}

/// The node ports of a Service.
pub(super) fn ports_of(service: &Value) -> Vec<NodePort> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            let number = u16::try_from(port["nodePort"].as_u64()?).ok()?;
            (number != 0).then(|| (number, port["protocol"] == "UDP"))
        })
        .collect()
}
