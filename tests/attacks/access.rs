//! Certificates, nodes, tokens and the node's server: who somebody is, and what follows from it.
