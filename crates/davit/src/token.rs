//! `davit token`: bootstrap tokens, by which machines join, as `kubeadm token` makes them.

use crate::output::{ListOutput, names};
use crate::{paths, table};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use davit_api::host_port::without_brackets;
use davit_client::bootstrap_token::{self, BootstrapToken, SECRET_NAMESPACE, SECRET_TYPE};
use davit_client::discovery::KeyHash;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::Kubeconfig;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

const GROUP_PREFIX: &str = "system:bootstrappers:";
const USAGE_PREFIX: &str = "usage-bootstrap-";

/// `davit token`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    action: TokenAction,
    /// How to reach the API server [default: $KUBECONFIG, the davit cluster of this machine, ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<std::path::PathBuf>,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum TokenAction {
    /// Make a token and print it
    Create(Create),
    /// Print what could be a token, and make none
    Generate,
    /// List the tokens there are
    #[command(visible_alias = "ls")]
    List {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<ListOutput>,
    },
    /// Delete tokens: who has them can join no more
    #[command(visible_alias = "rm")]
    Delete {
        /// Tokens, or their ids
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Create {
    /// The token [default: one that nobody can guess]
    token: Option<BootstrapToken>,
    /// A file that holds the token, which other accounts of the machine may see for a moment on the command line
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<std::path::PathBuf>,
    /// How long it is good (`30m`, `24h`); 0 for ever
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::protection::duration)]
    ttl: Duration,
    /// What it is for, for people
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    description: String,
    /// What it is good for
    #[arg(
        long,
        value_name = "USAGE,...",
        value_delimiter = ',',
        default_value = "signing,authentication"
    )]
    usages: Vec<TokenUsage>,
    /// Groups that it authenticates as; the nodes that davit lets in are those of the default one
    #[arg(
        long,
        value_name = "GROUP,...",
        value_delimiter = ',',
        default_value = "system:bootstrappers:kubeadm:default-node-token"
    )]
    groups: Vec<String>,
    /// Print the command by which a machine joins instead of the token alone
    #[arg(long)]
    print_join_command: bool,
}

/// What a token can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TokenUsage {
    /// Tells machines that the cluster is the right one
    Signing,
    /// Lets machines in
    Authentication,
}

impl TokenUsage {
    fn name(self) -> &'static str {
        match self {
            Self::Signing => "signing",
            Self::Authentication => "authentication",
        }
    }
}

pub(crate) async fn run(args: TokenArgs) -> Result<()> {
    if matches!(args.action, TokenAction::Generate) {
        println!("{}", BootstrapToken::generate()?.reveal());
        return Ok(());
    }
    let kubeconfig = paths::find_kubeconfig(args.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let secrets: kube::Api<Secret> = kube::Api::namespaced(client.clone(), SECRET_NAMESPACE);
    match args.action {
        TokenAction::Create(create) => create.run(&client, &secrets).await,
        TokenAction::List { output } => list(&secrets, output).await,
        TokenAction::Delete { tokens } => delete(&secrets, &tokens).await,
        TokenAction::Generate => Ok(()),
    }
}

impl Create {
    async fn run(self, client: &kube::Client, secrets: &kube::Api<Secret>) -> Result<()> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => crate::join::token_of(file)?,
            (None, None) => BootstrapToken::generate()?,
        };
        let secret = self.secret(&token, Timestamp::now())?;
        // Before the token is made: one that nobody hears of is of no use.
        let command = match self.print_join_command {
            true => Some(join_command(client, &token).await?),
            false => None,
        };
        match secrets.create(&PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                bail!("a token with id {:?} already exists", token.id())
            }
            made => made.context("cannot make the token")?,
        };
        println!("{}", command.unwrap_or_else(|| token.reveal()));
        Ok(())
    }

    /// The Secret that holds the token.
    fn secret(&self, token: &BootstrapToken, now: Timestamp) -> Result<Secret> {
        let mut data = BTreeMap::from([
            ("token-id".to_owned(), token.id().to_owned()),
            ("token-secret".to_owned(), token.secret().to_owned()),
        ]);
        if !self.description.is_empty() {
            data.insert("description".to_owned(), self.description.clone());
        }
        if !self.ttl.is_zero() {
            let end = now.checked_add(self.ttl).context("--ttl")?;
            let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            data.insert("expiration".to_owned(), end);
        }
        for usage in &self.usages {
            data.insert(format!("{USAGE_PREFIX}{}", usage.name()), "true".to_owned());
        }
        let groups: Vec<&str> = self.groups.iter().map(|group| group.trim()).collect();
        let groups: Vec<&str> = groups
            .into_iter()
            .filter(|group| !group.is_empty())
            .collect();
        for group in &groups {
            ensure!(
                is_group(group),
                "group {group:?} is not of the form \"system:bootstrappers:[a-z0-9:-]{{0,255}}[a-z0-9]\""
            );
        }
        if !groups.is_empty() {
            data.insert("auth-extra-groups".to_owned(), groups.join(","));
        }
        let mut secret = Secret {
            type_: Some(SECRET_TYPE.to_owned()),
            ..Secret::default()
        };
        secret.metadata.name = Some(bootstrap_token::secret_name(token.id()));
        let bytes = |(key, text): (String, String)| (key, ByteString(text.into_bytes()));
        secret.data = Some(data.into_iter().map(bytes).collect());
        Ok(secret)
    }
}

/// Whether a token may authenticate as this group.
fn is_group(group: &str) -> bool {
    let last = |rest: &str| {
        rest.bytes()
            .last()
            .is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":-".contains(&byte);
    group
        .strip_prefix(GROUP_PREFIX)
        .is_some_and(|rest| rest.len() <= 256 && rest.bytes().all(fits) && last(rest))
}

/// The command by which a machine joins, by what the cluster says of itself.
async fn join_command(client: &kube::Client, token: &BootstrapToken) -> Result<String> {
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(client.clone(), "kube-public");
    let info = maps.get("cluster-info").await;
    let info = info.context("cannot read cluster-info in kube-public")?;
    let text = info.data.unwrap_or_default().remove("kubeconfig");
    command(&text.unwrap_or_default(), token)
}

fn command(cluster_info: &str, token: &BootstrapToken) -> Result<String> {
    let what = "cluster-info in kube-public cannot be used";
    let config = Kubeconfig::from_yaml(cluster_info).context(what)?;
    let cluster = config.clusters.into_iter().next().and_then(|c| c.cluster);
    let cluster = cluster.context(what)?;
    let server = cluster.server.context(what)?;
    let endpoint = server.trim_start_matches("https://").trim_end_matches('/');
    let authority = cluster.certificate_authority_data.context(what)?;
    let authority = base64::engine::general_purpose::STANDARD.decode(authority);
    let hashes = KeyHash::of_certificates(&authority.context(what)?).context(what)?;
    let hashes: Vec<String> = hashes.iter().map(ToString::to_string).collect();
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let host = without_brackets(host);
    if host == "localhost"
        || host
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    {
        eprintln!(
            "the API server says that it is at {endpoint}, where no other machine reaches it: \
             --bind-address and --advertise-address of the server say otherwise (docs/node.md)"
        );
    }
    Ok(format!(
        "davit node --join {endpoint} --token {} --discovery-token-ca-cert-hash {}",
        token.reveal(),
        hashes.join(",")
    ))
}

/// A token as lists show it.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedToken {
    token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    usages: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    groups: Vec<String>,
}

impl ListedToken {
    fn of(secret: &Secret) -> Result<Self> {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let data = secret.data.clone().unwrap_or_default();
        let field = |key: &str| {
            let bytes = data
                .get(key)
                .map(|bytes| bytes.0.clone())
                .unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let text = format!("{}.{}", field("token-id"), field("token-secret"));
        let token: BootstrapToken = text.parse().with_context(|| format!("secret {name}"))?;
        ensure!(
            name == bootstrap_token::secret_name(token.id()),
            "secret {name} holds a token of another name"
        );
        let usage = |key: &String| key.strip_prefix(USAGE_PREFIX).map(str::to_owned);
        let usages = data.iter().filter(|(_, value)| value.0 == b"true");
        let groups = field("auth-extra-groups");
        let groups = groups.split(',').filter(|group| !group.is_empty());
        Ok(Self {
            token: token.reveal(),
            expires: Some(field("expiration")).filter(|text| !text.is_empty()),
            usages: usages.filter_map(|(key, _)| usage(key)).collect(),
            description: field("description"),
            groups: groups.map(str::to_owned).collect(),
        })
    }

    fn row(&self, now: Timestamp) -> Vec<String> {
        let or_none = |text: String| {
            if text.is_empty() {
                "<none>".to_owned()
            } else {
                text
            }
        };
        let (ttl, expires) = match &self.expires {
            None => ("<forever>".to_owned(), "<never>".to_owned()),
            Some(text) => {
                let end = text.parse::<Timestamp>();
                let left = end.map(|end| (end.as_second() - now.as_second()).max(0));
                let left = left.map_or("<invalid>".to_owned(), short);
                (left, text.clone())
            }
        };
        vec![
            self.token.clone(),
            ttl,
            expires,
            or_none(self.usages.join(",")),
            or_none(self.description.clone()),
            or_none(self.groups.join(",")),
        ]
    }
}

/// Seconds in the largest unit of which there is one.
fn short(seconds: i64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

async fn list(secrets: &kube::Api<Secret>, output: Option<ListOutput>) -> Result<()> {
    let params = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let held = secrets.list(&params).await.context("cannot list tokens")?;
    let mut tokens = Vec::new();
    for secret in &held.items {
        match ListedToken::of(secret) {
            Ok(token) => tokens.push(token),
            Err(error) => eprintln!("davit: {error:#}"),
        }
    }
    match output {
        Some(ListOutput::Json) => println!("{}", serde_json::to_string_pretty(&tokens)?),
        Some(ListOutput::Yaml) => print!("{}", serde_saphyr::to_string(&tokens)?),
        // The ids, which `davit token delete` takes: names are no secrets.
        Some(ListOutput::Name) => {
            let ids = tokens
                .iter()
                .filter_map(|token| token.token.split('.').next());
            print!("{}", names(ids));
        }
        Some(ListOutput::Wide) | None => {
            const HEADER: [&str; 6] = [
                "TOKEN",
                "TTL",
                "EXPIRES",
                "USAGES",
                "DESCRIPTION",
                "EXTRA GROUPS",
            ];
            let now = Timestamp::now();
            let rows: Vec<_> = tokens.iter().map(|token| token.row(now)).collect();
            print!("{}", table::render(&HEADER, &rows));
        }
    }
    Ok(())
}

async fn delete(secrets: &kube::Api<Secret>, tokens: &[String]) -> Result<()> {
    let mut ids = Vec::new();
    for text in tokens {
        let id = match text.parse::<BootstrapToken>() {
            Ok(token) => token.id().to_owned(),
            Err(_) if bootstrap_token::is_id(text) => text.clone(),
            Err(_) => bail!(
                "what is to be deleted is neither a token (\"[a-z0-9]{{6}}.[a-z0-9]{{16}}\") nor an id (\"[a-z0-9]{{6}}\")"
            ),
        };
        ids.push(id);
    }
    for id in ids {
        let (name, params) = (bootstrap_token::secret_name(&id), DeleteParams::default());
        let deleted = secrets.delete(&name, &params).await;
        deleted.with_context(|| format!("failed to delete bootstrap token {id:?}"))?;
        println!("bootstrap token {id:?} deleted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn create(line: &str) -> Create {
        let args = Args::parse_from(
            ["davit", "token", "create"]
                .into_iter()
                .chain(line.split_whitespace()),
        );
        match args.command {
            Command::Token(TokenArgs {
                action: TokenAction::Create(create),
                ..
            }) => create,
            other => panic!("{other:?}"),
        }
    }

    fn made(line: &str) -> Result<Secret> {
        let create = create(line);
        let token = create.token.clone().unwrap();
        create.secret(&token, "2026-01-01T00:00:00.5Z".parse().unwrap())
    }

    #[test]
    fn secrets_are_those_of_kubeadm_and_lists_read_them() {
        let secret = made(TOKEN).unwrap();
        assert_eq!(
            secret.metadata.name.as_deref(),
            Some("bootstrap-token-abcdef")
        );
        let data = secret.data.clone().unwrap();
        let keys: Vec<(&str, &str)> = data
            .iter()
            .map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).unwrap()))
            .collect();
        assert_eq!(
            keys,
            [
                (
                    "auth-extra-groups",
                    "system:bootstrappers:kubeadm:default-node-token"
                ),
                ("expiration", "2026-01-02T00:00:00Z"),
                ("token-id", "abcdef"),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-authentication", "true"),
                ("usage-bootstrap-signing", "true"),
            ]
        );
        let row = ListedToken::of(&secret)
            .unwrap()
            .row("2026-01-01T01:00:00Z".parse().unwrap());
        assert_eq!(
            row,
            [
                TOKEN,
                "23h",
                "2026-01-02T00:00:00Z",
                "authentication,signing",
                "<none>",
                "system:bootstrappers:kubeadm:default-node-token"
            ]
        );
        let bare = made(&format!(
            "{TOKEN} --ttl 0 --usages signing --groups= --description=edge"
        ))
        .unwrap();
        let row = ListedToken::of(&bare).unwrap().row(Timestamp::now());
        assert_eq!(
            row,
            [TOKEN, "<forever>", "<never>", "signing", "edge", "<none>"]
        );
        assert!(made(&format!("{TOKEN} --groups system:masters")).is_err());
        assert!(made(&format!("{TOKEN} --groups system:bootstrappers:a:")).is_err());
        let mut renamed = secret;
        renamed.metadata.name = Some("other".to_owned());
        assert!(ListedToken::of(&renamed).is_err());
    }

    #[test]
    fn the_command_names_the_authorities_key() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        let data = base64::engine::general_purpose::STANDARD.encode(certificate.pem());
        let info = format!(
            "clusters: [{{name: '', cluster: {{server: 'https://192.0.2.10:6443', certificate-authority-data: {data}}}}}]"
        );
        let hash = KeyHash::of_certificates(certificate.pem().as_bytes()).unwrap()[0];
        assert_eq!(
            command(&info, &TOKEN.parse().unwrap()).unwrap(),
            format!(
                "davit node --join 192.0.2.10:6443 --token {TOKEN} --discovery-token-ca-cert-hash {hash}"
            )
        );
        assert!(command("", &TOKEN.parse().unwrap()).is_err());
    }
}
