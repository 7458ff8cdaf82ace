//! Registry credentials from a pod's pull secrets.

use super::pulled::CredentialOrigin;
use base64::Engine as _;
use davit_pods::objects::ObjectSource;
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Config {
    auths: BTreeMap<String, Entry>,
}

/// Pull secrets of a pod that are read, each once: it may name as many as it has room for, and one as often as it likes.
const MAX_SECRETS: usize = 256;
/// Bytes of them together.
const MAX_BYTES: usize = 4 << 20;
/// Registries that they are for together.
const MAX_ENTRIES: usize = 4096;

/// Credentials by registry pattern.
#[derive(Default)]
pub(super) struct Keyring {
    entries: Vec<(String, Credential)>,
}

/// What is shown to a registry, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Credential {
    pub(super) auth: cri::AuthConfig,
    pub(super) source: Source,
}

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A pull secret of the pod.
    Secret(CredentialOrigin),
    /// A plugin, for the pod's service account.
    ServiceAccount(CredentialOrigin),
    /// A plugin, for this very pod.
    Pod,
    /// A plugin, for every pod of the node.
    Node,
}

impl Keyring {
    /// The credentials in the pod's `imagePullSecrets`; secrets that are missing or malformed, or beyond what is read, are
    /// left out, and the pull fails if they were needed.
    pub(super) async fn of_pod(pod: &Pod, objects: &dyn ObjectSource) -> Self {
        let mut out = Self::default();
        let (mut known, mut left) = (HashSet::new(), MAX_BYTES);
        for reference in pod.pod_spec().image_pull_secrets.iter().flatten() {
            if !known.insert(reference.name.as_str()) {
                continue;
            }
            if known.len() > MAX_SECRETS || left == 0 || out.entries.len() >= MAX_ENTRIES {
                tracing::warn!(pod = %pod.format(), secret = %reference.name, "image pull secrets from here on are more than are read");
                break;
            }
            match objects.secret(pod.ns(), &reference.name).await {
                Ok(Some(secret)) => {
                    let data = secret.data.iter().flatten();
                    let bytes: usize = data.map(|(_, value)| value.0.len()).sum();
                    left = left.saturating_sub(bytes);
                    out.add(&secret);
                }
                Ok(None) => {
                    tracing::warn!(pod = %pod.format(), secret = %reference.name, "image pull secret not found");
                }
                Err(error) => {
                    tracing::warn!(pod = %pod.format(), secret = %reference.name, %error, "cannot read image pull secret");
                }
            }
        }
        out.entries.truncate(MAX_ENTRIES);
        out.sort();
        out
    }

    /// The same with credentials from elsewhere; of patterns of the same length the pod's own come first.
    #[must_use]
    pub(super) fn with(mut self, more: Vec<(String, Credential)>) -> Self {
        self.entries.extend(more);
        self.sort();
        self
    }

    fn sort(&mut self) {
        self.entries
            .sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
    }

    fn add(&mut self, secret: &Secret) {
        let metadata = secret.metadata.clone();
        let place = CredentialOrigin {
            uid: metadata.uid.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
        };
        let credential = |(pattern, entry): (String, Entry)| {
            let source = Source::Secret(place.clone());
            let auth = auth(entry);
            (normalize(&pattern), Credential { auth, source })
        };
        let data = secret.data.as_ref();
        if let Some(bytes) = data.and_then(|d| d.get(".dockerconfigjson")) {
            let config: Config = serde_json::from_slice(&bytes.0).unwrap_or_default();
            self.entries
                .extend(config.auths.into_iter().map(credential));
        }
        if let Some(bytes) = data.and_then(|d| d.get(".dockercfg")) {
            let auths: BTreeMap<String, Entry> =
                serde_json::from_slice(&bytes.0).unwrap_or_default();
            self.entries.extend(auths.into_iter().map(credential));
        }
    }

    /// Credentials that fit an image, the most specific first.
    pub(super) fn lookup(&self, image: &str) -> Vec<Credential> {
        let image = full_name(image);
        self.entries
            .iter()
            .filter(|(pattern, _)| matches(pattern, &image))
            .map(|(_, credential)| credential.clone())
            .collect()
    }
}

fn auth(entry: Entry) -> cri::AuthConfig {
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(entry.auth.trim())
        .ok();
    let pair = decoded.and_then(|d| String::from_utf8(d).ok());
    let pair = pair.as_deref().and_then(|p| p.split_once(':'));
    let pick = |given: String, other: Option<&str>| {
        if given.is_empty() {
            other.unwrap_or_default().to_owned()
        } else {
            given
        }
    };
    cri::AuthConfig {
        username: pick(entry.username, pair.map(|p| p.0)),
        password: pick(entry.password, pair.map(|p| p.1)),
        identity_token: entry.identitytoken,
        ..cri::AuthConfig::default()
    }
}

/// `https://index.docker.io/v1/` and its like become a host with optional path.
fn normalize(key: &str) -> String {
    let key = schemeless(key)
        .trim_end_matches('/')
        .trim_end_matches("/v1")
        .trim_end_matches("/v2");
    if key == "docker.io" {
        "index.docker.io".to_owned()
    } else {
        key.to_owned()
    }
}

/// A registry pattern without `https://`.
pub(super) fn schemeless(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix("https://").unwrap_or(pattern);
    pattern.strip_prefix("http://").unwrap_or(pattern)
}

/// The full name of an image without tag and digest, as credential providers are asked for it.
pub(super) fn repository(image: &str) -> String {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    let full = full_name(name);
    match full.strip_prefix("index.docker.io/") {
        Some(path) => format!("docker.io/{path}"),
        None => full,
    }
}

fn full_name(image: &str) -> String {
    let (registry, path) = match image.split_once('/') {
        Some(("docker.io", path)) => ("index.docker.io", path),
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        _ => ("index.docker.io", image),
    };
    match registry {
        "index.docker.io" if !path.contains('/') => format!("{registry}/library/{path}"),
        _ => format!("{registry}/{path}"),
    }
}

/// Whether a pattern of a registry stands for an image: host by host label, each of which may have wildcards, the port as
/// it is, and the beginning of the path.
pub(super) fn matches(pattern: &str, image: &str) -> bool {
    let (pattern_host, pattern_path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (host, path) = image.split_once('/').unwrap_or((image, ""));
    let ((pattern_host, pattern_port), (host, port)) = (with_port(pattern_host), with_port(host));
    if !path.starts_with(pattern_path) || pattern_port != port {
        return false;
    }
    let (pattern_labels, labels): (Vec<_>, Vec<_>) =
        (pattern_host.split('.').collect(), host.split('.').collect());
    pattern_labels.len() == labels.len()
        && pattern_labels.iter().zip(&labels).all(|(p, l)| glob(p, l))
}

/// Host and port, which is empty where none is given.
fn with_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    }
}

/// Whether a text is what a pattern with `*` says. Patterns are what authors of pods write into Secrets: each part between
/// two wildcards is looked for once, where it comes first, and never again.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (parts, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(inner) = text.strip_prefix(head) else {
        return false;
    };
    let Some(mut inner) = inner.strip_suffix(tail) else {
        return false;
    };
    for part in parts.split('*').filter(|part| !part.is_empty()) {
        match inner.find(part) {
            Some(at) => inner = &inner[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_pods::objects::FixedObjects;
    use serde_json::json;

    #[tokio::test]
    async fn pull_secrets_are_matched_by_registry() {
        let encode = |t: &str| base64::engine::general_purpose::STANDARD.encode(t);
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": encode("hub:pw")},
            "*.example.com": {"username": "u", "password": "p"},
            "reg.example.com/team": {"username": "team", "password": "p"},
        }});
        let objects = FixedObjects::from_json(&[
            json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "default"},
            "data": {".dockerconfigjson": encode(&config.to_string())}}),
        ]);
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"containers": [], "imagePullSecrets": [{"name": "s"}, {"name": "none"}]}}))
            .unwrap();
        let ring = Keyring::of_pod(&pod, &objects).await;
        let users = |image: &str| {
            ring.lookup(image)
                .into_iter()
                .map(|credential| credential.auth.username)
                .collect::<Vec<_>>()
        };
        assert_eq!(users("busybox"), ["hub"]);
        assert_eq!(users("docker.io/library/busybox:1"), ["hub"]);
        assert_eq!(users("reg.example.com/team/app"), ["team", "u"]);
        assert_eq!(users("reg.example.com/other"), ["u"]);
        assert!(users("ghcr.io/x/y").is_empty());
    }

    /// Each of a thousand would be a hundred thousand registries more.
    #[tokio::test]
    async fn a_secret_is_read_once_and_all_of_them_have_an_end() {
        let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
        let auths: serde_json::Map<_, _> = (0..3000)
            .map(|n| (format!("r{n}.example.com"), json!({"username": "u"})))
            .collect();
        let config = encode(json!({ "auths": auths }).to_string());
        let secret = |name: &str| {
            json!({"kind": "Secret", "metadata": {"name": name, "namespace": "default"},
                "data": {".dockerconfigjson": config}})
        };
        let objects = FixedObjects::from_json(&["a", "b", "c"].map(secret));
        let ring = async |names: Vec<&str>| {
            let names: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
            let pod = json!({"metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [], "imagePullSecrets": names}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            Keyring::of_pod(&pod, &objects).await
        };
        let often = ring(vec!["a"; 1000]).await;
        assert_eq!(often.entries.len(), 3000);
        let many = ring(vec!["a", "b", "c"]).await;
        assert_eq!(many.entries.len(), MAX_ENTRIES);
        assert_eq!(many.lookup("r0.example.com/i").len(), 2);
    }

    #[test]
    fn patterns_are_matched_in_one_pass() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("*", "", true),
            ("a*", "a", true),
            ("a*a", "a", false),
            ("*a*b*", "xxaxxb", true),
            ("*b*a*", "xxaxxb", false),
            ("a**c", "abc", true),
            ("a*b*c", "abbc", true),
            ("*ab", "aab", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern:?} {text:?}");
        }
        // Tried one after the other, the ways to lay out forty parts would keep a thread until the machine is gone, and two
        // pods with such a pull secret the whole agent.
        let pattern = format!("{}b.com", "*a".repeat(40));
        let image = format!("{}.com/x", "a".repeat(150));
        let (told, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(matches(&pattern, &image)));
        let answer = done.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(answer, Ok(false));
    }

    #[test]
    fn a_wildcard_stands_for_no_port() {
        assert!(matches("*.example.com", "reg.example.com/x"));
        assert!(matches("*.example.com:5000", "reg.example.com:5000/x"));
        assert!(matches("[::1]:5000/a", "[::1]:5000/a/b"));
        assert!(matches("[::1]", "[::1]/a"));
        for (pattern, image) in [
            ("*.example.*", "reg.example.com:5000/x"),
            ("reg.example.com:5000", "reg.example.com/x"),
            ("reg.example.com", "reg.example.com:5000/x"),
        ] {
            assert!(!matches(pattern, image), "{pattern} {image}");
        }
    }

    #[test]
    fn the_hub_is_asked_for_by_one_name() {
        for (image, full) in [
            ("nginx:1", "docker.io/library/nginx"),
            ("docker.io/nginx", "docker.io/library/nginx"),
            ("index.docker.io/nginx", "docker.io/library/nginx"),
            ("docker.io/a/nginx", "docker.io/a/nginx"),
            ("a/nginx", "docker.io/a/nginx"),
            ("localhost/nginx", "localhost/nginx"),
            (
                "reg.example.com:5000/nginx@sha256:0",
                "reg.example.com:5000/nginx",
            ),
        ] {
            assert_eq!(repository(image), full, "{image}");
        }
    }
}
