use super::*;

#[test]
fn every_row_has_a_type_with_metadata() {
    let table = builtin();
    assert_eq!(table.resources.len(), 101);
    for row in &table.resources {
        let def = table.types.get(row.type_id);
        assert_eq!(def.short_name(), row.kind, "{}", def.name);
        assert!(
            table.types.field(row.type_id, "kind").is_some(),
            "{}",
            def.name
        );
        assert!(
            table.types.field(row.type_id, "metadata").is_some(),
            "{}",
            def.name
        );
        for sub in &row.subresources {
            assert!(
                table.kind_type(sub.group, sub.version, sub.kind).is_some(),
                "{}/{}",
                row.plural,
                sub.name
            );
        }
        let stored = table.storage_row(row);
        assert_eq!(stored.kind, row.kind);
    }
}

#[test]
fn fields_of_embedded_structs_are_found() {
    let types = &builtin().types;
    let volume = types.id("core/v1.Volume").unwrap();
    assert!(types.field(volume, "hostPath").is_some());
    assert!(types.field(volume, "HostPath").is_none());
    let names: Vec<&str> = types.fields(volume).map(|f| f.name.as_str()).collect();
    assert_eq!(&names[..3], ["name", "hostPath", "emptyDir"]);
}

#[test]
fn names_of_flattened_fields_are_unique() {
    let types = &builtin().types;
    for (id, def) in types.iter() {
        let mut names: Vec<&str> = types.fields(id).map(|f| f.name.as_str()).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(before, names.len(), "{}", def.name);
    }
}

#[test]
fn stored_versions() {
    let table = builtin();
    let stored = |g: &str, v: &str, p: &str| {
        let row = table.storage_row(table.resource(g, v, p).unwrap());
        (row.group, row.version)
    };
    assert_eq!(
        stored("autoscaling", "v1", "horizontalpodautoscalers"),
        ("autoscaling", "v2")
    );
    assert_eq!(
        stored("resource.k8s.io", "v1beta1", "resourceclaims"),
        ("resource.k8s.io", "v1")
    );
    assert_eq!(
        stored("resource.k8s.io", "v1alpha1", "resourceclaims"),
        ("resource.k8s.io", "v1alpha1")
    );
    assert_eq!(stored("events.k8s.io", "v1", "events"), ("", "v1"));
}

#[test]
fn options_lists_and_subresource_kinds_have_types() {
    let table = builtin();
    for (g, v, k) in [
        ("", "v1", "PodList"),
        ("", "v1", "PodAttachOptions"),
        ("", "v1", "PodExecOptions"),
        ("", "v1", "PodPortForwardOptions"),
        ("", "v1", "PodProxyOptions"),
        ("", "v1", "NodeProxyOptions"),
        ("", "v1", "ServiceProxyOptions"),
        ("", "v1", "DeleteOptions"),
        ("meta.k8s.io", "v1", "DeleteOptions"),
        ("meta.k8s.io", "v1", "PartialObjectMetadata"),
        ("policy", "v1", "DeleteOptions"),
        ("autoscaling", "v1", "Scale"),
        ("", "v1", "Status"),
    ] {
        assert!(table.kind_type(g, v, k).is_some(), "{g}/{v} {k}");
    }
    assert!(table.kind_type("", "v1", "Nothing").is_none());
}
