//! `matchConditions`: expressions about a request that must hold for the server to be asked about it.

use davit_cel::{DeclType, Env, Program, Type, Value as Cel};
use serde_json::Value;

/// What one expression may cost.
const BUDGET: u64 = 1_000_000;

pub(super) struct Conditions(Vec<Program>);

impl Conditions {
    /// # Errors
    /// Which expression is none about a request, and why. A field that requests do not have would never hold, and the
    /// server never be asked.
    pub(super) fn compile(sources: &[String]) -> Result<Self, String> {
        let env = Env::kubernetes().declare("request", request()).build();
        let programs = sources.iter().map(|source| {
            let program = env.compile(source).map_err(|errors| {
                let errors = davit_cel::join_errors(&errors);
                format!("match condition {source:?}: {errors}")
            })?;
            match program.output_type() {
                Type::Bool => Ok(program),
                _ => Err(format!("match condition {source:?} must evaluate to bool")),
            }
        });
        Ok(Self(programs.collect::<Result<_, _>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the server is to be asked about what this spec of a SubjectAccessReview says. A single false one decides.
    ///
    /// # Errors
    /// The last failure, when none was false.
    pub(super) fn hold(&self, spec: &Value) -> Result<bool, String> {
        let request = [("request", davit_cel::value(spec))];
        let mut failed = None;
        for condition in &self.0 {
            match condition.eval(&request, BUDGET) {
                Ok((Cel::Bool(true), _)) => {}
                Ok(_) => return Ok(false),
                Err(error) => failed = Some(error.to_string()),
            }
        }
        failed.map_or(Ok(true), Err)
    }
}

fn object(name: &str, fields: &[(&str, Type)]) -> Type {
    let fields = fields
        .iter()
        .map(|(name, ty)| ((*name).into(), DeclType::simple(ty.clone())));
    DeclType::object(format!("kubernetes.{name}"), fields).ty
}

/// The spec of a SubjectAccessReview v1 (KEP-3221, KEP-4601).
fn request() -> DeclType {
    let text = || Type::String;
    let texts = || Type::list(Type::String);
    let requirement = object(
        "SelectorRequirement",
        &[("key", text()), ("operator", text()), ("values", texts())],
    );
    let selector = |name| {
        let requirements = Type::list(requirement.clone());
        object(
            name,
            &[("rawSelector", text()), ("requirements", requirements)],
        )
    };
    let resource = object(
        "ResourceAttributes",
        &[
            ("namespace", text()),
            ("verb", text()),
            ("group", text()),
            ("version", text()),
            ("resource", text()),
            ("subresource", text()),
            ("name", text()),
            ("fieldSelector", selector("FieldSelectorAttributes")),
            ("labelSelector", selector("LabelSelectorAttributes")),
        ],
    );
    let other = object(
        "NonResourceAttributes",
        &[("path", text()), ("verb", text())],
    );
    DeclType::simple(object(
        "SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", resource),
            ("nonResourceAttributes", other),
            ("user", text()),
            ("groups", texts()),
            ("extra", Type::map(Type::String, texts())),
            ("uid", text()),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compiled(source: &str) -> Result<Conditions, String> {
        Conditions::compile(&[source.to_owned()])
    }

    /// A webhook that is to refuse was not asked, and nobody was told.
    #[test]
    fn fields_that_requests_do_not_have_are_refused() {
        for source in [
            "has(request.resourceAttribute)",
            "has(request.resourceAttributes) && request.resourceAttributes.name_space == 'a'",
            "!has(request.group)",
            "request.extra['scopes'] == 'a'",
            "request.user",
            "object.metadata.name == 'a'",
        ] {
            assert!(compiled(source).is_err(), "{source}");
        }
    }

    #[test]
    fn a_false_condition_decides_and_a_failure_is_one() {
        let spec = json!({
            "user": "a", "groups": ["g"], "extra": { "scopes": ["s"] },
            "resourceAttributes": {
                "namespace": "n", "verb": "list", "resource": "secrets",
                "fieldSelector": { "requirements": [{ "key": "k", "operator": "In", "values": ["v"] }] },
            },
        });
        let hold = |sources: &[&str]| {
            let sources: Vec<String> = sources.iter().map(|s| (*s).to_owned()).collect();
            Conditions::compile(&sources).unwrap().hold(&spec)
        };
        for source in [
            "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'n'",
            "!has(request.nonResourceAttributes)",
            "'g' in request.groups && request.extra['scopes'].exists(s, s == 's')",
            "request.resourceAttributes.fieldSelector.requirements[0].values[0] == 'v'",
        ] {
            assert_eq!(hold(&[source]), Ok(true), "{source}");
        }
        let failing = "request.nonResourceAttributes.path == '/'";
        assert!(hold(&[failing]).is_err());
        assert_eq!(hold(&[failing, "request.user == 'b'"]), Ok(false));
    }
}
