//! Values by name, as many as one device has: sorted, without room to grow.

use std::sync::Arc;

/// Values by name, in the order of the names. Small, and made once.
#[derive(Debug, Clone)]
pub struct Named<T>(Box<[(Arc<str>, T)]>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T> FromIterator<(Arc<str>, T)> for Named<T> {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, T)>>(values: I) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self(values.into())
    }
}

impl<T> Named<T> {
    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&T> {
        Some(&self.0[self.position(name)?].1)
    }

    /// The name as it is kept here.
    pub(crate) fn name(&self, name: &str) -> Option<&Arc<str>> {
        Some(&self.0[self.position(name)?].0)
    }

    pub(crate) fn at(&self, position: usize) -> Option<&T> {
        self.0.get(position).map(|(_, value)| value)
    }

    /// Where the value of this name stands.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.0
            .binary_search_by(|(other, _)| (**other).cmp(name))
            .ok()
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &T)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}
