//! Conflicts between what is applied and what others own.

use std::fmt;

use davit_api::status::{MOST_CAUSES, Reason, Status};

use super::managers::Manager;
use super::path::{Path, display};
use super::set::Set;

/// A field that is applied with another value than the one its owner gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub(super) manager: Manager,
    pub(super) path: Path,
}

impl Conflict {
    /// The owner: `"kubectl" with subresource "status" using v1`.
    pub fn manager(&self) -> String {
        self.manager.describe()
    }

    /// The field: `.spec.ports[port=80,protocol="TCP"].name`.
    pub fn field(&self) -> String {
        display(&self.path)
    }
}

/// At least one conflict, ordered by manager and field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(pub(super) Vec<Conflict>);

impl std::error::Error for Conflicts {}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = &self.0[..] {
            let (manager, field) = (one.manager(), one.field());
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {manager}: {field}"
            );
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut last = None;
        for (i, conflict) in self.0.iter().take(MOST_CAUSES).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            if last != Some(&conflict.manager) {
                writeln!(f, "conflicts with {}:", conflict.manager())?;
                last = Some(&conflict.manager);
            }
            write!(f, "- {}", conflict.field())?;
        }
        match self.0.len().saturating_sub(MOST_CAUSES) {
            0 => Ok(()),
            more => write!(f, "\n- and {more} more"),
        }
    }
}

impl Conflicts {
    /// The conflicts, one a field and owner.
    pub fn iter(&self) -> impl Iterator<Item = &Conflict> {
        self.0.iter()
    }

    /// The 409 of the API server, with a cause for every field, as far as they are told.
    pub fn status(&self) -> Status {
        let status = Status::failure(Reason::Conflict, self.to_string());
        let told = self.0.iter().take(MOST_CAUSES);
        told.fold(status, |status, conflict| {
            let message = format!("conflict with {}", conflict.manager());
            status.with_cause("FieldManagerConflict", &message, &conflict.field())
        })
    }

    /// The conflicts about fields that are not in a set; none if there are no others.
    pub(super) fn outside(self, set: &Set) -> Option<Conflicts> {
        let rest: Vec<Conflict> = self
            .0
            .into_iter()
            .filter(|conflict| !set.contains(&conflict.path))
            .collect();
        (!rest.is_empty()).then_some(Conflicts(rest))
    }
}
