//! Macros: calls that the parser turns into something else.

use std::sync::Arc;

use super::{Parse, Parser};
use crate::ast::{ACCUMULATOR, Entry, Expr, Fold, Item, Kind};
use crate::value::Value;

const UNUSED: &str = "#unused";

/// Each `optMap` doubles its target; nested ones may not grow without bound.
const MAX_NODES: usize = 20_000;

impl Parser<'_> {
    pub(super) fn expand_global(&mut self, at: usize, name: &str, mut args: Vec<Expr>) -> Parse {
        if name != "has" || args.len() != 1 {
            return Ok(self.call(at, name, args));
        }
        let arg = args.remove(0);
        let arg_at = arg.at;
        match arg.kind {
            Kind::Select {
                operand,
                field,
                test: false,
            } => Ok(self.node(
                at,
                Kind::Select {
                    operand,
                    field,
                    test: true,
                },
            )),
            _ => Err(self.error(arg_at, "invalid argument to has() macro")),
        }
    }

    pub(super) fn expand_member(
        &mut self,
        at: usize,
        target: Expr,
        name: &str,
        mut args: Vec<Expr>,
    ) -> Parse {
        match (name, args.len()) {
            ("all" | "exists" | "exists_one" | "existsOne", 2 | 3)
            | ("map", 2 | 3)
            | ("filter", 2) => self.comprehension(at, target, name, args),
            ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
                self.transform(at, target, name, args)
            }
            ("sortBy", 2) => self.sort_by(at, target, args),
            ("optMap" | "optFlatMap", 2) => self.opt_map(at, &target, name, args),
            ("bind", 3) if matches!(&target.kind, Kind::Ident(n) if &**n == "cel") => {
                let body = args.pop().ok_or_else(|| self.missing(at))?;
                let value = args.pop().ok_or_else(|| self.missing(at))?;
                let variable = args.pop().ok_or_else(|| self.missing(at))?;
                let Kind::Ident(variable) = variable.kind else {
                    return Err(self.error(
                        variable.at,
                        "cel.bind() variable names must be simple identifiers",
                    ));
                };
                Ok(self.bind(at, variable, value, body))
            }
            _ => Ok(self.node(
                at,
                Kind::Call {
                    function: name.into(),
                    target: Some(Box::new(target)),
                    args,
                },
            )),
        }
    }

    fn missing(&self, at: usize) -> crate::error::CompileError {
        self.error(at, "missing argument")
    }

    fn variable(&self, arg: &Expr) -> Parse<Arc<str>> {
        match &arg.kind {
            Kind::Ident(name) if !name.starts_with('.') => {
                if matches!(&**name, "__result__" | ACCUMULATOR) {
                    return Err(
                        self.error(arg.at, "iteration variable overwrites accumulator variable")
                    );
                }
                Ok(Arc::clone(name))
            }
            _ => Err(self.error(arg.at, "argument must be a simple name")),
        }
    }

    fn accu(&mut self, at: usize) -> Expr {
        self.ident(at, ACCUMULATOR)
    }

    fn fold(&mut self, at: usize, fold: Fold) -> Expr {
        self.node(at, Kind::Fold(Box::new(fold)))
    }

    fn bind(&mut self, at: usize, variable: Arc<str>, value: Expr, body: Expr) -> Expr {
        let range = self.node(at, Kind::List { items: Vec::new() });
        let condition = self.constant(at, Value::Bool(false));
        let step = self.ident(at, &variable);
        self.fold(
            at,
            Fold {
                range,
                var: UNUSED.into(),
                var2: None,
                accu: variable,
                init: value,
                condition,
                step,
                result: body,
            },
        )
    }

    fn list_of(&mut self, at: usize, value: Expr) -> Expr {
        let items = vec![Item {
            value,
            optional: false,
        }];
        self.node(at, Kind::List { items })
    }

    fn comprehension(&mut self, at: usize, target: Expr, name: &str, args: Vec<Expr>) -> Parse {
        let mut args = args.into_iter();
        let first = args.next().ok_or_else(|| self.missing(at))?;
        let var = self.variable(&first)?;
        let count = args.len();
        let mut var2 = None;
        if count == 2 && name != "map" {
            let second = args.next().ok_or_else(|| self.missing(at))?;
            let second_name = self.variable(&second)?;
            if second_name == var {
                return Err(
                    self.error(second.at, format!("duplicate variable name: {second_name}"))
                );
            }
            var2 = Some(second_name);
        }
        let predicate = args.next().ok_or_else(|| self.missing(at))?;
        let accu = self.accu(at);
        let (init, condition, step, result);
        match name {
            "all" | "exists" => {
                let all = name == "all";
                init = self.constant(at, Value::Bool(all));
                let going = self.accu(at);
                let going = if all {
                    going
                } else {
                    self.call(at, "!_", vec![going])
                };
                condition = self.call(at, "@not_strictly_false", vec![going]);
                let function = if all { "_&&_" } else { "_||_" };
                step = self.call(at, function, vec![accu, predicate]);
                result = self.accu(at);
            }
            "exists_one" | "existsOne" => {
                init = self.constant(at, Value::Int(0));
                condition = self.constant(at, Value::Bool(true));
                let one = self.constant(at, Value::Int(1));
                let more = self.call(at, "_+_", vec![accu, one]);
                let same = self.accu(at);
                step = self.call(at, "_?_:_", vec![predicate, more, same]);
                let (count, one) = (self.accu(at), self.constant(at, Value::Int(1)));
                result = self.call(at, "_==_", vec![count, one]);
            }
            _ => {
                init = self.node(at, Kind::List { items: Vec::new() });
                condition = self.constant(at, Value::Bool(true));
                let (filter, value) = match (name, args.next()) {
                    ("filter", _) => (Some(predicate), self.ident(at, &var)),
                    (_, Some(transform)) => (Some(predicate), transform),
                    (_, None) => (None, predicate),
                };
                let item = self.list_of(at, value);
                let more = self.call(at, "_+_", vec![accu, item]);
                step = self.when(at, filter, more);
                result = self.accu(at);
            }
        }
        Ok(self.fold(
            at,
            Fold {
                range: target,
                var,
                var2,
                accu: ACCUMULATOR.into(),
                init,
                condition,
                step,
                result,
            },
        ))
    }

    /// `list.sortBy(e, key)`: the list bound to a name, sorted by the keys of its elements.
    fn sort_by(&mut self, at: usize, target: Expr, args: Vec<Expr>) -> Parse {
        const INPUT: &str = "@__sortBy_input__";
        if !matches!(
            target.kind,
            Kind::List { .. }
                | Kind::Select { .. }
                | Kind::Ident(_)
                | Kind::Fold(_)
                | Kind::Call { .. }
        ) {
            return Err(self.error(
                target.at,
                "sortBy can only be applied to a list, identifier, comprehension, call or select \
                 expression",
            ));
        }
        let input = self.ident(at, INPUT);
        let keys = self.comprehension(at, input, "map", args)?;
        let sorted = Kind::Call {
            function: "@sortByAssociatedKeys".into(),
            target: Some(Box::new(self.ident(at, INPUT))),
            args: vec![keys],
        };
        let sorted = self.node(at, sorted);
        Ok(self.bind(at, INPUT.into(), target, sorted))
    }

    /// `filter ? step : accumulator`, or the step alone.
    fn when(&mut self, at: usize, filter: Option<Expr>, step: Expr) -> Expr {
        match filter {
            None => step,
            Some(filter) => {
                let same = self.accu(at);
                self.call(at, "_?_:_", vec![filter, step, same])
            }
        }
    }

    fn transform(&mut self, at: usize, target: Expr, name: &str, mut args: Vec<Expr>) -> Parse {
        let value = args.pop().ok_or_else(|| self.missing(at))?;
        let filter = if args.len() == 3 { args.pop() } else { None };
        let var = self.variable(&args[0])?;
        let var2 = self.variable(&args[1])?;
        if var == var2 {
            return Err(self.error(args[1].at, format!("duplicate variable name: {var2}")));
        }
        let accu = self.accu(at);
        let (init, step) = if name == "transformList" {
            let init = self.node(at, Kind::List { items: Vec::new() });
            let item = self.list_of(at, value);
            (init, self.call(at, "_+_", vec![accu, item]))
        } else {
            let init = self.node(
                at,
                Kind::Map {
                    entries: Vec::<Entry>::new(),
                },
            );
            let mut given = vec![accu];
            if name == "transformMap" {
                given.push(self.ident(at, &var));
            }
            given.push(value);
            (init, self.call(at, "cel.@mapInsert", given))
        };
        let step = self.when(at, filter, step);
        let condition = self.constant(at, Value::Bool(true));
        let result = self.accu(at);
        Ok(self.fold(
            at,
            Fold {
                range: target,
                var,
                var2: Some(var2),
                accu: ACCUMULATOR.into(),
                init,
                condition,
                step,
                result,
            },
        ))
    }

    fn opt_map(&mut self, at: usize, target: &Expr, name: &str, mut args: Vec<Expr>) -> Parse {
        let body = args.pop().ok_or_else(|| self.missing(at))?;
        let variable = args.pop().ok_or_else(|| self.missing(at))?;
        let variable = self.variable(&variable)?;
        if self.ids > MAX_NODES {
            return Err(self.error(at, "expression is too complex"));
        }
        let member = |parser: &mut Self, function: &str| {
            // the target stands twice in the expansion, each time with ids of its own
            let target = parser.copy(target);
            parser.node(
                at,
                Kind::Call {
                    function: function.into(),
                    target: Some(Box::new(target)),
                    args: Vec::new(),
                },
            )
        };
        let has = member(self, "hasValue");
        let value = member(self, "value");
        let inner = self.bind(at, variable, value, body);
        let some = if name == "optMap" {
            self.call(at, "optional.of", vec![inner])
        } else {
            inner
        };
        let none = self.call(at, "optional.none", Vec::new());
        Ok(self.call(at, "_?_:_", vec![has, some, none]))
    }

    fn copy(&mut self, expr: &Expr) -> Expr {
        let kind = match &expr.kind {
            Kind::Select {
                operand,
                field,
                test,
            } => Kind::Select {
                operand: Box::new(self.copy(operand)),
                field: Arc::clone(field),
                test: *test,
            },
            Kind::Call {
                function,
                target,
                args,
            } => Kind::Call {
                function: Arc::clone(function),
                target: target.as_ref().map(|t| Box::new(self.copy(t))),
                args: args.iter().map(|a| self.copy(a)).collect(),
            },
            Kind::List { items } => Kind::List {
                items: items
                    .iter()
                    .map(|item| Item {
                        value: self.copy(&item.value),
                        optional: item.optional,
                    })
                    .collect(),
            },
            Kind::Map { entries } => Kind::Map {
                entries: entries
                    .iter()
                    .map(|entry| Entry {
                        key: self.copy(&entry.key),
                        value: self.copy(&entry.value),
                        optional: entry.optional,
                    })
                    .collect(),
            },
            Kind::Struct { name, fields } => Kind::Struct {
                name: Arc::clone(name),
                fields: fields
                    .iter()
                    .map(|field| crate::ast::Field {
                        value: self.copy(&field.value),
                        ..field.clone()
                    })
                    .collect(),
            },
            Kind::Fold(fold) => Kind::Fold(Box::new(Fold {
                range: self.copy(&fold.range),
                init: self.copy(&fold.init),
                condition: self.copy(&fold.condition),
                step: self.copy(&fold.step),
                result: self.copy(&fold.result),
                ..(**fold).clone()
            })),
            other => other.clone(),
        };
        self.node(expr.at, kind)
    }
}
