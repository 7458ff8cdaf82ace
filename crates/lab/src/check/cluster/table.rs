//! The checks, in the order of the benchmark.

use super::facts::Facts;
use super::flags::Breach::{Fails, Warns};
use super::flags::Program::{ApiServer, ControllerManager, Etcd, Scheduler};
use super::flags::{Breach, Program, Rule};
use super::kubelet::Rule as Kubelet;
use super::{ClusterCheck, Judge, Judged, accounts, kubelet, namespaces, pods, rbac, server};

const fn by(id: &'static str, expected: &'static str, judge: fn(&Facts) -> Judged) -> ClusterCheck {
    let judge = Judge::By(judge);
    ClusterCheck {
        id,
        expected,
        judge,
    }
}

const fn flag(
    id: &'static str,
    expected: &'static str,
    program: Program,
    rule: Rule,
    breach: Breach,
) -> ClusterCheck {
    let judge = Judge::Flag(program, rule, breach);
    ClusterCheck {
        id,
        expected,
        judge,
    }
}

const fn effect(
    id: &'static str,
    expected: &'static str,
    seen: fn(&Facts) -> Judged,
    rule: Rule,
    breach: Breach,
) -> ClusterCheck {
    let judge = Judge::Effect(seen, rule, breach);
    ClusterCheck {
        id,
        expected,
        judge,
    }
}

const fn agent(
    id: &'static str,
    expected: &'static str,
    rule: Kubelet,
    breach: Breach,
) -> ClusterCheck {
    let judge = Judge::Kubelet(rule, breach);
    ClusterCheck {
        id,
        expected,
        judge,
    }
}

/// Cipher suites that the benchmark takes for strong, under both names that programs give them.
const STRONG: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// The checks of clusters.
pub const CLUSTER_CHECKS: &[ClusterCheck] = &[
    effect(
        "1.2.1",
        "callers without credentials are refused",
        server::anonymous,
        Rule::Is("anonymous-auth", "false"),
        Warns,
    ),
    flag(
        "1.2.2",
        "no file of static tokens",
        ApiServer,
        Rule::NotGiven("token-auth-file"),
        Fails,
    ),
    effect(
        "1.2.3",
        "Services get no external addresses (DenyServiceExternalIPs)",
        server::external_addresses,
        Rule::Has("enable-admission-plugins", "DenyServiceExternalIPs"),
        Warns,
    ),
    flag(
        "1.2.4",
        "a client certificate for node agents",
        ApiServer,
        Rule::Given(&["kubelet-client-certificate", "kubelet-client-key"]),
        Fails,
    ),
    flag(
        "1.2.5",
        "certificates of node agents are verified",
        ApiServer,
        Rule::Given(&["kubelet-certificate-authority"]),
        Fails,
    ),
    effect(
        "1.2.6",
        "not everybody may do everything",
        server::not_always_allow,
        Rule::HasNot("authorization-mode", "AlwaysAllow"),
        Fails,
    ),
    effect(
        "1.2.7",
        "the Node authorizer decides what nodes may do",
        server::node_authorizer,
        Rule::Has("authorization-mode", "Node"),
        Fails,
    ),
    effect(
        "1.2.8",
        "roles decide (RBAC)",
        server::rbac,
        Rule::Has("authorization-mode", "RBAC"),
        Fails,
    ),
    flag(
        "1.2.9",
        "the admission plugin EventRateLimit",
        ApiServer,
        Rule::Has("enable-admission-plugins", "EventRateLimit"),
        Warns,
    ),
    flag(
        "1.2.10",
        "not the admission plugin AlwaysAdmit",
        ApiServer,
        Rule::HasNot("enable-admission-plugins", "AlwaysAdmit"),
        Fails,
    ),
    effect(
        "1.2.11",
        "images are always pulled (AlwaysPullImages)",
        server::always_pull,
        Rule::Has("enable-admission-plugins", "AlwaysPullImages"),
        Warns,
    ),
    effect(
        "1.2.12",
        "the admission plugin ServiceAccount",
        server::service_account,
        Rule::HasNot("disable-admission-plugins", "ServiceAccount"),
        Fails,
    ),
    effect(
        "1.2.13",
        "the admission plugin NamespaceLifecycle",
        server::namespace_lifecycle,
        Rule::HasNot("disable-admission-plugins", "NamespaceLifecycle"),
        Fails,
    ),
    effect(
        "1.2.14",
        "the admission plugin NodeRestriction",
        server::node_restriction,
        Rule::Has("enable-admission-plugins", "NodeRestriction"),
        Fails,
    ),
    effect(
        "1.2.15",
        "no profiling",
        server::profiling,
        Rule::Is("profiling", "false"),
        Fails,
    ),
    flag(
        "1.2.16",
        "an audit log",
        ApiServer,
        Rule::Given(&["audit-log-path"]),
        Fails,
    ),
    flag(
        "1.2.17",
        "audit logs are kept 30 days",
        ApiServer,
        Rule::AtLeast("audit-log-maxage", 30),
        Fails,
    ),
    flag(
        "1.2.18",
        "10 audit logs are kept",
        ApiServer,
        Rule::AtLeast("audit-log-maxbackup", 10),
        Fails,
    ),
    flag(
        "1.2.19",
        "audit logs have 100 MB",
        ApiServer,
        Rule::AtLeast("audit-log-maxsize", 100),
        Fails,
    ),
    flag(
        "1.2.20",
        "requests have a time limit",
        ApiServer,
        Rule::IsNot("request-timeout", "0"),
        Warns,
    ),
    flag(
        "1.2.21",
        "tokens of accounts that are gone are refused",
        ApiServer,
        Rule::IsOrNotGiven("service-account-lookup", "true"),
        Fails,
    ),
    flag(
        "1.2.22",
        "a key of its own for tokens of accounts",
        ApiServer,
        Rule::Given(&["service-account-key-file"]),
        Fails,
    ),
    flag(
        "1.2.23",
        "a client certificate for etcd",
        ApiServer,
        Rule::Given(&["etcd-certfile", "etcd-keyfile"]),
        Fails,
    ),
    effect(
        "1.2.24",
        "the API is served with TLS",
        server::tls,
        Rule::Given(&["tls-cert-file", "tls-private-key-file"]),
        Fails,
    ),
    flag(
        "1.2.25",
        "an authority of client certificates",
        ApiServer,
        Rule::Given(&["client-ca-file"]),
        Fails,
    ),
    flag(
        "1.2.26",
        "etcd's certificate is verified",
        ApiServer,
        Rule::Given(&["etcd-cafile"]),
        Fails,
    ),
    flag(
        "1.2.27",
        "values are encrypted at rest",
        ApiServer,
        Rule::Given(&["encryption-provider-config"]),
        Warns,
    ),
    flag(
        "1.2.29",
        "strong cipher suites only",
        ApiServer,
        Rule::Among("tls-cipher-suites", STRONG),
        Warns,
    ),
    flag(
        "1.2.30",
        "tokens of accounts are not extended",
        ApiServer,
        Rule::Is("service-account-extend-token-expiration", "false"),
        Fails,
    ),
    flag(
        "1.3.1",
        "pods that have ended are removed",
        ControllerManager,
        Rule::Given(&["terminated-pod-gc-threshold"]),
        Warns,
    ),
    flag(
        "1.3.2",
        "no profiling",
        ControllerManager,
        Rule::Is("profiling", "false"),
        Fails,
    ),
    flag(
        "1.3.3",
        "an account for each controller",
        ControllerManager,
        Rule::Is("use-service-account-credentials", "true"),
        Fails,
    ),
    flag(
        "1.3.4",
        "a key for tokens of accounts",
        ControllerManager,
        Rule::Given(&["service-account-private-key-file"]),
        Fails,
    ),
    flag(
        "1.3.5",
        "pods are given the authority of the API server",
        ControllerManager,
        Rule::Given(&["root-ca-file"]),
        Fails,
    ),
    flag(
        "1.3.6",
        "serving certificates of node agents are renewed",
        ControllerManager,
        Rule::HasNot("feature-gates", "RotateKubeletServerCertificate=false"),
        Fails,
    ),
    flag(
        "1.3.7",
        "it listens at 127.0.0.1",
        ControllerManager,
        Rule::IsOrNotGiven("bind-address", "127.0.0.1"),
        Fails,
    ),
    flag(
        "1.4.1",
        "no profiling",
        Scheduler,
        Rule::Is("profiling", "false"),
        Fails,
    ),
    flag(
        "1.4.2",
        "it listens at 127.0.0.1",
        Scheduler,
        Rule::IsOrNotGiven("bind-address", "127.0.0.1"),
        Fails,
    ),
    flag(
        "2.1",
        "etcd serves with TLS",
        Etcd,
        Rule::Given(&["cert-file", "key-file"]),
        Fails,
    ),
    flag(
        "2.2",
        "etcd asks for client certificates",
        Etcd,
        Rule::Is("client-cert-auth", "true"),
        Fails,
    ),
    flag(
        "2.3",
        "etcd makes no certificates for itself",
        Etcd,
        Rule::IsNot("auto-tls", "true"),
        Fails,
    ),
    flag(
        "2.4",
        "etcd's peers use TLS",
        Etcd,
        Rule::Given(&["peer-cert-file", "peer-key-file"]),
        Fails,
    ),
    flag(
        "2.5",
        "etcd's peers show certificates",
        Etcd,
        Rule::Is("peer-client-cert-auth", "true"),
        Fails,
    ),
    flag(
        "2.6",
        "etcd's peers make no certificates for themselves",
        Etcd,
        Rule::IsNot("peer-auto-tls", "true"),
        Fails,
    ),
    by(
        "4.2.1",
        "node agents refuse callers without credentials",
        kubelet::anonymous,
    ),
    by(
        "4.2.2",
        "node agents ask the API server who may do what",
        kubelet::authorization,
    ),
    agent(
        "4.2.3",
        "an authority of client certificates",
        Kubelet::Given("/authentication/x509/clientCAFile"),
        Fails,
    ),
    by("4.2.4", "no port without TLS", kubelet::open_port),
    agent(
        "4.2.5",
        "idle streams end",
        Kubelet::IsNot("/streamingConnectionIdleTimeout", "0s"),
        Warns,
    ),
    agent(
        "4.2.6",
        "node agents keep the chains of iptables",
        Kubelet::TrueOrNotGiven("/makeIPTablesUtilChains"),
        Fails,
    ),
    agent(
        "4.2.8",
        "events are not lost",
        Kubelet::NotBelow("/eventRecordQPS", 0),
        Warns,
    ),
    agent(
        "4.2.9",
        "serving certificates that others can verify",
        Kubelet::OwnCertificate,
        Warns,
    ),
    agent(
        "4.2.10",
        "client certificates are renewed",
        Kubelet::TrueOrNotGiven("/rotateCertificates"),
        Fails,
    ),
    agent(
        "4.2.11",
        "serving certificates are renewed",
        Kubelet::TrueOrNotGiven("/featureGates/RotateKubeletServerCertificate"),
        Warns,
    ),
    agent(
        "4.2.12",
        "strong cipher suites only",
        Kubelet::Among("/tlsCipherSuites", STRONG),
        Warns,
    ),
    agent(
        "4.2.13",
        "a limit of processes for each pod",
        Kubelet::Positive("/podPidsLimit"),
        Warns,
    ),
    agent(
        "4.2.14",
        "seccomp by default",
        Kubelet::True("/seccompDefault"),
        Warns,
    ),
    by(
        "5.1.1",
        "cluster-admin is held only where it is needed",
        rbac::cluster_admin,
    ),
    by("5.1.2", "few may read Secrets", rbac::secrets),
    by("5.1.3", "roles have no wildcards", rbac::wildcards),
    by("5.1.4", "few may create pods", rbac::create_pods),
    by(
        "5.1.5",
        "default accounts are not used",
        accounts::default_accounts,
    ),
    by(
        "5.1.6",
        "tokens are mounted only where they are needed",
        accounts::needless_tokens,
    ),
    by("5.1.7", "system:masters is not used", rbac::masters),
    by(
        "5.1.8",
        "few may bind, escalate or impersonate",
        rbac::escalation,
    ),
    by(
        "5.1.9",
        "few may create persistent volumes",
        rbac::persistent_volumes,
    ),
    by("5.1.10", "few may use nodes/proxy", rbac::node_proxy),
    by(
        "5.1.11",
        "few may approve certificate requests",
        rbac::approval,
    ),
    by(
        "5.1.12",
        "few may write webhook configurations",
        rbac::webhooks,
    ),
    by("5.1.13", "few may make tokens of accounts", rbac::tokens),
    by(
        "5.2.1",
        "something decides which pods are admitted",
        namespaces::policy_control,
    ),
    by("5.2.2", "no privileged containers", pods::privileged),
    by("5.2.3", "no host process namespace", pods::host_pid),
    by("5.2.4", "no host IPC namespace", pods::host_ipc),
    by("5.2.5", "no host network", pods::host_network),
    by("5.2.6", "no allowPrivilegeEscalation", pods::escalation),
    by("5.2.7", "no root in containers", pods::root),
    by("5.2.8", "no capability NET_RAW", pods::net_raw),
    by("5.2.9", "no capabilities added", pods::added_capabilities),
    by(
        "5.2.10",
        "no Windows HostProcess containers",
        pods::host_process,
    ),
    by("5.2.11", "no hostPath volumes", pods::host_path),
    by("5.2.12", "no host ports", pods::host_ports),
    by(
        "5.3.2",
        "every namespace has network policies",
        namespaces::network_policies,
    ),
    by(
        "5.4.1",
        "Secrets are files, not environment",
        pods::secrets_in_environment,
    ),
    by("5.6.1", "namespaces are boundaries", namespaces::boundaries),
    by("5.6.2", "pods name a seccomp profile", pods::seccomp),
    by("5.6.3", "pods have a securityContext", pods::contexts),
    by(
        "5.6.4",
        "the namespace default is not used",
        namespaces::default_namespace,
    ),
];
