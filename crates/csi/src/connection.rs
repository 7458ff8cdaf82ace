//! The one connection that is kept to a driver.

use crate::{Capabilities, Error};
use davit_proto::csi::v1::node_client::NodeClient;
use davit_proto::unix::{self, Address};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::Channel;

/// How long a driver that does not accept is waited for. It restarts in its own time; callers try again.
const DIAL: Duration = Duration::from_secs(2);

/// Bytes of an answer, as in the kubelet: what of them says nothing takes many times as many when it is read.
const MAX_ANSWER: usize = 4 << 20;

/// A connection that stands for one run of the driver: when it is lost, so is what was learned on it.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    lost: CancellationToken,
    pub(crate) capabilities: OnceCell<Capabilities>,
}

impl Connection {
    pub(crate) fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }
}

/// The last failure to connect.
#[derive(Debug)]
struct Failure {
    at: Instant,
    error: Error,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    failure: Option<Failure>,
}

/// Where the connection is kept.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<State>);

impl Kept {
    /// The connection to `endpoint`, made anew when it was lost.
    ///
    /// # Errors
    /// Nobody accepts there: [`Code::Unavailable`].
    pub(crate) async fn get(&self, endpoint: &Address) -> Result<Arc<Connection>, Error> {
        let asked = Instant::now();
        let mut state = self.0.lock().await;
        if let Some(connection) = &state.connection
            && !connection.lost.is_cancelled()
        {
            return Ok(connection.clone());
        }
        // All who waited for the same attempt share its failure, so that nobody waits for one attempt after another.
        if let Some(failure) = &state.failure
            && failure.at >= asked
        {
            return Err(failure.error.clone());
        }
        match unix::connect_observed(endpoint, DIAL).await {
            Ok((channel, lost)) => {
                let connection = Arc::new(Connection {
                    channel,
                    lost,
                    capabilities: OnceCell::new(),
                });
                state.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(cause) => {
                let error = Error::call(Code::Unavailable, format!("connection error: {cause}"));
                state.connection = None;
                state.failure = Some(Failure {
                    at: Instant::now(),
                    error: error.clone(),
                });
                Err(error)
            }
        }
    }
}
