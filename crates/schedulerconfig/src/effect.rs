//! What of a valid configuration davit does not follow: it is said, not passed over.

use super::types::KubeSchedulerConfiguration;

impl KubeSchedulerConfiguration {
    /// What has no effect here though it differs from the default: a sentence each.
    pub fn without_effect(&self) -> Vec<String> {
        let default = Self::with_defaults();
        let (own, usual) = (&self.client_connection, &default.client_connection);
        [
            (
                self.parallelism != default.parallelism,
                "parallelism: nodes are looked at one after the other",
            ),
            (
                self.enable_contention_profiling == Some(true) && !self.enable_profiling,
                "enableContentionProfiling: there is no profiling",
            ),
            (
                own.content_type != usual.content_type && own.content_type != "application/json",
                "clientConnection.contentType: requests are written as JSON",
            ),
            (
                !own.accept_content_types.is_empty()
                    && !own.accept_content_types.contains("application/json"),
                "clientConnection.acceptContentTypes: answers are read as JSON",
            ),
        ]
        .into_iter()
        .filter(|(differs, _)| *differs)
        .map(|(_, sentence)| format!("{sentence}; the setting has no effect"))
        .collect()
    }
}
