//! The Common Expression Language as Kubernetes uses it: parser, static type checker, interpreter
//! with costs, estimates of costs, and the Kubernetes libraries. No I/O, no clock.
//!
//! ```
//! use davit_cel::{Env, Type, Value, decl_type, value_with_schema};
//! use serde_json::json;
//!
//! // a rule of a custom resource: `self` has the type of the schema
//! let schema = json!({"type": "object", "properties": {
//!     "replicas": {"type": "integer"}, "max": {"type": "integer"}}});
//! let decl = decl_type(&schema, "Scale", true).expect("an object has a type");
//! let env = Env::kubernetes().declare("self", decl).build();
//! let program = env.compile("self.replicas <= self.max").unwrap();
//! assert_eq!(*program.output_type(), Type::Bool);
//! assert_eq!(program.cost_estimate().max, 5);
//!
//! let object = value_with_schema(&json!({"replicas": 3, "max": 2}), &schema, true);
//! let (value, cost) = program.eval(&[("self", object)], 1_000_000).unwrap();
//! assert_eq!((value, cost), (Value::Bool(false), 5));
//!
//! // what is wrong is said with its place
//! let errors = env.compile("self.replica").unwrap_err();
//! assert_eq!(
//!     davit_cel::join_errors(&errors),
//!     "ERROR: <input>:1:5: undefined field 'replica'\n | self.replica\n | ....^",
//! );
//! ```
//!
//! * [`Env`] is what expressions may refer to; [`EnvBuilder::declare`] takes a [`DeclType`], which
//!   [`decl_type`] makes of a structural schema, with the sizes that estimates need.
//! * [`Program`] is a compiled expression: [`Program::output_type`], [`Program::cost_estimate`],
//!   [`Program::eval`] with a budget. Costs are counted as the reference implementation counts.
//!   [`Program::reads`] says what of a variable can matter.
//! * [`Activation`] gives variables their values; slices of pairs and hash maps are activations,
//!   and [`Activation::member`] computes fields when they are asked for.
//! * [`value()`] converts JSON as it is, [`value_with_schema`] by a schema; [`to_json`] goes back.
//! * [`policy`] has the environments of admission.
//! * Properties whose names are not CEL identifiers are reached by [`escape`]d names.

#![forbid(unsafe_code)]

mod activation;
mod ast;
mod checker;
mod costs;
mod declarations;
mod effort;
mod env;
mod error;
mod estimate;
mod interpreter;
mod lexer;
mod library;
mod parser;
pub mod policy;
mod reads;
mod schema;
mod types;
mod validate;
mod value;

pub use activation::Activation;
pub use declarations::Library;
pub use effort::EvaluationEffort;
pub use env::{Env, EnvBuilder, Program};
pub use error::{CompileError, EvalError, join_errors};
pub use estimate::CostEstimate;
pub use library::authorizer::{Authorizer, Check, Decision, Handle as AuthorizerHandle};
pub use library::format::NamedFormat;
pub use library::regexes::{PatternBudget, PatternRoom};
pub use library::urls::Url;
pub use schema::{decl_type, escape, to_json, to_json_within, unescape, value, value_with_schema};
pub use types::{DeclType, ObjectType, Type};
pub use value::{Cidr, Key, List, ListKind, Map, Value};
