//! The server as those see it who decide about its requests.

use std::sync::Arc;

use async_trait::async_trait;
use davit_access::authn::TokenView;
use davit_access::{AccessMetrics, Lookup, UserInfo, Warnings, authz};
use davit_admission::{AdmissionMetrics, ServerView, WebhookMetrics};
use davit_api::features::Features;
use davit_api::status::{Reason, Status};
use davit_registry::Registry;
use davit_webhook::Webhooks;
use serde_json::{Value, json};

use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Author, Writer};

#[async_trait]
impl Lookup for ApiServer {
    async fn object(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status> {
        Self::object(self, group, plural, namespace, name).await
    }

    async fn objects(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, Status> {
        Self::objects(self, group, plural, namespace).await
    }
}

#[async_trait]
impl ServerView for ApiServer {
    fn registry(&self) -> &Registry {
        Self::registry(self)
    }

    fn features(&self) -> &Features {
        Self::features(self)
    }

    fn authorizer(&self) -> Arc<authz::Chain> {
        Self::authorizer(self)
    }

    fn restricts_nodes(&self) -> bool {
        Self::restricts_nodes(self)
    }

    fn webhooks(&self) -> &Webhooks {
        Self::webhooks(self)
    }

    fn admission_metrics(&self) -> &AdmissionMetrics {
        &self.metrics().admission
    }

    fn webhook_metrics(&self) -> &WebhookMetrics {
        &self.metrics().webhooks
    }

    async fn make_namespace(&self, name: &str, warnings: &Warnings) -> Result<(), Status> {
        let snapshot = Self::registry(self).snapshot();
        let Some(resource) = snapshot.by_group_resource("", "namespaces") else {
            return Ok(());
        };
        let user = UserInfo::system("system:apiserver");
        let writer = Writer {
            server: self,
            resource,
            namespace: "",
            user: &user,
            verb: "create",
            warnings,
            dry_run: false,
            tracking: Tracking::Keep,
        };
        let new = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
        });
        match Box::pin(writer.create(new)).await {
            Err(status) if status.reason != Reason::AlreadyExists => Err(status),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl TokenView for ApiServer {
    fn access_metrics(&self) -> &AccessMetrics {
        &self.metrics().access
    }

    async fn label_secret(
        &self,
        namespace: &str,
        name: &str,
        label: &str,
        value: &str,
    ) -> Result<(), Status> {
        let snapshot = Self::registry(self).snapshot();
        let Some(resource) = snapshot.by_group_resource("", "secrets") else {
            return Ok(());
        };
        let author = Author::apiserver();
        let tracking = Tracking::Update("kube-apiserver".to_owned());
        let writer = author.writer(self, resource, namespace, tracking);
        let mut transform = |current: &Value| {
            let mut new = current.clone();
            if !new["metadata"]["labels"].is_object() {
                new["metadata"]["labels"] = json!({});
            }
            new["metadata"]["labels"][label] = json!(value);
            Ok(new)
        };
        writer.update(name, "", &mut transform).await.map(drop)
    }
}
