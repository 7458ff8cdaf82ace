//! Structural schema of kinds: decode, prune, default, validate, patch, OpenAPI, table columns.
