//! Allocate, GetPreferredAllocation, PreStartContainer.

use std::collections::BTreeSet;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::timeout;

use super::{Met, Run};
use crate::check::agent::{Client, said};
use crate::check::{answers, streams};

/// Devices that are allocated one by one; nobody has the time for thousands.
const MOST: usize = 64;
const AT_ONCE: usize = 8;
const PRE_START: Duration = Duration::from_secs(30);
const UNKNOWN: &str = "davit-lab-no-such-device";

impl Run<'_> {
    pub(super) async fn calls(&mut self, met: &Met) {
        let healthy = streams::healthy(&met.devices);
        if healthy.is_empty() {
            for check in super::PLUGIN_CHECKS {
                let of_devices = ["allocate", "preferred", "pre-start"];
                if of_devices.iter().any(|group| check.id.starts_with(group)) {
                    self.report.skip(check.id, "there is no healthy device");
                }
            }
            return;
        }
        self.allocation(met, &healthy).await;
        self.preference(met, &healthy).await;
        self.pre_start(met, &healthy).await;
    }

    async fn allocation(&mut self, met: &Met, healthy: &[String]) {
        let (client, patience) = (&met.client, self.options.patience);
        let mut answers = Vec::new();
        let mut failed = None;
        for id in healthy.iter().take(MOST) {
            match allocate(client, &[id], patience).await {
                Ok(answer) => answers.push((id, answer)),
                Err(e) => {
                    failed = Some(format!("device {id:?}: {e}"));
                    break;
                }
            }
        }
        let told = match answers.len() {
            n if n < healthy.len() => format!("the first {n} of {} answered", healthy.len()),
            n => format!("{n} answered"),
        };
        let all_answered = self
            .report
            .verdict("allocate", failed.map_or(Ok(told), Err));
        let bad = answers.iter().find_map(|(id, answer)| {
            answers::check(answer)
                .err()
                .map(|e| format!("device {id:?}: {e}"))
        });
        if let Some((_, first)) = answers.first() {
            let good = || answers::check(first);
            self.report
                .verdict("allocate-answer", bad.map_or_else(good, Err));
        }
        if !all_answered {
            return;
        }
        let all: Vec<&String> = healthy.iter().collect();
        let seen = match allocate(client, &all, patience).await {
            Ok(answer) => {
                answers::check(&answer).map(|seen| format!("{} devices: {seen}", all.len()))
            }
            Err(e) => Err(e),
        };
        self.report.verdict("allocate-all", seen);
        if let Some((id, first)) = answers.first() {
            let seen = match allocate(client, &[id], patience).await {
                Ok(again) if again == *first => Ok("the same".to_owned()),
                Ok(_) => Err(format!("another answer for device {id:?}")),
                Err(e) => Err(e),
            };
            self.report.verdict("allocate-again", seen);
        }
        let seen = self.unknown(client, &healthy[0]).await;
        self.report.verdict("allocate-unknown", seen);
        let seen = parallel(client, healthy, patience).await;
        self.report.verdict("allocate-parallel", seen);
    }

    async fn unknown(&self, client: &Client, known: &String) -> Result<String, String> {
        let patience = self.options.patience;
        let unknown = UNKNOWN.to_owned();
        let refused = match raw(client, &[&unknown], patience).await {
            Err(e) if e.timed_out => return Err(e.text),
            Err(e) => e.text,
            Ok(_) => return Err("it was allocated".to_owned()),
        };
        let after = allocate(client, &[known], patience).await;
        after.map_err(|e| format!("refused ({refused}), but then: {e}"))?;
        Ok(format!("refused: {refused}"))
    }

    async fn preference(&mut self, met: &Met, healthy: &[String]) {
        if !met.options.get_preferred_allocation_available {
            for id in ["preferred", "preferred-must-include"] {
                self.report.skip(id, "it has no preferences");
            }
            return;
        }
        let mut seen = Ok("as asked".to_owned());
        for size in [1, healthy.len().div_ceil(2), healthy.len()] {
            if let Err(e) = self.prefer(met, healthy, &[], size).await {
                seen = Err(format!("{size} of {}: {e}", healthy.len()));
                break;
            }
        }
        self.report.verdict("preferred", seen);
        if healthy.len() < 2 {
            self.report
                .skip("preferred-must-include", "there is only one healthy device");
            return;
        }
        let must = &healthy[healthy.len() - 1..];
        let seen = match self.prefer(met, healthy, must, 2).await {
            Ok(chosen) if chosen.contains(&must[0]) => Ok(format!("[{}]", chosen.join(", "))),
            Ok(chosen) => Err(format!("[{}] without {:?}", chosen.join(", "), must[0])),
            Err(e) => Err(e),
        };
        self.report.verdict("preferred-must-include", seen);
    }

    async fn prefer(
        &self,
        met: &Met,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Result<Vec<String>, String> {
        let request = pb::PreferredAllocationRequest {
            container_requests: vec![pb::ContainerPreferredAllocationRequest {
                available_device_i_ds: available.to_vec(),
                must_include_device_i_ds: must.to_vec(),
                allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
            }],
        };
        let mut client = met.client.clone();
        let answered = timeout(
            self.options.patience,
            client.get_preferred_allocation(request),
        );
        let answer = answered
            .await
            .map_err(|_| format!("no answer in {} s", self.options.patience.as_secs()))?
            .map_err(|status| said(&status))?;
        let mut answers = answer.into_inner().container_responses;
        if answers.len() != 1 {
            return Err(format!(
                "{} container responses instead of one",
                answers.len()
            ));
        }
        let chosen = answers.remove(0).device_i_ds;
        let different: BTreeSet<&String> = chosen.iter().collect();
        if let Some(foreign) = chosen.iter().find(|id| !available.contains(id)) {
            return Err(format!("{foreign:?} was not available"));
        }
        if different.len() != chosen.len() {
            return Err(format!("a device twice in [{}]", chosen.join(", ")));
        }
        if chosen.len() != size {
            return Err(format!("{} devices were chosen", chosen.len()));
        }
        Ok(chosen)
    }

    async fn pre_start(&mut self, met: &Met, healthy: &[String]) {
        if !met.options.pre_start_required {
            self.report.skip("pre-start", "it does not want it");
            return;
        }
        let request = pb::PreStartContainerRequest {
            devices_ids: vec![healthy[0].clone()],
        };
        let mut client = met.client.clone();
        let begun = tokio::time::Instant::now();
        let seen = match timeout(PRE_START, client.pre_start_container(request)).await {
            Ok(Ok(_)) => Ok(format!("answered in {} ms", begun.elapsed().as_millis())),
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err("no answer in 30 s".to_owned()),
        };
        self.report.verdict("pre-start", seen);
    }
}

async fn parallel(
    client: &Client,
    healthy: &[String],
    patience: Duration,
) -> Result<String, String> {
    let mut calls: FuturesUnordered<_> = healthy
        .iter()
        .cycle()
        .take(AT_ONCE)
        .map(|id| async move { allocate(client, &[id], patience).await })
        .collect();
    while let Some(answer) = calls.next().await {
        answer?;
    }
    Ok(format!("{AT_ONCE} calls at once"))
}

struct Refused {
    text: String,
    timed_out: bool,
}

async fn raw(
    client: &Client,
    ids: &[&String],
    patience: Duration,
) -> Result<pb::AllocateResponse, Refused> {
    let request = pb::AllocateRequest {
        container_requests: vec![pb::ContainerAllocateRequest {
            devices_ids: ids.iter().map(|id| (*id).clone()).collect(),
        }],
    };
    let mut client = client.clone();
    match timeout(patience, client.allocate(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Refused {
            text: said(&status),
            timed_out: false,
        }),
        Err(_) => Err(Refused {
            text: format!("no answer in {} s", patience.as_secs()),
            timed_out: true,
        }),
    }
}

async fn allocate(
    client: &Client,
    ids: &[&String],
    patience: Duration,
) -> Result<pb::ContainerAllocateResponse, String> {
    let mut answer = raw(client, ids, patience).await.map_err(|e| e.text)?;
    match answer.container_responses.len() {
        1 => Ok(answer.container_responses.remove(0)),
        n => Err(format!("{n} container responses instead of one")),
    }
}
