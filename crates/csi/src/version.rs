//! Versions that drivers announce at registration.

use std::cmp::Ordering;
use std::fmt;

/// The only major version that is spoken.
const MAJOR: u64 = 1;

/// A version of numbers with dots between them; missing ones count as zero.
#[derive(Debug, Clone)]
pub struct CsiVersion(Vec<u64>);

/// Why none of the announced versions can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Not a version at all.
    #[error("could not parse {0:?} as version")]
    Unparsable(String),
    /// Less than two numbers.
    #[error("illegal version string {0:?}")]
    TooShort(String),
    /// `01.2`.
    #[error("illegal zero-prefixed version component {component:?} in {version:?}")]
    ZeroPrefixed {
        /// The number.
        component: String,
        /// All of it.
        version: String,
    },
    /// A number that no version has.
    #[error("illegal non-numeric version component {component:?} in {version:?}")]
    TooLarge {
        /// The number.
        component: String,
        /// All of it.
        version: String,
    },
    /// Each is unusable or of a later major version.
    #[error("could not find a highest supported version from versions ([{}]) reported: {}", versions.join(" "), last.as_ref().map_or("<nil>".to_owned(), ToString::to_string))]
    NoneUsable {
        /// What was announced.
        versions: Vec<String>,
        /// Why one of them could not be read.
        last: Option<Box<VersionError>>,
    },
    /// Only versions before the first stable one.
    #[error("highest supported version reported is {0}, must be v1.x")]
    TooOld(CsiVersion),
}

impl CsiVersion {
    /// Reads `1.0.0`, also with a `v` before it and anything behind it.
    ///
    /// # Errors
    /// It does not begin with two numbers.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let trimmed = text.trim_start();
        let trimmed = trimmed.strip_prefix('v').unwrap_or(trimmed);
        let end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        // A dot that no number follows belongs to what comes behind.
        let parts: Vec<&str> = trimmed[..end]
            .split('.')
            .take_while(|part| !part.is_empty())
            .collect();
        let Some(first) = parts.first() else {
            return Err(VersionError::Unparsable(text.to_owned()));
        };
        if parts.len() < 2 {
            return Err(VersionError::TooShort(text.to_owned()));
        }
        if first.starts_with('0') && *first != "0" {
            return Err(VersionError::ZeroPrefixed {
                component: (*first).to_owned(),
                version: text.to_owned(),
            });
        }
        let number = |part: &&str| {
            part.parse().map_err(|_| VersionError::TooLarge {
                component: (*part).to_owned(),
                version: text.to_owned(),
            })
        };
        Ok(Self(parts.iter().map(number).collect::<Result<_, _>>()?))
    }

    /// The highest version of the list whose major number is at most 1.
    ///
    /// # Errors
    /// There is none, or it is below 1.
    pub fn highest(versions: &[String]) -> Result<Self, VersionError> {
        let (mut highest, mut last): (Option<Self>, _) = (None, None);
        for text in versions.iter().rev() {
            match Self::parse(text) {
                Err(error) => last = Some(Box::new(error)),
                Ok(version) if version.major() > MAJOR => {}
                Ok(version) => {
                    if highest.as_ref().is_none_or(|h| *h < version) {
                        highest = Some(version);
                    }
                }
            }
        }
        match highest {
            None => Err(VersionError::NoneUsable {
                versions: versions.to_vec(),
                last,
            }),
            Some(version) if version.major() != MAJOR => Err(VersionError::TooOld(version)),
            Some(version) => Ok(version),
        }
    }

    fn major(&self) -> u64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// The numbers without zeros at the end.
    fn significant(&self) -> &[u64] {
        let zeros = self.0.iter().rev().take_while(|n| **n == 0).count();
        &self.0[..self.0.len() - zeros]
    }
}

impl fmt::Display for CsiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl PartialEq for CsiVersion {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl Eq for CsiVersion {}

impl PartialOrd for CsiVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CsiVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.significant().cmp(other.significant())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn highest(versions: &[&str]) -> Result<String, String> {
        let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
        CsiVersion::highest(&versions)
            .map(|v| v.to_string())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_highest_of_major_one_counts() {
        assert_eq!(highest(&["1.0.0"]).unwrap(), "1.0.0");
        assert_eq!(
            highest(&["0.3.0", "1.2.0", "1.10.0-rc1", "2.0.0"]).unwrap(),
            "1.10.0"
        );
        assert_eq!(highest(&["v1.1", "x"]).unwrap(), "1.1");
        assert_eq!(
            highest(&["0.3.0"]).unwrap_err(),
            "highest supported version reported is 0.3.0, must be v1.x"
        );
        assert_eq!(
            highest(&["2.0.0", "two"]).unwrap_err(),
            "could not find a highest supported version from versions ([2.0.0 two]) reported: \
             could not parse \"two\" as version"
        );
        assert_eq!(
            highest(&["2.0.0"]).unwrap_err(),
            "could not find a highest supported version from versions ([2.0.0]) reported: <nil>"
        );
    }

    #[test]
    fn what_is_no_version() {
        for (text, why) in [
            ("", "could not parse \"\" as version"),
            (".1", "could not parse \".1\" as version"),
            ("1", "illegal version string \"1\""),
            ("1.", "illegal version string \"1.\""),
            (
                "01.2",
                "illegal zero-prefixed version component \"01\" in \"01.2\"",
            ),
        ] {
            assert_eq!(CsiVersion::parse(text).unwrap_err().to_string(), why);
        }
        assert!(CsiVersion::parse("1.99999999999999999999").is_err());
        assert_eq!(
            CsiVersion::parse("1.0").unwrap(),
            CsiVersion::parse(" v1.0.0+x").unwrap()
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_order_is_by_numbers(
            text in ".{0,12}", a in prop::collection::vec(0..3u64, 2..5), b in prop::collection::vec(0..3u64, 2..5),
        ) {
            let _ = CsiVersion::parse(&text);
            let padded = |v: &[u64]| { let mut v = v.to_vec(); v.resize(5, 0); v };
            prop_assert_eq!(
                CsiVersion(a.clone()).cmp(&CsiVersion(b.clone())),
                padded(&a).cmp(&padded(&b))
            );
            prop_assert_eq!(CsiVersion::parse(&CsiVersion(a.clone()).to_string()).unwrap(), CsiVersion(a));
        }
    }
}
