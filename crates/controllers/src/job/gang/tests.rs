use super::*;
use davit_api::names::{check_dns1123_subdomain, check_short_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn job(name: &str, uid: &str) -> Job {
    parsed(json!({
        "metadata": {"name": name, "namespace": "n", "uid": uid},
        "spec": {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": {"spec": {"containers": []}}},
    }))
}

fn owner(job: &Job) -> Owner {
    Owner::of(job, &LabelSelector::default()).unwrap()
}

fn pod() -> Pod {
    parsed(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": []}}))
}

#[test]
fn jobs_whose_pods_all_run_at_once_are_gangs() {
    let with = |key: &str, value: Value| {
        let mut changed = serde_json::to_value(job("j", "u")).unwrap();
        changed["spec"][key] = value;
        is_gang(&parsed(changed))
    };
    assert!(is_gang(&job("j", "u")));
    let more = json!({"spec": {"containers": [], "schedulingGroup": {"podGroupName": "mine"}}});
    for (key, value) in [
        ("parallelism", Value::Null),
        ("parallelism", json!(3)),
        ("completions", Value::Null),
        ("completions", json!(8)),
        ("completionMode", Value::Null),
        ("completionMode", json!("NonIndexed")),
        ("template", more),
    ] {
        assert!(!with(key, value.clone()), "{key}: {value}");
    }
    let one: Job = parsed(json!({"metadata": {"name": "j"},
        "spec": {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "template": {}}}));
    assert!(!is_gang(&one));
}

#[test]
fn what_began_before_is_not_new() {
    let fresh = job("j", "u");
    assert!(is_new(&fresh, &[]));
    assert!(!is_new(&fresh, &[Arc::new(pod())]));
    for status in [
        json!({"startTime": "2026-01-01T00:00:00Z"}),
        json!({"succeeded": 1}),
        json!({"failed": 1}),
        json!({"conditions": [{"type": "Suspended", "status": "False"}]}),
    ] {
        let mut old = fresh.clone();
        old.status = Some(parsed(status.clone()));
        assert!(!is_new(&old, &[]), "{status}");
    }
    let mut looked_at = fresh;
    looked_at.status = Some(parsed(json!({"uncountedTerminatedPods": {}, "ready": 0})));
    assert!(is_new(&looked_at, &[]));
}

#[test]
fn a_gang_is_whole_until_an_index_has_ended() {
    let whole = |status: Value| is_whole(&parsed(status));
    assert!(whole(json!({"failed": 3, "failedIndexes": ""})));
    assert!(!whole(json!({"completedIndexes": "0"})) && !whole(json!({"failedIndexes": "1,2"})));
}

#[test]
fn a_job_has_a_workload_with_one_template_and_a_group_of_it() {
    let job = job("train", "u");
    let owner = owner(&job);
    let mut workload = workload_for(&job, &owner);
    workload.metadata.uid = Some("w".to_owned());
    let name = workload.metadata.name.clone().unwrap();
    assert!(name.starts_with("train-"));
    let controller = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u",
        "controller": true, "blockOwnerDeletion": true});
    let template = json!({"name": "train-pgt-0", "schedulingPolicy": {"gang": {"minCount": 4}}});
    let made = serde_json::to_value(&workload).unwrap();
    assert_eq!(
        made["spec"],
        json!({"controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"}, "podGroupTemplates": [template]})
    );
    assert_eq!(made["metadata"]["ownerReferences"], json!([controller]));
    assert_eq!(job_of(&workload).as_deref(), Some("n/train"));

    let group = group_for(&owner, &workload, &workload.spec.pod_group_templates[0]);
    let made = serde_json::to_value(&group).unwrap();
    let from = json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "Workload", "name": name, "uid": "w"});
    assert_eq!(
        made["metadata"]["ownerReferences"],
        json!([controller, from])
    );
    assert_eq!(
        made["spec"],
        json!({
            "podGroupTemplateRef": {"workload": {"workloadName": name, "podGroupTemplateName": "train-pgt-0"}},
            "schedulingPolicy": {"gang": {"minCount": 4}},
        })
    );
    assert_eq!(workload_of(&group), Some(format!("n/{name}")));

    let mut pod = pod();
    pod.metadata.owner_references = Some(vec![owner.reference.clone()]);
    join(&mut pod, &group);
    let pod = serde_json::to_value(&pod).unwrap();
    let group_name = &made["metadata"]["name"];
    assert_eq!(
        pod["spec"]["schedulingGroup"],
        json!({"podGroupName": group_name})
    );
    // Whoever else owned it would keep it when the job goes.
    assert_eq!(pod["metadata"]["ownerReferences"], json!([controller]));
}

#[test]
fn what_a_template_says_is_what_the_group_says() {
    let job = job("j", "u");
    let template = json!({"name": "t", "schedulingPolicy": {"basic": {}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "x"}]});
    let group = group_for(
        &owner(&job),
        &Workload::default(),
        &parsed(template.clone()),
    );
    let spec = serde_json::to_value(group.spec).unwrap();
    for field in [
        "schedulingPolicy",
        "schedulingConstraints",
        "resourceClaims",
    ] {
        assert_eq!(spec[field], template[field]);
    }
}

#[test]
fn only_what_is_the_jobs_alone_is_used() {
    let (job, mut former, mut of_user) = (job("j", "u"), job("j", "before"), None);
    let owner = owner(&job);
    let workload = |of: &Job, name: &str| {
        let mut workload = workload_for(of, &self::owner(of));
        workload.metadata.name = Some(name.to_owned());
        Arc::new(workload)
    };
    let mine = workload(&job, "mine");
    let names = |found: Found<Arc<Workload>>| match found {
        Found::Own(workload) => workload.metadata.name.clone().unwrap(),
        Found::Nothing => "nothing".to_owned(),
        Found::NotOurs => "not ours".to_owned(),
    };
    let found =
        |list: &[&Arc<Workload>]| names(own(list.iter().copied().cloned().collect(), &owner));
    assert_eq!(found(&[]), "nothing");
    assert_eq!(found(&[&mine]), "mine");
    assert_eq!(found(&[&mine, &workload(&job, "again")]), "not ours");
    let mut users = (*mine).clone();
    users.metadata.owner_references = of_user.take();
    let users = Arc::new(users);
    assert_eq!(found(&[&users]), "not ours");
    assert_eq!(found(&[&users, &mine]), "not ours");
    // A job of this name was deleted a moment ago.
    let old = workload(&former, "old");
    assert_eq!(found(&[&old]), "nothing");
    assert_eq!(found(&[&old, &mine]), "mine");
    former.metadata.name = Some("other".to_owned());
    assert_eq!(found(&[&workload(&former, "others")]), "not ours");
}

proptest! {
    #[test]
    fn names_are_names(
        job_name in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", long in "[a-z]([a-z0-9][-.]?){0,126}[a-z0-9]", uid in "[-a-f0-9]{1,36}",
    ) {
        let job = job(&job_name, &uid);
        let owner = owner(&job);
        let mut workload = workload_for(&job, &owner);
        let name = |meta: &ObjectMeta| meta.name.clone().unwrap();
        prop_assert_eq!(check_dns1123_subdomain(&name(&workload.metadata)), Vec::<String>::new());
        prop_assert_eq!(workload_for(&job, &owner), workload.clone(), "made twice it is one");
        let template = workload.spec.pod_group_templates[0].clone();
        prop_assert_eq!(check_short_name(&template.name), Vec::<String>::new());
        for of in [name(&workload.metadata), long] {
            workload.metadata.name = Some(of);
            let group = group_for(&owner, &workload, &template);
            prop_assert_eq!(check_dns1123_subdomain(&name(&group.metadata)), Vec::<String>::new());
        }
    }
}

/// A server that has one Workload, which nobody can make again.
fn server(stored: Workload) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = format!(
            "/apis/scheduling.k8s.io/v1alpha2/namespaces/n/workloads/{}",
            stored.metadata.name.as_deref().unwrap()
        );
        let fault = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
            (code, status)
        };
        let (code, answer) = match *request.method() {
            http::Method::POST => fault(409, "AlreadyExists"),
            _ if request.uri().path() == path => (200, serde_json::to_value(&stored).unwrap()),
            _ => fault(404, "NotFound"),
        };
        let body = Body::from(answer.to_string().into_bytes());
        let answer = http::Response::builder().status(code).body(body);
        async move { answer }
    });
    kube::Client::new(service, "n")
}

fn gangs(client: &kube::Client, tasks: &mut JoinSet<()>) -> Gangs {
    let (all, cancel) = (
        kube::runtime::watcher::Config::default,
        CancellationToken::new,
    );
    let api = || kube::Api::all(client.clone());
    Gangs {
        client: client.clone(),
        workloads: Informer::spawn_indexed(api(), all(), job_of, tasks, cancel()),
        groups: Informer::spawn_indexed(
            kube::Api::all(client.clone()),
            all(),
            workload_of,
            tasks,
            cancel(),
        ),
        events: EventRecorder::spawn(client.clone(), "job-controller", "", tasks, cancel()),
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_made_unseen_is_found() {
    let (job, former) = (job("j", "u"), job("j", "before"));
    let owner = owner(&job);
    let made = workload_for(&job, &owner);
    let mut tasks = JoinSet::new();
    let gangs_with = |stored: Workload, tasks: &mut JoinSet<()>| gangs(&server(stored), tasks);
    let here = gangs_with(made.clone(), &mut tasks);
    let found = here.make(&job, &owner, made.clone()).await.unwrap();
    assert_eq!(found.as_deref(), Some(&made));
    // The name is another's.
    let mut others = made.clone();
    others.metadata.owner_references = workload_for(&former, &self::owner(&former))
        .metadata
        .owner_references;
    let there = gangs_with(others, &mut tasks);
    assert_eq!(there.make(&job, &owner, made).await.unwrap(), None);
    // Nothing is listed there: the job waits, and not for ever.
    let fault = there.group(&job, &owner, &[]).await.unwrap_err();
    assert!(fault.to_string().starts_with("its gang is not known"));
}
