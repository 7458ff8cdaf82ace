//! How fast the number of replicas may follow what metrics ask for.
//!
//! Specified in
//! <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#configurable-scaling-behavior>.

use crate::AutoscalerSettings;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerSpec,
};
use std::time::{Duration, Instant};

const LONGEST_PERIOD: Duration = Duration::from_secs(1800);
/// How much a number may grow at a time without rules: to its double, or to this.
const GROWTH_FACTOR: i32 = 2;
const GROWTH_LEAST: i32 = 4;

/// What was asked for and done lately, of one object.
#[derive(Debug, Default)]
pub struct ScalingHistory {
    recommendations: Vec<(Instant, i32)>,
    ups: Vec<(Instant, i32)>,
    downs: Vec<(Instant, i32)>,
}

/// A condition: its status, reason and message.
pub type ScalingCondition = (bool, &'static str, &'static str);

/// What may be done now, and the conditions AbleToScale and ScalingLimited.
#[derive(Debug, PartialEq, Eq)]
pub struct Normalized {
    /// How many replicas there may be.
    pub replicas: i32,
    /// AbleToScale.
    pub able: ScalingCondition,
    /// ScalingLimited.
    pub limited: ScalingCondition,
}

const READY: ScalingCondition = (
    true,
    "ReadyForNewScale",
    "recommended size matches current size",
);
const DOWN_STABILIZED: ScalingCondition = (
    true,
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: ScalingCondition = (
    true,
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: ScalingCondition = (
    false,
    "DesiredWithinRange",
    "the desired count is within the acceptable range",
);
const TOO_FEW: ScalingCondition = (
    true,
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const TOO_MANY: ScalingCondition = (
    true,
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const UP_LIMIT: ScalingCondition = (
    true,
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const DOWN_LIMIT: ScalingCondition = (
    true,
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

/// The smallest number that the object allows.
pub fn least(spec: &HorizontalPodAutoscalerSpec) -> i32 {
    spec.min_replicas.unwrap_or(1)
}

fn seconds(value: i32) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

impl ScalingHistory {
    /// Enters the number there is when the object is seen first, so that it is not lowered at once.
    pub fn begin(&mut self, current: i32, now: Instant) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Enters a change that was made.
    pub fn changed(&mut self, from: i32, to: i32, now: Instant) {
        match to > from {
            true => self.ups.push((now, to.saturating_sub(from))),
            false => self.downs.push((now, from.saturating_sub(to))),
        }
        let is_recent = |(at, _): &(Instant, i32)| now.duration_since(*at) <= LONGEST_PERIOD;
        self.ups.retain(is_recent);
        self.downs.retain(is_recent);
    }

    /// What may be done of `desired` now.
    pub fn normalize(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        settings: &AutoscalerSettings,
        current: i32,
        desired: i32,
        now: Instant,
    ) -> Normalized {
        let rules = spec.behavior.as_ref();
        let (up, down) = (
            rules.and_then(|rules| rules.scale_up.as_ref()),
            rules.and_then(|rules| rules.scale_down.as_ref()),
        );
        let window = |rules: Option<&HPAScalingRules>, default| {
            let seconds_of = rules.and_then(|rules| rules.stabilization_window_seconds);
            seconds_of.map_or(default, seconds)
        };
        let up_window = window(up, Duration::ZERO);
        let down_window = window(down, settings.downscale_stabilization);
        let (stable, highest) = self.stabilized(current, desired, up_window, down_window, now);
        // without rules the highest recommendation counts, also where it is above the number now
        let stable = if rules.is_some() { stable } else { highest };
        let able = match stable.cmp(&desired) {
            std::cmp::Ordering::Equal => READY,
            std::cmp::Ordering::Greater => DOWN_STABILIZED,
            std::cmp::Ordering::Less => UP_STABILIZED,
        };
        let (replicas, limited) = match rules {
            Some(_) => self.by_rules(spec, up, down, current, stable, now),
            None => without_rules(spec, current, stable),
        };
        Normalized {
            replicas,
            able,
            limited,
        }
    }

    fn stabilized(
        &mut self,
        current: i32,
        desired: i32,
        up_window: Duration,
        down_window: Duration,
        now: Instant,
    ) -> (i32, i32) {
        let age = |at: Instant| now.duration_since(at);
        let recent = |window: Duration| {
            let all = self.recommendations.iter();
            all.filter(move |(at, _)| age(*at) < window)
                .map(|(_, n)| *n)
        };
        let lowest = recent(up_window).fold(desired, i32::min);
        let highest = recent(down_window).fold(desired, i32::max);
        let longest = up_window.max(down_window);
        self.recommendations.retain(|(at, _)| age(*at) < longest);
        self.recommendations.push((now, desired));
        (current.max(lowest).min(highest), highest)
    }

    /// The number at the beginning of a period.
    fn before(&self, current: i32, period: i32, now: Instant) -> i32 {
        let within = |events: &[(Instant, i32)]| -> i64 {
            events
                .iter()
                .filter(|(at, _)| now.duration_since(*at) < seconds(period))
                .map(|(_, change)| i64::from(*change))
                .sum()
        };
        let before = i64::from(current) - within(&self.ups) + within(&self.downs);
        i32::try_from(before).unwrap_or(if before < 0 { i32::MIN } else { i32::MAX })
    }

    fn by_rules(
        &self,
        spec: &HorizontalPodAutoscalerSpec,
        up: Option<&HPAScalingRules>,
        down: Option<&HPAScalingRules>,
        current: i32,
        desired: i32,
        now: Instant,
    ) -> (i32, ScalingCondition) {
        let percent = |replicas: i32, value: i32, grows: bool| {
            let share = f64::from(replicas) * f64::from(value) / 100.0;
            match grows {
                true => (f64::from(replicas) + share).ceil() as i32,
                false => (f64::from(replicas) - share) as i32,
            }
        };
        if desired > current {
            let limits = policies(up, &UP_POLICIES).into_iter().map(|policy| {
                let start = self.before(current, policy.period_seconds, now);
                match policy.type_.as_str() {
                    "Percent" => percent(start, policy.value, true),
                    _ => start.saturating_add(policy.value),
                }
            });
            let limit = match selection(up) {
                "Disabled" => current,
                "Min" => limits.min().unwrap_or(current),
                _ => limits.max().unwrap_or(current),
            };
            let limit = limit.max(current);
            let (most, why) = match spec.max_replicas > limit {
                true => (limit, UP_LIMIT),
                false => (spec.max_replicas, TOO_MANY),
            };
            if desired > most {
                return (most, why);
            }
        } else if desired < current {
            let limits = policies(down, &DOWN_POLICIES).into_iter().map(|policy| {
                let start = self.before(current, policy.period_seconds, now);
                match policy.type_.as_str() {
                    "Percent" => percent(start, policy.value, false),
                    _ => start.saturating_sub(policy.value),
                }
            });
            let limit = match selection(down) {
                "Disabled" => current,
                "Min" => limits.max().unwrap_or(current),
                _ => limits.min().unwrap_or(current),
            };
            let limit = limit.min(current);
            let (fewest, why) = match least(spec) < limit {
                true => (limit, DOWN_LIMIT),
                false => (least(spec), TOO_FEW),
            };
            if desired < fewest {
                return (fewest, why);
            }
        }
        (desired, WITHIN)
    }
}

/// Type, value and period of the policies of rules that name none.
const UP_POLICIES: [(&str, i32, i32); 2] = [("Pods", 4, 15), ("Percent", 100, 15)];
const DOWN_POLICIES: [(&str, i32, i32); 1] = [("Percent", 100, 15)];

fn policies(
    rules: Option<&HPAScalingRules>,
    default: &[(&str, i32, i32)],
) -> Vec<HPAScalingPolicy> {
    let given = rules.and_then(|rules| rules.policies.clone());
    given.filter(|given| !given.is_empty()).unwrap_or_else(|| {
        let policy = |(kind, value, period): &(&str, i32, i32)| HPAScalingPolicy {
            type_: (*kind).to_owned(),
            value: *value,
            period_seconds: *period,
        };
        default.iter().map(policy).collect()
    })
}

fn selection(rules: Option<&HPAScalingRules>) -> &str {
    let policy = rules.and_then(|rules| rules.select_policy.as_deref());
    policy.unwrap_or("Max")
}

fn without_rules(
    spec: &HorizontalPodAutoscalerSpec,
    current: i32,
    desired: i32,
) -> (i32, ScalingCondition) {
    let growth = current.saturating_mul(GROWTH_FACTOR).max(GROWTH_LEAST);
    let (most, why) = match spec.max_replicas > growth {
        true => (growth, UP_LIMIT),
        false => (spec.max_replicas, TOO_MANY),
    };
    if desired < least(spec) {
        (least(spec), TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(behavior: &serde_json::Value) -> HorizontalPodAutoscalerSpec {
        serde_json::from_value(json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "d" },
            "minReplicas": 2, "maxReplicas": 50, "behavior": behavior,
        }))
        .unwrap()
    }

    fn after(
        history: &mut ScalingHistory,
        spec: &HorizontalPodAutoscalerSpec,
        from: i32,
        to: i32,
        now: Instant,
    ) -> Normalized {
        history.normalize(spec, &AutoscalerSettings::default(), from, to, now)
    }

    #[test]
    fn the_highest_recommendation_of_five_minutes_holds_the_number_up() {
        let (mut history, spec, now) = (
            ScalingHistory::default(),
            spec(&json!(null)),
            Instant::now(),
        );
        history.begin(8, now);
        let held = after(&mut history, &spec, 8, 3, now);
        assert_eq!((held.replicas, held.able), (8, DOWN_STABILIZED));
        let now = now + Duration::from_secs(301);
        let lowered = after(&mut history, &spec, 8, 3, now);
        assert_eq!((lowered.replicas, lowered.able), (3, READY));
        let few =
            ScalingHistory::default().normalize(&spec, &AutoscalerSettings::default(), 3, 1, now);
        assert_eq!((few.replicas, few.limited), (2, TOO_FEW));
    }

    #[test]
    fn without_rules_a_number_doubles_at_most() {
        let (spec, now) = (spec(&json!(null)), Instant::now());
        let at = |from, to| {
            ScalingHistory::default().normalize(
                &spec,
                &AutoscalerSettings::default(),
                from,
                to,
                now,
            )
        };
        assert_eq!((at(3, 40).replicas, at(3, 40).limited), (6, UP_LIMIT));
        assert_eq!(at(1, 40).replicas, 4);
        assert_eq!((at(30, 60).replicas, at(30, 60).limited), (50, TOO_MANY));
        assert_eq!(at(3, 5).limited, WITHIN);
    }

    #[test]
    fn policies_limit_changes_within_their_periods() {
        let spec = spec(&json!({
            "scaleUp": { "policies": [{ "type": "Pods", "value": 2, "periodSeconds": 60 },
                { "type": "Percent", "value": 10, "periodSeconds": 60 }], "stabilizationWindowSeconds": 0 },
            "scaleDown": { "policies": [{ "type": "Percent", "value": 50, "periodSeconds": 60 }],
                "stabilizationWindowSeconds": 0 },
        }));
        let (mut history, now) = (ScalingHistory::default(), Instant::now());
        let up = after(&mut history, &spec, 10, 40, now);
        assert_eq!((up.replicas, up.limited), (12, UP_LIMIT));
        history.changed(10, 12, now);
        assert_eq!(after(&mut history, &spec, 12, 40, now).replicas, 12);
        let now = now + Duration::from_secs(61);
        assert_eq!(after(&mut history, &spec, 12, 40, now).replicas, 14);
        let down = after(&mut history, &spec, 12, 2, now);
        assert_eq!((down.replicas, down.limited), (6, DOWN_LIMIT));
    }

    #[test]
    fn the_largest_numbers_are_added_up() {
        let policies = json!({ "policies": [{ "type": "Percent", "value": i32::MAX, "periodSeconds": 60 },
            { "type": "Pods", "value": i32::MAX, "periodSeconds": 60 }] });
        let mut spec = spec(&json!({ "scaleUp": policies, "scaleDown": policies }));
        spec.max_replicas = i32::MAX;
        let (mut history, now) = (ScalingHistory::default(), Instant::now());
        for (from, to) in [(1, i32::MAX), (0, i32::MAX), (-5, i32::MAX)] {
            // a user takes back what was done, again and again
            history.changed(from, to, now);
            after(&mut history, &spec, from, to, now);
        }
        for (from, to) in [(i32::MAX, 0), (i32::MAX, -1), (i32::MAX, i32::MIN)] {
            history.changed(from, to, now);
            after(&mut history, &spec, from, to, now);
        }
    }

    #[test]
    fn a_direction_can_be_switched_off() {
        let spec = spec(
            &json!({ "scaleDown": { "selectPolicy": "Disabled", "stabilizationWindowSeconds": 0 } }),
        );
        let (mut history, now) = (ScalingHistory::default(), Instant::now());
        assert_eq!(after(&mut history, &spec, 10, 2, now).replicas, 10);
        // the other one has the rules that it has by default
        assert_eq!(after(&mut history, &spec, 10, 45, now).replicas, 20);
    }
}
