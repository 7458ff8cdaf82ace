//! The syntax tree. Macros are already expanded in it.

use std::sync::Arc;

use crate::value::Value;

/// Identifies a node; side tables of the checker are indexed by it.
pub(crate) type Id = usize;

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    /// Offset in code points.
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Const(Value),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        /// Made by `has()`: asks for presence.
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List {
        items: Vec<Item>,
    },
    Map {
        entries: Vec<Entry>,
    },
    Struct {
        name: Arc<str>,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
    pub(crate) at: usize,
}

/// A loop over a range with an accumulator: what all comprehension macros become.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub(crate) range: Expr,
    pub(crate) var: Arc<str>,
    pub(crate) var2: Option<Arc<str>>,
    pub(crate) accu: Arc<str>,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Fold {
    /// Made by `cel.bind`: no loop, only a variable, which is evaluated when it is first used.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List { items } if items.is_empty())
            && matches!(self.condition.kind, Kind::Const(Value::Bool(false)))
            && &*self.accu != ACCUMULATOR
    }
}

/// The accumulator's name, which no expression can write.
pub(crate) const ACCUMULATOR: &str = "@result";

impl Expr {
    /// A name with selections and indexes behind it, or a choice between such: what the reference
    /// implementation calls an attribute.
    pub(crate) fn is_path(&self) -> bool {
        match &self.kind {
            Kind::Ident(_) | Kind::Select { .. } => true,
            Kind::Call { function, .. } => {
                matches!(&**function, "_[_]" | "_[?_]" | "_?._" | "_?_:_")
            }
            _ => false,
        }
    }

    /// `a ? b : c` or `has(a.b)`.
    pub(crate) fn is_choice_or_test(&self) -> bool {
        match &self.kind {
            Kind::Select { test, .. } => *test,
            Kind::Call { function, .. } => &**function == "_?_:_",
            _ => false,
        }
    }

    /// `a.b.c` when the expression is nothing but such a name.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select {
                operand,
                field,
                test: false,
            } => operand.qualified_name().map(|q| format!("{q}.{field}")),
            _ => None,
        }
    }
}
