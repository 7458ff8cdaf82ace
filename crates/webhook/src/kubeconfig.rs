//! Clients from kubeconfig files, the form in which Kubernetes configures its own webhooks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use davit_api::host_port::host_port;
use davit_schema::decode::{self, Encoding};
use http::Uri;
use serde_json::{Value, json};

use super::client::Settings;
use super::credentials::{Credentials, HostCredentials};
use super::dial::Dial;
use crate::tls::{Identity, Trust};

/// Where pods find their identity.
const IN_CLUSTER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A kubeconfig that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// A file it is or names cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its content makes no sense.
    #[error("kubeconfig {path}: {detail}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

/// A kubeconfig, read.
#[derive(Debug)]
pub struct Kubeconfig {
    path: PathBuf,
    value: Value,
}

impl Kubeconfig {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not YAML.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = std::fs::read(path).map_err(|source| KubeconfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let value =
            decode::parse(&bytes, Encoding::Yaml).map_err(|error| KubeconfigError::Content {
                path: path.to_owned(),
                detail: error.to_string(),
            })?;
        Ok(Self {
            path: path.to_owned(),
            value,
        })
    }

    /// The API server and the identity that pods are given
    /// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>).
    ///
    /// # Errors
    /// When this process runs in no pod.
    pub fn in_cluster() -> Result<Self, KubeconfigError> {
        let dir = Path::new(IN_CLUSTER);
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST");
        let Some((host, port)) = host.zip(variable("KUBERNETES_SERVICE_PORT")) else {
            return Err(KubeconfigError::Content {
                path: dir.to_owned(),
                detail: "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: not in \
                         a cluster"
                    .to_owned(),
            });
        };
        Ok(Self::of_pod(dir, &host, &port))
    }

    fn of_pod(dir: &Path, host: &str, port: &str) -> Self {
        let value = json!({
            "clusters": [{ "name": "pod", "cluster": {
                "server": format!("https://{}", host_port(host, port)),
                "certificate-authority": dir.join("ca.crt"),
            } }],
            "users": [{ "name": "pod", "user": { "tokenFile": dir.join("token") } }],
            "contexts": [{ "name": "pod", "context": { "cluster": "pod", "user": "pod" } }],
            "current-context": "pod",
        });
        Self {
            path: dir.join("in-cluster"),
            value,
        }
    }

    /// The client of the current context.
    ///
    /// # Errors
    /// When context, cluster or user are missing or cannot be used.
    pub fn settings(&self) -> Result<Settings, KubeconfigError> {
        let wanted = self.value["current-context"].as_str().unwrap_or_default();
        let (context, chosen) = if wanted.is_empty() {
            ("the only context", self.only("contexts")?)
        } else {
            (wanted, self.named("contexts", wanted)?)
        };
        let context_body = &chosen["context"];
        let of = |key: &str| {
            context_body[key]
                .as_str()
                .ok_or_else(|| self.fault(format!("{context} names no {key}")))
        };
        let cluster = &self.named("clusters", of("cluster")?)?["cluster"];
        let credentials = match context_body["user"].as_str().unwrap_or_default() {
            "" => Credentials::default(),
            user => self.credentials(&self.named("users", user)?["user"])?,
        };
        let server = cluster["server"].as_str().unwrap_or_default();
        // Errors of calls tell the URL, to clients of the API server, too.
        if server
            .split(['/', '?', '#'])
            .nth(2)
            .is_some_and(|host| host.contains('@'))
        {
            let what = "server has user information in its URL; credentials belong into users";
            return Err(self.fault(what.to_owned()));
        }
        let base: Uri = server
            .parse()
            .map_err(|error| self.fault(format!("server {server:?}: {error}")))?;
        if !matches!(base.scheme_str(), Some("https" | "http")) || base.authority().is_none() {
            return Err(self.fault(format!("server {server:?} is not a URL")));
        }
        Ok(Settings {
            base,
            dial: Dial::Direct,
            trust: self.trust(cluster)?,
            server_name: cluster["tls-server-name"].as_str().map(str::to_owned),
            credentials,
        })
    }

    /// All users by name, for webhooks whose hosts the users are named after.
    ///
    /// # Errors
    /// When a user cannot be used.
    pub fn hosts(&self) -> Result<HostCredentials, KubeconfigError> {
        let users = self.value["users"].as_array().into_iter().flatten();
        let users: Result<BTreeMap<_, _>, _> = users
            .map(|entry| {
                let name = entry["name"].as_str().unwrap_or_default().to_owned();
                Ok((name, self.credentials(&entry["user"])?))
            })
            .collect();
        Ok(HostCredentials::new(users?, None))
    }

    fn trust(&self, cluster: &Value) -> Result<Trust, KubeconfigError> {
        if cluster["insecure-skip-tls-verify"] == true {
            return Ok(Trust::Any);
        }
        let pem = self.data_or_file(
            cluster,
            "certificate-authority-data",
            "certificate-authority",
        )?;
        Ok(pem.map_or(Trust::System, Trust::Authorities))
    }

    fn credentials(&self, user: &Value) -> Result<Credentials, KubeconfigError> {
        if user.get("exec").is_some_and(|exec| !exec.is_null())
            || user.get("auth-provider").is_some_and(|p| !p.is_null())
        {
            return Err(self.fault(
                "credential plugins (exec, auth-provider) are not supported for webhooks"
                    .to_owned(),
            ));
        }
        let certificate =
            self.data_or_file(user, "client-certificate-data", "client-certificate")?;
        let key = self.data_or_file(user, "client-key-data", "client-key")?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) => None,
            _ => {
                let fault = "client certificate and client key must be given together";
                return Err(self.fault(fault.to_owned()));
            }
        };
        let text = |key: &str| {
            user[key]
                .as_str()
                .filter(|t| !t.is_empty())
                .map(str::to_owned)
        };
        Ok(Credentials {
            identity,
            token: text("token"),
            token_file: text("tokenFile").map(|file| self.relative(&file)),
            basic: text("username").map(|name| (name, text("password").unwrap_or_default())),
        })
    }

    fn data_or_file(
        &self,
        of: &Value,
        data: &str,
        file: &str,
    ) -> Result<Option<String>, KubeconfigError> {
        if let Some(encoded) = of[data].as_str().filter(|text| !text.is_empty()) {
            let decoded = base64::engine::general_purpose::STANDARD
                .decode(encoded.trim())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            return decoded
                .map(Some)
                .ok_or_else(|| self.fault(format!("{data} is not base64 of a PEM text")));
        }
        let Some(file) = of[file].as_str().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let path = self.relative(file);
        std::fs::read_to_string(&path)
            .map(Some)
            .map_err(|source| KubeconfigError::Read { path, source })
    }

    /// Paths are relative to the kubeconfig.
    fn relative(&self, file: &str) -> PathBuf {
        match self.path.parent() {
            Some(dir) => dir.join(file),
            None => PathBuf::from(file),
        }
    }

    fn named(&self, list: &str, name: &str) -> Result<&Value, KubeconfigError> {
        let entries = self.value[list].as_array().into_iter().flatten();
        entries
            .into_iter()
            .find(|entry| entry["name"] == name)
            .ok_or_else(|| self.fault(format!("no entry {name:?} in {list}")))
    }

    fn only(&self, list: &str) -> Result<&Value, KubeconfigError> {
        match self.value[list].as_array().map(Vec::as_slice) {
            Some([only]) => Ok(only),
            _ => Err(self.fault("no current-context".to_owned())),
        }
    }

    fn fault(&self, detail: String) -> KubeconfigError {
        KubeconfigError::Content {
            path: self.path.clone(),
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_kubeconfig_gives_server_trust_and_credentials() {
        let (dir, path) = written(
            "clusters: [{name: c, cluster: {server: 'https://1.2.3.4:8443/x', \
             certificate-authority: ca.pem, tls-server-name: hook}}]\n\
             users: [{name: u, user: {token: secret}}]\n\
             contexts: [{name: k, context: {cluster: c, user: u}}]\ncurrent-context: k\n",
        );
        std::fs::write(dir.path().join("ca.pem"), "PEM").unwrap();
        let settings = Kubeconfig::read(&path).unwrap().settings().unwrap();
        assert_eq!(settings.base.to_string(), "https://1.2.3.4:8443/x");
        assert_eq!(settings.trust, Trust::Authorities("PEM".to_owned()));
        assert_eq!(settings.server_name.as_deref(), Some("hook"));
        assert_eq!(settings.credentials.token.as_deref(), Some("secret"));
    }

    #[test]
    fn pods_know_their_api_server() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "PEM").unwrap();
        let settings = Kubeconfig::of_pod(dir.path(), "fd00::1", "443").settings();
        let settings = settings.unwrap();
        assert_eq!(settings.base.to_string(), "https://[fd00::1]:443/");
        assert_eq!(settings.trust, Trust::Authorities("PEM".to_owned()));
        let token = settings.credentials.token_file;
        assert_eq!(token.as_deref(), Some(&*dir.path().join("token")));
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_dir, path) =
            written("contexts: [{name: k, context: {cluster: c, user: u}}]\ncurrent-context: k\n");
        let error = Kubeconfig::read(&path).unwrap().settings().unwrap_err();
        assert!(
            error.to_string().contains("no entry \"c\" in clusters"),
            "{error}"
        );
    }

    #[test]
    fn passwords_in_urls_are_refused_and_not_shown() {
        for server in [
            "https://user:secret@1.2.3.4/x",
            "https://secret@host",
            "https://a:secret@ho st",
        ] {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
                 users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
            );
            let (_dir, path) = written(&text);
            let error = Kubeconfig::read(&path)
                .unwrap()
                .settings()
                .unwrap_err()
                .to_string();
            assert!(error.contains("user information"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
