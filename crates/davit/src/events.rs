//! `davit events`: what has happened, to one object or to all, and what happens.

use crate::cluster_flag::Cluster;
use crate::live::{self, Live};
use crate::output::ListOutput;
use crate::page::{Paint, tone_of_cell};
use crate::plain::{age, or_dash, printable};
use crate::{paths, table};
use anyhow::{Context, Result};
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::runtime::watcher;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::str::FromStr;

/// What `davit events` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EventsArgs {
    /// Only events about this object: `pod/NAME`, `node/NAME`, …
    #[arg(long = "for", value_name = "KIND/NAME", add = live::names(Live::Objects))]
    about: Option<About>,
    /// Only events of this type: Normal or Warning
    #[arg(long = "type", value_name = "TYPE")]
    of_type: Option<String>,
    /// Namespace of the objects [default: the kubeconfig's]
    #[arg(short, long, add = live::names(Live::Namespaces))]
    namespace: Option<String>,
    /// Objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Go on printing what happens
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<ListOutput>,
    #[command(flatten)]
    cluster: Cluster,
}

/// An object that events are about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct About {
    kind: String,
    name: String,
}

/// Short names that kubectl has for kinds.
const SHORT: [(&str, &str); 12] = [
    ("po", "pod"),
    ("no", "node"),
    ("deploy", "deployment"),
    ("rs", "replicaset"),
    ("ds", "daemonset"),
    ("sts", "statefulset"),
    ("cj", "cronjob"),
    ("svc", "service"),
    ("pvc", "persistentvolumeclaim"),
    ("pv", "persistentvolume"),
    ("claim", "resourceclaim"),
    ("claims", "resourceclaim"),
];

impl FromStr for About {
    type Err = Infallible;

    /// Without a kind it is a pod.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        // `deployments.apps`
        let kind = kind.split('.').next().unwrap_or_default().to_lowercase();
        let long = SHORT.iter().find(|(short, _)| *short == kind);
        Ok(Self {
            kind: long.map_or(kind.clone(), |(_, long)| (*long).to_owned()),
            name: name.to_owned(),
        })
    }
}

impl About {
    /// Whether the kind of an object is the one named, in the singular or the plural.
    fn is_kind(&self, kind: &str) -> bool {
        let kind = kind.to_lowercase();
        let plurals = [
            format!("{kind}s"),
            format!("{kind}es"),
            kind.strip_suffix('y')
                .map_or_else(String::new, |stem| format!("{stem}ies")),
        ];
        self.kind == kind || plurals.contains(&self.kind)
    }

    /// EventsArgs about objects without a namespace are kept in `default`.
    fn has_namespace(&self) -> bool {
        !["node", "persistentvolume", "namespace", "deviceclass"]
            .iter()
            .any(|kind| self.is_kind(kind))
    }
}

/// Runs `davit events`.
pub(crate) async fn run(args: EventsArgs, paint: Paint) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let everywhere = args.all_namespaces
        || args
            .about
            .as_ref()
            .is_some_and(|about| !about.has_namespace());
    let events: kube::Api<Event> = if everywhere {
        kube::Api::all(client)
    } else {
        let namespace = args.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        kube::Api::namespaced(client, &namespace)
    };
    if args.watch {
        return watch(events, &args, paint).await;
    }
    let params = ListParams::default().fields(&args.fields());
    let listed = events.list(&params).await.context("cannot list events")?;
    let mut found: Vec<Event> = listed.items.into_iter().filter(|e| args.wants(e)).collect();
    found.sort_by_key(time);
    print!("{}", args.text(&found, Timestamp::now(), paint)?);
    Ok(())
}

impl EventsArgs {
    /// What the API server selects.
    fn fields(&self) -> String {
        let name = self
            .about
            .as_ref()
            .map(|a| ("involvedObject.name", &a.name));
        let of_type = self.of_type.as_ref().map(|t| ("type", t));
        let all = name.into_iter().chain(of_type);
        all.map(|(field, value)| format!("{field}={value}"))
            .collect::<Vec<_>>()
            .join(",")
    }

    /// What it cannot select, since a kind is named in many ways.
    fn wants(&self, event: &Event) -> bool {
        let kind = event.involved_object.kind.as_deref().unwrap_or_default();
        self.about.as_ref().is_none_or(|about| about.is_kind(kind))
    }

    fn text(&self, events: &[Event], now: Timestamp, paint: Paint) -> Result<String> {
        Ok(match self.output {
            Some(ListOutput::Json) => format!("{}\n", serde_json::to_string_pretty(&list(events))?),
            Some(ListOutput::Yaml) => serde_saphyr::to_string(&list(events))?,
            Some(ListOutput::Name) => events.iter().map(|event| name(event) + "\n").collect(),
            _ if events.is_empty() => "No events found.\n".to_owned(),
            _ => {
                let rows: Vec<_> = events.iter().map(|event| self.row(event, now)).collect();
                table::painted(&self.header(), &rows, paint)
            }
        })
    }

    fn header(&self) -> Vec<&'static str> {
        let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        if self.all_namespaces {
            header.insert(0, "NAMESPACE");
        }
        if self.output == Some(ListOutput::Wide) {
            // The message is last: it has any length.
            let at = header.len() - 1;
            header.splice(at..at, ["COUNT", "SOURCE"]);
        }
        header
    }

    fn row(&self, event: &Event, now: Timestamp) -> Vec<String> {
        let text = |text: &Option<String>| or_dash(printable(text.as_deref().unwrap_or_default()));
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default().to_lowercase();
        let name = object.name.as_deref().unwrap_or_default();
        let seen = time(event).map(|time| age(now.duration_since(time).as_secs()));
        let mut row = vec![
            or_dash(seen.unwrap_or_default()),
            text(&event.type_),
            text(&event.reason),
            printable(&format!("{kind}/{name}")),
            text(&event.message),
        ];
        if self.all_namespaces {
            row.insert(0, text(&event.metadata.namespace));
        }
        if self.output == Some(ListOutput::Wide) {
            let count = event.series.as_ref().and_then(|series| series.count);
            let count = count.or(event.count).unwrap_or(1);
            let source = event
                .source
                .as_ref()
                .and_then(|source| source.component.clone());
            let source = source.or_else(|| event.reporting_component.clone());
            let at = row.len() - 1;
            row.splice(at..at, [count.to_string(), text(&source)]);
        }
        row
    }

    /// One event of a watch.
    fn line(&self, event: &Event, now: Timestamp, paint: Paint) -> Result<String> {
        Ok(match self.output {
            Some(ListOutput::Json) => format!("{}\n", serde_json::to_string(event)?),
            Some(ListOutput::Yaml) => format!("---\n{}", serde_saphyr::to_string(event)?),
            Some(ListOutput::Name) => name(event) + "\n",
            _ => columns(&self.header(), &self.row(event, now), paint),
        })
    }
}

/// Columns of a watch, which knows no widths beforehand.
fn columns(titles: &[&str], cells: &[String], paint: Paint) -> String {
    let last = cells.len().saturating_sub(1);
    let cells = titles.iter().zip(cells).enumerate();
    let padded = cells.map(|(at, (title, cell))| {
        let blanks = match at == last {
            true => 0,
            false => 10_usize.saturating_sub(cell.chars().count()) + 3,
        };
        paint.put(tone_of_cell(title, cell), cell) + &" ".repeat(blanks)
    });
    padded.collect::<String>() + "\n"
}

/// As kubectl names it.
fn name(event: &Event) -> String {
    printable(&format!(
        "event/{}",
        event.metadata.name.as_deref().unwrap_or_default()
    ))
}

fn list(events: &[Event]) -> serde_json::Value {
    serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": events })
}

/// When it happened last.
fn time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let observed = series.and_then(|series| series.last_observed_time.as_ref());
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let made = event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    observed.map(|time| time.0).or(last).or(first).or(made)
}

/// Prints what there is and then what comes, until a signal. A connection that breaks is made again, and what was shown is
/// not shown again.
async fn watch(events: kube::Api<Event>, args: &EventsArgs, paint: Paint) -> Result<()> {
    let config = watcher::Config::default().fields(&args.fields());
    let mut coming = pin!(watcher(events, config));
    let mut signals = crate::shutdown::Signals::new()?;
    let mut shown: HashMap<String, String> = HashMap::new();
    let mut present: Vec<Event> = Vec::new();
    let mut has_begun = false;
    if args.output.is_none_or(|output| output == ListOutput::Wide) {
        let header = args.header();
        let titles: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
        print!("{}", columns(&header, &titles, paint));
    }
    loop {
        let next = tokio::select! {
            () = signals.recv() => return Ok(()),
            next = coming.try_next() => next,
        };
        let new = match next {
            Ok(None) => return Ok(()),
            Ok(Some(watcher::Event::Init)) => Vec::new(),
            Ok(Some(watcher::Event::InitApply(event))) => {
                present.push(event);
                Vec::new()
            }
            Ok(Some(watcher::Event::InitDone)) => {
                has_begun = true;
                present.sort_by_key(time);
                // Those that are gone are forgotten.
                shown.retain(|uid, _| present.iter().any(|e| e.metadata.uid.as_ref() == Some(uid)));
                std::mem::take(&mut present)
            }
            Ok(Some(watcher::Event::Apply(event))) => vec![event],
            Ok(Some(watcher::Event::Delete(event))) => {
                shown.remove(&event.metadata.uid.unwrap_or_default());
                Vec::new()
            }
            Err(error) if !has_begun => return Err(error).context("cannot watch events"),
            Err(error) => {
                tracing::warn!(%error, "the watch of events begins again");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                Vec::new()
            }
        };
        for event in new.iter().filter(|event| args.wants(event)) {
            let meta = &event.metadata;
            let version = meta.resource_version.clone().unwrap_or_default();
            let before = shown.insert(meta.uid.clone().unwrap_or_default(), version.clone());
            if before != Some(version) {
                print!("{}", args.line(event, Timestamp::now(), paint)?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        events: EventsArgs,
    }

    fn args(line: &str) -> EventsArgs {
        Line::parse_from(format!("events {line}").split_whitespace()).events
    }

    fn event(kind: &str, message: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {"namespace": "lab", "name": "e"}, "type": "Warning", "reason": "Failed", "message": message,
            "involvedObject": {"kind": kind, "name": "x"}, "lastTimestamp": "2026-01-01T00:00:00Z", "count": 3,
            "source": {"component": "kubelet"}}))
        .unwrap()
    }

    #[test]
    fn kinds_may_be_named_as_kubectl_names_them() {
        for text in ["pod/x", "Pods/x", "po/x", "x", "pods.v1/x"] {
            assert!(
                args(&format!("--for {text}")).wants(&event("Pod", "")),
                "{text}"
            );
        }
        assert!(!args("--for deploy/x").wants(&event("Pod", "")));
        assert!(args("--for networkpolicies/x").wants(&event("NetworkPolicy", "")));
        let about: About = "no/x".parse().unwrap();
        assert!(!about.has_namespace());
        assert_eq!(
            args("--for po/x --type Warning").fields(),
            "involvedObject.name=x,type=Warning"
        );
    }

    #[test]
    fn the_message_is_last_and_on_one_line() {
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        let told = event("Pod", "no \x1b[2J\ndevice");
        let text = args("-A -o wide")
            .text(std::slice::from_ref(&told), now, Paint::NONE)
            .unwrap();
        let expected = "\
NAMESPACE   LAST SEEN   TYPE      REASON   OBJECT   COUNT   SOURCE    MESSAGE
lab         5m          Warning   Failed   pod/x    3       kubelet   no \u{fffd}[2J device
";
        assert_eq!(text, expected);
        let line = args("").line(&told, now, Paint::NONE).unwrap();
        assert!(
            line.starts_with("5m           Warning      Failed"),
            "{line}"
        );
        assert_eq!(
            args("").text(&[], now, Paint::NONE).unwrap(),
            "No events found.\n"
        );
    }
}
