//! Runs checked expressions and counts what they cost.

use std::collections::HashMap;
use std::sync::Arc;

use crate::activation::Activation;
use crate::ast::{ACCUMULATOR, Entry, Expr, Field, Fold, Id, Item, Kind};
use crate::costs::call_cost;
use crate::error::EvalError;
use crate::library::{Context, Native};
use crate::value::{Key, Map, Value};

pub(crate) struct Machine<'a> {
    pub(crate) context: Context<'a>,
    pub(crate) activation: &'a dyn Activation,
    /// Lists and maps made of nothing but constants cost nothing.
    pub(crate) constants: &'a HashMap<Id, Value>,
    pub(crate) natives: &'a HashMap<Id, Native>,
    pub(crate) locals: Vec<Local<'a>>,
    pub(crate) cost: u64,
    pub(crate) limit: u64,
    /// Expressions that the one that is evaluated stands in, those of variables that are asked for included.
    pub(crate) depth: usize,
}

/// Twice as deep as an expression may be. Those of variables stand in one another, and the stack has an end.
const MAX_DEPTH: usize = 500;

pub(crate) struct Local<'a> {
    name: Arc<str>,
    slot: Slot<'a>,
}

enum Slot<'a> {
    Ready(Eval),
    /// Evaluated when first used.
    Lazy(&'a Expr),
}

type Eval<T = Value> = Result<T, EvalError>;

impl<'a> Machine<'a> {
    fn charge(&mut self, cost: u64) -> Eval<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit {
            return Err(EvalError::CostLimitExceeded);
        }
        Ok(())
    }

    pub(crate) fn eval(&mut self, expr: &'a Expr) -> Eval {
        if self.depth == MAX_DEPTH {
            return Err(EvalError::CostLimitExceeded);
        }
        self.depth += 1;
        let value = self.eval_inner(expr);
        self.depth -= 1;
        value
    }

    #[inline]
    fn eval_inner(&mut self, expr: &'a Expr) -> Eval {
        match &expr.kind {
            Kind::Const(value) => Ok(value.clone()),
            Kind::Ident(name) => {
                self.charge(1)?;
                self.ident(name)
            }
            Kind::Select {
                operand,
                field,
                test,
            } => self.select(operand, field, *test),
            Kind::Call {
                function,
                target,
                args,
            } => self.call(expr.id, function, target.as_deref(), args),
            Kind::List { items } => match self.constants.get(&expr.id) {
                Some(value) => Ok(value.clone()),
                None => self.list(items),
            },
            Kind::Map { entries } => match self.constants.get(&expr.id) {
                Some(value) => Ok(value.clone()),
                None => self.map(entries),
            },
            Kind::Struct { name, fields } => self.construct(name, fields),
            Kind::Fold(fold) if fold.is_bind() => self.bind(fold),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    fn ident(&mut self, name: &Arc<str>) -> Eval {
        let found = self.locals.iter().rposition(|local| local.name == *name);
        if let Some(index) = found {
            let expr = match &self.locals[index].slot {
                Slot::Ready(value) => return value.clone(),
                Slot::Lazy(expr) => *expr,
            };
            // the value is computed among the variables that were there when it was bound
            let inner = self.locals.split_off(index);
            let value = self.eval(expr);
            self.locals.extend(inner);
            self.locals[index].slot = Slot::Ready(value.clone());
            return value;
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        self.activation
            .variable(name)
            .unwrap_or_else(|| Err(EvalError::new(format!("no such attribute(s): {name}"))))
    }

    fn select(&mut self, operand: &'a Expr, field: &Arc<str>, test: bool) -> Eval {
        if let Kind::Ident(name) = &operand.kind
            && !self.locals.iter().any(|local| local.name == *name)
            && let Some(found) = self.activation.member(name, field, self.depth)
        {
            self.charge(1)?;
            if test {
                return Ok(Value::Bool(found.is_ok()));
            }
            let (value, cost) = found?;
            self.charge(1u64.saturating_add(cost))?;
            return Ok(value);
        }
        let value = self.operand(operand)?;
        if test {
            return has(&value, field).map(Value::Bool);
        }
        let found = get_field(&value, field)?;
        self.charge_found(&found)?;
        Ok(found)
    }

    /// What is selected from or indexed. An expression that is no path of its own costs one more,
    /// as the reference implementation makes a path of it.
    fn operand(&mut self, operand: &'a Expr) -> Eval {
        let value = self.eval(operand)?;
        if !operand.is_path() {
            self.charge(1)?;
        }
        Ok(value)
    }

    /// A step along a path costs when it leads somewhere.
    fn charge_found(&mut self, found: &Value) -> Eval<()> {
        match found {
            Value::Optional(None) => Ok(()),
            _ => self.charge(1),
        }
    }

    /// The branch that was taken; a path in its place costs one less than elsewhere.
    fn branch(&mut self, branch: &'a Expr) -> Eval {
        if !branch.is_path() || branch.is_choice_or_test() {
            return self.eval(branch);
        }
        // What is taken off again must not exceed the limit before.
        let limit = self.limit;
        self.limit = limit.saturating_add(1);
        let value = self.eval(branch);
        self.limit = limit;
        if value.is_ok() {
            self.cost = self.cost.saturating_sub(1);
        }
        self.charge(0)?;
        value
    }

    fn list(&mut self, items: &'a [Item]) -> Eval {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match (self.eval(&item.value)?, item.optional) {
                (Value::Optional(inner), true) => {
                    values.extend(inner.map(|value| (*value).clone()));
                }
                (_, true) => return Err(EvalError::no_overload()),
                (value, false) => values.push(value),
            }
        }
        self.charge(10)?;
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &'a [Entry]) -> Eval {
        let mut map = Map::default();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let value = self.eval(&entry.value)?;
            let value = match (value, entry.optional) {
                (Value::Optional(None), true) => continue,
                (Value::Optional(Some(inner)), true) => (*inner).clone(),
                (_, true) => return Err(EvalError::no_overload()),
                (value, false) => value,
            };
            map.insert(&key, value)?;
        }
        self.charge(30)?;
        Ok(Value::Map(Arc::new(map)))
    }

    fn construct(&mut self, name: &Arc<str>, fields: &'a [Field]) -> Eval {
        let mut map = Map {
            object: Some(name.trim_start_matches('.').into()),
            ..Map::default()
        };
        for field in fields {
            let value = match (self.eval(&field.value)?, field.optional) {
                (Value::Optional(None), true) => continue,
                (Value::Optional(Some(inner)), true) => (*inner).clone(),
                (value, _) => value,
            };
            map.entries
                .insert(Key::String(Arc::clone(&field.name)), value);
        }
        self.charge(40)?;
        Ok(Value::Map(Arc::new(map)))
    }

    fn bind(&mut self, fold: &'a Fold) -> Eval {
        self.locals.push(Local {
            name: Arc::clone(&fold.accu),
            slot: Slot::Lazy(&fold.init),
        });
        let result = self.eval(&fold.result);
        self.locals.pop();
        result
    }

    fn fold(&mut self, fold: &'a Fold) -> Eval {
        let range = self.eval(&fold.range)?;
        if !matches!(range, Value::List(_) | Value::Map(_)) {
            return Err(EvalError::no_overload());
        }
        let accu = self.eval(&fold.init);
        let base = self.locals.len();
        self.locals.push(Local {
            name: Arc::clone(&fold.accu),
            slot: Slot::Ready(accu),
        });
        // One after the other: the first may be the last that is looked at.
        let result = match &range {
            Value::List(list) if fold.var2.is_some() => {
                let items = (0..).map(Value::Int).zip(list.items.iter().cloned());
                self.iterate(fold, base, items)
            }
            Value::List(list) => {
                let items = list.items.iter().map(|item| (item.clone(), Value::Null));
                self.iterate(fold, base, items)
            }
            Value::Map(map) => {
                let entries = map.entries.iter();
                let entries = entries.map(|(key, value)| (key.value(), value.clone()));
                self.iterate(fold, base, entries)
            }
            _ => Ok(()),
        };
        self.locals.truncate(base + 1);
        let result = result.and_then(|()| self.eval(&fold.result));
        self.locals.truncate(base);
        result
    }

    fn iterate(
        &mut self,
        fold: &'a Fold,
        base: usize,
        items: impl Iterator<Item = (Value, Value)>,
    ) -> Eval<()> {
        for (first, second) in items {
            self.locals.truncate(base + 1);
            self.locals.push(Local {
                name: Arc::clone(&fold.var),
                slot: Slot::Ready(Ok(first)),
            });
            if let Some(name) = &fold.var2 {
                self.locals.push(Local {
                    name: Arc::clone(name),
                    slot: Slot::Ready(Ok(second)),
                });
            }
            match self.eval(&fold.condition) {
                Ok(Value::Bool(false)) => break,
                Err(EvalError::CostLimitExceeded) => return Err(EvalError::CostLimitExceeded),
                _ => {}
            }
            let step = self.eval(&fold.step);
            if step == Err(EvalError::CostLimitExceeded) {
                return Err(EvalError::CostLimitExceeded);
            }
            let lost = step.is_err() && matches!(fold.condition.kind, Kind::Const(_));
            self.locals[base].slot = Slot::Ready(step);
            if lost {
                // only logical folds can recover from a fault
                break;
            }
        }
        Ok(())
    }

    fn call(&mut self, id: Id, function: &str, target: Option<&'a Expr>, args: &'a [Expr]) -> Eval {
        // conversions are the only calls that are settled before
        if target.is_none()
            && args.len() == 1
            && let Some(value) = self.constants.get(&id)
        {
            return Ok(value.clone());
        }
        match function {
            "_&&_" => return self.logical(args, false),
            "_||_" => return self.logical(args, true),
            "_?_:_" => {
                return match self.eval(&args[0])? {
                    Value::Bool(true) => self.branch(&args[1]),
                    Value::Bool(false) => self.branch(&args[2]),
                    _ => Err(EvalError::no_overload()),
                };
            }
            "@not_strictly_false" => {
                let value = self.eval(&args[0]);
                if value == Err(EvalError::CostLimitExceeded) {
                    return value;
                }
                self.charge(1)?;
                return Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false)))));
            }
            "@in" => {
                if let Some(found) = self.in_constant_list(args) {
                    return found;
                }
            }
            "_?._" | "_[_]" | "_[?_]" => {
                let operand = self.operand(&args[0])?;
                let index = self.eval(&args[1])?;
                let optional = function != "_[_]";
                let found = crate::library::operators::index(&operand, &index, optional)?;
                self.charge_found(&found)?;
                return Ok(found);
            }
            "or" | "orValue" if target.is_some() => {
                if let Some(result) = self.optional_or(function, target, args) {
                    return result;
                }
            }
            _ => {}
        }
        let Some(native) = self.natives.get(&id).copied() else {
            return Err(EvalError::no_overload());
        };
        let mut values = Vec::with_capacity(args.len() + 1);
        if let Some(target) = target {
            values.push(self.eval(target)?);
        }
        for arg in args {
            let value = if values.is_empty() && target.is_none() {
                self.accumulator(arg)?
            } else {
                self.eval(arg)?
            };
            values.push(value);
        }
        self.apply(function, target.is_some(), native, values)
    }

    /// Membership in a list of scalar constants, which costs nothing.
    fn in_constant_list(&mut self, args: &'a [Expr]) -> Option<Eval> {
        let Some(Value::List(list)) = self.constants.get(&args[1].id) else {
            return None;
        };
        if list.items.is_empty() {
            return Some(Ok(Value::Bool(false)));
        }
        let scalar = |item: &Value| {
            matches!(
                item,
                Value::Bool(_)
                    | Value::Int(_)
                    | Value::Uint(_)
                    | Value::Double(_)
                    | Value::String(_)
            )
        };
        if !list.items.iter().all(scalar) {
            return None;
        }
        let list = Value::List(Arc::clone(list));
        Some(self.eval(&args[0]).and_then(|value| {
            crate::library::operators::contains(&value, &list, self.context.effort)
        }))
    }

    fn apply(&mut self, function: &str, member: bool, native: Native, values: Vec<Value>) -> Eval {
        // the accumulator moves into the call, so that it grows in place
        let before = call_cost(function, member, &values);
        if let Some(cost) = before {
            // paid in advance, so that nothing large is made that the budget does not allow
            self.charge(cost)?;
        }
        let effort = self.context.effort;
        for value in &values {
            match value {
                Value::String(text) => effort.text(text.len())?,
                Value::Bytes(bytes) => effort.text(bytes.len())?,
                _ => {}
            }
        }
        let result = match (function, native) {
            ("_+_", _) if matches!(values.as_slice(), [Value::List(_), Value::List(_)]) => {
                crate::library::operators::concat(values, effort)
            }
            ("cel.@mapInsert", _) => crate::library::operators::map_insert(values, effort),
            _ => native(&self.context, &values),
        };
        if before.is_none() {
            let size = result.as_ref().map_or(0, Value::cost_size);
            self.charge(crate::costs::traversal(2 * size))?;
        }
        result
    }

    /// The first argument; an accumulator is taken out of its variable, which is about to be
    /// replaced by the result.
    fn accumulator(&mut self, expr: &'a Expr) -> Eval {
        if let Kind::Ident(name) = &expr.kind
            && &**name == ACCUMULATOR
            && let Some(local) = self.locals.iter_mut().rev().find(|l| l.name == *name)
            && matches!(local.slot, Slot::Ready(Ok(Value::List(_) | Value::Map(_))))
        {
            let slot = std::mem::replace(&mut local.slot, Slot::Ready(Ok(Value::Null)));
            self.charge(1)?;
            if let Slot::Ready(value) = slot {
                return value;
            }
        }
        self.eval(expr)
    }

    fn logical(&mut self, args: &'a [Expr], decisive: bool) -> Eval {
        let mut fault = None;
        for arg in args {
            match self.eval(arg) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => {
                    fault.get_or_insert(EvalError::no_overload());
                }
                Err(EvalError::CostLimitExceeded) => return Err(EvalError::CostLimitExceeded),
                Err(error) => {
                    fault.get_or_insert(error);
                }
            }
        }
        fault.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    /// The alternative is evaluated only when there is no value.
    fn optional_or(
        &mut self,
        function: &str,
        target: Option<&'a Expr>,
        args: &'a [Expr],
    ) -> Option<Eval> {
        let target = match self.eval(target?) {
            Ok(target) => target,
            Err(error) => return Some(Err(error)),
        };
        let (Value::Optional(held), [other]) = (&target, args) else {
            // what is no optional stands for itself, as in the reference implementation
            return Some(Ok(target));
        };
        Some(match held {
            Some(_) if function == "or" => Ok(target),
            Some(value) => Ok((**value).clone()),
            None => self.eval(other),
        })
    }
}

fn has(operand: &Value, field: &str) -> Eval<bool> {
    match operand {
        Value::Map(map) => Ok(map.get(field).is_some()
            || (map.object.is_some()
                && map
                    .entries
                    .contains_key(&Key::String(format!("__{field}__").into())))),
        Value::Optional(None) => Ok(false),
        Value::Optional(Some(inner)) => has(inner, field),
        _ => Err(EvalError::no_overload()),
    }
}

pub(crate) fn get_field(operand: &Value, field: &str) -> Eval {
    match operand {
        Value::Map(map) => {
            if let Some(found) = map.get(field) {
                return Ok(found.clone());
            }
            if map.object.is_some()
                && let Some(found) = map.get(&format!("__{field}__"))
            {
                return Ok(found.clone());
            }
            Err(EvalError::no_such_key(field))
        }
        // selection goes on inside an optional value
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => Ok(match &**inner {
            Value::Map(map) => Value::Optional(map.get(field).cloned().map(Arc::new)),
            _ => return Err(EvalError::no_overload()),
        }),
        _ => Err(EvalError::no_overload()),
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other)
    }
}
