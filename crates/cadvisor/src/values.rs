//! Values of series with the labels that tell them apart. Pure.

use crate::disks::DiskActivity;
use crate::exposition::{bytes, seconds};
use crate::processes::{Most, Open};
use crate::{CountedGroup, Disk};
use davit_oci::cgroup::{DeviceTraffic, Pressure, StallTime};
use davit_oci::runtime::InterfaceTraffic;

/// Labels of a series beside those that all have, and a value.
pub(crate) type Values = Vec<(Vec<(&'static str, String)>, f64)>;

pub(crate) fn one(value: Option<f64>) -> Values {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

pub(crate) fn labelled(key: &'static str, label: &str, value: Option<f64>) -> Values {
    let value = value.map(|value| (vec![(key, label.to_owned())], value));
    value.into_iter().collect()
}

pub(crate) fn times(nanos: Option<u64>) -> Values {
    one(nanos.map(seconds))
}

pub(crate) fn count(number: Option<u64>) -> Values {
    one(number.map(bytes))
}

/// Of containers that have a quota; others are never held back.
pub(crate) fn of_quota(subject: &CountedGroup, number: Option<f64>) -> Values {
    one(number.filter(|_| subject.spec.is_some_and(|spec| spec.quota > 0)))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats"
)]
pub(crate) fn signed(number: Option<i64>) -> Values {
    one(number.map(|number| number as f64))
}

pub(crate) fn of_disk(subject: &CountedGroup, number: fn(&Disk) -> Option<u64>) -> Values {
    let number = subject.disk.as_ref().and_then(number);
    labelled("device", "", number.map(bytes))
}

pub(crate) fn faults(subject: &CountedGroup) -> Values {
    let Some(memory) = subject.memory else {
        return Values::new();
    };
    let kinds = [
        ("pgfault", memory.faults),
        ("pgmajfault", memory.major_faults),
    ];
    kinds
        .into_iter()
        .flat_map(|(kind, number)| labelled("failure_type", kind, number.map(bytes)))
        .collect()
}

pub(crate) fn traffic(
    subject: &CountedGroup,
    number: fn(&InterfaceTraffic) -> Option<u64>,
) -> Values {
    let each = subject.interfaces.iter();
    each.flat_map(|i| labelled("interface", &i.name, number(i).map(bytes)))
        .collect()
}

pub(crate) fn by_device(
    subject: &CountedGroup,
    number: fn(&DeviceTraffic) -> u64,
    of_disk: fn(&DiskActivity) -> u64,
) -> Values {
    let own = subject.disk_traffic.iter();
    let own = own.map(|(device, one)| (device, number(one)));
    let disks = subject
        .disks
        .iter()
        .map(|disk| (&disk.device, of_disk(disk)));
    own.chain(disks)
        .flat_map(|(device, number)| labelled("device", device, Some(bytes(number))))
        .collect()
}

/// A number of the machine's disks.
pub(crate) fn by_disk(subject: &CountedGroup, number: fn(&DiskActivity) -> f64) -> Values {
    let disks = subject.disks.iter();
    disks
        .flat_map(|disk| labelled("device", &disk.device, Some(number(disk))))
        .collect()
}

/// Seconds of milliseconds.
pub(crate) fn millis(number: u64) -> f64 {
    seconds(number.saturating_mul(1_000_000))
}

pub(crate) fn of_devices(subject: &CountedGroup) -> Values {
    let own = subject.disk_traffic.iter();
    let own = own.map(|(name, one)| (name, one.device, one.read_bytes, one.written_bytes));
    let disks = subject.disks.iter();
    let disks = disks.map(|d| (&d.device, d.numbers, d.read_bytes(), d.written_bytes()));
    let each = own.chain(disks).flat_map(|(name, numbers, read, written)| {
        [("Read", read), ("Write", written)].map(|(operation, number)| {
            let labels = vec![
                ("device", name.clone()),
                ("major", numbers.0.to_string()),
                ("minor", numbers.1.to_string()),
                ("operation", operation.to_owned()),
            ];
            (labels, bytes(number))
        })
    });
    each.collect()
}

/// Seconds in which somebody waited.
pub(crate) fn waited(pressure: Option<Pressure>, of: fn(&Pressure) -> StallTime) -> Values {
    let waiting = pressure.as_ref().map(of);
    times(waiting.map(|waiting| waiting.total.saturating_mul(1000)))
}

pub(crate) fn open(subject: &CountedGroup, number: fn(&Open) -> u64) -> Values {
    let open = subject.processes.and_then(|processes| processes.open);
    count(open.as_ref().map(number))
}

pub(crate) fn ulimits(subject: &CountedGroup) -> Values {
    let most = subject.processes.and_then(|processes| processes.most_open);
    let most = most.map(|most| match most {
        Most::Unlimited => -1.0,
        Most::Of(number) => bytes(number),
    });
    labelled("ulimit", "max_open_files", most)
}
