//! The API server: request pipeline, generic registry, watch cache, discovery, admission.
