//! The gRPC services.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes};
use davit_proto::podresources::{v1, v1alpha1};
use davit_proto::unix::MAX_MESSAGE;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::answers;
use super::watch::Watchers;
use crate::devices::{Manager, Rising};
use crate::rate::Limit;

const V1: &str = "v1";
const V1ALPHA1: &str = "v1alpha1";

/// An encoded List answer and what it was made from.
struct Snapshot {
    allocations: u64,
    pods: u64,
    bytes: Bytes,
}

/// Both versions of the service.
#[derive(Clone)]
pub(super) struct Service {
    manager: Arc<Manager>,
    limit: Arc<Limit>,
    snapshot: Arc<Mutex<Option<Snapshot>>>,
    watchers: Arc<Watchers>,
}

impl Service {
    pub(super) fn new(manager: Arc<Manager>) -> Self {
        let limit = Limit::new(manager.config.podresources_rate);
        Self {
            manager,
            limit: Arc::new(limit),
            snapshot: Arc::default(),
            watchers: Arc::default(),
        }
    }

    /// Who watches.
    pub(super) fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    /// Takes a call from the socket's limit.
    pub(super) fn take(&self) -> Result<(), Status> {
        self.limit.take()
    }

    /// Watches for changes of what List says.
    pub(super) fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.manager.subscribe()
    }

    /// Waits until the agent stops.
    pub(super) async fn stopped(&self) {
        self.manager.cancel.cancelled().await;
    }

    pub(super) async fn list(&self) -> Bytes {
        self.manager.free_inactive().await;
        let pods = self.manager.listed_pods();
        let print = fingerprint(&pods);
        // The number first: a change in between makes the next call encode anew.
        let allocations = self.manager.ledger.generation();
        if let Some(s) = &*self.snapshot.lock()
            && (s.allocations, s.pods) == (allocations, print)
        {
            return s.bytes.clone();
        }
        let table = self.manager.ledger.read(Clone::clone);
        let bytes = Bytes::from(answers::list(&pods, &table).encode_to_vec());
        *self.snapshot.lock() = Some(Snapshot {
            allocations,
            pods: print,
            bytes: bytes.clone(),
        });
        bytes
    }

    fn get(&self, request: &v1::GetPodResourcesRequest) -> Result<Bytes, Status> {
        let (name, namespace) = (&request.pod_name, &request.pod_namespace);
        let pods = self.manager.active_pods();
        let matches = |p: &&Arc<Pod>| {
            let terminal = matches!(
                p.status.as_ref().and_then(|s| s.phase.as_deref()),
                Some("Succeeded" | "Failed")
            );
            let meta = &p.metadata;
            meta.name.as_deref() == Some(name)
                && meta.namespace.as_deref() == Some(namespace)
                && !terminal
        };
        let pod = pods.iter().find(matches).ok_or_else(|| {
            Status::unknown(format!("pod {name} in namespace {namespace} not found"))
        })?;
        let answer = v1::GetPodResourcesResponse {
            pod_resources: Some(self.manager.ledger.read(|t| answers::pod(pod, t))),
        };
        Ok(answer.encode_to_vec().into())
    }

    fn allocatable(&self) -> Bytes {
        let entries = self.manager.allocatable_devices().into_iter();
        let devices =
            entries.flat_map(|(resource, id, numa)| answers::entries(&resource, id.as_str(), numa));
        let compute = &self.manager.compute;
        let answer = v1::AllocatableResourcesResponse {
            devices: devices.collect(),
            cpu_ids: compute
                .cpu()
                .map_or_else(Vec::new, |p| answers::cpu_ids(&p.allocatable())),
            memory: compute
                .memory()
                .map_or_else(Vec::new, answers::allocatable_memory),
        };
        answer.encode_to_vec().into()
    }

    fn count(&self, method: &Rising) -> Result<(), Status> {
        self.limit.take()?;
        self.manager.metrics.request(V1, Some(method));
        Ok(())
    }
}

/// Tells sets of pods apart; a pod known from the allocation log only has no version.
fn fingerprint(pods: &[Arc<Pod>]) -> u64 {
    let mut sum: u64 = 0;
    for pod in pods {
        let mut hasher = DefaultHasher::new();
        pod.metadata.uid.hash(&mut hasher);
        pod.metadata.name.hash(&mut hasher);
        pod.metadata.resource_version.is_none().hash(&mut hasher);
        sum = sum.wrapping_add(hasher.finish());
    }
    sum
}

#[tonic::async_trait]
impl v1alpha1::pod_resources_lister_server::PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        self.limit.take()?;
        self.manager.metrics.request(V1ALPHA1, None);
        self.manager.free_inactive().await;
        let pods = self.manager.pods.all_pods();
        let answer = self
            .manager
            .ledger
            .read(|t| answers::list_v1alpha1(&pods, t));
        Ok(Response::new(answer))
    }
}

/// Messages in, encoded bytes out.
struct RawCodec<T>(PhantomData<T>);

impl<T> Default for RawCodec<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Default + Send + 'static> Codec for RawCodec<T> {
    type Encode = Bytes;
    type Decode = T;
    type Encoder = RawCodec<T>;
    type Decoder = RawCodec<T>;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T> Encoder for RawCodec<T> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl<T: Message + Default> Decoder for RawCodec<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        T::decode(input)
            .map(Some)
            .map_err(|e| Status::internal(e.to_string()))
    }
}

/// The three methods of v1.
#[derive(Clone)]
struct List(Service);
#[derive(Clone)]
struct Get(Service);
#[derive(Clone)]
struct Allocatable(Service);

impl UnaryService<v1::ListPodResourcesRequest> for List {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, _: Request<v1::ListPodResourcesRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            service.count(&service.manager.metrics.list)?;
            Ok(Response::new(service.list().await))
        })
    }
}

impl UnaryService<v1::GetPodResourcesRequest> for Get {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<v1::GetPodResourcesRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let metrics = &service.manager.metrics;
            service.count(&metrics.get)?;
            let answer = service.get(request.get_ref());
            if answer.is_err() {
                metrics.error(V1, &metrics.get_errors);
            }
            answer.map(Response::new)
        })
    }
}

impl UnaryService<v1::AllocatableResourcesRequest> for Allocatable {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, _: Request<v1::AllocatableResourcesRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            service.count(&service.manager.metrics.allocatable)?;
            Ok(Response::new(service.allocatable()))
        })
    }
}

impl NamedService for Service {
    const NAME: &'static str = v1::pod_resources_lister_server::SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let method = request
                .uri()
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            Ok(match method.as_str() {
                "List" => grpc().unary(List(service), request).await,
                "Get" => grpc().unary(Get(service), request).await,
                "GetAllocatableResources" => grpc().unary(Allocatable(service), request).await,
                _ => Status::unimplemented(format!("unknown method {method}")).into_http(),
            })
        })
    }
}

fn grpc<T: Message + Default + Send + 'static>() -> Grpc<RawCodec<T>> {
    Grpc::new(RawCodec::default()).max_encoding_message_size(MAX_MESSAGE)
}
