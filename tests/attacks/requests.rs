//! Requests whose path, verb, selector or headers say something else than they do.
