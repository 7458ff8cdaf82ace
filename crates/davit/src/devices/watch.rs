//! `davit devices --watch`: the table, and what changes in it.

use super::{Answer, Devices, header, node_names, path, rows, table_of};
use crate::output::ListOutput;
use crate::page::Paint;
use crate::plain::printable;
use crate::table;
use anyhow::{Context, Result, bail};
use davit_api::devices::NodeDevices;
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long a watch waits before it asks a node again that went away.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes of the longest table that is read.
const LONGEST: u64 = 16 << 20;

/// How many of the first cells name the thing that a row is about.
const KEY: usize = 3;

/// Prints what nodes say until a signal.
pub(super) async fn run(client: &kube::Client, args: &Devices, paint: Paint) -> Result<()> {
    if args.output == Some(ListOutput::Name) {
        bail!("-o name says nothing of what changes; --watch has tables, -o json and -o yaml");
    }
    let (updates, mut changed) = mpsc::channel::<Answer>(64);
    let mut following = JoinSet::new();
    for node in node_names(client, args.node.as_deref()).await? {
        following.spawn(follow(client.clone(), node, updates.clone()));
    }
    drop(updates);
    let wide = args.output == Some(ListOutput::Wide);
    let mut known: BTreeMap<String, Shown> = BTreeMap::new();
    let mut signals = crate::shutdown::Signals::new()?;
    loop {
        tokio::select! {
            () = signals.recv() => return Ok(()),
            answer = changed.recv() => {
                let Some(answer) = answer else { return Ok(()) };
                let (node, answer) = args.of(answer);
                if args.output == Some(ListOutput::Json) {
                    if let Ok(devices) = &answer {
                        println!("{}", serde_json::to_string(devices)?);
                    }
                    continue;
                }
                if args.output == Some(ListOutput::Yaml) {
                    if let Ok(devices) = &answer {
                        print!("---\n{}", serde_saphyr::to_string(devices)?);
                    }
                    continue;
                }
                let now = Shown::new(&node, &answer, wide);
                print!("{}", now.since(known.get(&node), wide, paint));
                known.insert(node, now);
            }
        }
    }
}

/// Passes on what a node says, for ever; a node that goes away is asked again.
async fn follow(client: kube::Client, node: String, updates: mpsc::Sender<Answer>) {
    loop {
        let ended = stream(&client, &node, &updates).await;
        let why = ended
            .err()
            .map_or_else(|| "connection closed".to_owned(), |e| format!("{e:#}"));
        if updates.send((node.clone(), Err(why))).await.is_err() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn stream(client: &kube::Client, node: &str, updates: &mpsc::Sender<Answer>) -> Result<()> {
    let request = http::Request::get(path(node, "?watch=true")).body(Vec::new())?;
    let mut answer = Box::pin(client.request_stream(request).await?);
    while let Some(line) = next_table(&mut answer).await? {
        let devices: NodeDevices =
            serde_json::from_slice(&line).context("device table of the node")?;
        let devices = table_of(node, devices).map_err(anyhow::Error::msg)?;
        updates.send((node.to_owned(), Ok(devices))).await?;
    }
    Ok(())
}

/// The next line of an answer, which a node gives the length it likes; `None` at the end.
async fn next_table(answer: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = answer.take(LONGEST).read_until(b'\n', &mut line).await?;
    if read as u64 == LONGEST {
        bail!("the device table of the node has more than {LONGEST} bytes");
    }
    Ok((read > 0).then_some(line))
}

/// What a watch has shown of one node.
struct Shown {
    rows: Vec<Vec<String>>,
    note: Option<String>,
}

impl Shown {
    fn new(node: &str, answer: &Result<NodeDevices, String>, wide: bool) -> Self {
        match answer {
            Ok(devices) => Self {
                rows: rows(node, devices, wide),
                note: None,
            },
            Err(why) => Self {
                rows: Vec::new(),
                note: Some(printable(&format!("node {node}: {why}")) + "\n"),
            },
        }
    }

    /// What is new since then: everything the first time, afterwards rows that have changed (`~`), come (`+`) or gone
    /// (`-`), with the time.
    fn since(&self, before: Option<&Self>, wide: bool, paint: Paint) -> String {
        let Some(before) = before.filter(|before| before.note.is_none()) else {
            return match &self.note {
                Some(note) => note.clone(),
                None => table::painted(&header(wide), &self.rows, paint),
            };
        };
        if let Some(note) = &self.note {
            return note.clone();
        }
        let key = |row: &Vec<String>| row.get(..KEY).map(<[String]>::to_vec);
        let keys = |rows: &[Vec<String>]| -> HashSet<_> { rows.iter().map(key).collect() };
        let (keys_before, keys_now) = (keys(&before.rows), keys(&self.rows));
        let rows_before: HashSet<&Vec<String>> = before.rows.iter().collect();
        let mark = |mark: &str, row: &Vec<String>| {
            let mut marked = row.clone();
            if let Some(first) = marked.first_mut() {
                first.insert_str(0, mark);
            }
            marked
        };
        let new = self.rows.iter().filter(|row| !rows_before.contains(row));
        let mut changed: Vec<Vec<String>> = new
            .map(|row| {
                mark(
                    if keys_before.contains(&key(row)) {
                        "~ "
                    } else {
                        "+ "
                    },
                    row,
                )
            })
            .collect();
        let gone = before
            .rows
            .iter()
            .filter(|row| !keys_now.contains(&key(row)));
        changed.extend(gone.map(|row| mark("- ", row)));
        if changed.is_empty() {
            return String::new();
        }
        let now = jiff::Timestamp::now().strftime("%H:%M:%SZ");
        format!(
            "\n{now}\n{}",
            table::painted(&header(wide), &changed, paint)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::MOST_DEVICES;
    use crate::devices::tests::held;
    use davit_api::devices::Device;

    #[tokio::test]
    async fn a_node_does_not_fill_the_memory() {
        let mut answer = futures::io::Cursor::new("{}\n[]");
        let mut next = async || next_table(&mut answer).await.unwrap();
        assert_eq!(next().await.as_deref(), Some(&b"{}\n"[..]));
        assert_eq!(next().await.as_deref(), Some(&b"[]"[..]));
        assert_eq!(next().await, None);
        let mut endless = futures::io::BufReader::new(futures::io::repeat(b' '));
        assert!(next_table(&mut endless).await.is_err());
    }

    /// A node tells of as many devices as it likes, each time of others.
    #[test]
    fn many_rows_are_not_all_compared() {
        let of = |from: usize| {
            let device = |n: usize| held("r", &n.to_string(), "Healthy");
            let table = NodeDevices {
                devices: (from..from + MOST_DEVICES).map(device).collect(),
                ..NodeDevices::default()
            };
            Shown::new("a", &Ok(table), false)
        };
        let (before, after) = (of(0), of(MOST_DEVICES));
        let begun = std::time::Instant::now();
        let text = after.since(Some(&before), false, Paint::NONE);
        assert!(text.lines().count() > 2 * MOST_DEVICES);
        assert!(begun.elapsed().as_secs() < 60);
    }

    #[test]
    fn a_watch_shows_what_changed() {
        let of = |devices: Vec<Device>| {
            let table = NodeDevices {
                devices,
                ..NodeDevices::default()
            };
            Shown::new("a", &Ok(table), false)
        };
        let before = of(vec![
            held("r", "1", "Healthy"),
            held("r", "2", "Healthy"),
            held("r", "3", "Healthy"),
        ]);
        assert_eq!(before.since(None, false, Paint::NONE).lines().count(), 4);
        assert_eq!(before.since(Some(&before), false, Paint::NONE), "");
        let after = of(vec![
            held("r", "1", "Healthy"),
            held("r", "2", "Unhealthy"),
            held("r", "4", "Healthy"),
        ]);
        let text = after.since(Some(&before), false, Paint::NONE);
        let marks: Vec<&str> = text.lines().skip(3).map(|line| &line[..1]).collect();
        assert_eq!(marks, ["~", "+", "-"], "{text}");
        let lost = Shown::new("a", &Err("gone".to_owned()), false);
        assert_eq!(
            lost.since(Some(&after), false, Paint::NONE),
            "node a: gone\n"
        );
        assert_eq!(
            after.since(Some(&lost), false, Paint::NONE).lines().count(),
            4
        );
    }
}
