//! How much of its work each controller does at a time: `--concurrent-…-syncs` of kube-controller-manager.

use clap::builder::RangedI64ValueParser;
use std::collections::BTreeMap;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Controllers, how much at a time")]
pub(crate) struct ConcurrencyFlags {
    /// How many cron jobs at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_cron_job_syncs: Option<u16>,
    /// How many daemon sets at a time [default: 2]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_daemonset_syncs: Option<u16>,
    /// How many deployments at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_deployment_syncs: Option<u16>,
    /// How many pods at a time are evicted by taints of their devices [default: 50]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_device_taint_eviction_syncs: Option<u16>,
    /// How many Services, for their Endpoints at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_endpoint_syncs: Option<u16>,
    /// How many pods with ephemeral volumes at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_ephemeralvolume_syncs: Option<u16>,
    /// How many objects, for the garbage collector at a time [default: 20]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_gc_syncs: Option<u16>,
    /// How many autoscalers at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_horizontal_pod_autoscaler_syncs: Option<u16>,
    /// How many jobs at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_job_syncs: Option<u16>,
    /// How many namespaces at a time [default: 10]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_namespace_syncs: Option<u16>,
    /// How many replication controllers at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_rc_syncs: Option<u16>,
    /// How many replica sets at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_replicaset_syncs: Option<u16>,
    /// How many pods and claims of devices at a time [default: 50]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_resourceclaim_syncs: Option<u16>,
    /// How many quotas at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_resource_quota_syncs: Option<u16>,
    /// How many Services, for their endpoint slices at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_service_endpoint_syncs: Option<u16>,
    /// How many Services of type LoadBalancer at a time [default: 1]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_service_syncs: Option<u16>,
    /// How many Secrets with tokens at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_serviceaccount_token_syncs: Option<u16>,
    /// How many stateful sets at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_statefulset_syncs: Option<u16>,
    /// How many jobs that have ended at a time [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_ttl_after_finished_syncs: Option<u16>,
    /// How many admission policies at a time [default: 1]
    #[arg(long, value_name = "N", value_parser = number())]
    concurrent_validating_admission_policy_status_syncs: Option<u16>,
    /// How many Endpoints at a time are mirrored in slices [default: 5]
    #[arg(long, value_name = "N", value_parser = number())]
    mirroring_concurrent_service_endpoint_syncs: Option<u16>,
}

fn number() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=1000)
}

impl ConcurrencyFlags {
    /// What was said, by the names of controllers.
    pub(crate) fn by_controller(&self) -> BTreeMap<&'static str, usize> {
        let said = [
            ("cronjob-controller", self.concurrent_cron_job_syncs),
            ("daemonset-controller", self.concurrent_daemonset_syncs),
            ("deployment-controller", self.concurrent_deployment_syncs),
            (
                "device-taint-eviction-controller",
                self.concurrent_device_taint_eviction_syncs,
            ),
            ("endpoints-controller", self.concurrent_endpoint_syncs),
            (
                "ephemeral-volume-controller",
                self.concurrent_ephemeralvolume_syncs,
            ),
            ("garbage-collector-controller", self.concurrent_gc_syncs),
            (
                "horizontal-pod-autoscaler-controller",
                self.concurrent_horizontal_pod_autoscaler_syncs,
            ),
            ("job-controller", self.concurrent_job_syncs),
            ("namespace-controller", self.concurrent_namespace_syncs),
            ("replicationcontroller-controller", self.concurrent_rc_syncs),
            ("replicaset-controller", self.concurrent_replicaset_syncs),
            (
                "resourceclaim-controller",
                self.concurrent_resourceclaim_syncs,
            ),
            (
                "resourcequota-controller",
                self.concurrent_resource_quota_syncs,
            ),
            (
                "endpointslice-controller",
                self.concurrent_service_endpoint_syncs,
            ),
            ("service-lb-controller", self.concurrent_service_syncs),
            (
                "serviceaccount-token-controller",
                self.concurrent_serviceaccount_token_syncs,
            ),
            ("statefulset-controller", self.concurrent_statefulset_syncs),
            (
                "ttl-after-finished-controller",
                self.concurrent_ttl_after_finished_syncs,
            ),
            (
                "validatingadmissionpolicy-status-controller",
                self.concurrent_validating_admission_policy_status_syncs,
            ),
            (
                "endpointslice-mirroring-controller",
                self.mirroring_concurrent_service_endpoint_syncs,
            ),
        ];
        let said = said.into_iter();
        said.filter_map(|(name, syncs)| Some((name, syncs?.into())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: ConcurrencyFlags,
    }

    #[test]
    fn each_flag_is_about_a_controller_that_can_be_chosen() {
        let words: Vec<String> = std::iter::once("davit".to_owned())
            .chain(flags().map(|flag| format!("--{flag}=7")))
            .collect();
        let said = Line::try_parse_from(&words).unwrap().flags.by_controller();
        assert_eq!(said.len(), words.len() - 1, "one for each flag");
        let known: Vec<&str> = davit_controllers::controller_names().collect();
        assert!(said.keys().all(|name| known.contains(name)), "{said:?}");
        assert!(said.values().all(|syncs| *syncs == 7));
        let none = Line::try_parse_from(["davit", "--concurrent-job-syncs=0"]);
        assert!(none.is_err(), "nobody would work");
    }

    /// The names of all flags.
    fn flags() -> impl Iterator<Item = String> {
        use clap::CommandFactory;
        let command = Line::command();
        let names = command.get_arguments().filter_map(|arg| arg.get_long());
        names.map(str::to_owned).collect::<Vec<_>>().into_iter()
    }
}
