//! Of which kinds the objects are.

use davit_api::kinds::{TypeId, builtin, split_api_version};
use serde_json::Value;

/// The namespace of all objects but those that limit others.
pub(crate) const NAMESPACE: &str = "differential";
/// That of the others.
pub(crate) const LIMITS: &str = "differential-limits";

/// Of what kind an object is and where it is posted to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) sample: Value,
    /// `pods.v1`, `deployments.v1.apps`
    pub(crate) label: String,
    pub(crate) collection: String,
    pub(crate) ty: Option<TypeId>,
    pub(crate) subresources: Vec<&'static str>,
    /// Other versions of the collection.
    pub(crate) versions: Vec<String>,
    /// Whether it is only asked, not kept.
    pub(crate) is_review: bool,
}

impl Target {
    /// The target of an object of a built-in kind; none for one that kube-apiserver does not have.
    pub(crate) fn built_in(sample: Value) -> Option<Self> {
        let api_version = sample["apiVersion"].as_str().unwrap();
        let (group, version) = split_api_version(api_version);
        let row = builtin().resource_of_kind(group, version, sample["kind"].as_str().unwrap());
        let row = row.unwrap_or_else(|| panic!("no kind of {sample}"));
        if row.is_classic_dra() {
            return None;
        }
        let namespace = match row.kind {
            _ if !row.namespaced => String::new(),
            "LimitRange" | "ResourceQuota" => format!("/namespaces/{LIMITS}"),
            _ => format!("/namespaces/{NAMESPACE}"),
        };
        let place = |api_version: &str| {
            let root = if group.is_empty() { "/api" } else { "/apis" };
            format!("{root}/{api_version}{namespace}/{}", row.plural)
        };
        let rows = builtin().resources.iter();
        let others =
            rows.filter(|r| r.group == group && r.plural == row.plural && !r.is_classic_dra());
        let subresources = row.subresources.iter().map(|s| s.name);
        Some(Self {
            label: format!("{}.{version}.{group}", row.plural)
                .trim_end_matches('.')
                .to_owned(),
            collection: place(api_version),
            ty: Some(row.type_id),
            subresources: subresources
                .filter(|s| ["status", "scale"].contains(s))
                .collect(),
            versions: others.map(|r| place(&r.api_version())).collect(),
            is_review: false,
            sample,
        })
    }

    /// That of an object of the custom kind.
    pub(crate) fn custom(sample: Value) -> Self {
        let collection =
            format!("/apis/differential.example.com/v1/namespaces/{NAMESPACE}/gadgets");
        Self {
            label: "gadgets".to_owned(),
            versions: vec![collection.clone()],
            collection,
            ty: None,
            subresources: vec!["status", "scale"],
            is_review: false,
            sample,
        }
    }

    /// That of an object that is only asked, whose `at` says where.
    pub(crate) fn review(mut sample: Value) -> Self {
        let at = sample.as_object_mut().unwrap().remove("at").unwrap();
        let (group, version) = split_api_version(sample["apiVersion"].as_str().unwrap());
        let kind = sample["kind"].as_str().unwrap();
        Self {
            label: kind.to_owned(),
            collection: at.as_str().unwrap().to_owned(),
            ty: builtin().kind_type(group, version, kind),
            subresources: Vec::new(),
            versions: Vec::new(),
            is_review: true,
            sample,
        }
    }
}
