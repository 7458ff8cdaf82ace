//! Taints of devices, rules that add some, and what tolerates them.

use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Nothing, or something unknown: never in the way.
    None,
    /// New claims do not get the device.
    NoSchedule,
    /// And pods that use it are evicted.
    NoExecute,
}

impl Effect {
    fn parse(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::None,
        }
    }

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::NoSchedule => "NoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A taint of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value; empty if it has none.
    pub value: String,
    /// What it does.
    pub effect: Effect,
}

impl From<&DeviceTaint> for Taint {
    fn from(taint: &DeviceTaint) -> Self {
        Self {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: Effect::parse(&taint.effect),
        }
    }
}

/// What a request tolerates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    key: String,
    exists: bool,
    equal: bool,
    value: String,
    /// `None`: any.
    effect: Option<String>,
}

impl From<&DeviceToleration> for Toleration {
    fn from(t: &DeviceToleration) -> Self {
        let operator = t.operator.as_deref().unwrap_or_default();
        Self {
            key: t.key.clone().unwrap_or_default(),
            exists: operator == "Exists",
            equal: operator.is_empty() || operator == "Equal",
            value: t.value.clone().unwrap_or_default(),
            effect: t.effect.clone().filter(|e| !e.is_empty()),
        }
    }
}

impl Toleration {
    /// Whether this taint is tolerated.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect
            .as_deref()
            .is_none_or(|e| e == taint.effect.as_str())
            && (self.key.is_empty() || self.key == taint.key)
            && (self.exists || (self.equal && self.value == taint.value))
    }
}

/// A DeviceTaintRule: a taint for the devices it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintRule {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
    /// The taint.
    pub taint: Taint,
}

impl TaintRule {
    /// The rule; `None` if it selects nothing (it has no device selector, see docs/differences.md).
    pub fn new(rule: &DeviceTaintRule) -> Option<Self> {
        let selector = rule.spec.device_selector.as_ref()?;
        let taint = &rule.spec.taint;
        Some(Self {
            driver: selector.driver.clone(),
            pool: selector.pool.clone(),
            device: selector.device.clone(),
            taint: Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: Effect::parse(&taint.effect),
            },
        })
    }

    /// Whether it can select devices of this pool.
    pub fn covers_pool(&self, driver: &str, pool: &str) -> bool {
        let is = |want: &Option<String>, have: &str| want.as_deref().is_none_or(|w| w == have);
        is(&self.driver, driver) && is(&self.pool, pool)
    }

    /// Whether it selects this device.
    pub fn covers(&self, driver: &str, pool: &str, device: &str) -> bool {
        self.covers_pool(driver, pool) && self.device.as_deref().is_none_or(|d| d == device)
    }
}
