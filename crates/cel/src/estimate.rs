//! Estimates the cost of an expression before it runs, from the sizes its variables can have.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Expr, Fold, Id, Kind};
use crate::checker::Checked;
use crate::types::{DeclType, Type};
use crate::value::Value;

/// A lower and an upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostEstimate {
    /// At least this much.
    pub min: u64,
    /// At most this much; `u64::MAX` when nothing is known.
    pub max: u64,
}

type Range = CostEstimate;

impl CostEstimate {
    const fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    fn add(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn scaled(self, factor: f64) -> Self {
        let scale = |n: u64| {
            let scaled = (n as f64 * factor).ceil();
            if scaled >= 18_446_744_073_709_551_616.0 {
                u64::MAX
            } else {
                scaled as u64
            }
        };
        Self {
            min: scale(self.min),
            max: scale(self.max),
        }
    }

    fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

const TRAVERSAL: f64 = 0.1;
const PATTERN: f64 = 0.25;

pub(crate) fn estimate(
    root: &Expr,
    checked: &Checked,
    variables: &HashMap<Arc<str>, DeclType>,
) -> CostEstimate {
    let mut coster = Coster {
        checked,
        variables,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    coster.cost(root)
}

/// Sizes of the keys and values of a container.
#[derive(Clone, Copy)]
struct EntrySize {
    list: bool,
    key: Range,
    value: Range,
}

impl EntrySize {
    fn union(self, other: Self) -> Self {
        Self {
            list: self.list,
            key: self.key.union(other.key),
            value: self.value.union(other.value),
        }
    }
}

struct Local {
    name: Arc<str>,
    path: Path,
    size: Option<Range>,
    entry: Option<EntrySize>,
}

/// Where a value comes from: a variable and the fields below it.
type Path = Option<Arc<[Arc<str>]>>;

struct Coster<'a> {
    checked: &'a Checked,
    variables: &'a HashMap<Arc<str>, DeclType>,
    paths: HashMap<Id, Path>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, EntrySize>,
    locals: Vec<Local>,
}

/// What an operation needs to know of an operand.
#[derive(Clone)]
struct Node {
    path: Path,
    ty: Type,
    size: Option<Range>,
    /// The number, where one is written in place; negative ones count as 0.
    literal: Option<u64>,
}

impl Node {
    fn literal_or(&self, unknown: u64) -> u64 {
        self.literal.unwrap_or(unknown)
    }
}

struct CallEstimate {
    cost: Range,
    size: Option<Range>,
}

impl From<Range> for CallEstimate {
    fn from(cost: Range) -> Self {
        Self { cost, size: None }
    }
}

impl Coster<'_> {
    fn ty(&self, expr: &Expr) -> &Type {
        &self.checked.types[expr.id]
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| &*local.name == name)
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().flatten()
    }

    fn extend(path: &Path, name: &str) -> Path {
        path.as_ref()
            .map(|path| path.iter().cloned().chain([Arc::from(name)]).collect())
    }

    /// The bound on a size that the declarations give.
    fn declared(&self, path: &Path) -> Option<Range> {
        let path = path.as_ref()?;
        let mut decl = self.variables.get(&path[0])?;
        for name in &path[1..] {
            decl = match &**name {
                "@items" | "@values" => decl.elem.as_deref()?,
                "@keys" => decl.key.as_deref()?,
                field => match &decl.ty {
                    Type::Object(object) => object.fields.get(field)?,
                    // a map read by a constant key
                    Type::Map(..) => decl.elem.as_deref()?,
                    _ => return None,
                },
            };
        }
        Some(Range {
            min: 0,
            max: decl.max_elements,
        })
        .filter(|range| range.max != u64::MAX)
    }

    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            Kind::Const(value) => return Some(Range::fixed(value.cost_size())),
            Kind::List { items } => return Some(Range::fixed(items.len() as u64)),
            Kind::Map { entries } => return Some(Range::fixed(entries.len() as u64)),
            _ => {}
        }
        if let Some(size) = self.declared(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.ty(expr).is_scalar() {
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn entry(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(entry) = self.entries.get(&expr.id) {
            return Some(*entry);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entry),
            _ => None,
        }
    }

    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Const(_) => Range::fixed(0),
            Kind::Ident(name) => {
                let path = match self.local(name) {
                    Some(local) => local.path.clone(),
                    None => Some(Arc::from([Arc::clone(name)])),
                };
                self.paths.insert(expr.id, path);
                Range::fixed(1)
            }
            Kind::Select {
                operand,
                field,
                test,
            } => {
                let cost = self.cost(operand);
                if *test {
                    return cost;
                }
                let counted = matches!(
                    self.ty(operand),
                    Type::Map(..) | Type::Object(_) | Type::Param(_)
                );
                let path = Self::extend(&self.path(operand), field);
                self.paths.insert(expr.id, path);
                // a field of a value of unknown type is charged when the expression runs as well,
                // but not here: the numbers are those of the reference implementation
                cost.add(Range::fixed(u64::from(counted)))
            }
            Kind::Call { .. } => self.call(expr),
            Kind::List { items } => {
                let mut sum = Range::fixed(10);
                let mut item_size: Option<Range> = None;
                for item in items {
                    sum = sum.add(self.cost(&item.value));
                    let size = self.size_or_unknown(&item.value);
                    item_size = Some(item_size.map_or(size, |known| known.union(size)));
                }
                let entry = EntrySize {
                    list: true,
                    key: Range::fixed(1),
                    value: item_size.unwrap_or(Range::fixed(0)),
                };
                self.entries.insert(expr.id, entry);
                sum
            }
            Kind::Map { entries } => {
                let mut sum = Range::fixed(30);
                let (mut keys, mut values): (Option<Range>, Option<Range>) = (None, None);
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
                    let (key, value) = (
                        self.size_or_unknown(&entry.key),
                        self.size_or_unknown(&entry.value),
                    );
                    keys = Some(keys.map_or(key, |known| known.union(key)));
                    values = Some(values.map_or(value, |known| known.union(value)));
                }
                let entry = EntrySize {
                    list: false,
                    key: keys.unwrap_or(Range::fixed(0)),
                    value: values.unwrap_or(Range::fixed(0)),
                };
                self.entries.insert(expr.id, entry);
                sum
            }
            Kind::Struct { fields, .. } => fields.iter().fold(Range::fixed(40), |sum, field| {
                sum.add(self.cost(&field.value))
            }),
            Kind::Fold(fold) if fold.is_bind() => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn bind(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        self.push_value(&fold.accu, &fold.init);
        sum = sum.add(self.cost(&fold.result));
        self.locals.pop();
        if let Some(size) = self.size(&fold.result) {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entry) = self.entry(&fold.result) {
            self.entries.insert(expr.id, entry);
        }
        sum
    }

    fn push_value(&mut self, name: &Arc<str>, value: &Expr) {
        let local = Local {
            name: Arc::clone(name),
            path: self.path(value),
            size: self.size(value),
            entry: self.entry(value),
        };
        self.locals.push(local);
    }

    /// A loop variable: the keys or the values of the range.
    fn push_iteration(&mut self, name: &Arc<str>, range: &Expr, keys: bool) {
        let entry = self.entry(range);
        let list = entry.map_or_else(
            || matches!(self.ty(range), Type::List(_)),
            |entry| entry.list,
        );
        let sub = match (keys, list) {
            (true, true) => "@indices",
            (true, false) => "@keys",
            (false, true) => "@items",
            (false, false) => "@values",
        };
        let local = Local {
            name: Arc::clone(name),
            path: Self::extend(&self.path(range), sub),
            size: entry.map(|entry| if keys { entry.key } else { entry.value }),
            entry: None,
        };
        self.locals.push(local);
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let depth = self.locals.len();
        self.push_value(&fold.accu, &fold.init);
        if let Some(second) = &fold.var2 {
            self.push_iteration(&fold.var, &fold.range, true);
            self.push_iteration(second, &fold.range, false);
        } else {
            let list = self.entry(&fold.range).map_or_else(
                || matches!(self.ty(&fold.range), Type::List(_)),
                |entry| entry.list,
            );
            self.push_iteration(&fold.var, &fold.range, !list);
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.locals.truncate(depth + 1);
        sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(depth);
        let count = self.size_or_unknown(&fold.range);
        sum = sum.add(count.times(step.add(condition)));
        match &fold.init.kind {
            Kind::Const(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List { .. } | Kind::Map { .. } => {
                self.sizes.insert(expr.id, count);
                if let Some(entry) = self.entry(&fold.step) {
                    self.entries.insert(expr.id, entry);
                }
            }
            _ => {}
        }
        sum
    }

    fn node(&mut self, expr: &Expr) -> Node {
        let path = self.path(expr).filter(|path| &*path[0] != ACCUMULATOR);
        Node {
            path,
            ty: self.ty(expr).clone(),
            size: self.size(expr),
            literal: match expr.kind {
                Kind::Const(Value::Int(number)) => Some(u64::try_from(number).unwrap_or(0)),
                _ => None,
            },
        }
    }

    fn call(&mut self, expr: &Expr) -> Range {
        let Kind::Call {
            function,
            target,
            args,
        } = &expr.kind
        else {
            return Range::fixed(0);
        };
        if &**function == "dyn" && target.is_none() {
            let cost = self.cost(&args[0]).add(Range::fixed(1));
            if let Some(size) = self.size(&args[0]) {
                self.sizes.insert(expr.id, size);
            }
            if let Some(entry) = self.entry(&args[0]) {
                self.entries.insert(expr.id, entry);
            }
            return cost;
        }
        let costs: Vec<Range> = args.iter().map(|arg| self.cost(arg)).collect();
        let Some(overloads) = self.checked.overloads.get(&expr.id) else {
            return Range::fixed(0);
        };
        let mut sum = Range::fixed(0);
        let mut target_node = None;
        if let Some(target) = target {
            sum = self.cost(target);
            target_node = Some(self.node(target));
        }
        let nodes: Vec<Node> = args.iter().map(|arg| self.node(arg)).collect();
        let mut total: Option<Range> = None;
        let mut size: Option<Range> = None;
        for overload in overloads {
            let found = self.function(expr, overload, target_node.as_ref(), &nodes, &costs);
            total = Some(total.map_or(found.cost, |known| known.union(found.cost)));
            if let Some(found) = found.size {
                size = Some(size.map_or(found, |known| known.union(found)));
            }
            let sub = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(sub), Some(arg)) = (sub, args.first()) {
                size = self.entry(arg).map(|entry| entry.value);
                let path = Self::extend(&self.path(arg), sub);
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        sum.add(total.unwrap_or(Range::fixed(0)))
    }

    fn node_size(&self, node: &Node) -> Range {
        node.size
            .or_else(|| self.declared(&node.path))
            .unwrap_or(Range::UNKNOWN)
    }

    fn function(
        &mut self,
        expr: &Expr,
        overload: &str,
        target: Option<&Node>,
        args: &[Node],
        costs: &[Range],
    ) -> CallEstimate {
        let Kind::Call {
            function,
            args: exprs,
            ..
        } = &expr.kind
        else {
            return Range::fixed(0).into();
        };
        let arguments = costs
            .iter()
            .fold(Range::fixed(0), |sum, cost| sum.add(*cost));
        if let Some(mut found) = self.library(function, overload, target, args) {
            found.cost = found.cost.add(arguments);
            return found;
        }
        let size = |n: usize| self.node_size(&args[n]);
        match (overload, target, args.len()) {
            ("string_format", Some(target), _) => self
                .node_size(target)
                .scaled(TRAVERSAL)
                .add(arguments)
                .into(),
            ("string_to_bytes", _, 1) => CallEstimate {
                cost: size(0).scaled(TRAVERSAL).add(arguments),
                size: Some(Range {
                    min: size(0).min,
                    max: size(0).max.saturating_mul(4),
                }),
            },
            ("bytes_to_string", _, 1) => CallEstimate {
                cost: size(0).scaled(TRAVERSAL).add(arguments),
                size: Some(Range {
                    min: size(0).min / 4,
                    max: size(0).max,
                }),
            },
            ("strings_quote", _, 1) => CallEstimate {
                cost: size(0).scaled(TRAVERSAL).add(arguments),
                size: Some(Range {
                    min: size(0).min + 2,
                    max: size(0).max.saturating_mul(2).saturating_add(2),
                }),
            },
            ("starts_with_string" | "ends_with_string", _, 1) => {
                size(0).scaled(TRAVERSAL).add(arguments).into()
            }
            ("in_list", _, 2) => size(1).add(arguments).into(),
            ("matches_string", Some(target), 1) => {
                let text = self
                    .node_size(target)
                    .add(Range::fixed(1))
                    .scaled(TRAVERSAL);
                text.times(size(0).scaled(PATTERN)).add(arguments).into()
            }
            ("contains_string", Some(target), 1) => {
                let text = self.node_size(target).scaled(TRAVERSAL);
                text.times(size(0).scaled(TRAVERSAL)).add(arguments).into()
            }
            ("logical_or" | "logical_and", ..) => Range {
                min: costs[0].min,
                max: costs[0].max.saturating_add(costs[1].max),
            }
            .into(),
            ("conditional", ..) => {
                let union = size(1).union(size(2));
                if let (Some(yes), Some(no)) = (self.entry(&exprs[1]), self.entry(&exprs[2])) {
                    self.entries.insert(expr.id, yes.union(no));
                }
                CallEstimate {
                    cost: costs[0].add(costs[1].union(costs[2])),
                    size: Some(union),
                }
            }
            ("add_string" | "add_bytes" | "add_list", _, 2) => {
                let sum = size(0).add(size(1));
                if let (Some(left), Some(right)) = (self.entry(&exprs[0]), self.entry(&exprs[1])) {
                    self.entries.insert(expr.id, left.union(right));
                }
                let cost = if overload == "add_list" {
                    Range::fixed(1)
                } else {
                    sum.scaled(TRAVERSAL)
                };
                CallEstimate {
                    cost: cost.add(arguments),
                    size: Some(sum),
                }
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                2,
            ) => {
                let max = size(0).max.min(size(1).max);
                let min = u64::from(max > 0);
                Range { min, max }.scaled(TRAVERSAL).add(arguments).into()
            }
            _ => arguments.add(Range::fixed(1)).into(),
        }
    }

    /// The functions of the Kubernetes libraries.
    fn library(
        &self,
        function: &str,
        overload: &str,
        target: Option<&Node>,
        args: &[Node],
    ) -> Option<CallEstimate> {
        let one = Range::fixed(1);
        let arg = |n: usize| args.get(n).map(|node| self.node_size(node));
        Some(match function {
            "check" => Range::fixed(350_000).into(),
            "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace"
            | "name" | "allowed" | "reason" | "error" | "errored" | "fieldSelector"
            | "labelSelector" => one.into(),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let target = target?;
                let size = self.node_size(target);
                let Type::List(elem) = &target.ty else {
                    return Some(size.scaled(TRAVERSAL).into());
                };
                let mut each = one;
                if matches!(**elem, Type::String | Type::Bytes) {
                    let path = Self::extend(&target.path, "@items");
                    let text = self.declared(&path).unwrap_or(Range::UNKNOWN);
                    each = each.add(text.scaled(TRAVERSAL));
                }
                size.times(each).into()
            }
            "url" => arg(0)?.scaled(TRAVERSAL).into(),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                let size = self.node_size(target?);
                CallEstimate {
                    cost: size.scaled(TRAVERSAL),
                    size: Some(size),
                }
            }
            "replace" => {
                let size = self.node_size(target?);
                CallEstimate {
                    cost: size.scaled(2.0 * TRAVERSAL),
                    size: Some(replaced(size, arg(0)?, arg(1)?)),
                }
            }
            "split" => {
                let size = self.node_size(target?);
                CallEstimate {
                    cost: size.scaled(2.0 * TRAVERSAL),
                    size: Some(Range {
                        min: 0,
                        max: size.max,
                    }),
                }
            }
            "join" => {
                let target = target?;
                let count = self.node_size(target);
                let path = Self::extend(&target.path, "@items");
                let each = self.declared(&path).unwrap_or(Range::UNKNOWN);
                let mut size = count.times(each);
                if let Some(separator) = arg(0) {
                    size = size.add(separator.times(Range {
                        min: count.min.saturating_sub(1),
                        max: count.max.saturating_sub(1),
                    }));
                }
                CallEstimate {
                    cost: size.scaled(TRAVERSAL),
                    size: Some(size),
                }
            }
            "find" | "findAll" => {
                let size = self.node_size(target?);
                let text = size.add(one).scaled(TRAVERSAL);
                CallEstimate {
                    cost: text.times(arg(0)?.scaled(PATTERN)),
                    size: Some(Range {
                        min: 0,
                        max: size.max,
                    }),
                }
            }
            "ip" if target.is_some() => one.into(),
            "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast" => one.into(),
            "containsIP" | "containsCIDR" => {
                target?;
                let bytes = Range { min: 4, max: 16 };
                let mut cost = bytes.add(bytes).scaled(TRAVERSAL);
                if function == "containsCIDR" {
                    cost = cost.add(bytes.scaled(TRAVERSAL)).add(one);
                }
                if overload.ends_with("_string") {
                    cost = cost.add(arg(0)?.scaled(TRAVERSAL));
                }
                cost.into()
            }
            "sets.contains" | "sets.intersects" => arg(0)?.times(arg(1)?).add(one).into(),
            "sets.equivalent" => {
                let product = arg(0)?.times(arg(1)?);
                product.add(product).add(one).into()
            }
            "semver" | "isSemver" => arg(0)?.scaled(TRAVERSAL).into(),
            "validate" => arg(0)?
                .add(one)
                .scaled(TRAVERSAL)
                .times(Range::fixed(32))
                .into(),
            "includes" => Range { min: 1, max: 48 }.into(),
            "slice" => {
                let size = self.node_size(target?);
                let start = args.first()?.literal_or(0);
                let end = args.get(1)?.literal_or(size.max);
                new_list(1.0, Range::fixed(end.wrapping_sub(start)))
            }
            "lists.range" => new_list(1.0, Range::fixed(args.first()?.literal_or(u64::MAX))),
            "reverse" => new_list(1.0, self.node_size(target?)),
            "flatten" => {
                let depth = args.first().map_or(1, |depth| depth.literal_or(u64::MAX));
                new_list(depth as f64, self.node_size(target?))
            }
            "distinct" => {
                let size = self.node_size(target?);
                new_list(2.0, size.times(size))
            }
            "sort" | "@sortByAssociatedKeys" => {
                let keys = args.first().or(target)?;
                let size = self.node_size(keys);
                let text =
                    overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
                new_list(if text { 2.1 } else { 2.0 }, size.times(size))
            }
            "sign" | "asInteger" | "isInteger" | "asApproximateFloat" | "isGreaterThan"
            | "isLessThan" | "compareTo" | "add" | "sub" => one.into(),
            _ => return None,
        })
    }
}

/// A call that makes a list of this size.
fn new_list(factor: f64, size: Range) -> CallEstimate {
    CallEstimate {
        cost: size.scaled(factor).add(Range::fixed(11)),
        size: Some(size),
    }
}

/// The size of a text after `old` was replaced by `new` in it.
fn replaced(size: Range, old: Range, new: Range) -> Range {
    let (mut count, mut kept) = (Range::fixed(0), Range::fixed(0));
    if old.min == 0 {
        // nothing is replaced everywhere: before, between and behind all characters
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if new.max <= old.min {
        kept.max = size.max;
    } else {
        count.max = size.max.div_ceil(old.min);
    }
    if old.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if old.max <= new.min {
        kept.min = size.min;
    } else {
        count.min = size.min.div_ceil(old.max);
    }
    count.times(new).add(kept)
}
