//! What an expression can read of a variable, found without running it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ast::{Expr, Fold, Kind};
use crate::env::children;
use crate::value::Value;

/// Keys that lead from a variable to a value in it; empty: the variable itself.
pub(crate) type Path = Vec<Arc<str>>;

/// The paths from `variable` that the expression goes, each as far as its keys are constant. What is not behind one of
/// them does not matter to what the expression yields, says or costs.
pub(crate) fn reads(root: &Expr, variable: &str) -> BTreeSet<Path> {
    let mut reader = Reader {
        variable,
        locals: Vec::new(),
        paths: BTreeSet::new(),
    };
    reader.visit(root);
    reader.paths
}

struct Reader<'a> {
    variable: &'a str,
    /// Variables of loops and of `cel.bind`, innermost last, with the path they stand for if they do.
    locals: Vec<(&'a str, Option<Path>)>,
    paths: BTreeSet<Path>,
}

impl<'a> Reader<'a> {
    fn visit(&mut self, expr: &'a Expr) {
        if let Some(path) = self.path(expr) {
            self.paths.insert(path);
            return;
        }
        match &expr.kind {
            Kind::Fold(fold) if fold.is_bind() => self.bind(fold),
            Kind::Fold(fold) => self.fold(fold),
            _ => children(expr).into_iter().for_each(|c| self.visit(c)),
        }
    }

    /// The path that the expression is, if it is nothing else.
    fn path(&self, expr: &Expr) -> Option<Path> {
        match &expr.kind {
            Kind::Ident(name) => {
                let local = self
                    .locals
                    .iter()
                    .rev()
                    .find(|(local, _)| **local == **name);
                match local {
                    Some((_, path)) => path.clone(),
                    None => {
                        let name = name.strip_prefix('.').unwrap_or(name);
                        (name == self.variable).then(Path::new)
                    }
                }
            }
            Kind::Select { operand, field, .. } => {
                let mut path = self.path(operand)?;
                path.push(field.clone());
                Some(path)
            }
            Kind::Call {
                function,
                target: None,
                args,
            } if matches!(&**function, "_[_]" | "_[?_]" | "_?._") => {
                let [operand, key] = &args[..] else {
                    return None;
                };
                let Kind::Const(Value::String(key)) = &key.kind else {
                    return None;
                };
                let mut path = self.path(operand)?;
                path.push(key.clone());
                Some(path)
            }
            _ => None,
        }
    }

    /// A variable that stands for a path reads nothing by itself.
    fn bind(&mut self, fold: &'a Fold) {
        let path = self.path(&fold.init);
        if path.is_none() {
            self.visit(&fold.init);
        }
        self.locals.push((&fold.accu, path));
        self.visit(&fold.result);
        self.locals.pop();
    }

    fn fold(&mut self, fold: &'a Fold) {
        self.visit(&fold.range);
        self.visit(&fold.init);
        let outside = self.locals.len();
        let names = [&fold.var, &fold.accu].into_iter().chain(&fold.var2);
        self.locals.extend(names.map(|name| (&**name, None)));
        for part in [&fold.condition, &fold.step, &fold.result] {
            self.visit(part);
        }
        self.locals.truncate(outside);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Type};

    #[test]
    fn paths_go_as_far_as_keys_are_constant() {
        let env = Env::kubernetes().variable("d", Type::Dyn).build();
        for (expression, expected) in [
            ("1 == 1", ""),
            ("d.driver == 'x'", "driver"),
            ("d.a['x.y'].n > 4 && d.a['x.y'].m", "a/x.y/m a/x.y/n"),
            ("d.a['x'].?n.orValue(1) == 1", "a/x/n"),
            ("d.?a[?'x'].?n.hasValue()", "a/x/n"),
            ("has(d.a['x'].n) ? d.a['x'].n : 3", "a/x/n"),
            ("'x' in d.a", "a"),
            ("d.a[d.driver].n == 1", "a driver"),
            ("d.a['x'][1].n == 1", "a/x"),
            ("d == d", "."),
            ("cel.bind(v, d.a['x'], v.n == 5 && v.m)", "a/x/m a/x/n"),
            (
                "cel.bind(v, d.a['x'], cel.bind(w, v.n, w == v.m))",
                "a/x/m a/x/n",
            ),
            ("cel.bind(v, d.a['x'].n + 1, v == d.b)", "a/x/n b"),
            ("cel.bind(d, 1, d == 1)", ""),
            ("d.l.exists(i, i == d.n)", "l n"),
            ("[1].exists(d, d == 1)", ""),
            ("[1].map(d, d == 1)[0] && d.n", "n"),
            ("d.a['x'].?n.optMap(v, v == d.m).orValue(false)", "a/x/n m"),
            (".d.n == 1", "n"),
        ] {
            let program = env.compile(expression).unwrap();
            let reads = program.reads("d");
            let shown: Vec<String> = reads
                .iter()
                .map(|path| match path.join("/") {
                    whole if whole.is_empty() => ".".to_owned(),
                    path => path,
                })
                .collect();
            assert_eq!(shown.join(" "), expected, "{expression}");
        }
    }
}
