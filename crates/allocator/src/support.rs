//! Which attributes of devices matter to an expression, or to claims.

use davit_cel::Program;

use crate::fingerprint::attribute_key;

/// Attributes that can matter. Driver, capacities and whether a device is shareable always can.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Support {
    /// In order; `None`: all.
    keys: Option<Vec<u64>>,
}

impl Default for Support {
    /// None of them.
    fn default() -> Self {
        Self {
            keys: Some(Vec::new()),
        }
    }
}

impl Support {
    /// All of them.
    pub const ALL: Self = Self { keys: None };

    /// Those that an expression over `device` can read.
    pub(crate) fn of_program(program: &Program) -> Self {
        let mut support = Self::default();
        for path in program.reads("device") {
            match &path[..] {
                [field, domain, id, ..] if &**field == "attributes" => {
                    support.add(attribute_key(domain, id));
                }
                [field, ..] if &**field != "attributes" => {}
                _ => return Self::ALL,
            }
        }
        support
    }

    fn add(&mut self, key: u64) {
        if let Some(keys) = &mut self.keys
            && let Err(at) = keys.binary_search(&key)
        {
            keys.insert(at, key);
        }
    }

    /// Adds what matters to something else.
    pub(crate) fn join(&mut self, other: &Self) {
        match &other.keys {
            None => self.keys = None,
            Some(keys) => keys.iter().for_each(|key| self.add(*key)),
        }
    }

    /// Whether an attribute can matter.
    pub(crate) fn covers(&self, key: u64) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(&key))
    }
}
