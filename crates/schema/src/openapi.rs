//! OpenAPI documents of a kinds table: version 3 for each group and version, version 2 for all of
//! them together, the latter also as the protobuf message clients ask for.
//!
//! Definitions carry upstream's names (`io.k8s.api.core.v1.Pod`) and the extensions clients rely
//! on: group, version and kind; patch strategy and merge key; list and map types. Documents are
//! written piece by piece into one buffer, so that building one needs little more memory than the
//! document itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use davit_api::kinds::{KindTable, TypeId};
use serde_json::{Value, json};

mod custom;
mod definitions;
mod descriptions;
mod foreign;
mod gnostic;
mod names;
mod paths;

pub use custom::CustomDocument;
pub use foreign::Foreign;
pub use names::definition_name;

use definitions::Definitions;
use foreign::Known;

/// Which OpenAPI version a piece is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, definition: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{definition}"),
            Dialect::V3 => format!("#/components/schemas/{definition}"),
        }
    }
}

/// Paths of the version 3 documents, one for each group and version served: `api/v1`,
/// `apis/apps/v1`.
pub fn v3_paths(table: &KindTable) -> Vec<String> {
    let groups: BTreeSet<(&str, &str)> = table
        .resources
        .iter()
        .map(|r| (r.group, r.version))
        .collect();
    groups
        .into_iter()
        .map(|(group, version)| path_of(group, version))
        .collect()
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// The version 3 document of a group and version as JSON; `None` when nothing of it is served.
///
/// `server_version` is what `/version` calls gitVersion.
pub fn v3_json(
    table: &KindTable,
    group: &str,
    version: &str,
    server_version: &str,
) -> Option<Vec<u8>> {
    let rows: Vec<_> = table
        .resources
        .iter()
        .filter(|r| r.group == group && r.version == version)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let definitions = Definitions::new(table, Dialect::V3);
    let reachable = definitions.reachable(roots(table, Some((group, version))));
    let mut doc = Pieces::new();
    doc.member("openapi", &json!("3.0.0"));
    doc.member("info", &info(server_version));
    doc.open("paths");
    for row in rows {
        for (path, item) in paths::of_resource(table, row, Dialect::V3) {
            doc.member(&path, &item);
        }
    }
    doc.close();
    doc.open("components");
    doc.open("schemas");
    for (name, schema) in definitions.all(&reachable) {
        doc.member(&name, &schema);
    }
    doc.close();
    doc.member("securitySchemes", &security());
    doc.close();
    Some(doc.finish())
}

/// The version 3 document of a group and version of custom kinds as JSON.
pub fn v3_custom_json(
    table: &KindTable,
    custom: &[CustomDocument<'_>],
    server_version: &str,
) -> Vec<u8> {
    let definitions = Definitions::new(table, Dialect::V3);
    let reachable = definitions.reachable(custom::roots(table));
    let mut doc = Pieces::new();
    doc.member("openapi", &json!("3.0.0"));
    doc.member("info", &info(server_version));
    doc.open("paths");
    for kind in custom {
        for (path, item) in kind.paths(table, Dialect::V3) {
            doc.member(&path, &item);
        }
    }
    doc.close();
    doc.open("components");
    doc.open("schemas");
    for kind in custom {
        for (name, schema) in kind.definitions(Dialect::V3) {
            doc.member(&name, &schema);
        }
    }
    for (name, schema) in definitions.all(&reachable) {
        doc.member(&name, &schema);
    }
    doc.close();
    doc.member("securitySchemes", &security());
    doc.close();
    doc.finish()
}

/// What other servers serve, named so that nothing of this server's document is overwritten.
fn adopted(
    definitions: &Definitions<'_>,
    reachable: &BTreeMap<TypeId, Vec<Gvk>>,
    custom: &[CustomDocument<'_>],
    foreign: &[Arc<Foreign>],
) -> Vec<Foreign> {
    if foreign.is_empty() {
        return Vec::new();
    }
    let mut known = Known::default();
    for (name, schema) in definitions.all(reachable) {
        known.add(&name, &schema);
    }
    for kind in custom {
        for (name, schema) in kind.definitions(Dialect::V2) {
            known.add(&name, &schema);
        }
    }
    foreign.iter().map(|one| known.adopt(one)).collect()
}

/// The version 2 document of everything served, as JSON; what other servers serve is added to it.
pub fn v2_json(
    table: &KindTable,
    custom: &[CustomDocument<'_>],
    foreign: &[Arc<Foreign>],
    server_version: &str,
) -> Vec<u8> {
    let definitions = Definitions::new(table, Dialect::V2);
    let reachable = definitions.reachable(roots(table, None));
    let foreign = adopted(&definitions, &reachable, custom, foreign);
    let mut doc = Pieces::new();
    doc.member("swagger", &json!("2.0"));
    doc.member("info", &info(server_version));
    doc.open("paths");
    for row in &table.resources {
        for (path, item) in paths::of_resource(table, row, Dialect::V2) {
            doc.member(&path, &item);
        }
    }
    for kind in custom {
        for (path, item) in kind.paths(table, Dialect::V2) {
            doc.member(&path, &item);
        }
    }
    for (path, item) in foreign.iter().flat_map(Foreign::paths) {
        doc.member(path, item);
    }
    doc.close();
    doc.open("definitions");
    for (name, schema) in definitions.all(&reachable) {
        doc.member(&name, &schema);
    }
    for kind in custom {
        for (name, schema) in kind.definitions(Dialect::V2) {
            doc.member(&name, &schema);
        }
    }
    for (name, schema) in foreign.iter().flat_map(Foreign::definitions) {
        doc.member(name, schema);
    }
    doc.close();
    doc.member("securityDefinitions", &security());
    doc.member("security", &json!([{"BearerToken": []}]));
    doc.finish()
}

/// The version 2 document as the message `openapi.v2.Document` of gnostic, the form
/// `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`.
pub fn v2_protobuf(
    table: &KindTable,
    custom: &[CustomDocument<'_>],
    foreign: &[Arc<Foreign>],
    server_version: &str,
) -> Vec<u8> {
    let definitions = Definitions::new(table, Dialect::V2);
    let reachable = definitions.reachable(roots(table, None));
    let foreign = adopted(&definitions, &reachable, custom, foreign);
    let mut doc = gnostic::Document::new(&info(server_version));
    let mut paths = gnostic::Paths::default();
    for row in &table.resources {
        for (path, item) in paths::of_resource(table, row, Dialect::V2) {
            paths.add(&path, &item);
        }
    }
    for kind in custom {
        for (path, item) in kind.paths(table, Dialect::V2) {
            paths.add(&path, &item);
        }
    }
    for (path, item) in foreign.iter().flat_map(Foreign::paths) {
        paths.add(path, item);
    }
    doc.paths(&paths);
    let mut schemas = gnostic::Definitions::default();
    for (name, schema) in definitions.all(&reachable) {
        schemas.add(&name, &schema);
    }
    for kind in custom {
        for (name, schema) in kind.definitions(Dialect::V2) {
            schemas.add(&name, &schema);
        }
    }
    for (name, schema) in foreign.iter().flat_map(Foreign::definitions) {
        schemas.add(name, schema);
    }
    doc.definitions(&schemas);
    doc.finish()
}

fn info(server_version: &str) -> Value {
    json!({"title": "Kubernetes", "version": server_version})
}

fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header",
        "description": "Bearer token",
    }})
}

/// The types documents start from: kinds of resources and subresources, their lists, and the
/// kinds every group version knows.
fn roots(table: &KindTable, only: Option<(&str, &str)>) -> BTreeMap<TypeId, Vec<Gvk>> {
    let mut roots: BTreeMap<TypeId, Vec<Gvk>> = BTreeMap::new();
    let mut add = |group: &str, version: &str, kind: &str| {
        if let Some(id) = table.kind_type(group, version, kind) {
            let gvk = Gvk::new(group, version, kind);
            let known = roots.entry(id).or_default();
            if !known.contains(&gvk) {
                known.push(gvk);
            }
        }
    };
    let served: BTreeSet<(&str, &str)> = table
        .resources
        .iter()
        .map(|r| (r.group, r.version))
        .collect();
    for row in &table.resources {
        if only.is_some_and(|gv| gv != (row.group, row.version)) {
            continue;
        }
        add(row.group, row.version, row.kind);
        if row.has_verb("list") {
            add(row.group, row.version, &format!("{}List", row.kind));
        }
        for sub in &row.subresources {
            add(sub.group, sub.version, sub.kind);
        }
    }
    for (group, version) in served {
        for kind in ["DeleteOptions", "WatchEvent"] {
            add(group, version, kind);
        }
    }
    add("", "v1", "Status");
    roots
}

/// Group, version and kind as documents name them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Gvk {
    group: String,
    version: String,
    kind: String,
}

impl Gvk {
    fn new(group: &str, version: &str, kind: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        }
    }

    fn to_json(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// A JSON document written member by member.
struct Pieces {
    out: Vec<u8>,
    first: bool,
    depth: usize,
}

impl Pieces {
    fn new() -> Self {
        Self {
            out: vec![b'{'],
            first: true,
            depth: 1,
        }
    }

    fn key(&mut self, key: &str) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.write(&Value::from(key));
        self.out.push(b':');
    }

    fn write(&mut self, value: &Value) {
        // writing a value with string keys into memory cannot fail
        let _ = serde_json::to_writer(&mut self.out, value);
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.key(key);
        self.write(value);
    }

    fn open(&mut self, key: &str) {
        self.key(key);
        self.out.push(b'{');
        self.first = true;
        self.depth += 1;
    }

    fn close(&mut self) {
        self.out.push(b'}');
        self.first = false;
        self.depth -= 1;
    }

    fn finish(mut self) -> Vec<u8> {
        while self.depth > 0 {
            self.close();
        }
        self.out
    }
}

#[cfg(test)]
mod tests;
