//! Who makes a request.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::tokens::subject;

/// The group every authenticated user is in.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of callers without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of callers without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group whose members may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of nodes.
pub const NODES: &str = "system:nodes";
/// The group of service accounts.
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// With what the names of nodes as users begin.
pub const NODE_PREFIX: &str = "system:node:";
/// Whom nodes see when an API server forwards to them.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// An authenticated (or anonymous) caller, as `authentication.k8s.io` `UserInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// Identifies the user over time; empty when unknown.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Anything else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// An authenticated user in the given groups (`system:authenticated` is added).
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut user = Self {
            name: name.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Self::default()
        };
        user.add_group(AUTHENTICATED);
        user
    }

    /// The caller without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The user that a service account is.
    pub fn service_account(namespace: &str, account: &str) -> Self {
        let of_namespace = format!("{SERVICE_ACCOUNTS}:{namespace}");
        let name = subject(namespace, account);
        Self::new(name, &[SERVICE_ACCOUNTS, &of_namespace])
    }

    /// A user who may do everything: what components in the same process use for set-up work.
    pub fn system(name: &str) -> Self {
        Self::new(name, &[MASTERS])
    }

    /// Whether this is the caller without credentials.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Whether the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|held| held == group)
    }

    /// Adds a group unless the user is in it.
    pub fn add_group(&mut self, group: &str) {
        if !self.in_group(group) {
            self.groups.push(group.to_owned());
        }
    }

    /// The JSON form (`username`, `uid`, `groups`, `extra`; empty ones left out).
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("username".into(), json!(self.name));
        if !self.uid.is_empty() {
            map.insert("uid".into(), json!(self.uid));
        }
        if !self.groups.is_empty() {
            map.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            map.insert("extra".into(), json!(self.extra));
        }
        Value::Object(map)
    }
}
