//! What lists cost: a request has room for some hundred thousand elements, so that what is done with them, and what is told
//! of them, grows with their number and not with its square. Asked of every list of every kind.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{iter, thread};

use davit_api::field::FieldError;
use davit_api::kinds::{FieldType, ResourceRow, TypeBody, TypeId, builtin};
use davit_schema::validate;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::{Strategy, strategy};

/// Elements of the shorter and of the longer lists.
const FEW: usize = 64;
const TIMES: usize = 8;
/// What is costlier by this than lists that are [`TIMES`] shorter grows faster than they do: the square would be 64.
const TOO_MUCH: u32 = 45;
/// Less than this is never too much.
const CHEAP: Duration = Duration::from_millis(12);
/// Bytes told for each byte of an object: a value is shown once, and some values by several faults.
const TOLD: usize = 120;
/// Types of recursive kinds, and those of pods, which are asked about once.
const DEEPEST: usize = 12;

/// Elements: how many, and what is written into their texts.
#[derive(Clone, Copy)]
struct Fill<'a> {
    count: usize,
    word: &'a str,
    /// Whether all are the same.
    alike: bool,
}

impl Fill<'_> {
    fn number(self, n: usize) -> usize {
        if self.alike { 0 } else { n }
    }
}

fn value(ty: &FieldType, n: usize, fill: Fill<'_>, levels: usize) -> Value {
    let types = &builtin().types;
    if let FieldType::Named(id) = ty
        && let TypeBody::Alias { values, .. } = &types.get(*id).body
        && !values.is_empty()
    {
        return json!(&*values[n % values.len()]);
    }
    match types.resolve_type(ty) {
        FieldType::Bool => json!(true),
        FieldType::Int32 | FieldType::Int64 | FieldType::IntOrString => json!(n + 1),
        FieldType::Float64 => json!(0.5),
        FieldType::String => json!(format!("{}{n}", fill.word)),
        FieldType::Bytes => json!("AAAA"),
        FieldType::Time => json!("2024-01-01T00:00:00Z"),
        FieldType::MicroTime => json!("2024-01-01T00:00:00.000000Z"),
        FieldType::Duration => json!("1s"),
        FieldType::Quantity => json!(format!("{}", n + 1)),
        FieldType::RawExtension | FieldType::Any => json!({"a": n}),
        FieldType::List(item) => json!([value(item, n, fill, levels)]),
        FieldType::Map(item) => json!({format!("{}{n}", fill.word): value(item, n, fill, levels)}),
        FieldType::Named(id) => Value::Object(shallow(*id, n, fill, levels)),
    }
}

/// A struct with all of its fields, and of theirs as many levels as are left.
fn shallow(id: TypeId, n: usize, fill: Fill<'_>, levels: usize) -> Map<String, Value> {
    let types = &builtin().types;
    let is_deep = |ty: &FieldType| match types.resolve_type(ty) {
        FieldType::List(item) | FieldType::Map(item) => {
            matches!(types.resolve_type(item), FieldType::Named(_))
        }
        ty => matches!(ty, FieldType::Named(_)),
    };
    let fields = types.fields(id).filter(|f| levels > 0 || !is_deep(&f.ty));
    let fields = fields.map(|f| {
        let left = levels.saturating_sub(1);
        (f.name.to_string(), value(&f.ty, n, fill, left))
    });
    fields.collect()
}

fn has_lists(id: TypeId) -> bool {
    let types = &builtin().types;
    let mut all = types.fields(id).map(|field| types.resolve_type(&field.ty));
    all.any(|ty| matches!(ty, FieldType::List(_) | FieldType::Map(_)))
}

/// A struct whose lists and maps are long.
fn long(id: TypeId, fill: Fill<'_>) -> Value {
    let types = &builtin().types;
    let mut out = shallow(id, 0, fill, 1);
    for field in types.fields(id) {
        let each = (0..fill.count).map(|n| fill.number(n));
        let filled = match types.resolve_type(&field.ty) {
            FieldType::List(item) => each.map(|n| value(item, n, fill, 1)).collect(),
            FieldType::Map(item) => each
                .map(|n| (format!("{}{n}", fill.word), value(item, n, fill, 1)))
                .collect::<Map<_, _>>()
                .into(),
            _ => continue,
        };
        out.insert(field.name.to_string(), filled);
    }
    Value::Object(out)
}

/// A step from a struct to one below it.
#[derive(Clone, Debug)]
struct Step {
    field: String,
    /// How many lists and maps lie between.
    lists: Vec<bool>,
}

/// The way from an object to a struct below it.
type Way = Vec<(TypeId, Step)>;

/// Every struct below a type: the way to it and its type.
fn places(id: TypeId, way: &mut Way, out: &mut Vec<(Way, TypeId)>) {
    let types = &builtin().types;
    out.push((way.clone(), id));
    for field in types.fields(id) {
        let (mut ty, mut lists) = (types.resolve_type(&field.ty), Vec::new());
        while let FieldType::List(item) | FieldType::Map(item) = ty {
            lists.push(matches!(ty, FieldType::List(_)));
            ty = types.resolve_type(item);
        }
        let FieldType::Named(below) = ty else {
            continue;
        };
        let known = way.iter().any(|(above, _)| above == below) || *below == id;
        if known || way.len() >= DEEPEST {
            continue;
        }
        let field = field.name.to_string();
        way.push((id, Step { field, lists }));
        places(*below, way, out);
        way.pop();
    }
}

/// An object in which only the struct at a place has long lists.
fn object(row: &ResourceRow, way: &[(TypeId, Step)], id: TypeId, fill: Fill<'_>) -> Value {
    let inner = long(id, fill);
    let whole = way.iter().rev().fold(inner, |inner, (above, step)| {
        let below = step.lists.iter().rev().fold(inner, |inner, is_list| {
            if *is_list {
                json!([inner])
            } else {
                json!({ "a": inner })
            }
        });
        let mut out = shallow(*above, 0, fill, 0);
        out.insert(step.field.clone(), below);
        Value::Object(out)
    });
    let mut whole = whole;
    whole["apiVersion"] = json!(row.api_version());
    whole["kind"] = json!(row.kind);
    if way.first().is_none_or(|(_, step)| step.field != "metadata") {
        whole["metadata"] = json!({});
    }
    whole["metadata"]["name"] = json!("a");
    whole["metadata"]["namespace"] = json!("n");
    whole
}

/// All that is asked of a kind's rules about one object, and about a change from one to another; answers with how much was told.
fn ask(row: &ResourceRow, rules: &dyn Strategy, new: &Value, old: &Value) -> usize {
    let types = &builtin().types;
    let told = |errors: Vec<FieldError>| -> usize {
        let value = |e: &FieldError| e.value.as_ref().map_or(0, |v| v.to_string().len());
        errors.iter().map(|e| value(e) + e.detail.len()).sum()
    };
    let (mut made, mut old) = (new.clone(), old.clone());
    rules.default(&mut made);
    rules.default(&mut old);
    rules.prepare_for_create(&mut made);
    let mut all = told(rules.validate(&made)) + told(validate::validate(types, row.type_id, &made));
    all += rules.warnings(&made).iter().map(String::len).sum::<usize>();
    let mut changed = new.clone();
    rules.default(&mut changed);
    rules.prepare_for_update(&mut changed, &old);
    all += told(rules.validate_update(&changed, &old));
    all += told(validate::validate_update(types, row.type_id, new, &old));
    let warned = rules.update_warnings(&changed, &old);
    all += warned.iter().map(String::len).sum::<usize>();
    for sub in &row.subresources {
        let mut changed = new.clone();
        rules.prepare_subresource_update(sub.name, &mut changed, &old);
        all += told(rules.validate_subresource_update(sub.name, &changed, &old));
    }
    all
}

/// The processor time of this thread: what else the machine does is no cost of ours.
fn spent() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap()
}

/// What is wrong with the costs of one place, if anything.
fn excess(row: &ResourceRow, way: &[(TypeId, Step)], id: TypeId, alike: bool) -> Option<String> {
    let rules = strategy(row.group, row.version, row.kind);
    let measured = |count: usize| {
        let fill = |word| Fill { count, word, alike };
        let (new, old) = (
            object(row, way, id, fill("n")),
            object(row, way, id, fill("o")),
        );
        let size = new.to_string().len();
        let begun = spent();
        let told = ask(row, &*rules, &new, &old);
        (spent().saturating_sub(begun), told / size)
    };
    let mut few = None;
    let mut worst = None;
    for _ in 0..3 {
        let (time, told) = measured(FEW * TIMES);
        if told > TOLD {
            return Some(format!("{told} times of it are told"));
        }
        if time <= CHEAP {
            return None;
        }
        let least = || measured(FEW).0.min(measured(FEW).0);
        let few = *few.get_or_insert_with(least);
        if time <= few * TOO_MUCH {
            return None;
        }
        worst = Some(format!(
            "{time:?} instead of {few:?} for {TIMES} times as many"
        ));
    }
    worst
}

/// A place whose lists are asked about.
type Asked = (&'static ResourceRow, Way, TypeId);

/// What is wrong with the costs of a place, with its name.
fn excesses((row, way, id): &Asked) -> Vec<String> {
    let at: Vec<&str> = way.iter().map(|(_, step)| &*step.field).collect();
    let found = [false, true].map(|alike| excess(row, way, *id, alike));
    let named = |excess| {
        let (version, at) = (row.api_version(), at.join("."));
        format!("{version} {} {at}: {excess}", row.kind)
    };
    found.into_iter().flatten().map(named).collect()
}

#[test]
fn no_list_costs_the_square_of_its_length() {
    let (mut seen, mut asked) = (HashSet::new(), Vec::new());
    for row in &builtin().resources {
        // Older versions share the rules of the one that is stored.
        if !row.has_verb("create") || builtin().storage_row(row).version != row.version {
            continue;
        }
        let mut all = Vec::new();
        places(row.type_id, &mut Vec::new(), &mut all);
        for (way, id) in all {
            let parent = way.last().map(|(above, step)| (*above, step.field.clone()));
            // The rules of pods are those of their templates, too.
            let known = !seen.insert((parent, id)) && !way.is_empty();
            if known || !has_lists(id) {
                continue;
            }
            asked.push((row, way, id));
        }
    }
    // It is the longest of all tests, and each place is a matter of its own.
    let next = AtomicUsize::new(0);
    let one_by_one = || {
        let mine = iter::from_fn(|| asked.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.flat_map(excesses).collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one_by_one)).collect();
        let found = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        found.collect::<Vec<_>>()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}
