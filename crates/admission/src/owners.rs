//! Plugins that ask the authorizer a second question: OwnerReferencesPermissionEnforcement and
//! ClusterTrustBundleAttest.

use davit_access::RequestInfo;
use davit_access::authz::{self, Decision};
use davit_api::status::Status;
use serde_json::Value;

use super::{Attributes, Mutating, Operation, Validating, forbidden};

/// Whether the user may do something else, too.
pub(super) async fn may(attributes: &Attributes<'_>, request: &RequestInfo) -> bool {
    let asked = authz::Attributes {
        user: attributes.user,
        request,
    };
    matches!(
        attributes.server.authorizer().decide(&asked).await,
        Decision::Allow(_)
    )
}

/// Who sets an owner, or blocks its deletion, must be allowed to do that to the owner.
pub(super) struct OwnerReferences;

impl Validating for OwnerReferences {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (true, Some(object)) = (attributes.writes(), object) else {
            return Ok(());
        };
        let references = |object: &Value| {
            let list = object.pointer("/metadata/ownerReferences");
            list.and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let new = references(object);
        let old = attributes.old.map(references).unwrap_or_default();
        if new == old || new.is_empty() && old.is_empty() {
            return Ok(());
        }
        let row = &attributes.resource.row;
        let mut request = RequestInfo {
            verb: "delete".to_owned(),
            is_resource: true,
            group: row.group.to_owned(),
            version: row.version.to_owned(),
            resource: row.plural.to_owned(),
            name: attributes.name.to_owned(),
            namespace: (!attributes.namespace.is_empty()).then(|| attributes.namespace.to_owned()),
            ..RequestInfo::default()
        };
        if attributes.operation == Operation::Update && !may(attributes, &request).await {
            let why = "cannot set an ownerRef on a resource you can't delete: ";
            return Err(forbidden(attributes, Some(object), why));
        }
        let blocks = |reference: &&Value| reference["blockOwnerDeletion"] == true;
        for reference in new.iter().filter(blocks) {
            let before = old
                .iter()
                .any(|held| held["uid"] == reference["uid"] && held["blockOwnerDeletion"] == true);
            if before {
                continue;
            }
            let text = |key: &str| reference[key].as_str().unwrap_or_default();
            let (group, version) = text("apiVersion")
                .split_once('/')
                .unwrap_or(("", text("apiVersion")));
            let snapshot = attributes.server.registry().snapshot();
            let owner = snapshot
                .of_group_version(group, version)
                .find(|info| info.row.kind == text("kind"));
            let Some(owner) = owner else {
                let why = format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {} Kind {}",
                    text("apiVersion"),
                    text("kind")
                );
                return Err(forbidden(attributes, Some(object), why));
            };
            request.verb = "update".to_owned();
            group.clone_into(&mut request.group);
            version.clone_into(&mut request.version);
            request.resource = owner.row.plural.to_owned();
            request.subresource = "finalizers".to_owned();
            text("name").clone_into(&mut request.name);
            request.namespace = owner
                .row
                .namespaced
                .then(|| attributes.namespace.to_owned());
            if !may(attributes, &request).await {
                let why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
                return Err(forbidden(attributes, Some(object), why));
            }
        }
        Ok(())
    }
}

/// Trust bundles of a signer are written by those who may attest for it.
pub(super) struct ClusterTrustBundleAttest;

impl Mutating for ClusterTrustBundleAttest {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let writes =
            attributes.is("certificates.k8s.io", "clustertrustbundles") && attributes.writes();
        let Some(bundle) = object.filter(|_| writes) else {
            return Ok(());
        };
        let signer = |bundle: &Value| {
            let name = bundle.pointer("/spec/signerName").and_then(Value::as_str);
            name.unwrap_or_default().to_owned()
        };
        let name = signer(bundle);
        // metadata may change without a right to attest
        let same = attributes
            .old
            .is_some_and(|old| old["spec"] == bundle["spec"]);
        if name.is_empty() || same {
            return Ok(());
        }
        let domain = name.split('/').next().unwrap_or_default();
        for asked in [name.clone(), format!("{domain}/*")] {
            let request = RequestInfo {
                verb: "attest".to_owned(),
                is_resource: true,
                group: "certificates.k8s.io".to_owned(),
                version: "*".to_owned(),
                resource: "signers".to_owned(),
                name: asked,
                ..RequestInfo::default()
            };
            if may(attributes, &request).await {
                return Ok(());
            }
        }
        let why = format!("user not permitted to attest for signerName \"{name}\"");
        Err(forbidden(attributes, Some(bundle), why))
    }
}
