use super::*;
use crate::mounts::NoMounter;
use davit_pods::objects::{FixedObjects, ObjectSource};
use davit_pods::paths::Paths;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tonic::Code;

fn claim(asks: &str, status: &Value, mode: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "ns", "resourceVersion": "7"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": asks}}}, "status": status})
}

fn volume(size: &str) -> PersistentVolume {
    serde_json::from_value(
        json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": size}}}),
    )
    .unwrap()
}

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

fn known(size: &str) -> Known {
    Known {
        size: quantity(size),
        failed: false,
        in_use: false,
    }
}

fn planned(claim: Value, size: &str, seen: &str) -> Plan {
    let claim = serde_json::from_value(claim).unwrap();
    plan(&claim, &volume(size), &known(seen))
}

#[test]
fn a_claim_says_what_the_node_has_to_do() {
    let grow = |to: &str, tell| Plan::Grow {
        to: quantity(to),
        tell,
    };
    let has = |size: &str, allocated: Value, status: Value| json!({"capacity": {"storage": size}, "allocatedResources": allocated, "allocatedResourceStatuses": status});
    let of = |status: &str| json!({ "storage": status });
    for (status, expected) in [
        (has("1Gi", Value::Null, Value::Null), grow("2Gi", true)),
        (
            has("1Gi", of("2Gi"), of("NodeResizePending")),
            grow("2Gi", true),
        ),
        (
            has("1Gi", of("3Gi"), of("NodeResizeInProgress")),
            grow("3Gi", true),
        ),
        (
            has("1Gi", of("2Gi"), of("ControllerResizeInProgress")),
            Plan::Nothing,
        ),
        (
            has("1Gi", of("2Gi"), of("NodeResizeInfeasible")),
            Plan::Nothing,
        ),
        (has("1Gi", of("2Gi"), Value::Null), Plan::Nothing),
        (has("2048Mi", Value::Null, Value::Null), Plan::Nothing),
    ] {
        let claim = claim("2Gi", &status, "ReadWriteOnce");
        assert_eq!(planned(claim, "2Gi", "1Gi"), expected, "{status}");
    }
    // every node grows what it has of a shared volume, as long as it has not
    let done = has("2Gi", Value::Null, Value::Null);
    let mut shared = claim("2Gi", &done, "ReadWriteMany");
    assert_eq!(planned(shared.clone(), "2Gi", "1Gi"), grow("2Gi", false));
    assert_eq!(planned(shared.clone(), "2Gi", "2Gi"), Plan::Nothing);
    shared["metadata"]["annotations"] = json!({(NODE_EXPANSION_NOT_REQUIRED): "true"});
    assert_eq!(planned(shared, "2Gi", "1Gi"), Plan::Nothing);
}

struct Case {
    volumes: Volumes,
    objects: Arc<FixedObjects>,
    pod: Pod,
}

impl Case {
    fn new(root: &Path, status: &str) -> Self {
        let status = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": status},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}]});
        let objects = FixedObjects::from_json(&[claim("2Gi", &status, "ReadWriteOnce")]);
        let objects = Arc::new(objects);
        let paths = Paths::new(root.join("kubelet"), root.join("log/pods"));
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": []}});
        Self {
            volumes: Volumes::new(paths, Arc::new(NoMounter), objects.clone()),
            objects,
            pod: serde_json::from_value(pod).unwrap(),
        }
    }

    async fn claim(&self) -> PersistentVolumeClaim {
        self.objects.claim("ns", "c").await.unwrap().unwrap()
    }

    async fn expand(
        &self,
        when: When,
        step: impl AsyncFnOnce(Quantity) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let claimed = Claimed {
            claim: self.claim().await,
            volume: volume("2Gi"),
            read_only: false,
        };
        self.volumes.expand(&self.pod, &claimed, when, step).await
    }

    async fn status(&self) -> Value {
        serde_json::to_value(self.claim().await.status).unwrap()
    }
}

fn refused(code: Code) -> Cause {
    Cause::Csi(tonic::Status::new(code, "no").into())
}

#[tokio::test]
async fn item_068_a_claim_has_its_size_when_the_file_system_has() {
    let tmp = tempfile::tempdir().unwrap();
    let case = Case::new(tmp.path(), "NodeResizePending");
    let grown = case.expand(When::Running, async |to| {
        assert_eq!(to, quantity("2Gi"));
        let status = case.status().await;
        assert_eq!(status["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
        Ok(())
    });
    grown.await.unwrap();
    let status = case.status().await;
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert!(
        status.get("allocatedResourceStatuses").is_none(),
        "{status}"
    );
    assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(status["conditions"][0]["type"], "Other");
    let again = case.expand(When::Running, async |_| panic!("it has its size"));
    again.await.unwrap();
}

#[tokio::test]
async fn item_069_what_cannot_grow_says_so_on_the_claim_and_is_left() {
    let tmp = tempfile::tempdir().unwrap();
    let case = Case::new(tmp.path(), "NodeResizeInProgress");
    let error = case
        .expand(When::Mounting, async |_| Err(refused(Code::OutOfRange)))
        .await
        .unwrap_err();
    assert!(matches!(error, Cause::Expand(_)), "{error}");
    let status = case.status().await;
    assert_eq!(status["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    let said = status["conditions"].as_array().unwrap();
    let said = said.iter().find(|c| c["type"] == ERROR).unwrap();
    assert_eq!(
        said["message"],
        "failed to expand pvc with rpc error: code = OutOfRange desc = no"
    );
    assert_eq!(status["capacity"]["storage"], "1Gi");
    // the pod gets the volume as it is
    let again = case.expand(When::Mounting, async |_| panic!("it is left"));
    again.await.unwrap();
}

#[tokio::test]
async fn a_volume_in_use_is_grown_when_it_is_next_mounted() {
    let tmp = tempfile::tempdir().unwrap();
    let case = Case::new(tmp.path(), "NodeResizeInProgress");
    let in_use = case.expand(When::Running, async |_| {
        Err(refused(Code::FailedPrecondition))
    });
    in_use.await.unwrap();
    let again = case.expand(When::Running, async |_| panic!("it is in use"));
    again.await.unwrap();
    case.expand(When::Mounting, async |_| Ok(())).await.unwrap();
    assert_eq!(case.status().await["capacity"]["storage"], "2Gi");
}

#[tokio::test]
async fn a_driver_that_is_away_is_asked_again() {
    let tmp = tempfile::tempdir().unwrap();
    let case = Case::new(tmp.path(), "NodeResizeInProgress");
    let away = async |_| Err(refused(Code::Unavailable));
    case.expand(When::Running, away).await.unwrap();
    assert!(case.expand(When::Mounting, away).await.is_err());
    let status = case.status().await;
    assert_eq!(status["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
    case.expand(When::Running, async |_| Ok(())).await.unwrap();
    assert_eq!(case.status().await["capacity"]["storage"], "2Gi");
}
