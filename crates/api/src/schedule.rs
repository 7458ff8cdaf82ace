//! Cron schedules: five fields with names, ranges, steps and lists, and the `@` words.
//! <https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax>

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// A schedule that never fires in this many years (30 February) never fires.
const YEARS: i16 = 5;

/// A schedule in a time zone.
#[derive(Debug, Clone)]
pub struct Schedule {
    when: When,
    zone: TimeZone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum When {
    Fields(Fields),
    /// `@every`: this many seconds after the last time.
    Every(i64),
}

/// Bit n is set when the value n fits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both kinds of day are restricted: either is enough.
    either_day: bool,
}

impl Schedule {
    /// Reads a schedule; `zone` is an IANA name, UTC without one.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let zone = match zone {
            None | Some("") => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| format!("unknown time zone {name:?}"))?,
        };
        let expanded = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let when = match expanded.strip_prefix("@every ") {
            Some(span) => When::Every(every(span)?),
            None if expanded.starts_with('@') => {
                return Err(format!("unrecognized descriptor: {expanded}"));
            }
            None => When::Fields(Fields::parse(expanded)?),
        };
        Ok(Self { when, zone })
    }

    /// The first time after `after`; `None` when there is none within years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.when {
            When::Every(seconds) => {
                Timestamp::from_second(after.as_second().checked_add(*seconds)?).ok()
            }
            When::Fields(fields) => {
                let local = after.to_zoned(self.zone.clone()).datetime();
                let mut from = local.with().second(0).subsec_nanosecond(0).build().ok()?;
                loop {
                    from = from.checked_add(1.minute()).ok()?;
                    let found = fields.at_or_after(from)?;
                    let at = found.to_zoned(self.zone.clone()).ok()?.timestamp();
                    // An hour that the clocks repeat or skip must not bring a time that has passed.
                    if at > after {
                        return Some(at);
                    }
                    from = found;
                }
            }
        }
    }

    /// The last time until `now`; `known` is one. By halves: a clock that was set forward leaves millions between them.
    pub fn last(&self, known: Timestamp, now: Timestamp) -> Timestamp {
        if let When::Every(seconds) = &self.when {
            let passed = (now.as_second() - known.as_second()).max(0);
            let last = known.as_second() + passed / seconds * seconds;
            return Timestamp::from_second(last).unwrap_or(known);
        }
        let (mut last, mut none_after) = (known, now);
        while last < none_after {
            let half = last + none_after.duration_since(last) / 2;
            match self.next(half).filter(|at| *at <= now) {
                Some(at) => last = at,
                None => none_after = half,
            }
        }
        last
    }

    /// The moment in the schedule's zone, RFC 3339.
    pub fn local_text(&self, at: Timestamp) -> String {
        let zoned = at.to_zoned(self.zone.clone());
        match zoned.offset().seconds() {
            0 => zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            _ => zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        }
    }
}

fn every(text: &str) -> Result<i64, String> {
    let seconds = text
        .trim()
        .parse::<Span>()
        .ok()
        .and_then(|span| span.total(jiff::Unit::Second).ok())
        .map(|seconds| seconds as i64)
        .filter(|seconds| *seconds > 0);
    seconds.ok_or_else(|| format!("failed to parse duration @every {text}"))
}

impl Fields {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts.as_slice() else {
            return Err(format!(
                "expected exactly 5 fields, found {}: [{text}]",
                parts.len()
            ));
        };
        let restricted = |field: &str| !field.starts_with('*') && !field.starts_with('?');
        Ok(Self {
            minutes: field(minutes, 0, 59, &[], 0)?,
            hours: field(hours, 0, 23, &[], 0)?,
            days: field(days, 1, 31, &[], 0)?,
            months: field(months, 1, 12, &MONTHS, 1)?,
            weekdays: field(weekdays, 0, 6, &DAYS, 0)?,
            either_day: restricted(days) && restricted(weekdays),
        })
    }

    fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let last = from.year().checked_add(YEARS)?;
        let mut date = from.date();
        let mut first = true;
        loop {
            if date.year() > last {
                return None;
            }
            if !has(self.months, date.month()) {
                date = date.first_of_month().checked_add(1.month()).ok()?;
                first = false;
                continue;
            }
            if self.fits_day(date) {
                let (hour, minute) = if first {
                    (from.hour(), from.minute())
                } else {
                    (0, 0)
                };
                if let Some((hour, minute)) = self.time_from(hour, minute) {
                    return Some(date.at(hour, minute, 0, 0));
                }
            }
            date = date.checked_add(1.day()).ok()?;
            first = false;
        }
    }

    fn fits_day(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let (day, weekday) = (has(self.days, date.day()), has(self.weekdays, weekday));
        if self.either_day {
            day || weekday
        } else {
            day && weekday
        }
    }

    fn time_from(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        for h in hour..24 {
            if !has(self.hours, h) {
                continue;
            }
            let from = if h == hour { minute } else { 0 };
            if let Some(m) = (from..60).find(|m| has(self.minutes, *m)) {
                return Some((h, m));
            }
        }
        None
    }
}

fn has(bits: u64, value: i8) -> bool {
    bits & (1 << value) != 0
}

fn field(text: &str, least: u32, most: u32, names: &[&str], first: u32) -> Result<u64, String> {
    let number = |part: &str| -> Result<u32, String> {
        let lower = part.to_ascii_lowercase();
        if let Some(at) = names.iter().position(|name| *name == lower) {
            return Ok(first + u32::try_from(at).unwrap_or(0));
        }
        part.parse()
            .map_err(|_| format!("failed to parse int from {part}"))
    };
    let mut bits = 0;
    for item in text.split(',') {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(number(step)?)),
            None => (item, None),
        };
        // what follows a star and a hyphen is not looked at
        let (from, to) = match range.split('-').next().unwrap_or_default() {
            "*" | "?" => (least, most),
            _ => match range.split_once('-') {
                Some((from, to)) => (number(from)?, number(to)?),
                None if step.is_some() => (number(range)?, most),
                None => (number(range)?, number(range)?),
            },
        };
        if from < least {
            return Err(format!(
                "beginning of range ({from}) below minimum ({least}): {item}"
            ));
        }
        if to > most {
            return Err(format!(
                "end of range ({to}) above maximum ({most}): {item}"
            ));
        }
        if from > to {
            return Err(format!(
                "beginning of range ({from}) beyond end of range ({to}): {item}"
            ));
        }
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(format!("step of range should be a positive number: {item}"));
        }
        let mut value = from;
        while value <= to {
            bits |= 1_u64 << value;
            value += step;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(schedule: &str, zone: Option<&str>, at: &str) -> String {
        let schedule = Schedule::parse(schedule, zone).unwrap();
        schedule.next(at.parse().unwrap()).unwrap().to_string()
    }

    #[test]
    fn the_next_time_is_found() {
        let at = "2026-01-31T23:59:30Z";
        assert_eq!(after("* * * * *", None, at), "2026-02-01T00:00:00Z");
        assert_eq!(
            after("*/15 * * * *", None, "2026-01-01T10:15:00Z"),
            "2026-01-01T10:30:00Z"
        );
        assert_eq!(after("0 0 31 * *", None, at), "2026-03-31T00:00:00Z");
        assert_eq!(after("0 9 * * MON-FRI", None, at), "2026-02-02T09:00:00Z");
        assert_eq!(after("0 0 * * 0", None, at), "2026-02-01T00:00:00Z");
        // Both days restricted: either is enough.
        assert_eq!(
            after("0 0 13 * FRI", None, "2026-01-31T00:00:00Z"),
            "2026-02-06T00:00:00Z"
        );
        assert_eq!(after("@yearly", None, at), "2027-01-01T00:00:00Z");
        assert_eq!(
            after("5-10/5,30 3 * feb *", None, at),
            "2026-02-01T03:05:00Z"
        );
        assert_eq!(after("@every 90m", None, at), "2026-02-01T01:29:30Z");
        assert!(
            Schedule::parse("0 0 30 2 *", None)
                .unwrap()
                .next(at.parse().unwrap())
                .is_none()
        );
    }

    #[test]
    fn the_last_time_is_found_however_many_went_by() {
        let last = |schedule: &str, known: &str, now: &str| {
            let schedule = Schedule::parse(schedule, None).unwrap();
            let last = schedule.last(known.parse().unwrap(), now.parse().unwrap());
            last.to_string()
        };
        let (known, now) = ("1970-01-01T00:00:00Z", "2026-03-04T05:06:07Z");
        assert_eq!(last("* * * * *", known, now), "2026-03-04T05:06:00Z");
        assert_eq!(last("0 0 29 2 *", known, now), "2024-02-29T00:00:00Z");
        assert_eq!(last("* * 1 1 *", known, now), "2026-01-01T23:59:00Z");
        assert_eq!(last("@every 90m", known, now), "2026-03-04T04:30:00Z");
        assert_eq!(
            last("0 0 30 2 *", known, now),
            known,
            "there was none since"
        );
    }

    #[test]
    fn zones_and_their_gaps_are_honoured() {
        if TimeZone::get("Europe/Berlin").is_err() {
            println!("skipped: this machine has no time zone data");
            return;
        }
        let berlin = Some("Europe/Berlin");
        assert_eq!(
            after("0 9 * * *", berlin, "2026-07-01T00:00:00Z"),
            "2026-07-01T07:00:00Z"
        );
        // 02:30 does not exist on 29 March 2026; the time is not lost.
        assert_eq!(
            after("30 2 * * *", berlin, "2026-03-28T12:00:00Z"),
            "2026-03-29T01:30:00Z"
        );
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: &str| Schedule::parse(text, None).unwrap_err();
        assert!(fault("* * * *").starts_with("expected exactly 5 fields"));
        assert!(fault("60 * * * *").contains("above maximum (59)"));
        assert!(fault("* * 0 * *").contains("below minimum (1)"));
        assert!(fault("a * * * *").contains("failed to parse int"));
        assert!(Schedule::parse("*-x * * * *-x", None).is_ok());
        // as in Kubernetes, Sunday is 0 alone
        assert!(fault("0 0 * * 7").contains("above maximum (6)"));
        assert_eq!(fault("@often"), "unrecognized descriptor: @often");
        assert!(fault("@every thing").contains("failed to parse duration"));
        assert!(fault("*/0 * * * *").contains("positive"));
        assert!(Schedule::parse("* * * * *", Some("No/Where")).is_err());
    }

    proptest! {
        #[test]
        fn times_are_in_order_and_fit(minute in 0_u8..60, hour in 0_u8..24, start in 1_700_000_000_i64..1_900_000_000) {
            let schedule = Schedule::parse(&format!("{minute} {hour} * * *"), None).unwrap();
            let start = Timestamp::from_second(start).unwrap();
            let first = schedule.next(start).unwrap();
            let second = schedule.next(first).unwrap();
            prop_assert!(first > start);
            prop_assert!(first.as_second() - start.as_second() <= 86_400);
            prop_assert_eq!(second.as_second() - first.as_second(), 86_400);
        }
    }
}
