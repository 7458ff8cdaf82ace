//! The life of one claim: allocated at once if it wants that, deallocated when it is asked for.

use davit_api::classic::{ConsumerReference, ResourceClaim, ResourceClass};
use kube::Api;
use kube::api::PostParams;

use super::controller::{Asked, Next, Shared, SyncError, call};
use super::{ClaimAllocation, ClassicDriver};

fn name_of(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

impl<D: ClassicDriver> Shared<D> {
    fn api(&self, claim: &ResourceClaim) -> Api<ResourceClaim> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }

    fn is_ours(&self, claim: &ResourceClaim) -> bool {
        let finalizers = claim.metadata.finalizers.iter().flatten();
        finalizers.into_iter().any(|f| *f == self.finalizer)
    }

    async fn write(&self, claim: &ResourceClaim) -> Result<ResourceClaim, SyncError> {
        let (api, params) = (self.api(claim), PostParams::default());
        let written = api.replace(name_of(claim), &params, claim);
        let written = call("update claim", written).await?;
        self.claims.set(written.clone());
        Ok(written)
    }

    async fn write_status(&self, claim: &ResourceClaim) -> Result<ResourceClaim, SyncError> {
        let (api, params) = (self.api(claim), PostParams::default());
        let written = api.replace_status(name_of(claim), &params, claim);
        let written = call("update claim status", written).await?;
        self.claims.set(written.clone());
        Ok(written)
    }

    pub(super) async fn sync_claim(&self, claim: &ResourceClaim) -> Result<Next, SyncError> {
        let status = &claim.status;
        if !status.reserved_for.is_empty() {
            // Whatever is wanted, its users come first.
            return Ok(Next::Wait);
        }
        if claim.metadata.deletion_timestamp.is_some() || status.deallocation_requested {
            return self.release(claim).await;
        }
        if status.allocation.is_some() || claim.is_delayed() {
            return Ok(Next::Wait);
        }
        let Some(class) = self.class_of(claim).await? else {
            let class = &claim.spec.resource_class_name;
            return Err(SyncError::Object(format!(
                "resource class {class} does not exist"
            )));
        };
        if class.driver_name != self.name {
            // Classes can change; there is nothing that would tell.
            return Ok(Next::Soon);
        }
        let wish = self.wish(String::new(), claim.clone(), class).await?;
        self.allocate(&wish, None, None).await?;
        Ok(Next::Wait)
    }

    /// Takes the allocation back, or stops an attempt at it.
    async fn release(&self, claim: &ResourceClaim) -> Result<Next, SyncError> {
        // Only this driver sets its finalizer: without it the claim is not ours, or done with.
        if !self.is_ours(claim) {
            return Ok(Next::Wait);
        }
        let freed = self.driver.deallocate(claim).await;
        freed.asked("deallocate")?;
        // What was held may be what others wait for.
        self.wake_all_negotiations();
        let mut claim = claim.clone();
        let status = &mut claim.status;
        if status.allocation.is_some() || status.deallocation_requested {
            status.allocation = None;
            status.driver_name.clear();
            status.deallocation_requested = false;
            claim = self.write_status(&claim).await?;
        }
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|f| *f != self.finalizer);
        self.write(&claim).await?;
        Ok(Next::Wait)
    }

    /// The claim's class, if it exists.
    pub(super) async fn class_of(
        &self,
        claim: &ResourceClaim,
    ) -> Result<Option<ResourceClass>, SyncError> {
        let api: Api<ResourceClass> = Api::all(self.client.clone());
        let class = api.get_opt(&claim.spec.resource_class_name);
        call("get resource class", class).await
    }

    /// Reads the parameters.
    pub(super) async fn wish(
        &self,
        pod_claim_name: String,
        claim: ResourceClaim,
        class: ResourceClass,
    ) -> Result<ClaimAllocation<D>, SyncError> {
        let class_parameters = self.driver.class_parameters(&class).await;
        let class_parameters = class_parameters.asked("get class parameters")?;
        let claim_parameters = self
            .driver
            .claim_parameters(&claim, &class, &class_parameters)
            .await;
        let claim_parameters = claim_parameters.asked("get claim parameters")?;
        Ok(ClaimAllocation {
            pod_claim_name,
            claim,
            class,
            claim_parameters,
            class_parameters,
            unsuitable_nodes: Vec::new(),
        })
    }

    /// Has a claim allocated and writes what came of it.
    pub(super) async fn allocate(
        &self,
        wish: &ClaimAllocation<D>,
        selected_node: Option<&str>,
        user: Option<ConsumerReference>,
    ) -> Result<(), SyncError> {
        let mut claim = wish.claim.clone();
        if claim.status.allocation.is_some() {
            return Ok(());
        }
        // Written before the driver begins: a claim that is deleted meanwhile waits for it.
        if !self.is_ours(&claim) {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.push(self.finalizer.clone());
            claim = self.write(&claim).await?;
            if claim.status.allocation.is_some() {
                return Ok(());
            }
        }
        let result = self.driver.allocate(wish, selected_node).await;
        claim.status.allocation = Some(result.asked("allocate")?);
        claim.status.driver_name.clone_from(&self.name);
        claim.status.reserved_for.extend(user);
        self.write_status(&claim).await?;
        Ok(())
    }
}
