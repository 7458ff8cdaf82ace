use super::*;

#[test]
fn texts_become_rules() {
    let parsed = rule("read,delete -,apps pods,pods/log a");
    assert_eq!(parsed.verbs, ["get", "list", "watch", "delete"]);
    assert_eq!(parsed.groups, ["", "apps"]);
    assert_eq!(parsed.resources, ["pods", "pods/log"]);
    assert_eq!(parsed.names, ["a"]);
    assert_eq!(rule("get /version").urls, ["/version"]);
    assert_eq!(rule("events").resources, ["events"]);
}

#[test]
fn item_190_everything_is_labelled_and_named_once() {
    let all = [
        cluster_roles(&Features::default()),
        cluster_role_bindings(&Features::default()),
        roles(),
        role_bindings(),
    ];
    for objects in &all {
        let mut names = std::collections::HashSet::new();
        for object in objects {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"][LABEL], "rbac-defaults");
            assert_eq!(metadata["annotations"][AUTOUPDATE], "true");
            let name = (
                metadata["namespace"].as_str(),
                metadata["name"].as_str().unwrap(),
            );
            assert!(names.insert(name), "{name:?}");
        }
    }
    let known: Vec<String> = all[0]
        .iter()
        .map(|role| role["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    for binding in &all[1] {
        let role = binding["roleRef"]["name"].as_str().unwrap();
        assert!(known.iter().any(|known| known == role), "{role}");
    }
}
/// The cluster roles of Kubernetes 1.36 with its default gates and that of metrics-server, and how many rules each has.
const TABLE: &str = "\
admin 0
cluster-admin 2
edit 0
system:aggregated-metrics-reader 1
system:aggregate-to-admin 2
system:aggregate-to-edit 14
system:aggregate-to-view 11
system:auth-delegator 2
system:basic-user 2
system:certificates.k8s.io:certificatesigningrequests:nodeclient 1
system:certificates.k8s.io:certificatesigningrequests:selfnodeclient 1
system:certificates.k8s.io:kube-apiserver-client-approver 1
system:certificates.k8s.io:kube-apiserver-client-kubelet-approver 1
system:certificates.k8s.io:kubelet-serving-approver 1
system:certificates.k8s.io:legacy-unknown-approver 1
system:cluster-trust-bundle-discovery 1
system:controller:attachdetach-controller 8
system:controller:certificate-controller 6
system:controller:clusterrole-aggregation-controller 1
system:controller:cronjob-controller 6
system:controller:daemon-set-controller 8
system:controller:deployment-controller 6
system:controller:device-taint-eviction-controller 8
system:controller:disruption-controller 9
system:controller:endpoint-controller 4
system:controller:endpointslice-controller 4
system:controller:endpointslicemirroring-controller 5
system:controller:ephemeral-volume-controller 4
system:controller:expand-controller 5
system:controller:generic-garbage-collector 2
system:controller:horizontal-pod-autoscaler 8
system:controller:job-controller 5
system:controller:kube-apiserver-serving-clustertrustbundle-publisher 3
system:controller:legacy-service-account-token-cleaner 2
system:controller:namespace-controller 3
system:controller:node-controller 5
system:controller:persistent-volume-binder 10
system:controller:pod-garbage-collector 3
system:controller:podcertificaterequestcleaner 1
system:controller:pv-protection-controller 2
system:controller:pvc-protection-controller 3
system:controller:replicaset-controller 5
system:controller:replication-controller 5
system:controller:resource-claim-controller 7
system:controller:resourcequota-controller 3
system:controller:root-ca-cert-publisher 2
system:controller:route-controller 3
system:controller:selinux-warning-controller 5
system:controller:service-account-controller 2
system:controller:service-cidrs-controller 5
system:controller:service-controller 4
system:controller:statefulset-controller 10
system:controller:ttl-after-finished-controller 2
system:controller:ttl-controller 2
system:controller:validatingadmissionpolicy-status-controller 3
system:controller:volumeattributesclass-protection-controller 4
system:discovery 1
system:heapster 2
system:kube-aggregator 1
system:kube-controller-manager 11
system:kube-dns 2
system:kube-scheduler 28
system:kubelet-api-admin 3
system:monitoring 1
system:node 26
system:node-bootstrapper 1
system:node-problem-detector 3
system:node-proxier 5
system:persistent-volume-provisioner 5
system:public-info-viewer 1
system:service-account-issuer-discovery 1
system:volume-scheduler 3
view 0";

#[test]
fn item_190_the_cluster_roles_are_those_of_the_table() {
    let mut wanted: Vec<(String, usize)> = TABLE
        .lines()
        .filter_map(|line| line.trim().rsplit_once(' '))
        .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
        .collect();
    let mut held: Vec<(String, usize)> = cluster_roles(&Features::default())
        .iter()
        .map(|role| {
            let name = role["metadata"]["name"].as_str().unwrap().to_owned();
            (name, role["rules"].as_array().map_or(0, Vec::len))
        })
        .filter(|(name, _)| !name.starts_with("davit:"))
        .collect();
    wanted.sort();
    held.sort();
    assert_eq!(held, wanted);
    // each controller's role is bound to the service account of its name
    for binding in cluster_role_bindings(&Features::default()) {
        let role = binding["roleRef"]["name"].as_str().unwrap();
        if let Some(account) = role.strip_prefix(CONTROLLER) {
            assert_eq!(binding["subjects"][0]["name"], account);
            assert_eq!(binding["subjects"][0]["namespace"], "kube-system");
        }
    }
}

#[test]
fn gates_bring_rules_of_their_own() {
    let rules_of = |gates: &str, name: &str| {
        let roles = cluster_roles(&gates.parse().unwrap());
        let mut roles = roles.into_iter();
        let role = roles.find(|role| role["metadata"]["name"] == name).unwrap();
        role["rules"].as_array().unwrap().clone()
    };
    let jobs = "system:controller:job-controller";
    let with = rules_of("GenericWorkload=true,WorkloadWithJob=true", jobs);
    assert_eq!(with.len(), rules_of("GenericWorkload=true", jobs).len() + 1);
    assert_eq!(
        with.last().unwrap(),
        &json!({"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups", "workloads"],
            "verbs": ["get", "list", "watch", "create"]})
    );
}
