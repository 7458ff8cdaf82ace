//! Selectors: compiled once, evaluated once for a device, and kept.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::device::{Device, DeviceView};

/// Compiles expressions.
pub trait CompileSelector: Send + Sync {
    /// The compiled expression.
    ///
    /// # Errors
    /// What is wrong with it.
    fn compile(&self, expression: &str) -> Result<Box<dyn EvaluateSelector>, String>;
}

/// A compiled expression.
pub trait EvaluateSelector: Send + Sync {
    /// Whether the device is selected.
    ///
    /// # Errors
    /// What went wrong while evaluating.
    fn matches(&self, device: DeviceView<'_>) -> Result<bool, String>;
}

/// How many expressions are kept.
const KEPT: usize = 4096;
/// How many expressions' outcomes a device keeps.
const OUTCOMES: usize = 32;

/// The expressions that have been compiled. Shared by everything that allocates.
pub struct Selectors {
    compiler: Box<dyn CompileSelector>,
    known: Mutex<HashMap<Arc<str>, Arc<Compiled>>>,
    next: AtomicU64,
    evaluations: AtomicU64,
}

impl fmt::Debug for Selectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selectors")
            .field("known", &self.known.lock().len())
            .finish_non_exhaustive()
    }
}

pub(crate) struct Compiled {
    id: u64,
    pub(crate) expression: Arc<str>,
    program: Result<Box<dyn EvaluateSelector>, Arc<str>>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expression)
    }
}

impl Compiled {
    /// The compiler's complaint.
    pub(crate) fn fault(&self) -> Option<&Arc<str>> {
        self.program.as_ref().err()
    }
}

/// An expression's number and what came of it.
type Outcome = (u64, Result<bool, Arc<str>>);

/// What came of expressions on one device.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(RwLock<Vec<Outcome>>);

impl Selectors {
    /// Selectors of this compiler.
    pub fn new(compiler: impl CompileSelector + 'static) -> Self {
        Self {
            compiler: Box::new(compiler),
            known: Mutex::default(),
            next: AtomicU64::new(0),
            evaluations: AtomicU64::new(0),
        }
    }

    /// How often an expression was evaluated rather than remembered.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, expression: &str) -> Arc<Compiled> {
        if let Some(found) = self.known.lock().get(expression) {
            return found.clone();
        }
        let expression: Arc<str> = expression.into();
        let compiled = Arc::new(Compiled {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            program: self.compiler.compile(&expression).map_err(Arc::from),
            expression: expression.clone(),
        });
        let mut known = self.known.lock();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(expression, compiled.clone());
        compiled
    }

    /// Whether the device is selected; the error is that of the evaluation.
    pub(crate) fn matches(
        &self,
        selector: &Compiled,
        driver: &str,
        device: &Device,
    ) -> Result<bool, Arc<str>> {
        let id = selector.id;
        let known = device.outcomes.0.read();
        if let Some((_, outcome)) = known.iter().find(|(other, _)| *other == id) {
            return outcome.clone();
        }
        drop(known);
        let program = selector.program.as_ref().map_err(Arc::clone)?;
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        let outcome = program.matches(device.view(driver)).map_err(Arc::from);
        let mut kept = device.outcomes.0.write();
        if kept.len() >= OUTCOMES {
            drop(kept.remove(0));
        }
        kept.push((id, outcome.clone()));
        outcome
    }
}
