//! Requests for certificates: what they ask for, which of the built-in signers takes them, and the authority that signs.
//! What is judged is what is signed: a request is parsed once, and the certificate is written from what was read.

mod authority;
pub mod request;

pub use authority::{Authority, AuthorityError};
