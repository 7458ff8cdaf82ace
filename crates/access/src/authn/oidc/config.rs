//! `AuthenticationConfiguration` (apiserver.config.k8s.io) and the `--oidc-*` flags.

use davit_api::config_shape::ConfigShape::{self, List, Object, Scalar};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use davit_schema::decode::{self, Encoding};
use davit_webhook::Tasks;
use serde_json::Value;

use super::JwtAuthenticator;
use super::mapping::{Expression, Mapping, Rule, Source};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationConfigError {
    /// A file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A field is wrong.
    #[error("authentication configuration: {field}: {detail}")]
    Field {
        /// The field's path.
        field: String,
        /// What is wrong.
        detail: String,
    },
}

const EXPRESSION: (&str, ConfigShape) = ("expression", Scalar);
const MESSAGE: (&str, ConfigShape) = ("message", Scalar);
const CLAIM: (&str, ConfigShape) = ("claim", Scalar);
const PREFIXED: ConfigShape = Object(&[CLAIM, ("prefix", Scalar), EXPRESSION]);
const FILE: ConfigShape = Object(&[
    ("apiVersion", Scalar),
    ("kind", Scalar),
    ("jwt", List(&JWT)),
    (
        "anonymous",
        Object(&[
            ("enabled", Scalar),
            ("conditions", List(&Object(&[("path", Scalar)]))),
        ]),
    ),
]);
const JWT: ConfigShape = Object(&[
    (
        "issuer",
        Object(&[
            ("url", Scalar),
            ("discoveryURL", Scalar),
            ("certificateAuthority", Scalar),
            ("audiences", List(&Scalar)),
            ("audienceMatchPolicy", Scalar),
        ]),
    ),
    (
        "claimValidationRules",
        List(&Object(&[
            CLAIM,
            ("requiredValue", Scalar),
            EXPRESSION,
            MESSAGE,
        ])),
    ),
    (
        "claimMappings",
        Object(&[
            ("username", PREFIXED),
            ("groups", PREFIXED),
            ("uid", Object(&[CLAIM, EXPRESSION])),
            (
                "extra",
                List(&Object(&[("key", Scalar), ("valueExpression", Scalar)])),
            ),
        ]),
    ),
    ("userValidationRules", List(&Object(&[EXPRESSION, MESSAGE]))),
]);

fn fault(field: impl Into<String>, detail: impl Into<String>) -> AuthenticationConfigError {
    AuthenticationConfigError::Field {
        field: field.into(),
        detail: detail.into(),
    }
}

/// An issuer of tokens.
#[derive(Debug, Clone)]
pub(in crate::authn) struct Issuer {
    pub(super) url: String,
    pub(super) discovery_url: Option<String>,
    /// PEM.
    pub(super) certificate_authority: Option<String>,
    pub(super) audiences: Vec<String>,
}

/// Who is served without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anybody is.
    pub enabled: bool,
    /// Only for these paths; all if there are none.
    pub paths: Vec<String>,
}

impl Default for Anonymous {
    fn default() -> Self {
        Self {
            enabled: true,
            paths: Vec::new(),
        }
    }
}

/// A configuration, ready to use.
#[derive(Debug, Default)]
pub(in crate::authn) struct Configuration {
    pub(in crate::authn) jwt: Vec<JwtAuthenticator>,
    pub(in crate::authn) anonymous: Option<Anonymous>,
}

/// The legacy flags `--oidc-*`.
#[derive(Debug, Clone, Default)]
pub struct OidcFlags {
    /// The issuer's URL.
    pub issuer_url: String,
    /// The audience that tokens must have.
    pub client_id: String,
    /// The issuer's authority, a PEM file.
    pub ca_file: Option<PathBuf>,
    /// The claim with the user name; `sub` when empty.
    pub username_claim: String,
    /// Before user names; the issuer and `#` unless the claim is `email`; `-` for nothing.
    pub username_prefix: String,
    /// The claim with groups.
    pub groups_claim: String,
    /// Before groups.
    pub groups_prefix: String,
    /// `key=value` pairs that tokens must have.
    pub required_claims: Vec<String>,
}

impl OidcFlags {
    pub(in crate::authn) fn authenticator(
        &self,
        tasks: Tasks,
    ) -> Result<JwtAuthenticator, AuthenticationConfigError> {
        if self.client_id.is_empty() {
            return Err(fault(
                "oidc-client-id",
                "must be given with oidc-issuer-url",
            ));
        }
        check_url(&self.issuer_url, "oidc-issuer-url")?;
        let authority = match &self.ca_file {
            Some(path) => Some(read(path)?),
            None => None,
        };
        let claim = match self.username_claim.as_str() {
            "" => "sub".to_owned(),
            claim => claim.to_owned(),
        };
        let prefix = match self.username_prefix.as_str() {
            "-" => String::new(),
            "" if claim != "email" => format!("{}#", self.issuer_url),
            prefix => prefix.to_owned(),
        };
        let required = self.required_claims.iter().map(|pair| {
            let (claim, value) = pair.split_once('=').ok_or_else(|| {
                fault("oidc-required-claim", format!("{pair:?} is not key=value"))
            })?;
            Ok(Rule::Required {
                claim: claim.to_owned(),
                value: value.to_owned(),
            })
        });
        let groups = (!self.groups_claim.is_empty()).then(|| Source::Claim {
            claim: self.groups_claim.clone(),
            prefix: self.groups_prefix.clone(),
        });
        let mapping = Mapping {
            claim_rules: required.collect::<Result<_, _>>()?,
            username: Source::Claim { claim, prefix },
            groups,
            uid: None,
            extra: Vec::new(),
            user_rules: Vec::new(),
        };
        let issuer = Issuer {
            url: self.issuer_url.clone(),
            discovery_url: None,
            certificate_authority: authority,
            audiences: vec![self.client_id.clone()],
        };
        Ok(JwtAuthenticator::new(issuer, mapping, tasks))
    }
}

fn read(path: &Path) -> Result<String, AuthenticationConfigError> {
    std::fs::read_to_string(path).map_err(|source| AuthenticationConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Reads a configuration.
///
/// # Errors
/// The first field that is wrong.
pub(in crate::authn) fn parse(
    text: &str,
    tasks: &Tasks,
) -> Result<Configuration, AuthenticationConfigError> {
    let value = decode::parse(text.as_bytes(), Encoding::Yaml)
        .map_err(|error| fault("file", error.to_string()))?;
    let version = value["apiVersion"].as_str().unwrap_or_default();
    let known = ["v1", "v1beta1", "v1alpha1"]
        .iter()
        .any(|known| version == format!("apiserver.config.k8s.io/{known}"));
    if !known || value["kind"] != "AuthenticationConfiguration" {
        return Err(fault(
            "kind",
            "must be AuthenticationConfiguration of apiserver.config.k8s.io/v1",
        ));
    }
    FILE.check(&value)
        .map_err(|error| fault(error.field, error.fault.to_string()))?;
    let mut issuers = HashSet::new();
    let mut jwt = Vec::new();
    for (index, entry) in items(&value["jwt"]).iter().enumerate() {
        let at = format!("jwt[{index}]");
        let issuer = issuer(&entry["issuer"], &at)?;
        if !issuers.insert(issuer.url.clone()) {
            return Err(fault(format!("{at}.issuer.url"), "is given twice"));
        }
        jwt.push(JwtAuthenticator::new(
            issuer,
            mapping(entry, &at)?,
            tasks.clone(),
        ));
    }
    let anonymous = value
        .get("anonymous")
        .filter(|a| a.is_object())
        .map(|a| Anonymous {
            enabled: a["enabled"] == true,
            paths: items(&a["conditions"])
                .iter()
                .filter_map(|condition| condition["path"].as_str())
                .map(str::to_owned)
                .collect(),
        });
    Ok(Configuration { jwt, anonymous })
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn check_url(url: &str, field: &str) -> Result<(), AuthenticationConfigError> {
    // Its errors are logged; and tokens name the issuer by this text alone.
    let authority = url.split(['/', '?', '#']).nth(2).unwrap_or_default();
    for (is_there, what) in [
        (authority.contains('@'), "a username or password"),
        (url.contains('?'), "a query"),
        (url.contains('#'), "a fragment"),
    ] {
        if is_there {
            return Err(fault(field, format!("URL must not contain {what}")));
        }
    }
    let parsed: Result<http::Uri, _> = url.parse();
    match parsed {
        Ok(uri) if uri.scheme_str() == Some("https") && uri.host().is_some() => Ok(()),
        _ => Err(fault(field, format!("{url:?} is not an https URL"))),
    }
}

fn issuer(value: &Value, at: &str) -> Result<Issuer, AuthenticationConfigError> {
    let url = text(value, "url");
    check_url(url, &format!("{at}.issuer.url"))?;
    let discovery_url = Some(text(value, "discoveryURL")).filter(|url| !url.is_empty());
    if let Some(discovery) = discovery_url {
        let field = format!("{at}.issuer.discoveryURL");
        check_url(discovery, &field)?;
        if discovery == url {
            return Err(fault(field, "must be different from the URL"));
        }
    }
    let audiences: Vec<String> = items(&value["audiences"])
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let policy = text(value, "audienceMatchPolicy");
    if audiences.is_empty() {
        return Err(fault(
            format!("{at}.issuer.audiences"),
            "at least one is required",
        ));
    }
    if !matches!(policy, "" | "MatchAny") || (audiences.len() > 1 && policy.is_empty()) {
        return Err(fault(
            format!("{at}.issuer.audienceMatchPolicy"),
            "must be MatchAny for several audiences",
        ));
    }
    let authority = text(value, "certificateAuthority");
    Ok(Issuer {
        url: url.to_owned(),
        discovery_url: discovery_url.map(str::to_owned),
        certificate_authority: Some(authority.to_owned()).filter(|pem| !pem.is_empty()),
        audiences,
    })
}

fn expression(
    source: &str,
    field: &str,
    compile: fn(&str) -> Result<Expression, String>,
) -> Result<Expression, AuthenticationConfigError> {
    compile(source).map_err(|error| fault(field, error))
}

fn condition(
    source: &str,
    field: &str,
    compile: fn(&str) -> Result<Expression, String>,
) -> Result<Expression, AuthenticationConfigError> {
    let compiled = expression(source, field, compile)?;
    if compiled.is_condition() {
        return Ok(compiled);
    }
    Err(fault(field, "must evaluate to bool"))
}

/// `claim` with `prefix`, or `expression`; none if neither is there.
fn source(
    value: &Value,
    field: &str,
    with_prefix: bool,
) -> Result<Option<Source>, AuthenticationConfigError> {
    match (text(value, "claim"), text(value, "expression")) {
        ("", "") => Ok(None),
        ("", source) => {
            let compiled = expression(source, field, Expression::over_claims)?;
            Ok(Some(Source::Expression(compiled)))
        }
        (claim, "") => {
            if with_prefix && value["prefix"].is_null() {
                let field = format!("{field}.prefix");
                return Err(fault(field, "is required when claim is set; may be \"\""));
            }
            Ok(Some(Source::Claim {
                claim: claim.to_owned(),
                prefix: text(value, "prefix").to_owned(),
            }))
        }
        _ => Err(fault(field, "claim and expression exclude each other")),
    }
}

fn mapping(entry: &Value, at: &str) -> Result<Mapping, AuthenticationConfigError> {
    let mappings = &entry["claimMappings"];
    let field = format!("{at}.claimMappings.username");
    let username = source(&mappings["username"], &field, true)?
        .ok_or_else(|| fault(field, "claim or expression is required"))?;
    let mut claim_rules = Vec::new();
    for (index, rule) in items(&entry["claimValidationRules"]).iter().enumerate() {
        let field = format!("{at}.claimValidationRules[{index}]");
        claim_rules.push(match (text(rule, "claim"), text(rule, "expression")) {
            ("", "") => return Err(fault(field, "claim or expression is required")),
            ("", source) => Rule::Expression {
                expression: condition(source, &field, Expression::over_claims)?,
                message: text(rule, "message").to_owned(),
            },
            (claim, "") => Rule::Required {
                claim: claim.to_owned(),
                value: text(rule, "requiredValue").to_owned(),
            },
            _ => return Err(fault(field, "claim and expression exclude each other")),
        });
    }
    let mut user_rules = Vec::new();
    for (index, rule) in items(&entry["userValidationRules"]).iter().enumerate() {
        let field = format!("{at}.userValidationRules[{index}].expression");
        let compiled = condition(text(rule, "expression"), &field, Expression::over_user)?;
        user_rules.push((compiled, text(rule, "message").to_owned()));
    }
    let mut extra: Vec<(String, Expression)> = Vec::new();
    for (index, entry) in items(&mappings["extra"]).iter().enumerate() {
        let field = format!("{at}.claimMappings.extra[{index}]");
        let key = text(entry, "key");
        check_extra_key(key, &field)?;
        if extra.iter().any(|(known, _)| known == key) {
            return Err(fault(field, format!("key {key:?} is given twice")));
        }
        let source = text(entry, "valueExpression");
        let compiled = expression(source, &field, Expression::over_claims)?;
        extra.push((key.to_owned(), compiled));
    }
    check_email(entry, at)?;
    Ok(Mapping {
        claim_rules,
        username,
        groups: source(
            &mappings["groups"],
            &format!("{at}.claimMappings.groups"),
            true,
        )?,
        uid: source(&mappings["uid"], &format!("{at}.claimMappings.uid"), false)?,
        extra,
        user_rules,
    })
}

/// An address that nobody has confirmed names nobody: an expression for the name of the user that reads it asks whether it
/// was, or some other one does. By the words of the expressions, which Kubernetes looks for, too.
fn check_email(entry: &Value, at: &str) -> Result<(), AuthenticationConfigError> {
    let has = |source: &str, wanted: &str| {
        let mut words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.any(|word| word == wanted)
    };
    let mappings = &entry["claimMappings"];
    let name = text(&mappings["username"], "expression");
    let rules = items(&entry["claimValidationRules"]).iter();
    let extra = items(&mappings["extra"]).iter();
    let mut others = rules
        .map(|rule| text(rule, "expression"))
        .chain(extra.map(|entry| text(entry, "valueExpression")))
        .chain([name]);
    if has(name, "email") && !others.any(|source| has(source, "email_verified")) {
        return Err(fault(
            format!("{at}.claimMappings.username.expression"),
            "claims.email_verified must be used in claimMappings.username.expression or \
             claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
             claimMappings.username.expression",
        ));
    }
    Ok(())
}

/// Keys have a domain, are lower case and none of Kubernetes' own.
fn check_extra_key(key: &str, field: &str) -> Result<(), AuthenticationConfigError> {
    let Some((domain, name)) = key.split_once('/') else {
        return Err(fault(
            field,
            format!("key {key:?} must be a domain-prefixed path"),
        ));
    };
    let reserved = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| domain == *own || domain.ends_with(&format!(".{own}")));
    if reserved || domain.is_empty() || name.is_empty() || key != key.to_lowercase() {
        return Err(fault(
            field,
            format!("key {key:?} is reserved or not a lower-case path"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    const CONFIG: &str = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: "https://issuer.example", audiences: [davit]}
  claimValidationRules:
  - {expression: "claims.age > 17", message: "too young"}
  - {claim: hd, requiredValue: example.com}
  claimMappings:
    username: {expression: "'u:' + claims.sub"}
    groups: {claim: roles, prefix: "g:"}
    uid: {claim: id}
    extra: [{key: "example.com/team", valueExpression: "claims.team"}]
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: "reserved"}
anonymous: {enabled: true, conditions: [{path: /livez}]}
"#;

    #[test]
    fn item_184_claims_become_a_user_by_rules_and_expressions() {
        let tasks = Tasks::new(CancellationToken::new());
        let config = parse(CONFIG, &tasks).unwrap();
        assert_eq!(config.anonymous.unwrap().paths, ["/livez"]);
        let mapping = &config.jwt[0].mapping;
        let claims = json!({
            "sub": "a", "age": 18, "hd": "example.com", "roles": ["x"], "id": "7", "team": "t",
        });
        let user = mapping.user(&claims).unwrap();
        assert_eq!(user.name, "u:a");
        assert_eq!(user.uid, "7");
        assert_eq!(user.groups, ["g:x", "system:authenticated"]);
        assert_eq!(user.extra["example.com/team"], ["t"]);
        let mut young = claims.clone();
        young["age"] = json!(17);
        assert_eq!(
            mapping.user(&young).unwrap_err(),
            "oidc: validation expression failed: too young"
        );
        let mut foreign = claims;
        foreign["hd"] = json!("other");
        assert!(mapping.user(&foreign).is_err());
    }

    #[test]
    fn wrong_fields_are_named() {
        let tasks = Tasks::new(CancellationToken::new());
        let wrong = |from: &str, to: &str| {
            let text = CONFIG.replace(from, to);
            parse(&text, &tasks).err().map(|e| e.to_string()).unwrap()
        };
        assert!(wrong("https://", "http://").contains("jwt[0].issuer.url"));
        let secret = wrong("https://", "https://user:secret@");
        assert!(secret.contains("must not contain a username") && !secret.contains("secret"));
        assert!(wrong("issuer.example", "issuer.example?a=b").contains("a query"));
        assert!(wrong("issuer.example", "issuer.example#a").contains("a fragment"));
        assert!(wrong("claims.age > 17", "claims.age +").contains("claimValidationRules[0]"));
        assert!(wrong("example.com/team", "a.k8s.io/team").contains("extra[0]"));
        assert!(wrong(", prefix: \"g:\"", "").contains("groups.prefix"));
        assert!(wrong("apiserver.config.k8s.io/v1", "v1").contains("kind"));
        // A rule that is misspelt would hold nobody up.
        let misspelt = wrong("userValidationRules", "userValidationRule");
        assert!(misspelt.contains("jwt[0].userValidationRule: unknown field"));
        assert!(wrong("expression: \"!user", "expresion: \"!user").contains("unknown field"));
        let no_list = wrong(
            "- {expression: \"!user.username.startsWith('system:')\", message: \"reserved\"}",
            "  first: {expression: \"false\"}",
        );
        assert!(
            no_list.contains("userValidationRules: must be a list"),
            "{no_list}"
        );
    }

    /// Who may register with an issuer by any address would be whoever it names.
    #[test]
    fn addresses_nobody_has_confirmed_name_nobody() {
        let tasks = Tasks::new(CancellationToken::new());
        let parsed = |from: &str, to: &str| {
            let text = CONFIG.replace(from, to);
            parse(&text, &tasks).map(drop).map_err(|e| e.to_string())
        };
        let name = "'u:' + claims.sub";
        for read in [
            "claims.email",
            "claims['email']",
            "claims.?email.orValue('')",
        ] {
            let said = parsed(name, read).unwrap_err();
            assert!(
                said.contains("claims.email_verified must be used"),
                "{said}"
            );
        }
        parsed(name, "claims.email_verified == true ? claims.email : ''").unwrap();
        parsed(name, "claims.emails[0]").unwrap();
        let rules = "\"claims.age > 17\"";
        let checked = CONFIG
            .replace(name, "claims.email")
            .replace(rules, "\"claims.email_verified == true\"");
        parse(&checked, &tasks).unwrap();
    }
}
