//! What a request asks for.

use jiff::Timestamp;
use std::path::PathBuf;

/// Services that one request names at most.
const MAX_SERVICES: usize = 4;
/// Bytes of the name of one.
const MAX_NAME: usize = 256;
/// Lines that are asked for at most.
const MAX_LINES: i64 = 100_000;
/// Bytes of a pattern.
const MAX_PATTERN: usize = 4096;

/// Why a request is not answered, as the kubelet says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryFault {
    /// It cannot be read: 400.
    #[error("{0}")]
    Malformed(String),
    /// It asks for what is not to be had: 406.
    #[error("{0}")]
    Unacceptable(String),
}

/// The parameters of a request, read but not judged.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

/// What is shown of the logs of services.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) tail_lines: Option<i64>,
    pub(crate) boot: Option<i64>,
    pub(crate) pattern: Option<String>,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// One file below the directory of logs.
    File(PathBuf),
    /// The logs of services.
    Services(ServiceQuery),
}

/// The logs of services, up to four, by names of safe characters.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceQuery {
    pub(crate) services: Vec<String>,
    pub(crate) options: Options,
}

fn invalid(field: &str, value: &str, why: impl std::fmt::Display) -> String {
    format!("{field}: Invalid value: {value:?}: {why}")
}

impl LogQuery {
    /// Reads the parameters of a request, decoded. None where it has none of them: it asks for files by its path.
    ///
    /// # Errors
    /// [`QueryFault::Malformed`] with all that is wrong.
    pub fn parse(parameters: &[(String, String)]) -> Result<Option<Self>, QueryFault> {
        let first = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key == name);
            found
                .map(|(_, value)| value.as_str())
                .filter(|value| !value.is_empty())
        };
        let mut faults = Vec::new();
        let mut query = Self::default();
        let mut asks = false;
        for (_, value) in parameters.iter().filter(|(key, _)| key == "query") {
            asks = true;
            // A slash is the mark of a file.
            if value.contains(['/', '\\']) {
                query.files.push(value.clone());
            } else if !value.trim().is_empty() {
                query.services.push(value.clone());
            }
        }
        if asks && query.files.is_empty() && query.services.is_empty() {
            faults.push(invalid("query", "", "may not be empty"));
        }
        let mut time = |name: &str| {
            let text = first(name)?;
            let time = text.parse();
            if time.is_err() {
                faults.push(invalid(name, text, "invalid time format"));
            }
            time.ok()
        };
        query.options.since = time("sinceTime");
        query.options.until = time("untilTime");
        let mut number = |name: &str| {
            let text = first(name)?;
            let number = text.parse::<i64>();
            if let Err(error) = &number {
                faults.push(invalid(name, text, error));
            }
            number.ok()
        };
        query.options.boot = number("boot");
        query.options.tail_lines = number("tailLines");
        query.options.pattern = first("pattern").map(str::to_owned);
        if !faults.is_empty() {
            return Err(QueryFault::Malformed(listed(&faults)));
        }
        Ok((query != Self::default()).then_some(query))
    }

    /// What it asks for, if that may be asked.
    ///
    /// # Errors
    /// [`QueryFault::Unacceptable`] with all that is wrong.
    pub fn asked(mut self) -> Result<Asked, QueryFault> {
        let mut faults: Vec<String> = Vec::new();
        for name in &self.services {
            if name.len() > MAX_NAME {
                faults.push(invalid(
                    "query",
                    name,
                    format!("length must be less than {MAX_NAME}"),
                ));
            } else if !name.bytes().all(is_safe) {
                faults.push(invalid(
                    "query",
                    name,
                    "input contains unsupported characters",
                ));
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            faults.push(format!(
                "query: Too many: {count}: must have at most {MAX_SERVICES} items"
            ));
        }
        let names = || format!("[{}]", self.files.join(" "));
        match (self.files.len(), self.services.len()) {
            (0, 0) => faults.push("query: Required value: cannot be empty with options".to_owned()),
            (0, _) => {}
            (_, 1..) => {
                let both = format!("{}, [{}]", names(), self.services.join(" "));
                faults.push(invalid("query", &both, "cannot specify a file and service"));
            }
            (2.., 0) => faults.push(invalid(
                "query",
                &names(),
                "cannot specify more than one file",
            )),
            (1, 0) if self.options != Options::default() => {
                faults.push(invalid(
                    "query",
                    &names(),
                    "cannot specify file with options",
                ));
            }
            (1, 0) => {}
        }
        self.options.judge(&mut faults);
        if !faults.is_empty() {
            return Err(QueryFault::Unacceptable(listed(&faults)));
        }
        Ok(match self.files.pop() {
            Some(file) => Asked::File(file.trim_start_matches('/').into()),
            None => Asked::Services(ServiceQuery {
                services: self.services,
                options: self.options,
            }),
        })
    }
}

impl Options {
    fn judge(&self, faults: &mut Vec<String>) {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            faults.push(invalid(
                "untilTime",
                &until.to_string(),
                "must be after `sinceTime`",
            ));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            faults.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = self
            .tail_lines
            .filter(|lines| !(0..=MAX_LINES).contains(lines))
        {
            let why = format!("must be between 0 and {MAX_LINES}, inclusive");
            faults.push(format!("tailLines: Invalid value: {lines}: {why}"));
        }
        let Some(pattern) = &self.pattern else { return };
        if pattern.len() > MAX_PATTERN {
            faults.push(format!(
                "pattern: Too long: may not be more than {MAX_PATTERN} bytes"
            ));
        } else if let Err(error) = regex::Regex::new(pattern) {
            faults.push(invalid(
                "pattern",
                pattern,
                error.to_string().replace('\n', " "),
            ));
        }
    }
}

/// Letters, digits and what the names of units have besides. A dash at the begin makes no option, since the name stands behind
/// `--unit=`.
fn is_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte)
}

/// Several faults in brackets, as Go lists them.
fn listed(faults: &[String]) -> String {
    match faults {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Option<LogQuery>, QueryFault> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<_> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        LogQuery::parse(&pairs)
    }

    fn asked(text: &str) -> Result<Asked, QueryFault> {
        query(text)?.unwrap().asked()
    }

    #[test]
    fn services_and_files_are_told_apart() {
        assert_eq!(query(""), Ok(None));
        assert_eq!(query("other=x"), Ok(None));
        assert_eq!(
            asked("query=/pods/x.log"),
            Ok(Asked::File("pods/x.log".into()))
        );
        let Ok(Asked::Services(services)) = asked(
            "query=kubelet&query=crio@1.service&sinceTime=2026-01-01T00:00:00Z&tailLines=5&boot=-1&pattern=a.*b",
        ) else {
            panic!("services were asked for");
        };
        assert_eq!(services.services, ["kubelet", "crio@1.service"]);
        assert_eq!(
            (services.options.tail_lines, services.options.boot),
            (Some(5), Some(-1))
        );
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let many = ["query=a"; 5].join("&");
        let long = format!("query={}", "a".repeat(257));
        for (text, code, part) in [
            ("query=", 400, "may not be empty"),
            ("query= ", 400, "may not be empty"),
            ("query=a&sinceTime=now", 400, "sinceTime"),
            ("query=a&boot=x&tailLines=y", 400, "[boot: Invalid value"),
            ("pattern=x", 406, "cannot be empty with options"),
            ("query=a&query=/b", 406, "a file and service"),
            ("query=/a&query=/b", 406, "more than one file"),
            ("query=/a&tailLines=1", 406, "file with options"),
            ("query=a;b", 406, "unsupported characters"),
            ("query=a b", 406, "unsupported characters"),
            (&many, 406, "at most 4"),
            (&long, 406, "length must be"),
            ("query=a&boot=1", 406, "less than 1"),
            ("query=a&tailLines=-1", 406, "between 0 and 100000"),
            ("query=a&pattern=(", 406, "pattern"),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                406,
                "must be after",
            ),
        ] {
            let fault = asked(text).unwrap_err();
            let is = match &fault {
                QueryFault::Malformed(_) => 400,
                QueryFault::Unacceptable(_) => 406,
            };
            assert_eq!(is, code, "{text}");
            assert!(fault.to_string().contains(part), "{text}: {fault}");
        }
    }
}
