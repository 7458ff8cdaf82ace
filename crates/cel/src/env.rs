//! Environments and compiled expressions.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use regex::Regex;

use crate::Library;
use crate::activation::Activation;
use crate::ast::{Expr, Id, Kind};
use crate::checker::{self, Checked, Scope};
use crate::declarations::{Functions, functions};
use crate::effort::EvaluationEffort;
use crate::error::{CompileError, EvalError};
use crate::estimate::{CostEstimate, estimate};
use crate::interpreter::Machine;
use crate::library::regexes::{LiteralPatterns, PatternRoom};
use crate::library::{self, Context, Native};
use crate::parser;
use crate::reads::reads;
use crate::types::{DeclType, Type};
use crate::validate::validate;
use crate::value::{Map, Value};

/// What expressions can refer to: variables, functions, constructible objects.
#[derive(Clone)]
pub struct Env {
    variables: Arc<HashMap<Arc<str>, DeclType>>,
    functions: Arc<Functions>,
    structs: Arc<HashMap<Arc<str>, Type>>,
    open_objects: bool,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = self.variables.keys().map(|name| &**name).collect();
        names.sort_unstable();
        f.debug_struct("Env")
            .field("variables", &names)
            .finish_non_exhaustive()
    }
}

/// Puts an environment together.
#[derive(Debug, Default)]
pub struct EnvBuilder {
    libraries: Vec<Library>,
    variables: HashMap<Arc<str>, DeclType>,
    structs: HashMap<Arc<str>, Type>,
    open_objects: bool,
}

impl EnvBuilder {
    /// Adds a library.
    #[must_use]
    pub fn library(mut self, library: Library) -> Self {
        if !self.libraries.contains(&library) {
            self.libraries.push(library);
        }
        self
    }

    /// Declares a variable by its type.
    #[must_use]
    pub fn variable(self, name: &str, ty: Type) -> Self {
        self.declare(name, DeclType::simple(ty))
    }

    /// Declares a variable whose sizes are known, for estimates.
    #[must_use]
    pub fn declare(mut self, name: &str, decl: DeclType) -> Self {
        self.variables.insert(name.into(), decl);
        self
    }

    /// Lets expressions construct `Name{field: …}` of an object type.
    #[must_use]
    pub fn constructible(mut self, decl: &DeclType) -> Self {
        if let Type::Object(object) = &decl.ty {
            self.structs
                .insert(Arc::clone(&object.name), decl.ty.clone());
        }
        self
    }

    /// Lets expressions construct `Object{}` and `Object.spec{}` with any fields.
    #[must_use]
    pub fn open_objects(mut self) -> Self {
        self.open_objects = true;
        self
    }

    /// The environment.
    pub fn build(self) -> Env {
        Env {
            functions: Arc::new(functions(self.libraries)),
            variables: Arc::new(self.variables),
            structs: Arc::new(self.structs),
            open_objects: self.open_objects,
        }
    }
}

impl Env {
    /// An empty environment.
    pub fn builder() -> EnvBuilder {
        EnvBuilder::default()
    }

    /// The language and the libraries of a Kubernetes API server.
    pub fn kubernetes() -> EnvBuilder {
        Library::KUBERNETES
            .into_iter()
            .fold(EnvBuilder::default(), EnvBuilder::library)
    }

    /// This environment with one more variable.
    #[must_use]
    pub fn with_variable(&self, name: &str, decl: DeclType) -> Self {
        let mut variables = (*self.variables).clone();
        variables.insert(name.into(), decl);
        Self {
            variables: Arc::new(variables),
            ..self.clone()
        }
    }

    /// Parses and checks an expression.
    ///
    /// # Errors
    /// All faults that were found; [`crate::join_errors`] makes the usual text of them.
    pub fn compile(&self, source: &str) -> Result<Program, Vec<CompileError>> {
        self.compile_within(source, &PatternRoom::default())
    }

    /// Like [`Env::compile`], of several expressions whose patterns have room together.
    ///
    /// # Errors
    /// As [`Env::compile`].
    pub fn compile_within(
        &self,
        source: &str,
        room: &PatternRoom,
    ) -> Result<Program, Vec<CompileError>> {
        let before = room.left();
        let chars: Vec<char> = source.chars().collect();
        let mut parsed = parser::parse(&chars)?;
        let scope = Scope {
            variables: &self.variables,
            functions: &self.functions,
            structs: &self.structs,
            open_objects: self.open_objects,
        };
        let checked = checker::check(&mut parsed.root, parsed.ids, &chars, &scope)?;
        let mut patterns = LiteralPatterns::new(room);
        let faults = validate(&parsed.root, &checked, &chars, &mut patterns);
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut prepared = Prepared::default();
        prepared
            .visit(&parsed.root, &mut patterns)
            .map_err(|fault| format!("program instantiation failed: {fault}"))
            .map_err(|fault| vec![CompileError::whole(fault)])?;
        Ok(Program {
            inner: Arc::new(Inner {
                root: parsed.root,
                checked,
                prepared,
                variables: Arc::clone(&self.variables),
                patterns: usize::try_from(before - room.left()).unwrap_or(usize::MAX),
            }),
        })
    }
}

/// A compiled expression. Cheap to clone, may be used by many threads at once.
#[derive(Clone)]
pub struct Program {
    inner: Arc<Inner>,
}

struct Inner {
    root: Expr,
    checked: Checked,
    prepared: Prepared,
    /// Bytes that its patterns count for.
    patterns: usize,
    variables: Arc<HashMap<Arc<str>, DeclType>>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("output", self.output_type())
            .finish_non_exhaustive()
    }
}

impl Program {
    /// The type of the result; `dyn` when it is known only when the expression runs.
    pub fn output_type(&self) -> &Type {
        &self.inner.checked.types[self.inner.root.id]
    }

    /// What evaluating it can cost, by the sizes of the declared variables.
    pub fn cost_estimate(&self) -> CostEstimate {
        estimate(&self.inner.root, &self.inner.checked, &self.inner.variables)
    }

    /// Bytes that its regular expressions take, at most.
    pub fn pattern_bytes(&self) -> usize {
        self.inner.patterns
    }

    /// Whether the expression mentions a variable.
    pub fn uses(&self, variable: &str) -> bool {
        let mut found = false;
        walk(&self.inner.root, &mut |expr| {
            found |= matches!(&expr.kind, Kind::Ident(name) if &**name == variable);
        });
        found
    }

    /// What it can read of a variable: every path of constant keys that it goes from there, each as far as its keys are
    /// constant. An empty path: the variable as a whole. Changing anything else changes neither result nor cost.
    pub fn reads(&self, variable: &str) -> BTreeSet<Vec<Arc<str>>> {
        reads(&self.inner.root, variable)
    }

    /// Evaluates it. The second part of the result is what it cost.
    ///
    /// # Errors
    /// The expression's own fault, or that it would have cost more than `budget`.
    pub fn eval(
        &self,
        activation: &dyn Activation,
        budget: u64,
    ) -> Result<(Value, u64), EvalError> {
        let (result, cost) = self.run(activation, budget);
        result.map(|value| (value, cost))
    }

    /// Like [`Program::eval`], but tells the cost of failed evaluations, too.
    pub fn run(&self, activation: &dyn Activation, budget: u64) -> (Result<Value, EvalError>, u64) {
        self.run_within(activation, budget, &EvaluationEffort::default(), 0)
    }

    /// Like [`Program::run`], with what several evaluations may take together, and as deep in others.
    pub fn run_within(
        &self,
        activation: &dyn Activation,
        budget: u64,
        effort: &EvaluationEffort,
        depth: usize,
    ) -> (Result<Value, EvalError>, u64) {
        let prepared = &self.inner.prepared;
        let mut machine = Machine {
            context: Context::new(&prepared.regexes, effort),
            activation,
            constants: &prepared.constants,
            natives: &prepared.natives,
            locals: Vec::new(),
            cost: 0,
            limit: budget,
            depth,
        };
        let result = machine.eval(&self.inner.root);
        (result, machine.cost)
    }
}

/// What can be settled before the expression runs.
#[derive(Default)]
struct Prepared {
    constants: HashMap<Id, Value>,
    natives: HashMap<Id, Native>,
    regexes: HashMap<String, Regex>,
}

impl Prepared {
    fn visit(&mut self, expr: &Expr, patterns: &mut LiteralPatterns<'_>) -> Result<(), String> {
        for child in children(expr) {
            self.visit(child, patterns)?;
        }
        match &expr.kind {
            Kind::Call {
                function,
                target,
                args,
            } => {
                if let Some(native) = library::find(function, target.is_some()) {
                    self.natives.insert(expr.id, native);
                    self.fold_conversion(expr.id, function, native, args)?;
                }
                let pattern = match (&**function, target) {
                    ("matches", None) => args.get(1),
                    ("matches" | "find" | "findAll", Some(_)) => args.first(),
                    _ => None,
                };
                if let Some(Expr {
                    kind: Kind::Const(Value::String(pattern)),
                    ..
                }) = pattern
                    && !self.regexes.contains_key(&**pattern)
                {
                    self.regexes
                        .insert(pattern.to_string(), patterns.get(pattern)?);
                }
            }
            Kind::List { items } => {
                let values: Option<Vec<Value>> = items
                    .iter()
                    .map(|item| self.constant(&item.value).filter(|_| !item.optional))
                    .collect();
                if let Some(values) = values {
                    self.constants.insert(expr.id, Value::list(values));
                }
            }
            Kind::Map { entries } => {
                let mut map = Map::default();
                let constant = entries.iter().all(|entry| {
                    let pair = (self.constant(&entry.key), self.constant(&entry.value));
                    let (false, (Some(key), Some(value))) = (entry.optional, pair) else {
                        return false;
                    };
                    map.insert(&key, value).is_ok()
                });
                if constant {
                    self.constants.insert(expr.id, Value::Map(Arc::new(map)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Conversions of constants are made once; one that fails is a fault of the expression.
    fn fold_conversion(
        &mut self,
        id: Id,
        function: &str,
        native: Native,
        args: &[Expr],
    ) -> Result<(), String> {
        const CONVERSIONS: [&str; 10] = [
            "bool",
            "bytes",
            "double",
            "duration",
            "dyn",
            "int",
            "string",
            "timestamp",
            "type",
            "uint",
        ];
        if !CONVERSIONS.contains(&function) {
            return Ok(());
        }
        if let [arg] = args
            && let Some(value) = self.constant(arg)
        {
            let effort = EvaluationEffort::default();
            let context = Context::new(&self.regexes, &effort);
            let value = native(&context, &[value]).map_err(|fault| fault.to_string())?;
            self.constants.insert(id, value);
        }
        Ok(())
    }

    fn constant(&self, expr: &Expr) -> Option<Value> {
        match &expr.kind {
            Kind::Const(value) => Some(value.clone()),
            _ => self.constants.get(&expr.id).cloned(),
        }
    }
}

pub(crate) fn children(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        Kind::Const(_) | Kind::Ident(_) => Vec::new(),
        Kind::Select { operand, .. } => vec![operand],
        Kind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
        Kind::List { items } => items.iter().map(|item| &item.value).collect(),
        Kind::Map { entries } => entries
            .iter()
            .flat_map(|entry| [&entry.key, &entry.value])
            .collect(),
        Kind::Struct { fields, .. } => fields.iter().map(|field| &field.value).collect(),
        Kind::Fold(fold) => vec![
            &fold.range,
            &fold.init,
            &fold.condition,
            &fold.step,
            &fold.result,
        ],
    }
}

fn walk(expr: &Expr, visit: &mut impl FnMut(&Expr)) {
    visit(expr);
    for child in children(expr) {
        walk(child, visit);
    }
}
