//! FlowSchemas and PriorityLevelConfigurations as the server uses them.

use davit_access::{RequestInfo, UserInfo};
use davit_api::meta;
use serde_json::Value;

use super::levels::{LevelSpec, Limits, Response};

const ANY: &str = "*";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// How the flows of a schema are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    None,
    User,
    Namespace,
}

/// A FlowSchema.
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) precedence: i64,
    pub(crate) level: String,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug, Clone)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

#[derive(Debug, Clone)]
struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    cluster_scope: bool,
    namespaces: Vec<String>,
}

#[derive(Debug, Clone)]
struct PathRule {
    verbs: Vec<String>,
    urls: Vec<String>,
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|held| held == value || held == ANY)
}

impl Schema {
    /// Reads a stored FlowSchema.
    pub(crate) fn from_value(value: &Value) -> Self {
        let spec = &value["spec"];
        let distinguisher = match spec["distinguisherMethod"]["type"].as_str() {
            Some("ByUser") => Distinguisher::User,
            Some("ByNamespace") => Distinguisher::Namespace,
            _ => Distinguisher::None,
        };
        Self {
            name: meta::name(value).to_owned(),
            uid: meta::uid(value).to_owned(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            level: text(&spec["priorityLevelConfiguration"]["name"]),
            distinguisher,
            rules: each(&spec["rules"]).map(Rule::from_value).collect(),
        }
    }

    pub(crate) fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.matches(user, info))
    }

    /// What tells the request's flow from others of the schema.
    pub(crate) fn flow(&self, user: &UserInfo, info: &RequestInfo) -> String {
        match self.distinguisher {
            Distinguisher::None => String::new(),
            Distinguisher::User => user.name.clone(),
            Distinguisher::Namespace => info.namespace.clone().unwrap_or_default(),
        }
    }
}

impl Rule {
    fn from_value(value: &Value) -> Self {
        Self {
            subjects: each(&value["subjects"])
                .filter_map(Subject::from_value)
                .collect(),
            resources: each(&value["resourceRules"])
                .map(|rule| ResourceRule {
                    verbs: texts(&rule["verbs"]),
                    groups: texts(&rule["apiGroups"]),
                    resources: texts(&rule["resources"]),
                    cluster_scope: rule["clusterScope"].as_bool().unwrap_or(false),
                    namespaces: texts(&rule["namespaces"]),
                })
                .collect(),
            paths: each(&value["nonResourceRules"])
                .map(|rule| PathRule {
                    verbs: texts(&rule["verbs"]),
                    urls: texts(&rule["nonResourceURLs"]),
                })
                .collect(),
        }
    }

    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        self.subjects.iter().any(|subject| subject.matches(user))
            && if info.is_resource {
                self.resources.iter().any(|rule| rule.matches(info))
            } else {
                self.paths.iter().any(|rule| rule.matches(info))
            }
    }
}

impl Subject {
    fn from_value(value: &Value) -> Option<Self> {
        match value["kind"].as_str()? {
            "User" => Some(Self::User(text(&value["user"]["name"]))),
            "Group" => Some(Self::Group(text(&value["group"]["name"]))),
            "ServiceAccount" => Some(Self::ServiceAccount {
                namespace: text(&value["serviceAccount"]["namespace"]),
                name: text(&value["serviceAccount"]["name"]),
            }),
            _ => None,
        }
    }

    fn matches(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => name == ANY || *name == user.name,
            Self::Group(name) => name == ANY || user.in_group(name),
            Self::ServiceAccount { namespace, name } => user
                .name
                .strip_prefix(SERVICE_ACCOUNT)
                .and_then(|rest| rest.split_once(':'))
                .is_some_and(|(of, who)| of == namespace && (name == ANY || name == who)),
        }
    }
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let in_scope = match info.namespace.as_deref() {
            None | Some("") => self.cluster_scope,
            Some(namespace) => has(&self.namespaces, namespace),
        };
        in_scope
            && has(&self.verbs, &info.verb)
            && has(&self.groups, &info.group)
            && has(&self.resources, &info.full_resource())
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        has(&self.verbs, &info.verb)
            && self.urls.iter().any(|url| match url.strip_suffix('*') {
                Some(start) => info.path.starts_with(start),
                None => *url == info.path,
            })
    }
}

/// The levels of stored PriorityLevelConfigurations; seats are shares of `total`.
pub(crate) fn levels(values: &[Value], total: usize) -> Vec<LevelSpec> {
    let shares: Vec<u64> = values.iter().map(shares).collect();
    let sum: u64 = shares.iter().sum::<u64>().max(1);
    let seats = |share: u64| (share as f64 * total as f64 / sum as f64).ceil() as usize;
    values
        .iter()
        .zip(&shares)
        .map(|(value, share)| LevelSpec {
            name: meta::name(value).to_owned(),
            uid: meta::uid(value).to_owned(),
            limits: limits(value, seats(*share), total),
        })
        .collect()
}

fn is_limited(value: &Value) -> bool {
    value["spec"]["type"] == "Limited"
}

fn shares(value: &Value) -> u64 {
    if is_limited(value) {
        let shares = &value["spec"]["limited"]["nominalConcurrencyShares"];
        shares.as_u64().unwrap_or(30)
    } else {
        let shares = &value["spec"]["exempt"]["nominalConcurrencyShares"];
        shares.as_u64().unwrap_or(0)
    }
}

fn limits(value: &Value, nominal: usize, total: usize) -> Option<Limits> {
    if !is_limited(value) {
        return None;
    }
    let limited = &value["spec"]["limited"];
    let percent = |of: &Value| of.as_f64().map(|percent| nominal as f64 * percent / 100.0);
    let lendable = percent(&limited["lendablePercent"]).map_or(0, |seats| seats.round() as usize);
    let max = percent(&limited["borrowingLimitPercent"])
        .map_or(total.max(nominal), |seats| nominal + seats.round() as usize);
    let response = &limited["limitResponse"];
    let queuing = &response["queuing"];
    let number = |key: &str, default: u64| {
        let number = queuing[key].as_u64().filter(|number| *number > 0);
        usize::try_from(number.unwrap_or(default)).unwrap_or(usize::MAX)
    };
    Some(Limits {
        nominal,
        min: nominal.saturating_sub(lendable),
        max,
        response: if response["type"] == "Queue" {
            Response::Queue {
                queues: number("queues", 64),
                hand: number("handSize", 8),
                length: number("queueLengthLimit", 50),
            }
        } else {
            Response::Reject
        },
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use davit_access::query::Query;
    use davit_api::flowcontrol;

    fn info(method: &str, url: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse::<Method>().unwrap(), url, &Query::parse(""))
    }

    fn schema_of(user: &UserInfo, info: &RequestInfo) -> String {
        let mut schemas: Vec<Schema> = flowcontrol::schemas()
            .iter()
            .map(|(value, _)| Schema::from_value(value))
            .collect();
        schemas.sort_by_key(|schema| schema.precedence);
        let found = schemas.iter().find(|schema| schema.matches(user, info));
        found.map(|schema| schema.name.clone()).unwrap_or_default()
    }

    #[test]
    fn the_suggested_schemas_sort_requests() {
        let pods = info("GET", "/api/v1/namespaces/default/pods");
        let lease = info(
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l",
        );
        let node = UserInfo::new("system:node:n", &["system:nodes"]);
        let account = |name: &str, namespace: &str| {
            let groups = ["system:serviceaccounts"];
            UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), &groups)
        };
        let cases = [
            (UserInfo::system("admin"), &pods, "exempt"),
            (UserInfo::new("alice", &[]), &pods, "global-default"),
            (node.clone(), &pods, "system-nodes"),
            (
                node.clone(),
                &info("PATCH", "/api/v1/nodes/n/status"),
                "system-node-high",
            ),
            (node, &lease, "system-node-high"),
            (
                UserInfo::new("system:kube-scheduler", &[]),
                &lease,
                "system-leader-election",
            ),
            (
                UserInfo::new("system:kube-scheduler", &[]),
                &pods,
                "kube-scheduler",
            ),
            (
                account("job-controller", "kube-system"),
                &pods,
                "kube-system-service-accounts",
            ),
            (account("app", "default"), &pods, "service-accounts"),
            (UserInfo::anonymous(), &info("GET", "/healthz"), "probes"),
            (
                UserInfo::anonymous(),
                &info("GET", "/version"),
                "global-default",
            ),
        ];
        for (user, info, wanted) in cases {
            assert_eq!(
                schema_of(&user, info),
                wanted,
                "{} {}",
                user.name,
                info.path
            );
        }
    }

    #[test]
    fn seats_follow_shares() {
        let values: Vec<Value> = flowcontrol::levels().into_iter().map(|(v, _)| v).collect();
        let levels = levels(&values, 600);
        let limits = |name: &str| levels.iter().find(|l| l.name == name).unwrap().limits;
        assert!(limits("exempt").is_none());
        // 30, 40, 10, 40, 100, 20 and 5 shares are 245
        let system = limits("system").unwrap();
        assert_eq!((system.nominal, system.min, system.max), (74, 50, 600));
        assert_eq!(limits("catch-all").unwrap().nominal, 13);
        assert_eq!(limits("catch-all").unwrap().response, Response::Reject);
        let low = limits("workload-low").unwrap();
        assert_eq!((low.nominal, low.min), (245, 24));
    }
}
