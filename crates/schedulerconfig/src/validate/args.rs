//! The arguments of plugins.

use std::collections::BTreeSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names::check_qualified_name;
use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, TopologySpreadConstraint,
};
use serde_json::{Value, json};

use crate::args::{
    DefaultPreemptionArgs, DynamicResourcesTimeouts, FitStrategy, NodeResourcesFitArgs, PluginArgs,
    PodTopologySpreadArgs, ResourceWeight, UtilizationShapePoint, VolumeBindingArgs,
};
use crate::duration::show;

/// The strategies of NodeResourcesFit.
const STRATEGIES: [&str; 3] = [
    "LeastAllocated",
    "MostAllocated",
    "RequestedToCapacityRatio",
];

/// Judges arguments.
pub(super) fn check(path: &Path, args: &PluginArgs, faults: &mut ErrorList) {
    match args {
        PluginArgs::DefaultPreemption(args) => preemption(path, args, faults),
        PluginArgs::InterPodAffinity(args) => {
            let weight = args.hard_pod_affinity_weight;
            in_range(path, "hardPodAffinityWeight", weight, 100, faults);
        }
        PluginArgs::NodeAffinity(args) => {
            if let Some(added) = &args.added_affinity {
                affinity(&path.child("addedAffinity"), added, faults);
            }
        }
        PluginArgs::NodeResourcesBalancedAllocation(args) => {
            balanced(&path.child("resources"), &args.resources, faults);
        }
        PluginArgs::NodeResourcesFit(args) => fit(path, args, faults),
        PluginArgs::PodTopologySpread(args) => spread(path, args, faults),
        PluginArgs::VolumeBinding(args) => volumes(path, args, faults),
        PluginArgs::DynamicResources(args) => devices(path, args, faults),
        PluginArgs::Other(_) => {}
    }
}

fn in_range(path: &Path, field: &str, value: i32, most: i32, faults: &mut ErrorList) {
    if !(0..=most).contains(&value) {
        let text = format!("not in valid range [0, {most}]");
        faults.push(FieldError::invalid(&path.child(field), value, text));
    }
}

fn preemption(path: &Path, args: &DefaultPreemptionArgs, faults: &mut ErrorList) {
    const PERCENTAGE: &str = "minCandidateNodesPercentage";
    const ABSOLUTE: &str = "minCandidateNodesAbsolute";
    let (percentage, absolute) = (
        args.min_candidate_nodes_percentage,
        args.min_candidate_nodes_absolute,
    );
    in_range(path, PERCENTAGE, percentage, 100, faults);
    if absolute < 0 {
        faults.push(FieldError::invalid(
            &path.child(ABSOLUTE),
            absolute,
            "not in valid range [0, inf)",
        ));
    }
    if percentage == 0 && absolute == 0 {
        for (field, other) in [(PERCENTAGE, ABSOLUTE), (ABSOLUTE, PERCENTAGE)] {
            let text = format!("cannot be zero at the same time as {other}");
            faults.push(FieldError::invalid(&path.child(field), 0, text));
        }
    }
}

fn affinity(path: &Path, added: &NodeAffinity, faults: &mut ErrorList) {
    if let Some(required) = &added.required_during_scheduling_ignored_during_execution {
        let at = path
            .child("requiredDuringSchedulingIgnoredDuringExecution")
            .child("nodeSelectorTerms");
        for (i, term) in required.node_selector_terms.iter().enumerate() {
            node_term(&at.index(i), term, faults);
        }
    }
    let preferred = added
        .preferred_during_scheduling_ignored_during_execution
        .iter();
    let at = path.child("preferredDuringSchedulingIgnoredDuringExecution");
    for (i, term) in preferred.flatten().enumerate() {
        node_term(&at.index(i), &term.preference, faults);
    }
}

fn node_term(path: &Path, term: &NodeSelectorTerm, faults: &mut ErrorList) {
    let expressions = term.match_expressions.iter().flatten().enumerate();
    for (i, requirement) in expressions {
        label_requirement(
            &path.child("matchExpressions").index(i),
            requirement,
            faults,
        );
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let at = path.child("matchFields").index(i);
        let values = requirement.values.clone().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.len() != 1 => faults.push(FieldError::invalid(
                &at.child("values"),
                json!(values),
                "must have one element",
            )),
            "In" | "NotIn" => {}
            other => faults.push(FieldError::not_supported(
                &at.child("operator"),
                other,
                &["In", "NotIn"],
            )),
        }
    }
}

fn label_requirement(path: &Path, requirement: &NodeSelectorRequirement, faults: &mut ErrorList) {
    let values = requirement.values.clone().unwrap_or_default();
    let (at, shown) = (path.child("values"), json!(values));
    let mut refuse = |text: &str| faults.push(FieldError::invalid(&at, shown.clone(), text));
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            refuse("for 'in', 'notin' operators, values set can't be empty");
        }
        "In" | "NotIn" => {}
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            refuse("values set must be empty for exists and does not exist");
        }
        "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" => match &values[..] {
            [one] if one.parse::<i64>().is_ok() => {}
            [one] => faults.push(FieldError::invalid(
                &at.index(0),
                one.as_str(),
                "for 'Gt', 'Lt' operators, the value must be an integer",
            )),
            _ => refuse("for 'Gt', 'Lt' operators, exactly one value is required"),
        },
        other => faults.push(FieldError::not_supported(
            &path.child("operator"),
            other,
            &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
        )),
    }
    label_name(&path.child("key"), &requirement.key, faults);
}

fn label_name(path: &Path, name: &str, faults: &mut ErrorList) {
    let texts = check_qualified_name(name).into_iter();
    faults.extend(texts.map(|text| FieldError::invalid(path, name, text)));
}

fn balanced(path: &Path, resources: &[ResourceWeight], faults: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, resource) in resources.iter().enumerate() {
        let at = path.index(i);
        if !seen.insert(&resource.name) {
            faults.push(FieldError::duplicate(
                &at.child("name"),
                resource.name.as_str(),
            ));
        }
        if resource.weight != 1 {
            faults.push(FieldError::invalid(
                &at.child("weight"),
                resource.weight,
                "must be 1",
            ));
        }
    }
}

fn fit(path: &Path, args: &NodeResourcesFitArgs, faults: &mut ErrorList) {
    for (i, name) in args.ignored_resources.iter().enumerate() {
        label_name(&path.child("ignoredResources").index(i), name, faults);
    }
    for (i, group) in args.ignored_resource_groups.iter().enumerate() {
        let at = path.child("ignoredResourceGroups").index(i);
        if group.contains('/') {
            faults.push(FieldError::invalid(
                &at,
                group.as_str(),
                "resource group name can't contain '/'",
            ));
        }
        label_name(&at, group, faults);
    }
    strategy(
        &path.child("scoringStrategy"),
        &args.scoring_strategy,
        faults,
    );
}

fn strategy(path: &Path, strategy: &FitStrategy, faults: &mut ErrorList) {
    let kind = strategy.kind.as_str();
    if !STRATEGIES.contains(&kind) {
        faults.push(FieldError::not_supported(
            &path.child("type"),
            kind,
            &STRATEGIES,
        ));
    }
    for (i, resource) in strategy.resources.iter().enumerate() {
        if !(1..=100).contains(&resource.weight) {
            faults.push(FieldError::invalid(
                &path.child("resources").index(i).child("weight"),
                resource.weight,
                format!(
                    "resource weight of {} not in valid range (0, 100]",
                    resource.name
                ),
            ));
        }
    }
    let at = path.child("requestedToCapacityRatio");
    match (kind, &strategy.requested_to_capacity_ratio) {
        ("RequestedToCapacityRatio", None) => faults.push(FieldError::required(
            &at,
            "must be specified when type is RequestedToCapacityRatio",
        )),
        ("RequestedToCapacityRatio", Some(ratio)) => {
            shape(&at.child("shape"), &ratio.shape, faults);
        }
        (_, Some(_)) => faults.push(FieldError::forbidden(
            &at,
            "must be nil when type is not RequestedToCapacityRatio",
        )),
        (_, None) => {}
    }
}

fn shape(path: &Path, points: &[UtilizationShapePoint], faults: &mut ErrorList) {
    if points.is_empty() {
        return faults.push(FieldError::required(
            path,
            "at least one point must be specified",
        ));
    }
    let falls = points
        .windows(2)
        .position(|w| w[0].utilization >= w[1].utilization);
    if let Some(before) = falls {
        faults.push(FieldError::invalid(
            &path.index(before + 1).child("utilization"),
            points[before + 1].utilization,
            "values must be sorted in increasing order",
        ));
    }
    for (i, point) in points.iter().enumerate() {
        in_range(
            &path.index(i),
            "utilization",
            point.utilization,
            100,
            faults,
        );
        in_range(&path.index(i), "score", point.score, 10, faults);
    }
}

fn spread(path: &Path, args: &PodTopologySpreadArgs, faults: &mut ErrorList) {
    let (at, kind) = (path.child("defaultingType"), args.defaulting_type.as_str());
    match kind {
        "System" if !args.default_constraints.is_empty() => faults.push(FieldError::invalid(
            &at,
            kind,
            "when .defaultConstraints are not empty",
        )),
        "System" | "List" => {}
        _ => faults.push(FieldError::not_supported(&at, kind, &["System", "List"])),
    }
    let path = path.child("defaultConstraints");
    for (i, constraint) in args.default_constraints.iter().enumerate() {
        let at = path.index(i);
        default_constraint(&at, constraint, faults);
        let same = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key
                && other.when_unsatisfiable == constraint.when_unsatisfiable
        };
        if args.default_constraints[..i].iter().any(same) {
            let shown = format!(
                "{{{}, {}}}",
                constraint.topology_key, constraint.when_unsatisfiable
            );
            faults.push(FieldError::duplicate(&at, shown));
        }
    }
}

fn default_constraint(at: &Path, constraint: &TopologySpreadConstraint, faults: &mut ErrorList) {
    if constraint.max_skew <= 0 {
        faults.push(FieldError::invalid(
            &at.child("maxSkew"),
            constraint.max_skew,
            "not in valid range (0, inf)",
        ));
    }
    let key = at.child("topologyKey");
    if constraint.topology_key.is_empty() {
        faults.push(FieldError::required(&key, "can not be empty"));
    } else {
        label_name(&key, &constraint.topology_key, faults);
    }
    let when = at.child("whenUnsatisfiable");
    match constraint.when_unsatisfiable.as_str() {
        "" => faults.push(FieldError::required(&when, "can not be empty")),
        "DoNotSchedule" | "ScheduleAnyway" => {}
        other => faults.push(FieldError::not_supported(
            &when,
            other,
            &["DoNotSchedule", "ScheduleAnyway"],
        )),
    }
    if constraint.label_selector.is_some() {
        faults.push(FieldError::forbidden(
            &at.child("labelSelector"),
            "constraint must not define a selector, as they deduced for each pod",
        ));
    }
}

fn volumes(path: &Path, args: &VolumeBindingArgs, faults: &mut ErrorList) {
    if args.bind_timeout_seconds < 0 {
        faults.push(FieldError::invalid(
            &path.child("bindTimeoutSeconds"),
            args.bind_timeout_seconds,
            "invalid BindTimeoutSeconds, should not be a negative value",
        ));
    }
    if let Some(points) = &args.shape {
        let shown: Value = json!(points);
        faults.push(FieldError::invalid(
            &path.child("shape"),
            shown,
            "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring",
        ));
    }
}

fn devices(path: &Path, args: &DynamicResourcesTimeouts, faults: &mut ErrorList) {
    if args.filter_timeout.is_negative() {
        faults.push(FieldError::invalid(
            &path.child("filterTimeout"),
            show(args.filter_timeout),
            "must be zero or positive",
        ));
    }
    if args.binding_timeout.as_secs() < 1 {
        faults.push(FieldError::invalid(
            &path.child("bindingTimeout"),
            show(args.binding_timeout),
            "must be at least 1 second",
        ));
    }
}
