//! Names, types and values of cAdvisor's series. Pure.

use crate::CountedGroup;
use crate::disks::DiskActivity;
use crate::exposition::{bytes, seconds};
use crate::values::{
    Values, by_device, by_disk, count, faults, labelled, millis, of_devices, of_disk, of_quota,
    one, open, signed, times, traffic, ulimits, waited,
};

/// A name without its prefix `container_`, type, description, and the values of a subject.
pub(crate) type Series = (
    &'static str,
    &'static str,
    &'static str,
    fn(&CountedGroup) -> Values,
);

const COUNTER: &str = "counter";
pub(crate) const GAUGE: &str = "gauge";

/// In the order of their names.
pub(crate) const SERIES: [Series; 62] = [
    (
        "blkio_device_usage_total",
        COUNTER,
        "Blkio Device bytes usage",
        of_devices,
    ),
    (
        "cpu_cfs_periods_total",
        COUNTER,
        "Number of elapsed enforcement period intervals.",
        |s| of_quota(s, s.parts.periods.map(bytes)),
    ),
    (
        "cpu_cfs_throttled_periods_total",
        COUNTER,
        "Number of throttled period intervals.",
        |s| of_quota(s, s.parts.throttled_periods.map(bytes)),
    ),
    (
        "cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Total time duration the container has been throttled.",
        |s| of_quota(s, s.parts.throttled_nanos.map(seconds)),
    ),
    (
        "cpu_system_seconds_total",
        COUNTER,
        "Cumulative system cpu time consumed in seconds.",
        |s| times(s.parts.system_nanos),
    ),
    (
        "cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        |s| labelled("cpu", "total", s.cpu.map(seconds)),
    ),
    (
        "cpu_user_seconds_total",
        COUNTER,
        "Cumulative user cpu time consumed in seconds.",
        |s| times(s.parts.user_nanos),
    ),
    (
        "file_descriptors",
        GAUGE,
        "Number of open file descriptors for the container.",
        |s| open(s, |open| open.descriptors),
    ),
    ("fs_inodes_free", GAUGE, "Number of available Inodes", |s| {
        of_disk(s, |disk| disk.inodes_free)
    }),
    ("fs_inodes_total", GAUGE, "Number of Inodes", |s| {
        of_disk(s, |disk| disk.inodes)
    }),
    (
        "fs_io_current",
        GAUGE,
        "Number of I/Os currently in progress",
        |s| by_disk(s, |disk| bytes(disk.current)),
    ),
    (
        "fs_io_time_seconds_total",
        COUNTER,
        "Cumulative count of seconds spent doing I/Os",
        |s| by_disk(s, |disk| millis(disk.busy_millis)),
    ),
    (
        "fs_io_time_weighted_seconds_total",
        COUNTER,
        "Cumulative weighted I/O time in seconds",
        |s| by_disk(s, |disk| millis(disk.weighted_millis)),
    ),
    (
        "fs_limit_bytes",
        GAUGE,
        "Number of bytes that can be consumed by the container on this filesystem.",
        |s| of_disk(s, |disk| disk.limit),
    ),
    (
        "fs_read_seconds_total",
        COUNTER,
        "Cumulative count of seconds spent reading",
        |s| by_disk(s, |disk| millis(disk.read_millis)),
    ),
    (
        "fs_reads_bytes_total",
        COUNTER,
        "Cumulative count of bytes read",
        |s| by_device(s, |device| device.read_bytes, DiskActivity::read_bytes),
    ),
    (
        "fs_reads_merged_total",
        COUNTER,
        "Cumulative count of reads merged",
        |s| by_disk(s, |disk| bytes(disk.reads_merged)),
    ),
    (
        "fs_reads_total",
        COUNTER,
        "Cumulative count of reads completed",
        |s| by_device(s, |device| device.reads, |disk| disk.reads),
    ),
    (
        "fs_sector_reads_total",
        COUNTER,
        "Cumulative count of sector reads completed",
        |s| by_disk(s, |disk| bytes(disk.sectors_read)),
    ),
    (
        "fs_sector_writes_total",
        COUNTER,
        "Cumulative count of sector writes completed",
        |s| by_disk(s, |disk| bytes(disk.sectors_written)),
    ),
    (
        "fs_usage_bytes",
        GAUGE,
        "Number of bytes that are consumed by the container on this filesystem.",
        |s| of_disk(s, |disk| Some(disk.used)),
    ),
    (
        "fs_write_seconds_total",
        COUNTER,
        "Cumulative count of seconds spent writing",
        |s| by_disk(s, |disk| millis(disk.write_millis)),
    ),
    (
        "fs_writes_bytes_total",
        COUNTER,
        "Cumulative count of bytes written",
        |s| {
            by_device(
                s,
                |device| device.written_bytes,
                DiskActivity::written_bytes,
            )
        },
    ),
    (
        "fs_writes_merged_total",
        COUNTER,
        "Cumulative count of writes merged",
        |s| by_disk(s, |disk| bytes(disk.writes_merged)),
    ),
    (
        "fs_writes_total",
        COUNTER,
        "Cumulative count of writes completed",
        |s| by_device(s, |device| device.writes, |disk| disk.writes),
    ),
    (
        "last_seen",
        GAUGE,
        "Last time a container was seen by the exporter",
        |s| one(u64::try_from(s.time / 1_000_000_000).ok().map(bytes)),
    ),
    (
        "memory_cache",
        GAUGE,
        "Number of bytes of page cache memory.",
        |s| count(s.parts.cache),
    ),
    (
        "memory_failcnt",
        COUNTER,
        "Number of memory usage hits limits",
        |s| count(s.parts.limit_hits),
    ),
    (
        "memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        faults,
    ),
    (
        "memory_mapped_file",
        GAUGE,
        "Size of memory mapped files in bytes.",
        |s| count(s.parts.mapped_file),
    ),
    (
        "memory_max_usage_bytes",
        GAUGE,
        "Maximum memory usage recorded in bytes",
        |s| count(s.parts.peak),
    ),
    ("memory_rss", GAUGE, "Size of RSS in bytes.", |s| {
        count(s.memory.and_then(|m| m.rss))
    }),
    (
        "memory_swap",
        GAUGE,
        "Container swap usage in bytes.",
        |s| count(s.parts.swap),
    ),
    (
        "memory_usage_bytes",
        GAUGE,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |s| count(s.memory.map(|m| m.usage)),
    ),
    (
        "memory_working_set_bytes",
        GAUGE,
        "Current working set in bytes.",
        |s| count(s.memory.map(|m| m.working_set)),
    ),
    (
        "network_receive_bytes_total",
        COUNTER,
        "Cumulative count of bytes received",
        |s| traffic(s, |i| Some(i.received_bytes)),
    ),
    (
        "network_receive_errors_total",
        COUNTER,
        "Cumulative count of errors encountered while receiving",
        |s| traffic(s, |i| Some(i.receive_errors)),
    ),
    (
        "network_receive_packets_dropped_total",
        COUNTER,
        "Cumulative count of packets dropped while receiving",
        |s| traffic(s, |i| i.receive_drops),
    ),
    (
        "network_receive_packets_total",
        COUNTER,
        "Cumulative count of packets received",
        |s| traffic(s, |i| i.received_packets),
    ),
    (
        "network_transmit_bytes_total",
        COUNTER,
        "Cumulative count of bytes transmitted",
        |s| traffic(s, |i| Some(i.sent_bytes)),
    ),
    (
        "network_transmit_errors_total",
        COUNTER,
        "Cumulative count of errors encountered while transmitting",
        |s| traffic(s, |i| Some(i.send_errors)),
    ),
    (
        "network_transmit_packets_dropped_total",
        COUNTER,
        "Cumulative count of packets dropped while transmitting",
        |s| traffic(s, |i| i.send_drops),
    ),
    (
        "network_transmit_packets_total",
        COUNTER,
        "Cumulative count of packets transmitted",
        |s| traffic(s, |i| i.sent_packets),
    ),
    (
        "oom_events_total",
        COUNTER,
        "Count of out of memory events observed for the container",
        |s| count(s.oom_kills),
    ),
    (
        "pressure_cpu_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |s| waited(s.pressure.cpu, |pressure| pressure.full),
    ),
    (
        "pressure_cpu_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |s| waited(s.pressure.cpu, |pressure| pressure.some),
    ),
    (
        "pressure_io_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |s| waited(s.pressure.io, |pressure| pressure.full),
    ),
    (
        "pressure_io_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to IO congestion.",
        |s| waited(s.pressure.io, |pressure| pressure.some),
    ),
    (
        "pressure_memory_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |s| waited(s.pressure.memory, |pressure| pressure.full),
    ),
    (
        "pressure_memory_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to memory congestion.",
        |s| waited(s.pressure.memory, |pressure| pressure.some),
    ),
    (
        "processes",
        GAUGE,
        "Number of processes running inside the container.",
        |s| count(s.processes.map(|processes| processes.count)),
    ),
    (
        "sockets",
        GAUGE,
        "Number of open sockets for the container.",
        |s| open(s, |open| open.sockets),
    ),
    (
        "spec_cpu_period",
        GAUGE,
        "CPU period of the container.",
        |s| signed(s.spec.map(|spec| spec.period)),
    ),
    (
        "spec_cpu_quota",
        GAUGE,
        "CPU quota of the container.",
        |s| signed(s.spec.map(|spec| spec.quota).filter(|quota| *quota > 0)),
    ),
    (
        "spec_cpu_shares",
        GAUGE,
        "CPU share of the container.",
        |s| signed(s.spec.map(|spec| spec.shares)),
    ),
    (
        "spec_memory_limit_bytes",
        GAUGE,
        "Memory limit for the container.",
        |s| signed(s.spec.map(|spec| spec.memory)),
    ),
    (
        "spec_memory_reservation_limit_bytes",
        GAUGE,
        "Memory reservation limit for the container.",
        |s| signed(s.spec.map(|_| 0)),
    ),
    (
        "spec_memory_swap_limit_bytes",
        GAUGE,
        "Memory swap limit for the container.",
        |s| {
            count(
                s.spec
                    .map(|_| s.parts.swap_limit.filter(|n| *n < u64::MAX).unwrap_or(0)),
            )
        },
    ),
    (
        "start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds.",
        |s| times(s.started.and_then(|at| u64::try_from(at).ok())),
    ),
    (
        "threads",
        GAUGE,
        "Number of threads running inside the container",
        |s| count(s.tasks),
    ),
    (
        "threads_max",
        GAUGE,
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |s| count(s.parts.tasks_max),
    ),
    (
        "ulimits_soft",
        GAUGE,
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        ulimits,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_known_once() {
        let names: Vec<&str> = SERIES.iter().map(|(name, ..)| *name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
