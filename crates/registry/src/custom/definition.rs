//! A definition as the server works with it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use davit_api::kinds::{ResourceRow, SubresourceRow, TypeId, compare_versions, intern};
use davit_schema::apply::Schema;
use davit_schema::structural::{SimplePath, Structural};
use davit_strategy::KindInfo;
use davit_validationrules::Rules;
use serde_json::Value;

use super::columns::Columns;
use super::strategy::CustomStrategy;

/// In the order of the original.
const ALL_VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
/// What discovery tells of a definition that is being deleted.
pub(crate) const TERMINATING_VERBS: [&str; 5] =
    ["delete", "deletecollection", "get", "list", "watch"];

/// How objects change between versions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Conversion {
    /// apiVersion is rewritten.
    None,
    /// A webhook is asked.
    Webhook {
        /// `clientConfig`.
        client: Value,
        /// `conversionReviewVersions`.
        review_versions: Vec<String>,
    },
}

/// What all versions of a definition share.
#[derive(Debug)]
pub struct Definition {
    /// The definition's name, `plural.group`.
    pub name: String,
    /// The kind of its lists.
    pub list_kind: &'static str,
    /// The version that objects are stored in.
    pub(crate) storage_version: &'static str,
    pub(crate) conversion: Conversion,
    /// The definition is being deleted: nothing new comes.
    pub terminating: bool,
    /// The definition as JSON, shared with the store: schemas are read from it when they are first
    /// needed, so that kinds nobody uses cost next to nothing.
    json: Bytes,
}

/// Paths of the scale subresource.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Where an object says how many replicas are wanted.
    pub spec_replicas: SimplePath,
    /// Where it says how many there are.
    pub status_replicas: SimplePath,
    /// Where it says by which labels its pods are found, if it does.
    pub label_selector: Option<SimplePath>,
}

/// One version of a custom kind.
#[derive(Debug)]
pub struct CustomVersion {
    /// What all its versions share.
    pub definition: Arc<Definition>,
    /// `v1`.
    pub version: &'static str,
    /// `group/v1`.
    pub api_version: String,
    /// The kind of its objects.
    pub kind: &'static str,
    /// How it is scaled, if it is.
    pub scale: Option<Scale>,
    /// The columns of its tables.
    pub columns: Columns,
    /// Labels of selectable fields (`spec.color`) and where they are.
    pub selectable: Vec<(&'static str, SimplePath)>,
    /// What users of a deprecated version are told.
    pub deprecation: Option<String>,
    index: usize,
    schema: OnceLock<Structural>,
    rules: OnceLock<Rules>,
}

/// A version with the row it is served as.
pub struct Served {
    /// The names, verbs and subresources it is served under.
    pub row: ResourceRow,
    /// The version.
    pub version: Arc<CustomVersion>,
    /// Its rules.
    pub strategy: Arc<CustomStrategy>,
}

/// The versions of a definition: those that are served, and the one objects are stored in, be it
/// served or not.
pub struct Versions {
    /// Those that are served.
    pub served: Vec<Served>,
    /// The one objects are stored in.
    pub storage: Served,
}

impl Definition {
    /// Reads a definition. `accepted` are the names it got.
    ///
    /// None when it has no storage version, which validation does not let pass.
    pub fn versions(object: &Value, json: Bytes, accepted: &Value) -> Option<Versions> {
        let spec = &object["spec"];
        let text = |value: &Value| intern(value.as_str().unwrap_or_default());
        let list = spec["versions"].as_array()?;
        let storage = list.iter().position(|version| version["storage"] == true)?;
        let webhook = &spec["conversion"]["webhook"];
        let conversion = if spec["conversion"]["strategy"] == "Webhook" {
            let versions = webhook["conversionReviewVersions"].as_array();
            Conversion::Webhook {
                client: webhook["clientConfig"].clone(),
                review_versions: versions
                    .into_iter()
                    .flatten()
                    .filter_map(|version| version.as_str().map(str::to_owned))
                    .collect(),
            }
        } else {
            Conversion::None
        };
        let definition = Arc::new(Self {
            name: crate::object::name(object).to_owned(),
            list_kind: text(&accepted["listKind"]),
            storage_version: text(&list[storage]["name"]),
            conversion,
            terminating: crate::object::is_deleting(object),
            json,
        });
        let names = Names {
            group: text(&spec["group"]),
            namespaced: spec["scope"] == "Namespaced",
            accepted,
            current: list
                .iter()
                .filter(|version| version["served"] == true && version["deprecated"] != true)
                .filter_map(|version| version["name"].as_str())
                .collect(),
        };
        let served = list
            .iter()
            .enumerate()
            .filter(|(_, version)| version["served"] == true)
            .map(|(index, version)| served(&definition, &names, version, index))
            .collect();
        Some(Versions {
            served,
            storage: served_storage(&definition, &names, &list[storage], storage),
        })
    }

    fn schema(&self, index: usize) -> Option<Value> {
        let mut object: Value = serde_json::from_slice(&self.json).ok()?;
        object
            .pointer_mut(&format!("/spec/versions/{index}/schema/openAPIV3Schema"))
            .map(Value::take)
    }
}

struct Names<'a> {
    group: &'static str,
    namespaced: bool,
    accepted: &'a Value,
    /// The served versions that are not deprecated.
    current: Vec<&'a str>,
}

fn served_storage(
    definition: &Arc<Definition>,
    names: &Names<'_>,
    version: &Value,
    index: usize,
) -> Served {
    served(definition, names, version, index)
}

fn served(definition: &Arc<Definition>, names: &Names<'_>, object: &Value, index: usize) -> Served {
    let text = |value: &Value| intern(value.as_str().unwrap_or_default());
    let words = |value: &Value| -> Vec<&'static str> {
        value.as_array().into_iter().flatten().map(text).collect()
    };
    let accepted = names.accepted;
    let (version, kind) = (text(&object["name"]), text(&accepted["kind"]));
    let subresources = &object["subresources"];
    let has_status = subresources.get("status").is_some_and(Value::is_object);
    let scale = scale(&subresources["scale"]);
    let api_version = davit_api::kinds::api_version(names.group, version);
    let deprecation = (object["deprecated"] == true).then(|| {
        object["deprecationWarning"]
            .as_str()
            .map_or_else(|| deprecation_warning(names, version, kind), str::to_owned)
    });
    let custom = Arc::new(CustomVersion {
        definition: Arc::clone(definition),
        version,
        api_version,
        kind,
        columns: Columns::new(&object["additionalPrinterColumns"]),
        selectable: selectable(&object["selectableFields"]),
        deprecation,
        index,
        schema: OnceLock::new(),
        rules: OnceLock::new(),
        scale,
    });
    let mut info = KindInfo::custom(names.group, version, kind, names.namespaced, has_status);
    info.has_status = has_status;
    let row = ResourceRow {
        group: names.group,
        version,
        plural: text(&accepted["plural"]),
        singular: accepted["singular"].as_str().unwrap_or_default().to_owned(),
        kind,
        namespaced: names.namespaced,
        verbs: ALL_VERBS.to_vec(),
        short_names: words(&accepted["shortNames"]),
        categories: words(&accepted["categories"]),
        subresources: subresource_rows(&custom, names.group, has_status),
        type_id: TypeId(0),
        introduced: None,
        deprecated: None,
        removed: None,
        replacement: None,
    };
    Served {
        row,
        strategy: Arc::new(CustomStrategy::new(info, Arc::clone(&custom))),
        version: custom,
    }
}

fn subresource_rows(
    custom: &CustomVersion,
    group: &'static str,
    has_status: bool,
) -> Vec<SubresourceRow> {
    let verbs = vec!["get", "patch", "update"];
    let mut rows = Vec::new();
    if has_status {
        rows.push(SubresourceRow {
            name: "status",
            group,
            version: custom.version,
            kind: custom.kind,
            verbs: verbs.clone(),
        });
    }
    if custom.scale.is_some() {
        rows.push(SubresourceRow {
            name: "scale",
            group: "autoscaling",
            version: "v1",
            kind: "Scale",
            verbs,
        });
    }
    rows
}

/// What users of a deprecated version are told when the definition does not say it: the newest version to use instead.
fn deprecation_warning(names: &Names<'_>, version: &str, kind: &str) -> String {
    let group = names.group;
    let newer = names.current.iter().copied();
    let newer = newer.filter(|other| compare_versions(version, other).is_lt());
    let instead = newer.max_by(|a, b| compare_versions(a, b));
    let instead = instead.map_or(String::new(), |newer| {
        format!("; use {group}/{newer} {kind}")
    });
    format!("{group}/{version} {kind} is deprecated{instead}")
}

fn scale(value: &Value) -> Option<Scale> {
    let path = |key: &str| value[key].as_str().and_then(SimplePath::dotted);
    Some(Scale {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        label_selector: path("labelSelectorPath"),
    })
}

fn selectable(list: &Value) -> Vec<(&'static str, SimplePath)> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|field| {
            let path = field["jsonPath"].as_str()?;
            Some((
                intern(path.trim_start_matches('.')),
                SimplePath::parse(path)?,
            ))
        })
        .collect()
}

impl CustomVersion {
    /// The schema; read when first asked for.
    pub fn schema(&self) -> &Structural {
        self.schema.get_or_init(|| {
            let schema = self.definition.schema(self.index);
            let parsed = schema.as_ref().map(Structural::parse);
            match parsed {
                Some(Ok(schema)) => schema,
                Some(Err(error)) => {
                    // validation does not let such a schema pass
                    let name = &self.definition.name;
                    tracing::error!(%name, %error, "reading the schema of a custom kind");
                    Structural::open()
                }
                None => Structural::open(),
            }
        })
    }

    /// The schema as it was written, for documents.
    pub fn raw_schema(&self) -> Option<Value> {
        self.definition.schema(self.index)
    }

    /// The rules of the schema, compiled when first asked for.
    pub(crate) fn rules(&self) -> &Rules {
        self.rules
            .get_or_init(|| Rules::new(self.schema(), self.raw_schema()))
    }

    /// The schema for server-side apply.
    pub fn apply_schema(&self) -> Schema<'_> {
        let (types, root) = self.schema().types();
        Schema::new(types, root)
    }

    /// Whether objects are stored in this version.
    pub(crate) fn is_storage(&self) -> bool {
        self.version == self.definition.storage_version
    }
}
