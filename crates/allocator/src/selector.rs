//! Selectors: compiled once, evaluated once for devices that they cannot tell apart, and kept.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};

use crate::device::{Device, DeviceView};
use crate::excerpt::shown;
use crate::fingerprint::Fingerprint;
use crate::support::Support;

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

    /// Which attributes the answer, or the error, can depend on.
    fn support(&self) -> Support {
        Support::ALL
    }

    /// Bytes that its regular expressions take.
    fn pattern_bytes(&self) -> usize {
        0
    }
}

/// How many expressions are kept, and how many bytes of them: a program takes some forty times what it is made of.
const KEPT: usize = 4096;
const KEPT_BYTES: usize = 2 << 20;
/// Bytes of regular expressions for one of an expression.
const PATTERN_BYTES: usize = 40;
/// How many outcomes are kept.
const OUTCOMES: usize = 1 << 18;

/// Expressions, and their bytes together.
#[derive(Default)]
struct Known {
    compiled: HashMap<Arc<str>, Arc<Compiled>>,
    bytes: usize,
}

impl Known {
    fn keep(&mut self, compiled: Arc<Compiled>) {
        let expression = compiled.expression.clone();
        let bytes = compiled.bytes();
        if self.compiled.len() >= KEPT || self.bytes + bytes > KEPT_BYTES {
            *self = Self::default();
        }
        if self.compiled.insert(expression, compiled).is_none() {
            self.bytes += bytes;
        }
    }
}

/// The expressions that have been compiled. Shared by everything that allocates.
pub struct Selectors {
    compiler: Box<dyn CompileSelector>,
    known: Mutex<Known>,
    next: AtomicU64,
    /// What came of an expression, by its number, on devices that look the same to it.
    outcomes: RwLock<HashMap<(u64, Fingerprint), Outcome, RandomState>>,
    evaluations: AtomicU64,
}

impl fmt::Debug for Selectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selectors")
            .field("known", &self.known.lock().compiled.len())
            .finish_non_exhaustive()
    }
}

pub(crate) struct Compiled {
    id: u64,
    pub(crate) expression: Arc<str>,
    program: Result<Box<dyn EvaluateSelector>, Arc<str>>,
    support: Support,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expression)
    }
}

impl Compiled {
    /// What it counts for among those that are kept.
    fn bytes(&self) -> usize {
        let patterns = self.program.as_ref().map_or(0, |p| p.pattern_bytes());
        self.expression.len() + patterns / PATTERN_BYTES
    }

    /// The compiler's complaint.
    pub(crate) fn fault(&self) -> Option<&Arc<str>> {
        self.program.as_ref().err()
    }

    /// Which attributes can matter to it.
    pub(crate) fn support(&self) -> &Support {
        &self.support
    }
}

/// What came of an expression on a device.
type Outcome = Result<bool, Arc<str>>;

impl Selectors {
    /// Selectors of this compiler.
    pub fn new(compiler: impl CompileSelector + 'static) -> Self {
        Self {
            compiler: Box::new(compiler),
            known: Mutex::default(),
            next: AtomicU64::new(0),
            outcomes: RwLock::default(),
            evaluations: AtomicU64::new(0),
        }
    }

    /// How often an expression was evaluated rather than remembered.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, expression: &str) -> Arc<Compiled> {
        if let Some(found) = self.known.lock().compiled.get(expression) {
            return found.clone();
        }
        let expression: Arc<str> = expression.into();
        let program = self.compiler.compile(&expression).map_err(Arc::from);
        let compiled = Arc::new(Compiled {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            support: program.as_ref().map_or(Support::ALL, |p| p.support()),
            program,
            expression,
        });
        self.known.lock().keep(compiled.clone());
        compiled
    }

    /// Whether the device is selected; the error is that of the evaluation. `None` if that is not known and no time is left
    /// to find out: an expression may take as long as its costs let it, on each of a node's devices.
    pub(crate) fn matches(
        &self,
        selector: &Compiled,
        driver: &str,
        device: &Device,
        stop: &dyn Fn() -> bool,
    ) -> Option<Outcome> {
        let key = (selector.id, device.print(&selector.support));
        if let Some(outcome) = self.outcomes.read().get(&key) {
            return Some(outcome.clone());
        }
        let program = match &selector.program {
            Ok(program) => program,
            Err(fault) => return Some(Err(fault.clone())),
        };
        if stop() {
            return None;
        }
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        let outcome = program.matches(device.view(driver));
        // Kept for each device, and it may repeat what the expression says.
        let outcome = outcome.map_err(|fault| shown(&fault).into());
        let mut outcomes = self.outcomes.write();
        if outcomes.len() >= OUTCOMES {
            outcomes.clear();
        }
        outcomes.insert(key, outcome.clone());
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl CompileSelector for Nothing {
        fn compile(&self, _: &str) -> Result<Box<dyn EvaluateSelector>, String> {
            Err("nothing".to_owned())
        }
    }

    /// Who may write claims writes as many expressions as he likes.
    #[test]
    fn long_expressions_are_not_kept_for_ever() {
        let selectors = Selectors::new(Nothing);
        for n in 0..1000 {
            selectors.get(&format!("{n} {}", "x".repeat(10 << 10)));
            let known = selectors.known.lock();
            let bytes: usize = known.compiled.keys().map(|text| text.len()).sum();
            assert_eq!(bytes, known.bytes);
            assert!(bytes <= KEPT_BYTES);
        }
        // The same again takes no more.
        let held = selectors.known.lock().bytes;
        let last = format!("999 {}", "x".repeat(10 << 10));
        assert_eq!(selectors.get(&last).expression.len(), last.len());
        assert_eq!(selectors.known.lock().bytes, held);
    }

    /// A few letters make a pattern of half a megabyte.
    #[test]
    fn patterns_count_among_what_is_kept() {
        let selectors = Selectors::kubernetes();
        for n in 0..150 {
            selectors.get(&format!("device.driver.matches('.{{900}}{n}')"));
        }
        let kept = selectors.known.lock().compiled.len();
        assert!((10..140).contains(&kept), "{kept}");
    }
}
