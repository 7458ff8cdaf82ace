//! How `davit node` joins a cluster by a bootstrap token: the cluster is found and judged as `kubeadm join` does it, and
//! the name of a node that is at work is refused.

use anyhow::{Context, Result, bail, ensure};
use davit_client::bootstrap_token::BootstrapToken;
use davit_client::discovery::{Discovery, KeyHash};
use k8s_openapi::api::core::v1::Node;
use kube::config::Kubeconfig;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// By what a machine joins; the flags are those of `kubeadm join`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct JoinFlags {
    /// Join the cluster whose API server is there, by a token; a node that has joined goes on as what it is
    #[arg(long, value_name = "HOST:PORT", requires = "joining_token", conflicts_with_all = ["discovery_file", "bootstrap_kubeconfig"])]
    join: Option<ServerAddress>,
    /// The bootstrap token (`davit token create`); other accounts of the machine may see it for a moment
    #[arg(long, value_name = "TOKEN", group = "joining_token")]
    token: Option<BootstrapToken>,
    /// A file that holds the bootstrap token; it is read when the node joins, and not needed after that
    #[arg(long, value_name = "FILE", group = "joining_token")]
    token_file: Option<PathBuf>,
    /// Hashes of the public keys of which the cluster's authority must have one (`sha256:…`)
    #[arg(
        long,
        value_name = "HASH,...",
        value_delimiter = ',',
        requires = "join",
        conflicts_with_all = ["discovery_file", "bootstrap_kubeconfig"]
    )]
    discovery_token_ca_cert_hash: Vec<KeyHash>,
    /// Believe whoever knows the token
    #[arg(
        long,
        requires = "join",
        conflicts_with_all = ["discovery_token_ca_cert_hash", "discovery_file", "bootstrap_kubeconfig"]
    )]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Join the cluster of this kubeconfig, with its credentials or by --token or --token-file
    #[arg(long, value_name = "FILE", conflicts_with = "bootstrap_kubeconfig")]
    discovery_file: Option<PathBuf>,
}

/// `HOST:PORT` of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerAddress(String);

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let authority = text.parse::<http::uri::Authority>();
        let is_whole = |a: &http::uri::Authority| {
            a.port_u16().is_some() && !a.host().is_empty() && !text.contains('@')
        };
        match authority {
            Ok(authority) if is_whole(&authority) => Ok(Self(text.to_owned())),
            _ => Err("expected HOST:PORT".to_owned()),
        }
    }
}

impl JoinFlags {
    /// Whether the node joins by what is said here.
    pub(crate) fn are_given(&self) -> bool {
        self.join.is_some() || self.discovery_file.is_some()
    }

    /// Whether what is said is enough.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.join.is_none()
                || self.discovery_token_unsafe_skip_ca_verification
                || !self.discovery_token_ca_cert_hash.is_empty(),
            "whoever answers at that address must be known by --discovery-token-ca-cert-hash \
             (`davit token create --print-join-command` prints it); \
             --discovery-token-unsafe-skip-ca-verification joins without"
        );
        ensure!(
            (self.token.is_none() && self.token_file.is_none()) || self.are_given(),
            "--token and --token-file are for --join or --discovery-file"
        );
        Ok(())
    }

    /// How the cluster is reached with the credentials for joining, once it has proved to be the right one.
    ///
    /// # Errors
    /// It is not there, or is another one, or there are no credentials.
    pub(crate) async fn discover(&self) -> Result<Kubeconfig> {
        let token = match &self.token_file {
            Some(file) => Some(token_of(file)?),
            None => self.token.clone(),
        };
        if let Some(file) = &self.discovery_file {
            return of_file(file, token.as_ref());
        }
        let (Some(ServerAddress(endpoint)), Some(token)) = (&self.join, token) else {
            bail!("--join HOST:PORT and --token TOKEN are missing");
        };
        let discovery = Discovery {
            endpoint: endpoint.clone(),
            token,
            hashes: self.discovery_token_ca_cert_hash.clone(),
        };
        let found = discovery.run().await;
        found.context("couldn't validate the identity of the API Server")
    }
}

/// Longer files hold no token.
const MAX_TOKEN_FILE: u64 = 4096;

/// The token that a file holds, and nothing else.
///
/// # Errors
/// It cannot be read, or holds something else, of which nothing is told.
pub(crate) fn token_of(file: &Path) -> Result<BootstrapToken> {
    let what = || format!("token file {}", file.display());
    let bytes = davit_beneath::read_given(file, MAX_TOKEN_FILE).with_context(what)?;
    let text = std::str::from_utf8(bytes.trim_ascii()).with_context(what)?;
    text.parse().with_context(what)
}

/// The cluster of a kubeconfig file, whose authority must stand there: the file is what is believed.
fn of_file(file: &Path, token: Option<&BootstrapToken>) -> Result<Kubeconfig> {
    let what = || format!("discovery file {}", file.display());
    let mut config = Kubeconfig::read_from(file).with_context(what)?;
    let wanted = match (&config.current_context, &config.contexts[..]) {
        (Some(name), _) if !name.is_empty() => name.clone(),
        // As `cluster-info` in kube-public: a cluster and nothing else.
        (_, []) if config.clusters.len() == 1 => {
            let cluster = config.clusters[0].name.clone();
            let context = serde_json::json!({
                "name": USER, "context": { "cluster": cluster, "user": USER },
            });
            config.contexts.push(serde_json::from_value(context)?);
            USER.to_owned()
        }
        _ => bail!("{} has no current context", what()),
    };
    config.current_context = Some(wanted.clone());
    let context = config.contexts.iter_mut().find(|c| c.name == wanted);
    let context = context.and_then(|c| c.context.as_mut());
    let context = context.with_context(|| format!("{} has no context {wanted:?}", what()))?;
    let cluster = config.clusters.iter().find(|c| c.name == context.cluster);
    let cluster = cluster.and_then(|c| c.cluster.as_ref());
    let cluster = cluster.with_context(|| format!("{} names no cluster", what()))?;
    ensure!(
        cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some(),
        "{} names no authority of the cluster",
        what()
    );
    match token {
        Some(token) => {
            context.user = Some(USER.to_owned());
            let user = serde_json::json!({ "name": USER, "user": { "token": token.reveal() } });
            config.auth_infos = vec![serde_json::from_value(user)?];
        }
        None => ensure!(
            context.user.is_some() && !config.auth_infos.is_empty(),
            "{} has no credentials: --token TOKEN is missing",
            what()
        ),
    }
    Ok(config)
}

/// As kubeadm names whom a token stands for.
const USER: &str = "tls-bootstrap-token-user";

/// Refuses the name of a node that is at work: two agents would fight about it.
///
/// # Errors
/// There is one, or it cannot be looked at.
pub(crate) async fn check_name(client: &kube::Client, name: &str) -> Result<()> {
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let held = nodes.get_opt(name).await;
    let held = held.with_context(|| format!("cannot get Node {name:?}"))?;
    let status = held.and_then(|node| node.status).unwrap_or_default();
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    ensure!(
        !is_ready,
        "a Node with name {name:?} and status \"Ready\" already exists in the cluster. \
         You must delete the existing Node or change the name of this new joining Node"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Args, Command};
    use clap::Parser;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn node(line: &str) -> Result<args::Node> {
        let args = Args::try_parse_from(["davit", "node"].into_iter().chain(line.split(' ')))?;
        let Command::Node(node) = args.command else {
            bail!("node expected")
        };
        node.join.check()?;
        Ok(node)
    }

    #[test]
    fn a_cluster_that_is_joined_must_be_known() {
        let hash = format!("sha256:{}", "ab".repeat(32));
        let known = format!("--join h:6443 --token {TOKEN} --discovery-token-ca-cert-hash {hash}");
        let node_args = node(&known).unwrap();
        assert_eq!(
            node_args.kubeconfig(Path::new("/d")).unwrap(),
            Path::new("/d/node.kubeconfig")
        );
        let skip = "--discovery-token-unsafe-skip-ca-verification";
        assert!(node(&format!("--join h:6443 --token-file f {skip}")).is_ok());
        assert!(node("--discovery-file f --token-file f").is_ok());
        assert!(node(&format!("--join [fd00::1]:6443 --token {TOKEN} {skip}")).is_ok());
        for wrong in [
            format!("--join h:6443 --token {TOKEN}"),
            format!("--join h --token {TOKEN} {skip}"),
            format!("--join u@h:1 --token {TOKEN} {skip}"),
            format!("--join h:6443 {skip}"),
            format!("--join h:6443 --token abcdef {skip}"),
            format!("--kubeconfig k --token {TOKEN}"),
            "--kubeconfig k --token-file f".to_owned(),
            format!("--join h:6443 --token-file f --token {TOKEN} {skip}"),
            format!("--discovery-file f --token {TOKEN} {skip}"),
            format!("--discovery-file f --token {TOKEN} --discovery-token-ca-cert-hash {hash}"),
            format!("{known} --discovery-file f"),
            format!("{known} --bootstrap-kubeconfig f"),
        ] {
            assert!(node(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_can_be_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            token_of(&file)
        };
        assert_eq!(of(&format!("{TOKEN}\n")).unwrap().reveal(), TOKEN);
        let error = of(&format!("{TOKEN} {TOKEN}")).unwrap_err();
        assert!(!format!("{error:#}").contains("0123456789abcdef"));
        assert!(of("").is_err() && token_of(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn a_file_names_the_cluster_its_authority_and_perhaps_the_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let token: BootstrapToken = TOKEN.parse().unwrap();
        let of = |text: &str, token: Option<&BootstrapToken>| {
            std::fs::write(&file, text).unwrap();
            let config = of_file(&file, token)?;
            anyhow::Ok(serde_json::to_value(config)?)
        };
        let info = "clusters: [{name: '', cluster: {server: 'https://h', certificate-authority-data: QQ==}}]";
        let found = of(info, Some(&token)).unwrap();
        assert_eq!(found["users"][0]["user"]["token"], TOKEN);
        assert_eq!(found["contexts"][0]["context"]["cluster"], "");
        assert!(of(info, None).is_err(), "no credentials");
        let own = format!(
            "{info}\nusers: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: c, context: {{cluster: '', user: u}}}}]\ncurrent-context: c"
        );
        assert_eq!(of(&own, None).unwrap()["users"][0]["user"]["token"], "t");
        let no_authority = info.replace(", certificate-authority-data: QQ==", "");
        assert!(of(&no_authority, Some(&token)).is_err());
        assert!(of("{}", Some(&token)).is_err());
    }
}
