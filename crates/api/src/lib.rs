//! Words of the Kubernetes API: kinds table, quantities, selectors, names, Status errors.
