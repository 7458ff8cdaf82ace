//! `davit top`: devices with who holds them, pods and nodes with what they use, live on a whole terminal.

mod model;
mod screen;
mod terminal;

use crate::cluster_flag::Cluster;
use crate::page::{ColorChoice, Paint};
use crate::paths;
use crate::shutdown::Signals;
use anyhow::{Context, Result};
use model::Moment;
use screen::{AfterKey, Screen, TopView};
use std::io::IsTerminal;
use std::time::Duration;
use terminal::RawTerminal;
use tokio::sync::mpsc;

/// What `davit top` takes. Without a terminal it is `--once`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Top {
    /// Print everything once, as text
    #[arg(long)]
    once: bool,
    /// How often everything is read again, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// What to begin with
    #[arg(long, value_name = "VIEW", value_enum, default_value_t = TopView::Devices)]
    view: TopView,
    #[command(flatten)]
    cluster: Cluster,
}

/// Runs `davit top`.
pub(crate) async fn run(args: Top, choice: ColorChoice) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let first = model::gather(&client).await?;
    if args.once || !std::io::stdout().is_terminal() || is_dumb() {
        print!("{}", screen::plain(&first, Paint::of(choice)));
        return Ok(());
    }
    let mut signals = Signals::new()?;
    let mut terminal = RawTerminal::open(has_colour(choice))
        .context("no terminal to draw on; --once prints text")?;
    let mut hangup = terminal::hangups()?;
    let mut resized = terminal::resizes()?;
    // One ahead is enough: what is not drawn yet is replaced by the next.
    let (snapshots, mut arriving) = mpsc::channel(1);
    let interval = Duration::from_secs(args.interval);
    let reading = tokio::spawn(read_again(client, interval, snapshots));
    let mut screen = Screen::new(args.view, first);
    let ended = loop {
        let (width, height) = terminal.size();
        if let Err(error) = terminal.draw(&screen.frame(width, height)) {
            break Err(error);
        }
        tokio::select! {
            () = signals.recv() => break Ok(()),
            _ = hangup.recv() => break Ok(()),
            _ = resized.recv() => {}
            Some(snapshot) = arriving.recv() => screen.show(snapshot),
            keys = terminal.keys() => match keys {
                Ok(keys) => if keys.iter().any(|key| screen.press(*key) == AfterKey::Quit) { break Ok(()) },
                Err(error) => break Err(error),
            },
        }
    };
    reading.abort();
    drop(terminal);
    ended
}

/// What is drawn has colours, if nobody says no: that there is a terminal is known by now.
fn has_colour(choice: ColorChoice) -> bool {
    let says_no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    choice == ColorChoice::Always || (choice == ColorChoice::Auto && !says_no)
}

/// Terminals that know no escape codes.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Reads everything again and again. A failure is shown beside what was seen last.
async fn read_again(
    client: kube::Client,
    interval: Duration,
    snapshots: mpsc::Sender<Result<Moment, String>>,
) {
    loop {
        tokio::time::sleep(interval).await;
        let read = model::gather(&client).await;
        if snapshots
            .send(read.map_err(|e| format!("{e:#}")))
            .await
            .is_err()
        {
            return;
        }
    }
}
