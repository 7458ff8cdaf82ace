//! The node agent's side of podresources, with answers made up for the check.

use std::sync::Arc;

use davit_proto::podresources::v1 as pb;
use davit_proto::podresources::v1::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use davit_proto::podresources::v1alpha1 as old;
use davit_proto::podresources::v1alpha1::pod_resources_lister_server as old_server;
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::subject::KubeletDirectory;

/// How calls are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mood {
    #[default]
    Answers,
    /// ResourceExhausted, as when the rate of calls is limited.
    Limits,
    /// An agent that knows v1alpha1 only.
    Old,
}

/// What monitors have asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) list: usize,
    pub(super) get: usize,
    pub(super) allocatable: usize,
    pub(super) old_list: usize,
}

impl Calls {
    pub(super) fn all(self) -> usize {
        self.list + self.get + self.allocatable + self.old_list
    }
}

struct Content {
    mood: Mood,
    pods: Vec<pb::PodResources>,
}

/// An agent's podresources socket.
pub(super) struct Kubelet {
    desk: Desk,
    begun: Instant,
    serving: Option<(CancellationToken, JoinSet<()>)>,
}

#[derive(Clone)]
struct Desk {
    content: Arc<Mutex<Content>>,
    calls: watch::Sender<Calls>,
}

impl Kubelet {
    pub(super) fn new() -> Self {
        let content = Content {
            mood: Mood::default(),
            pods: Vec::new(),
        };
        let desk = Desk {
            content: Arc::new(Mutex::new(content)),
            calls: watch::Sender::default(),
        };
        Self {
            desk,
            begun: Instant::now(),
            serving: None,
        }
    }

    /// Starts serving, as an agent that has just started.
    pub(super) fn start(&mut self, place: &KubeletDirectory) -> Result<(), unix::Error> {
        let listener = Listener::bind_by_rename(place.pod_resources_socket())?;
        let new =
            PodResourcesListerServer::new(self.desk.clone()).max_encoding_message_size(MAX_MESSAGE);
        let old = old_server::PodResourcesListerServer::new(self.desk.clone())
            .max_encoding_message_size(MAX_MESSAGE);
        let router = unix::server().add_service(new).add_service(old);
        let (cancel, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stop = cancel.clone();
        tasks.spawn(async move {
            if let Err(e) = unix::serve(listener, router, stop.cancelled()).await {
                tracing::warn!(error = %e, "podresources ended");
            }
        });
        self.serving = Some((cancel, tasks));
        Ok(())
    }

    /// Ends at once: connections break, the socket is gone.
    pub(super) async fn stop(&mut self) {
        if let Some((cancel, mut tasks)) = self.serving.take() {
            cancel.cancel();
            tasks.abort_all();
            while tasks.join_next().await.is_some() {}
        }
    }

    pub(super) fn set(&self, mood: Mood, pods: Vec<pb::PodResources>) {
        *self.desk.content.lock() = Content { mood, pods };
    }

    pub(super) fn calls(&self) -> Calls {
        *self.desk.calls.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Calls> {
        self.desk.calls.subscribe()
    }

    /// How long it has been there.
    pub(super) fn age(&self) -> std::time::Duration {
        self.begun.elapsed()
    }
}

impl Desk {
    fn called(
        &self,
        count: impl Fn(&mut Calls),
        is_old: bool,
    ) -> Result<Vec<pb::PodResources>, Status> {
        let (mood, pods) = {
            let content = self.content.lock();
            (content.mood, content.pods.clone())
        };
        self.calls.send_modify(count);
        match mood {
            Mood::Limits => Err(Status::resource_exhausted("rejected by rate limit")),
            Mood::Old if !is_old => Err(Status::unimplemented(
                "unknown service v1.PodResourcesLister",
            )),
            _ => Ok(pods),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Desk {
    async fn list(
        &self,
        _: Request<pb::ListPodResourcesRequest>,
    ) -> Result<Response<pb::ListPodResourcesResponse>, Status> {
        let pod_resources = self.called(|c| c.list += 1, false)?;
        Ok(Response::new(pb::ListPodResourcesResponse {
            pod_resources,
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<pb::AllocatableResourcesRequest>,
    ) -> Result<Response<pb::AllocatableResourcesResponse>, Status> {
        let pods = self.called(|c| c.allocatable += 1, false)?;
        let containers: Vec<_> = pods.into_iter().flat_map(|p| p.containers).collect();
        let mut answer = pb::AllocatableResourcesResponse {
            cpu_ids: (0..64).collect(),
            ..Default::default()
        };
        for container in containers {
            answer.devices.extend(container.devices);
            answer.memory.extend(container.memory);
        }
        Ok(Response::new(answer))
    }

    async fn get(
        &self,
        request: Request<pb::GetPodResourcesRequest>,
    ) -> Result<Response<pb::GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let pods = self.called(|c| c.get += 1, false)?;
        let asked = |p: &pb::PodResources| {
            p.name == request.pod_name && p.namespace == request.pod_namespace
        };
        match pods.into_iter().find(asked) {
            Some(pod) => Ok(Response::new(pb::GetPodResourcesResponse {
                pod_resources: Some(pod),
            })),
            // The agent's code for this is Unknown.
            None => Err(Status::unknown(format!(
                "pod {} in namespace {} not found",
                request.pod_name, request.pod_namespace
            ))),
        }
    }
}

#[tonic::async_trait]
impl old_server::PodResourcesLister for Desk {
    async fn list(
        &self,
        _: Request<old::ListPodResourcesRequest>,
    ) -> Result<Response<old::ListPodResourcesResponse>, Status> {
        let pods = self.called(|c| c.old_list += 1, true)?;
        let devices = |d: pb::ContainerDevices| old::ContainerDevices {
            resource_name: d.resource_name,
            device_ids: d.device_ids,
        };
        let container = |c: pb::ContainerResources| old::ContainerResources {
            name: c.name,
            devices: c.devices.into_iter().map(devices).collect(),
        };
        let pod = |p: pb::PodResources| old::PodResources {
            name: p.name,
            namespace: p.namespace,
            containers: p.containers.into_iter().map(container).collect(),
        };
        Ok(Response::new(old::ListPodResourcesResponse {
            pod_resources: pods.into_iter().map(pod).collect(),
        }))
    }
}

/// A pod with one container that holds these devices of `vendor.example/device`.
pub(super) fn pod(name: &str, devices: &[String]) -> pb::PodResources {
    let device = |(n, id): (usize, &String)| pb::ContainerDevices {
        resource_name: "vendor.example/device".to_owned(),
        device_ids: vec![id.clone()],
        topology: (n % 2 == 0).then(|| nodes(&[0])),
    };
    pb::PodResources {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        containers: vec![pb::ContainerResources {
            name: "main".to_owned(),
            devices: devices.iter().enumerate().map(device).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn nodes(ids: &[i64]) -> pb::TopologyInfo {
    pb::TopologyInfo {
        nodes: ids.iter().map(|&id| pb::NumaNode { id }).collect(),
    }
}

/// A pod with everything that the interface can say.
pub(super) fn full() -> pb::PodResources {
    let mut pod = pod("everything", &["one-node".to_owned()]);
    let main = &mut pod.containers[0];
    // A device on two NUMA nodes is there twice.
    for node in [0, 1] {
        main.devices.push(pb::ContainerDevices {
            resource_name: "vendor.example/device".to_owned(),
            device_ids: vec!["two-nodes".to_owned()],
            topology: Some(nodes(&[node])),
        });
    }
    main.cpu_ids = vec![2, 3, 66, 67];
    main.memory = vec![
        pb::ContainerMemory {
            memory_type: "memory".to_owned(),
            size: 1 << 30,
            topology: Some(nodes(&[0, 1])),
        },
        pb::ContainerMemory {
            memory_type: "hugepages-1Gi".to_owned(),
            size: 4 << 30,
            topology: Some(nodes(&[1])),
        },
    ];
    main.dynamic_resources = vec![pb::DynamicResource {
        claim_name: "everything-gpu-x7k2p".to_owned(),
        claim_namespace: "default".to_owned(),
        claim_resources: vec![
            pb::ClaimResource {
                cdi_devices: vec![pb::CdiDevice {
                    name: "vendor.example/gpu=0".to_owned(),
                }],
                driver_name: "gpu.vendor.example".to_owned(),
                pool_name: "node-1".to_owned(),
                device_name: "gpu-0".to_owned(),
                ..Default::default()
            },
            pb::ClaimResource {
                driver_name: "gpu.vendor.example".to_owned(),
                pool_name: "node-1".to_owned(),
                device_name: "gpu-1".to_owned(),
                share_id: Some("c2f5a1de-2c6e-4d3a-9a55-0c1a7a6c7f11".to_owned()),
                ..Default::default()
            },
        ],
    }];
    pod.containers.push(pb::ContainerResources {
        name: "plain".to_owned(),
        ..Default::default()
    });
    pod
}

/// So many pods with so many devices each.
pub(super) fn many(pods: usize, devices: usize, length: usize) -> Vec<pb::PodResources> {
    let one = |p: usize| {
        let ids: Vec<String> = (0..devices)
            .map(|d| format!("{:0>length$}", p * devices + d))
            .collect();
        pod(&format!("pod-{p}"), &ids)
    };
    (0..pods).map(one).collect()
}
