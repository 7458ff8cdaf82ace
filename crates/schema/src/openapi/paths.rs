//! Paths and operations of resources.

use davit_api::kinds::{Field, FieldType, KindTable, ResourceRow, SubresourceRow};
use serde_json::{Map, Value, json};

use super::{Dialect, Gvk, definition_name, names};

const JSON_TYPES: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const PATCH_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Custom kinds have no strategic merge.
const CUSTOM_PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

/// One query parameter: name, type, what it does.
type Param<'a> = (&'a str, &'static str, &'static str);

const PRETTY: Param<'static> = ("pretty", "string", "If true, the answer is indented.");
const DRY_RUN: Param<'static> = ("dryRun", "string", "All: nothing is persisted.");
const MANAGER: Param<'static> = (
    "fieldManager",
    "string",
    "Name of the actor that makes the change.",
);
const VALIDATION: Param<'static> = (
    "fieldValidation",
    "string",
    "Ignore, Warn or Strict: what unknown fields lead to.",
);
const FORCE: Param<'static> = ("force", "boolean", "Take over fields that others own.");
const LIST: &[Param<'static>] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Whether the watch may send bookmarks.",
    ),
    ("continue", "string", "Token that continues a list."),
    ("fieldSelector", "string", "Fields the objects must have."),
    ("labelSelector", "string", "Labels the objects must have."),
    ("limit", "integer", "Most objects in one answer."),
    ("resourceVersion", "string", "State the answer is of."),
    (
        "resourceVersionMatch",
        "string",
        "How the state is matched.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Whether the watch starts with what there is.",
    ),
    ("timeoutSeconds", "integer", "When the call ends."),
    ("watch", "boolean", "Watch instead of list."),
];
/// What only watches ask for.
const WATCH: [&str; 2] = ["allowWatchBookmarks", "watch"];
/// What lists answer with besides [`JSON_TYPES`].
const STREAM_TYPES: [&str; 2] = [
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
/// Kinds whose deletion answers with the object.
const ANSWERED: [&str; 18] = [
    "csidrivers",
    "csinodes",
    "deviceclasses",
    "devicetaintrules",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourcepoolstatusrequests",
    "resourcequotas",
    "resourceslices",
    "serviceaccounts",
    "services",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
];
const DELETE: &[Param<'static>] = &[
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Time before the object is deleted.",
    ),
    ("orphanDependents", "boolean", "Whether dependents stay."),
    ("propagationPolicy", "string", "What happens to dependents."),
];

/// One operation, told apart from how a version of OpenAPI writes it.
struct Operation<'a> {
    method: &'static str,
    action: &'static str,
    id: String,
    gvk: Gvk,
    query: Vec<Param<'a>>,
    /// Definition of the body; empty: none.
    body: String,
    body_types: &'a [&'a str],
    /// Definition of the answer; empty: text.
    answer: String,
    created: bool,
    tag: String,
}

/// The paths of a resource and its subresources, each with its item.
pub(super) fn of_resource(
    table: &KindTable,
    row: &ResourceRow,
    dialect: Dialect,
) -> Vec<(String, Value)> {
    let writer = Writer {
        table,
        row,
        dialect,
        custom: None,
    };
    writer.paths()
}

/// The paths of a custom resource, whose kind and list have these definitions.
pub(super) fn of_custom(
    table: &KindTable,
    row: &ResourceRow,
    dialect: Dialect,
    names: &CustomNames,
) -> Vec<(String, Value)> {
    let writer = Writer {
        table,
        row,
        dialect,
        custom: Some(names),
    };
    writer.paths()
}

/// The definitions of a custom kind.
pub(super) struct CustomNames {
    pub(super) object: String,
    pub(super) list: String,
}

fn paths_of(writer: &Writer<'_>) -> Vec<(String, Value)> {
    let row = writer.row;
    let root = if row.group.is_empty() {
        format!("/api/{}", row.version)
    } else {
        format!("/apis/{}/{}", row.group, row.version)
    };
    let scope = if row.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let collection = format!("{root}{scope}/{}", row.plural);
    let object = format!("{collection}/{{name}}");

    let mut paths = Vec::new();
    if row.namespaced && row.has_verb("list") {
        let item = writer.item(&[], vec![writer.list_all()]);
        paths.push((format!("{root}/{}", row.plural), item));
    }
    let namespace: &[&str] = if row.namespaced { &["namespace"] } else { &[] };
    let mut named = vec!["name"];
    named.extend(namespace);
    paths.push((collection, writer.item(namespace, writer.collection())));
    paths.push((object.clone(), writer.item(&named, writer.object())));
    for sub in &row.subresources {
        let operations = writer.subresource(sub.name);
        paths.push((
            format!("{object}/{}", sub.name),
            writer.item(&named, operations),
        ));
        if sub.name == "proxy" {
            let mut tail = named.clone();
            tail.push("path");
            let mut operations = writer.subresource(sub.name);
            for operation in &mut operations {
                operation.id.push_str("WithPath");
            }
            let item = writer.item(&tail, operations);
            paths.push((format!("{object}/proxy/{{path}}"), item));
        }
    }
    paths.retain(|(_, item)| {
        item.as_object()
            .is_some_and(|i| i.len() > 1 || !i.contains_key("parameters"))
    });
    paths
}

struct Writer<'a> {
    table: &'a KindTable,
    row: &'a ResourceRow,
    dialect: Dialect,
    custom: Option<&'a CustomNames>,
}

impl<'a> Writer<'a> {
    fn paths(&self) -> Vec<(String, Value)> {
        paths_of(self)
    }

    fn definition(&self, group: &str, version: &str, kind: &str) -> String {
        if let Some(names) = self.custom
            && (group, version) == (self.row.group, self.row.version)
        {
            return if kind == self.row.kind {
                names.object.clone()
            } else {
                names.list.clone()
            };
        }
        self.table
            .kind_type(group, version, kind)
            .map(|id| definition_name(&self.table.types.get(id).name))
            .unwrap_or_default()
    }

    fn own(&self) -> String {
        if let Some(names) = self.custom {
            return names.object.clone();
        }
        definition_name(&self.table.types.get(self.row.type_id).name)
    }

    /// The id of an operation: `deleteCoreV1CollectionNamespacedPod` is made of the verb `delete` and of `Collection`,
    /// which comes after the version. Generated clients name their methods after it.
    fn id(&self, verb: &str, of: &str, namespaced: bool) -> String {
        let group = capital(&group_word(self.row.group));
        let version = capital(self.row.version);
        let scope = if namespaced { "Namespaced" } else { "" };
        format!("{verb}{group}{version}{of}{scope}{}", self.row.kind)
    }

    fn operation(&self, method: &'static str, action: &'static str, verb: &str) -> Operation<'a> {
        let row = self.row;
        Operation {
            method,
            action,
            id: self.id(verb, "", row.namespaced),
            gvk: Gvk::new(row.group, row.version, row.kind),
            query: vec![PRETTY],
            body: String::new(),
            body_types: &["*/*"],
            answer: self.own(),
            created: false,
            tag: format!("{}_{}", group_word(row.group), row.version),
        }
    }

    fn list_all(&self) -> Operation<'a> {
        let mut list = self.list();
        list.id = self.id("list", "", false);
        list.id.push_str("ForAllNamespaces");
        list
    }

    fn list(&self) -> Operation<'a> {
        let mut list = self.operation("get", "list", "list");
        let kind = format!("{}List", self.row.kind);
        list.query.extend(LIST);
        list.answer = self.definition(self.row.group, self.row.version, &kind);
        list
    }

    fn collection(&self) -> Vec<Operation<'a>> {
        let mut all = Vec::new();
        if self.row.has_verb("list") {
            all.push(self.list());
        }
        if self.row.has_verb("create") {
            let mut create = self.operation("post", "post", "create");
            create.query.extend([DRY_RUN, MANAGER, VALIDATION]);
            create.body = self.own();
            create.created = true;
            all.push(create);
        }
        if self.row.has_verb("deletecollection") {
            let mut delete = self.operation("delete", "deletecollection", "delete");
            delete.id = self.id("delete", "Collection", self.row.namespaced);
            let listed = LIST.iter().filter(|(name, _, _)| !WATCH.contains(name));
            delete.query.extend(listed);
            delete.query.extend(DELETE);
            delete.body = self.definition("meta.k8s.io", "v1", "DeleteOptions");
            delete.answer = self.definition("meta.k8s.io", "v1", "Status");
            all.push(delete);
        }
        all
    }

    fn object(&self) -> Vec<Operation<'a>> {
        let mut all = Vec::new();
        if self.row.has_verb("get") {
            all.push(self.operation("get", "get", "read"));
        }
        if self.row.has_verb("update") {
            all.push(self.put());
        }
        if self.row.has_verb("patch") {
            all.push(self.patch());
        }
        if self.row.has_verb("delete") {
            let mut delete = self.operation("delete", "delete", "delete");
            delete.query.extend(DELETE);
            delete.body = self.definition("meta.k8s.io", "v1", "DeleteOptions");
            if self.custom.is_some() || !ANSWERED.contains(&self.row.plural) {
                delete.answer = self.definition("meta.k8s.io", "v1", "Status");
            }
            all.push(delete);
        }
        all
    }

    fn put(&self) -> Operation<'a> {
        let mut put = self.operation("put", "put", "replace");
        put.query.extend([DRY_RUN, MANAGER, VALIDATION]);
        put.body = self.own();
        put
    }

    fn patch(&self) -> Operation<'a> {
        let mut patch = self.operation("patch", "patch", "patch");
        patch.query.extend([DRY_RUN, MANAGER, VALIDATION, FORCE]);
        patch.body = names::PATCH.to_owned();
        patch.body_types = if self.custom.is_some() {
            &CUSTOM_PATCH_TYPES
        } else {
            &PATCH_TYPES
        };
        patch
    }

    fn subresource(&self, name: &str) -> Vec<Operation<'a>> {
        let Some(sub) = self.row.subresource(name) else {
            return Vec::new();
        };
        let answer = self.definition(sub.group, sub.version, sub.kind);
        let mut all = Vec::new();
        for verb in &sub.verbs {
            let operations = match *verb {
                "get" => vec![self.operation("get", "get", "read")],
                "update" => vec![self.put()],
                "patch" => vec![self.patch()],
                "create" => {
                    let mut create = self.operation("post", "post", "create");
                    create.query.extend([DRY_RUN, MANAGER, VALIDATION]);
                    create.created = true;
                    vec![create]
                }
                "connect" => self.connect(name, sub),
                _ => Vec::new(),
            };
            for mut operation in operations {
                operation.id.push_str(&capital(name));
                operation.gvk = Gvk::new(sub.group, sub.version, sub.kind);
                if operation.action == "connect" {
                    all.push(operation);
                    continue;
                }
                operation.answer.clone_from(&answer);
                if operation.method == "post" || operation.method == "put" {
                    operation.body.clone_from(&answer);
                }
                if name == "log" {
                    operation.answer.clear();
                    let options = self.options("", "v1", "PodLogOptions");
                    operation.query.extend(options);
                }
                all.push(operation);
            }
        }
        all
    }

    fn connect(&self, name: &str, sub: &SubresourceRow) -> Vec<Operation<'a>> {
        let methods: &[&'static str] = if name == "proxy" {
            &["get", "post", "put", "patch", "delete", "head", "options"]
        } else {
            &["get", "post"]
        };
        let connect = |method: &&'static str| {
            let mut operation = self.operation(method, "connect", "connect");
            operation.id = self.id("connect", &capital(method), self.row.namespaced);
            operation.answer.clear();
            operation.query = self.options(sub.group, sub.version, sub.kind);
            operation
        };
        methods.iter().map(connect).collect()
    }

    /// The parameters of a connection: the fields of the kind of its options.
    fn options(&self, group: &str, version: &str, kind: &str) -> Vec<Param<'a>> {
        let types = &self.table.types;
        let kind = self.table.kind_type(group, version, kind);
        let fields = kind.into_iter().flat_map(|id| types.fields(id));
        let fields = fields.filter(|field| !["apiVersion", "kind"].contains(&field.name.as_str()));
        let of_type = |field: &'a Field| {
            let ty = match types.resolve_type(&field.ty) {
                FieldType::List(item) => types.resolve_type(item),
                ty => ty,
            };
            let ty = match ty {
                FieldType::Bool => "boolean",
                FieldType::Int32 | FieldType::Int64 => "integer",
                _ => "string",
            };
            (field.name.as_str(), ty, "What is asked for.")
        };
        fields.map(of_type).collect()
    }

    fn item(&self, path_params: &[&str], operations: Vec<Operation<'_>>) -> Value {
        let mut item = Map::new();
        for operation in operations {
            item.insert(operation.method.to_owned(), self.write(&operation));
        }
        let mut parameters: Vec<Value> = path_params
            .iter()
            .map(|name| match self.dialect {
                Dialect::V2 => {
                    json!({"name": name, "in": "path", "required": true, "type": "string",
                        "uniqueItems": true})
                }
                Dialect::V3 => {
                    json!({"name": name, "in": "path", "required": true,
                        "schema": {"type": "string", "uniqueItems": true}})
                }
            })
            .collect();
        parameters.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        if !parameters.is_empty() {
            item.insert("parameters".to_owned(), Value::from(parameters));
        }
        Value::Object(item)
    }

    fn write(&self, operation: &Operation<'_>) -> Value {
        let mut out = match self.dialect {
            Dialect::V2 => write_v2(operation),
            Dialect::V3 => write_v3(operation),
        };
        out["operationId"] = Value::from(operation.id.as_str());
        out["tags"] = json!([operation.tag]);
        out["x-kubernetes-action"] = Value::from(operation.action);
        out["x-kubernetes-group-version-kind"] = operation.gvk.to_json();
        out
    }
}

fn write_v2(operation: &Operation<'_>) -> Value {
    let mut parameters: Vec<Value> = operation
        .query
        .iter()
        .map(|(name, kind, text)| {
            json!({"name": name, "in": "query", "type": kind, "uniqueItems": true,
                "description": text})
        })
        .collect();
    if !operation.body.is_empty() {
        let reference = Dialect::V2.reference(&operation.body);
        let required = operation.method != "delete";
        let mut body = json!({"name": "body", "in": "body", "schema": {"$ref": reference}});
        if required {
            body["required"] = Value::from(true);
        }
        parameters.push(body);
    }
    let answer = if operation.answer.is_empty() {
        json!({"description": "OK", "schema": {"type": "string"}})
    } else {
        json!({"description": "OK", "schema": {"$ref": Dialect::V2.reference(&operation.answer)}})
    };
    json!({
        "consumes": operation.body_types,
        "produces": answer_types(operation),
        "schemes": ["https"],
        "parameters": parameters,
        "responses": responses(operation, &answer),
    })
}

fn write_v3(operation: &Operation<'_>) -> Value {
    let parameters: Vec<Value> = operation
        .query
        .iter()
        .map(|(name, kind, text)| {
            json!({"name": name, "in": "query", "description": text,
                "schema": {"type": kind, "uniqueItems": true}})
        })
        .collect();
    let content = |types: &[&str], schema: &Value| -> Value {
        types
            .iter()
            .map(|t| ((*t).to_owned(), json!({"schema": schema})))
            .collect()
    };
    let schema = match operation.answer.as_str() {
        "" => json!({"type": "string"}),
        answer => json!({"$ref": Dialect::V3.reference(answer)}),
    };
    let answer = content(&answer_types(operation), &schema);
    let mut out = json!({
        "parameters": parameters,
        "responses": responses(operation, &json!({"description": "OK", "content": answer})),
    });
    if !operation.body.is_empty() {
        let schema = json!({"$ref": Dialect::V3.reference(&operation.body)});
        let mut body = json!({"content": content(operation.body_types, &schema)});
        if operation.method != "delete" {
            body["required"] = Value::from(true);
        }
        out["requestBody"] = body;
    }
    out
}

/// In what an operation answers.
fn answer_types(operation: &Operation<'_>) -> Vec<&'static str> {
    match operation.action {
        "connect" => vec!["*/*"],
        "list" => [&JSON_TYPES[..], &STREAM_TYPES].concat(),
        "get" if operation.answer.is_empty() => [&["text/plain"][..], &JSON_TYPES].concat(),
        _ => JSON_TYPES.to_vec(),
    }
}

fn responses(operation: &Operation<'_>, answer: &Value) -> Value {
    let mut all = json!({"200": answer, "401": {"description": "Unauthorized"}});
    if operation.created || matches!(operation.action, "put" | "patch") {
        let mut created = answer.clone();
        created["description"] = Value::from("Created");
        all["201"] = created;
    }
    if operation.created || operation.action == "delete" {
        let mut accepted = answer.clone();
        accepted["description"] = Value::from("Accepted");
        all["202"] = accepted;
    }
    all
}

/// A group in ids and tags: `rbacAuthorization`, `stableExampleCom`.
fn group_word(group: &str) -> String {
    if group.is_empty() {
        return "core".to_owned();
    }
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let mut words = group.split(|c: char| !c.is_alphanumeric() && c != '_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |word, next| word + &capital(next))
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}
