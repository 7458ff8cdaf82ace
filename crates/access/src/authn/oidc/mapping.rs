//! From the claims of a token to a user.

use std::collections::BTreeMap;

use davit_cel::{Env, Program, Type};
use serde_json::{Value, json};

use crate::user::{AUTHENTICATED, UserInfo};

/// The cost that one expression may have.
const BUDGET: u64 = 1_000_000;

/// An expression over `claims` or `user`.
#[derive(Debug)]
pub(super) struct Expression {
    source: String,
    program: Program,
    variable: &'static str,
}

impl Expression {
    /// Compiles an expression over `claims`.
    pub(super) fn over_claims(source: &str) -> Result<Self, String> {
        Self::compile(source, "claims")
    }

    /// Compiles an expression over `user`.
    pub(super) fn over_user(source: &str) -> Result<Self, String> {
        Self::compile(source, "user")
    }

    fn compile(source: &str, variable: &'static str) -> Result<Self, String> {
        let map = Type::Map(Type::String.into(), Type::Dyn.into());
        let env = Env::kubernetes().variable(variable, map).build();
        let program = env
            .compile(source)
            .map_err(|errors| davit_cel::join_errors(&errors))?;
        Ok(Self {
            source: source.to_owned(),
            program,
            variable,
        })
    }

    /// Whether the expression can have only a truth value.
    pub(super) fn is_condition(&self) -> bool {
        *self.program.output_type() == Type::Bool
    }

    fn eval(&self, input: &Value) -> Result<Value, String> {
        let input = [(self.variable, davit_cel::value(input))];
        let (value, _) = self
            .program
            .eval(&input, BUDGET)
            .map_err(|error| format!("oidc: error evaluating {:?}: {error}", self.source))?;
        davit_cel::to_json(&value)
            .ok_or_else(|| format!("oidc: {:?} has no JSON value", self.source))
    }
}

/// Where a part of the user comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A claim, with a prefix before each value.
    Claim { claim: String, prefix: String },
    /// An expression over the claims.
    Expression(Expression),
}

/// A condition on the claims.
#[derive(Debug)]
pub(super) enum Rule {
    /// A claim has a value.
    Required { claim: String, value: String },
    /// An expression is true.
    Expression {
        expression: Expression,
        message: String,
    },
}

/// How claims become a user.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) claim_rules: Vec<Rule>,
    pub(super) username: Source,
    pub(super) groups: Option<Source>,
    pub(super) uid: Option<Source>,
    pub(super) extra: Vec<(String, Expression)>,
    pub(super) user_rules: Vec<(Expression, String)>,
}

impl Mapping {
    /// The user of verified claims.
    pub(super) fn user(&self, claims: &Value) -> Result<UserInfo, String> {
        for rule in &self.claim_rules {
            rule.check(claims)?;
        }
        let name = self.name(claims)?;
        let groups = match &self.groups {
            None => Vec::new(),
            Some(Source::Expression(expression)) => texts(expression.eval(claims)?, "groups")?,
            Some(Source::Claim { claim, prefix }) => match claims.get(claim) {
                None => Vec::new(),
                Some(value) => texts(value.clone(), claim)?
                    .into_iter()
                    .map(|group| format!("{prefix}{group}"))
                    .collect(),
            },
        };
        let uid = match &self.uid {
            None => String::new(),
            Some(Source::Expression(expression)) => one_text(&expression.eval(claims)?, "uid")?,
            Some(Source::Claim { claim, prefix }) => match claims.get(claim) {
                None => String::new(),
                Some(value) => format!("{prefix}{}", one_text(value, claim)?),
            },
        };
        let mut extra = BTreeMap::new();
        for (key, expression) in &self.extra {
            let values = texts(expression.eval(claims)?, key)?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        let mut user = UserInfo {
            name,
            uid,
            groups,
            extra,
        };
        let seen = json!({
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        });
        for (expression, message) in &self.user_rules {
            if expression.eval(&seen)? != true {
                return Err(failed(expression, message));
            }
        }
        user.add_group(AUTHENTICATED);
        Ok(user)
    }

    fn name(&self, claims: &Value) -> Result<String, String> {
        let name = match &self.username {
            Source::Expression(expression) => one_text(&expression.eval(claims)?, "username")?,
            Source::Claim { claim, prefix } => {
                let value = claims.get(claim).ok_or_else(|| {
                    format!("oidc: parse username claims {claim:?}: claim not present")
                })?;
                let name = one_text(value, claim)?;
                // an address that nobody confirmed names nobody
                if claim == "email" && claims.get("email_verified").is_some_and(|v| *v != true) {
                    return Err("oidc: email not verified".to_owned());
                }
                if name.is_empty() {
                    name
                } else {
                    format!("{prefix}{name}")
                }
            }
        };
        if name.is_empty() {
            return Err("oidc: the user name is empty".to_owned());
        }
        Ok(name)
    }
}

impl Rule {
    fn check(&self, claims: &Value) -> Result<(), String> {
        match self {
            Self::Required { claim, value } => {
                let held = claims.get(claim).ok_or_else(|| {
                    format!("oidc: required claim {claim} not present in ID token")
                })?;
                let held = one_text(held, claim)?;
                if held != *value {
                    return Err(format!(
                        "oidc: required claim {claim} value does not match. Got = {held}, want = {value}"
                    ));
                }
                Ok(())
            }
            Self::Expression {
                expression,
                message,
            } => {
                if expression.eval(claims)? == true {
                    return Ok(());
                }
                Err(failed(expression, message))
            }
        }
    }
}

fn failed(expression: &Expression, message: &str) -> String {
    if message.is_empty() {
        format!("oidc: validation expression '{}' failed", expression.source)
    } else {
        format!("oidc: validation expression failed: {message}")
    }
}

fn one_text(value: &Value, what: &str) -> Result<String, String> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("oidc: {what} is not a string"))
}

/// A text, or a list of texts; null and empty texts give nothing.
fn texts(value: Value, what: &str) -> Result<Vec<String>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) => items.iter().map(|item| one_text(item, what)).collect(),
        _ => Err(format!(
            "oidc: {what} is neither a string nor a list of strings"
        )),
    }
}
