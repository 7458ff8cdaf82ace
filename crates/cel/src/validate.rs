//! Faults of constants: found when an expression is compiled, not when it runs.
//!
//! What the reference implementation's validators of Kubernetes' environment look at: arguments of
//! `duration`, `timestamp` and `matches`, and literals whose elements differ in type.

use std::collections::HashMap;

use crate::ast::{Expr, Kind};
use crate::checker::Checked;
use crate::effort::EvaluationEffort;
use crate::env::children;
use crate::error::{CompileError, most_faults};
use crate::library::formatting::{self, Clause, Piece};
use crate::library::regexes::LiteralPatterns;
use crate::library::{self, Context};
use crate::types::Type;
use crate::value::Value;

/// All faults, in the order of the source.
pub(crate) fn validate(
    root: &Expr,
    checked: &Checked,
    source: &[char],
    patterns: &mut LiteralPatterns<'_>,
) -> Vec<CompileError> {
    let mut validator = Validator {
        checked,
        patterns,
        faults: Vec::new(),
    };
    validator.visit(root, false);
    let mut faults = validator.faults;
    faults.sort_by_key(|(at, _)| *at);
    let faults = faults.into_iter().take(most_faults(source));
    faults
        .map(|(at, message)| CompileError::new(source, at, message))
        .collect()
}

struct Validator<'a, 'r> {
    checked: &'a Checked,
    patterns: &'a mut LiteralPatterns<'r>,
    /// Offsets and what is wrong there.
    faults: Vec<(usize, String)>,
}

impl Validator<'_, '_> {
    /// Notes a fault. Those that stand first are told; of a list or map with very many not all are looked for.
    fn fault(&mut self, at: usize, fault: String) {
        const MOST: usize = 1000;
        if self.faults.len() < MOST {
            self.faults.push((at, fault));
        }
    }

    /// `in_format`: among the arguments of `format`, whose lists may mix types.
    fn visit(&mut self, expr: &Expr, in_format: bool) {
        let mut in_format = in_format;
        match &expr.kind {
            Kind::Call {
                function,
                args,
                target,
            } => {
                in_format |= &**function == "format";
                self.call(function, target.is_some(), args);
                if let Some(target) = target
                    && &**function == "format"
                {
                    self.format(expr.at, target, args);
                }
            }
            Kind::List { items } if !in_format => {
                let items = items.iter().map(|item| (&item.value, item.optional));
                self.same_types(items, true);
            }
            Kind::Map { entries } if !in_format => {
                self.same_types(entries.iter().map(|entry| (&entry.key, false)), false);
                let values = entries.iter().map(|entry| (&entry.value, entry.optional));
                self.same_types(values, false);
            }
            _ => {}
        }
        for child in children(expr) {
            self.visit(child, in_format);
        }
    }

    fn call(&mut self, function: &str, member: bool, args: &[Expr]) {
        let Some((Kind::Const(constant), at)) = args.first().map(|arg| (&arg.kind, arg.at)) else {
            return;
        };
        let sound = match (function, constant) {
            ("duration" | "timestamp", constant) => {
                let (regexes, effort) = (HashMap::new(), EvaluationEffort::default());
                let context = Context::new(&regexes, &effort);
                library::find(function, false)
                    .is_none_or(|native| native(&context, std::slice::from_ref(constant)).is_ok())
            }
            ("matches", Value::String(pattern)) if member => self.patterns.get(pattern).is_ok(),
            _ => true,
        };
        if !sound {
            let fault = format!("invalid {function} argument");
            self.fault(at, fault);
        }
    }

    /// A constant format string with its arguments in place.
    fn format(&mut self, at: usize, target: &Expr, args: &[Expr]) {
        let (Kind::Const(Value::String(pattern)), [list]) = (&target.kind, args) else {
            return;
        };
        let Kind::List { items } = &list.kind else {
            return;
        };
        let pieces = match formatting::parse(pattern) {
            Ok(pieces) => pieces,
            Err(fault) => return self.fault(at, fault),
        };
        let mut used = 0;
        for piece in pieces {
            let Piece::Clause(clause) = piece else {
                continue;
            };
            let Some(item) = items.get(used) else {
                return self.fault(at, format!("index {used} out of range"));
            };
            used += 1;
            if let Some((at, ty)) = self.refused(clause, &item.value) {
                let fault = clause.refusal(ty);
                return self.fault(at, fault);
            }
        }
        if items.len() > used {
            let fault = format!(
                "too many arguments supplied to string.format (expected {used}, got {})",
                items.len()
            );
            self.fault(at, fault);
        }
    }

    /// The argument, or the part of it, that a clause does not take.
    fn refused<'s>(&'s self, clause: Clause, arg: &Expr) -> Option<(usize, &'s Type)> {
        let ty = &self.checked.types[arg.id];
        if !clause.takes(ty) {
            return Some((arg.at, ty));
        }
        if !clause.is_deep() {
            return None;
        }
        match &arg.kind {
            Kind::List { items } => items
                .iter()
                .find_map(|item| self.refused(clause, &item.value)),
            Kind::Map { entries } => entries.iter().find_map(|entry| {
                self.refused(clause, &entry.key)
                    .or_else(|| self.refused(clause, &entry.value))
            }),
            _ => None,
        }
    }

    /// `first_only`: of a list only the first element that differs is named.
    fn same_types<'e>(&mut self, items: impl Iterator<Item = (&'e Expr, bool)>, first_only: bool) {
        let mut known: Option<&Type> = None;
        for (item, optional) in items {
            let ty = match &self.checked.types[item.id] {
                Type::Optional(inner) if optional => inner,
                other => other,
            };
            let Some(known) = known else {
                known = Some(ty);
                continue;
            };
            if known.is_equivalent(ty) {
                continue;
            }
            let fault = format!("expected type '{known}' but found '{ty}'");
            self.fault(item.at, fault);
            if first_only {
                break;
            }
        }
    }
}
