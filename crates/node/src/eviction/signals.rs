//! What can run short on a node, and at which point that counts as short.

use davit_api::quantity::Quantity;
use davit_pods::durations;
use std::collections::BTreeMap;
use std::time::Duration;

/// A measure of what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory that is neither in use nor hard to get back.
    MemoryAvailable,
    /// Space of the file system with the node's directory.
    NodefsAvailable,
    /// Its inodes.
    NodefsInodesFree,
    /// Space of the file system with the images.
    ImagefsAvailable,
    /// Its inodes.
    ImagefsInodesFree,
    /// Process numbers.
    PidAvailable,
}

/// A condition of the node that signals stand behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// `MemoryPressure`
    Memory,
    /// `DiskPressure`
    Disk,
    /// `PIDPressure`
    Pid,
}

impl Condition {
    /// The condition's type.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// The kubelet's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|s| s.as_str() == text);
        found.ok_or_else(|| format!("unsupported eviction signal {text}"))
    }

    /// The condition that is on while it is short.
    #[must_use]
    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable => Condition::Memory,
            Self::PidAvailable => Condition::Pid,
            _ => Condition::Disk,
        }
    }

    /// The resource that pods are said to have used up.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }
}

/// An amount, or a part of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// So much.
    Amount(i64),
    /// So many hundredths of the capacity.
    Percent(f64),
}

impl Value {
    /// The amount at a capacity.
    #[must_use]
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Amount(amount) => amount,
            // A part of a capacity need not be exact to the byte.
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as i64,
        }
    }
}

/// As in a KubeletConfiguration.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Amount(amount) => write!(f, "{amount}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// When something counts as short.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Less than this is short.
    pub value: Value,
    /// How long it has to be short before pods are evicted; zero for hard thresholds.
    pub grace: Duration,
    /// So much beyond the value has to be got back.
    pub min_reclaim: Option<Value>,
}

impl Threshold {
    /// Pods are evicted at once and get no time.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// Node-pressure eviction by the fields of a KubeletConfiguration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// When what counts as short.
    pub thresholds: Vec<Threshold>,
    /// The most seconds a pod gets at a soft threshold.
    pub max_pod_grace: i64,
    /// How often the node is looked at.
    pub period: Duration,
    /// How long a condition stays on after it was last seen.
    pub transition: Duration,
    /// Whether pods are held to their limits of local storage (`localStorageCapacityIsolation`).
    pub local_storage: bool,
}

impl Default for Config {
    /// The kubelet's, but with 5 % of the disks: a disk of a workstation is rarely emptier, and a tenth of it is much.
    fn default() -> Self {
        let hard = |signal, value| Threshold {
            signal,
            value,
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        Self {
            thresholds: vec![
                hard(Signal::MemoryAvailable, Value::Amount(100 << 20)),
                hard(Signal::NodefsAvailable, Value::Percent(5.0)),
                hard(Signal::NodefsInodesFree, Value::Percent(5.0)),
                hard(Signal::ImagefsAvailable, Value::Percent(5.0)),
                hard(Signal::ImagefsInodesFree, Value::Percent(5.0)),
            ],
            max_pod_grace: 0,
            period: Duration::from_secs(10),
            transition: Duration::from_secs(5 * 60),
            local_storage: true,
        }
    }
}

/// The fields as they are written.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    /// `evictionHard`; the defaults when not given.
    pub hard: Option<&'a BTreeMap<String, String>>,
    /// Whether signals that `evictionHard` does not name keep their defaults.
    pub merge_defaults: bool,
    /// `evictionSoft`
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`
    pub soft_grace: &'a BTreeMap<String, String>,
    /// `evictionMinimumReclaim`
    pub min_reclaim: &'a BTreeMap<String, String>,
}

impl Config {
    /// Thresholds by the configuration's fields; the rest is left at its default.
    ///
    /// # Errors
    /// What is wrong with which value.
    pub fn parse(fields: Fields<'_>) -> Result<Self, String> {
        let mut config = Self::default();
        if let Some(hard) = fields.hard {
            let mut given = Vec::new();
            for (name, text) in hard {
                given.push((Signal::parse(name)?, value(name, text)?));
            }
            let named = |signal: Signal| given.iter().any(|(s, _)| *s == signal);
            config
                .thresholds
                .retain(|t| fields.merge_defaults && !named(t.signal));
            for (signal, value) in given {
                config.thresholds.extend(value.map(|value| Threshold {
                    signal,
                    value,
                    grace: Duration::ZERO,
                    min_reclaim: None,
                }));
            }
        }
        for (name, text) in fields.soft {
            let signal = Signal::parse(name)?;
            let grace = fields.soft_grace.get(name).ok_or_else(|| {
                format!("grace period must be specified for the soft eviction threshold {name}")
            })?;
            let grace = durations::parse_positive(grace).map_err(|e| {
                format!("invalid eviction grace period specified: {e}, must be a positive value")
            })?;
            config
                .thresholds
                .extend(value(name, text)?.map(|value| Threshold {
                    signal,
                    value,
                    grace,
                    min_reclaim: None,
                }));
        }
        if let Some(name) = fields
            .soft_grace
            .keys()
            .find(|n| !fields.soft.contains_key(*n))
        {
            return Err(format!(
                "grace period for {name}, which has no soft eviction threshold"
            ));
        }
        for (name, text) in fields.min_reclaim {
            let (signal, least) = (Signal::parse(name)?, value(name, text)?);
            for threshold in config.thresholds.iter_mut().filter(|t| t.signal == signal) {
                threshold.min_reclaim = least;
            }
        }
        Ok(config)
    }
}

/// `None` for what switches a threshold off.
fn value(name: &str, text: &str) -> Result<Option<Value>, String> {
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent
            .parse()
            .map_err(|_| format!("{name}: {text:?} is not a percentage"))?;
        if percent < 0.0 {
            return Err(format!(
                "eviction percentage threshold {name} must be >= 0%: {text}"
            ));
        }
        if percent > 100.0 {
            return Err(format!(
                "eviction percentage threshold {name} must be <= 100%: {text}"
            ));
        }
        return Ok((percent > 0.0 && percent < 100.0).then_some(Value::Percent(percent)));
    }
    let amount: Quantity = text.parse().map_err(|e| format!("{name}: {e}"))?;
    match amount.value() {
        amount if amount > 0 => Ok(Some(Value::Amount(amount))),
        _ => Err(format!(
            "eviction threshold {name} must be positive: {text}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    }

    fn parse(
        hard: &[(&str, &str)],
        soft: &[(&str, &str)],
        grace: &[(&str, &str)],
        merge_defaults: bool,
    ) -> Result<Config, String> {
        Config::parse(Fields {
            hard: Some(&map(hard)),
            merge_defaults,
            soft: &map(soft),
            soft_grace: &map(grace),
            min_reclaim: &map(&[("memory.available", "10Mi")]),
        })
    }

    #[test]
    fn thresholds_of_a_configuration() {
        let config = parse(
            &[("memory.available", "200Mi"), ("nodefs.available", "0%")],
            &[("imagefs.available", "15%")],
            &[("imagefs.available", "1m30s")],
            false,
        )
        .unwrap();
        assert_eq!(config.thresholds.len(), 2, "0% switches a threshold off");
        assert_eq!(config.thresholds[0].value, Value::Amount(200 << 20));
        assert_eq!(
            config.thresholds[0].min_reclaim,
            Some(Value::Amount(10 << 20))
        );
        assert_eq!(config.thresholds[1].grace.as_secs(), 90);
        assert!(!config.thresholds[1].is_hard());
        assert_eq!(config.thresholds[1].value.of(2000), 300);
        let merged = parse(&[("memory.available", "200Mi")], &[], &[], true).unwrap();
        assert_eq!(merged.thresholds.len(), 5);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let hard = |name, text| parse(&[(name, text)], &[], &[], false).unwrap_err();
        assert_eq!(hard("disk", "1"), "unsupported eviction signal disk");
        assert!(hard("memory.available", "-5%").contains("must be >= 0%"));
        assert!(hard("memory.available", "101%").contains("must be <= 100%"));
        assert!(hard("memory.available", "0").contains("must be positive"));
        let soft = parse(&[], &[("pid.available", "5")], &[], false).unwrap_err();
        assert_eq!(
            soft,
            "grace period must be specified for the soft eviction threshold pid.available"
        );
    }
}
