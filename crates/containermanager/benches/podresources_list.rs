//! Cost of one podresources List that finds something changed: 1000 pods with 8 devices each.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use davit_containermanager::allocation::{Change, DeviceHold, PodName, Table};
use davit_containermanager::podresources;
use davit_topology::NumaMask;
use davit_topology::devices::{ContainerKind, DeviceId};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use prost::Message as _;

fn pod(n: usize) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(format!("uid-{n}"));
    pod.metadata.name = Some(format!("pod-{n}"));
    pod.metadata.namespace = Some("default".to_owned());
    pod.spec = Some(PodSpec {
        containers: vec![Container {
            name: "main".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    });
    Arc::new(pod)
}

fn table(pods: usize) -> Table {
    let mut table = Table::default();
    for n in 0..pods {
        let devices = (0..8).map(|d| {
            (
                DeviceId::from(format!("dev-{n}-{d}")),
                NumaMask::from_bits(1),
            )
        });
        let hold = DeviceHold {
            pod: PodName {
                uid: format!("uid-{n}"),
                namespace: "default".to_owned(),
                name: format!("pod-{n}"),
            },
            container: "main".to_owned(),
            kind: ContainerKind::App,
            resource: "example.com/foo".to_owned(),
            devices: devices.collect(),
            response: Vec::new(),
            since: 0,
        };
        table
            .apply(&Change::Hold(hold))
            .expect("devices of different pods have different names");
    }
    table
}

fn bench(c: &mut Criterion) {
    for count in [110, 500, 1000] {
        let pods: Vec<Arc<Pod>> = (0..count).map(pod).collect();
        let table = table(count);
        c.bench_function(&format!("podresources_list_{count}x8"), |b| {
            b.iter(|| podresources::list(&pods, &table).encode_to_vec().len());
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
