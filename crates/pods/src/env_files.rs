//! What files of a pod's volumes say of variables (`fileKeyRef`, KEP-3721).
//!
//! A file has lines `NAME='value'`, of which a shell would read the same: values stand in single quotes, over as many lines
//! as they need, and mean what they are; `#` begins a comment. The first line of a name counts, and what follows it is not
//! looked at.

use davit_beneath::{Links, Root};
use k8s_openapi::api::core::v1::{Container, FileKeySelector};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Bytes of one file, as many as a ConfigMap has.
const MAX_FILE: u64 = 1 << 20;
/// Bytes of all files together, each of which is read once: a pod names as many as it likes, and writes them.
const MAX_FILES: usize = 64 << 20;
/// Bytes of all values together.
const MAX_VALUES: usize = 6 << 20;

/// Why a container has not the variables of its files.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    /// The volume is not there for this pod.
    #[error("cannot find the volume \"{0}\" referenced by fileKeyRef")]
    Volume(String),
    /// No file, or one that is not read.
    #[error("couldn't read env file {path:?} of volume \"{volume}\": {source}")]
    Unreadable {
        /// The volume's name in the pod.
        volume: String,
        /// The file in it.
        path: String,
        /// Why.
        source: davit_beneath::Error,
    },
    /// A file that is not written as it should be.
    #[error("couldn't parse env file {path:?} of volume \"{volume}\": line {line}: {fault}")]
    Syntax {
        /// The volume's name in the pod.
        volume: String,
        /// The file in it.
        path: String,
        /// The line, the first is 1.
        line: usize,
        /// What is wrong there.
        fault: &'static str,
    },
    /// The file does not set it, or to nothing.
    #[error("environment variable key \"{key}\" not found in file {path:?} of volume \"{volume}\"")]
    MissingKey {
        /// The volume's name in the pod.
        volume: String,
        /// The file in it.
        path: String,
        /// Whose value was wanted.
        key: String,
    },
    /// More than a program can be started with.
    #[error("the values of fileKeyRef come to more than {MAX_VALUES} bytes")]
    TooLong,
    /// Reading them would take the node's time.
    #[error("the files of fileKeyRef come to more than {MAX_FILES} bytes")]
    TooMuch,
    /// The file system does not answer.
    #[error("couldn't read env files: {0}")]
    NoAnswer(String),
}

/// Values that files of volumes have for the variables of one container.
#[derive(Debug, Default)]
pub struct EnvFiles {
    values: HashMap<(String, String, String), String>,
}

/// The files that a container's variables refer to.
pub fn selectors(container: &Container) -> impl Iterator<Item = &FileKeySelector> {
    let variables = container.env.iter().flatten();
    variables.filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref())
}

impl EnvFiles {
    /// Reads what is selected; `place` says where a volume is. Takes as long as the file systems do.
    ///
    /// # Errors
    /// A volume, file or key that is not there and not optional; a file that cannot be read.
    pub fn read<'a>(
        selected: &[FileKeySelector],
        place: impl Fn(&str) -> Option<&'a Path>,
    ) -> Result<Self, EnvFileError> {
        let mut out = Self::default();
        let (mut left, mut left_of_files) = (MAX_VALUES, MAX_FILES);
        let mut files: BTreeMap<(&str, &str), Vec<&FileKeySelector>> = BTreeMap::new();
        for selector in selected {
            let file = (selector.volume_name.as_str(), selector.path.as_str());
            files.entry(file).or_default().push(selector);
        }
        for ((volume, path), selectors) in files {
            let root = place(volume).ok_or_else(|| EnvFileError::Volume(volume.to_owned()))?;
            let text = match read(root, volume, path) {
                Err(error) if is_missing(&error) && selectors.iter().all(is_optional) => continue,
                text => text?,
            };
            let rest = left_of_files.checked_sub(text.len());
            left_of_files = rest.ok_or(EnvFileError::TooMuch)?;
            let keys = selectors.iter().map(|selector| selector.key.as_str());
            let said = Said::of(&text, &keys.collect());
            for selector in selectors {
                let Some(value) = said.value(selector)? else {
                    continue;
                };
                left = left.checked_sub(value.len()).ok_or(EnvFileError::TooLong)?;
                out.values.insert(place_of(selector), value.to_owned());
            }
        }
        Ok(out)
    }

    /// What was read; nothing for an optional variable that its file does not set.
    pub fn get(&self, selector: &FileKeySelector) -> Option<&str> {
        self.values.get(&place_of(selector)).map(String::as_str)
    }
}

fn place_of(of: &FileKeySelector) -> (String, String, String) {
    (of.volume_name.clone(), of.path.clone(), of.key.clone())
}

fn is_optional(of: &&FileKeySelector) -> bool {
    of.optional == Some(true)
}

fn is_missing(error: &EnvFileError) -> bool {
    matches!(error, EnvFileError::Unreadable { source, .. } if source.is_not_found())
}

/// Containers write the volume: their links lead nowhere but inside it.
fn read(root: &Path, volume: &str, path: &str) -> Result<String, EnvFileError> {
    let bytes =
        Root::open(root, Links::Confined).and_then(|root| root.read_limited(path, MAX_FILE));
    let bytes = bytes.map_err(|source| EnvFileError::Unreadable {
        volume: volume.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a file says of some names, up to the first line that cannot be read.
#[derive(Debug, Default)]
struct Said {
    /// By name; nothing where a shell would set it to nothing.
    values: HashMap<String, Option<String>>,
    /// The line and what is wrong there.
    fault: Option<Fault>,
}

impl Said {
    /// Reads a text as far as it is needed for these names.
    fn of(text: &str, names: &HashSet<&str>) -> Self {
        let mut said = Self::default();
        let mut lines = (1..).zip(text.lines());
        while said.values.len() < names.len() {
            match next(&mut lines) {
                None => break,
                Some(Err(fault)) => {
                    said.fault = Some(fault);
                    break;
                }
                Some(Ok((name, value))) if names.contains(name) => {
                    said.values.entry(name.to_owned()).or_insert(value);
                }
                Some(Ok(_)) => {}
            }
        }
        said
    }

    /// The value that a variable gets; nothing for an optional one that is not set.
    fn value(&self, of: &FileKeySelector) -> Result<Option<&str>, EnvFileError> {
        let (volume, path) = (of.volume_name.clone(), of.path.clone());
        let found = self.values.get(&of.key).map(|value| value.as_deref());
        match (found, self.fault) {
            (Some(Some(value)), _) if !value.is_empty() => Ok(Some(value)),
            (None, Some((line, fault))) => Err(EnvFileError::Syntax {
                volume,
                path,
                line,
                fault,
            }),
            _ if is_optional(&of) => Ok(None),
            _ => Err(EnvFileError::MissingKey {
                volume,
                path,
                key: of.key.clone(),
            }),
        }
    }
}

/// A line that cannot be read, the first is 1, and what is wrong there.
type Fault = (usize, &'static str);

const BLANKS: [char; 2] = [' ', '\t'];

/// The next name and its value; the line and the fault of one that cannot be read.
fn next<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Option<Result<(&'a str, Option<String>), Fault>> {
    let says = |line: &str| !line.is_empty() && !line.starts_with('#');
    let (number, line) = lines
        .by_ref()
        .map(|(number, line)| (number, line.trim_start_matches(BLANKS)))
        .find(|(_, line)| says(line))?;
    Some(named(line, lines).map_err(|fault| (number, fault)))
}

fn named<'a>(
    line: &'a str,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<(&'a str, Option<String>), &'static str> {
    let (name, value) = line.split_once('=').ok_or("missing '='")?;
    if name.is_empty() {
        return Err("empty variable name");
    }
    if name.ends_with(BLANKS) {
        return Err("whitespace before '=' is not allowed");
    }
    if value.starts_with(BLANKS) {
        // to a shell that sets it to nothing
        return Ok((name, None));
    }
    let value = value
        .strip_prefix('\'')
        .ok_or("value must be enclosed in single quotes")?;
    let rest = lines.by_ref().map(|(_, line)| line);
    let (value, after) = quoted(value, rest).ok_or("unclosed single quote")?;
    let after = after.trim_start_matches(BLANKS);
    if !after.is_empty() && !after.starts_with('#') {
        return Err("unexpected content after closing quote");
    }
    Ok((name, Some(value)))
}

/// What stands before the closing quote, in this line or those that follow, and what comes after it.
fn quoted<'a>(
    first: &'a str,
    mut following: impl Iterator<Item = &'a str>,
) -> Option<(String, &'a str)> {
    let mut value = String::new();
    let mut line = first;
    loop {
        if let Some((end, after)) = line.split_once('\'') {
            value.push_str(end);
            return Some((value, after));
        }
        value.push_str(line);
        value.push('\n');
        line = following.next()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FILE: &str = "# made by an init container\n\n  A='one' # first\nEMPTY=''\nNOTHING= 'x'\nB='two\n # three\n\nfour'\t\n\
                        C='$A=\"\\n\"'\r\nA='again'\n";

    fn value_of(text: &str, key: &str) -> Result<Option<String>, (usize, &'static str)> {
        let said = Said::of(text, &HashSet::from([key]));
        match (said.values.get(key), said.fault) {
            (None, Some(fault)) => Err(fault),
            (found, _) => Ok(found.cloned().flatten()),
        }
    }

    /// A pod has as many variables as an object has room for, and writes the file that they are in.
    #[test]
    fn a_file_is_read_once_however_many_variables_it_has() {
        let tmp = tempfile::tempdir().unwrap();
        let names = (0..5000).map(|n| format!("N{n}='{n}'\n"));
        let long = format!("{}L='{}'\n", names.collect::<String>(), "x".repeat(900_000));
        std::fs::write(tmp.path().join("f"), long).unwrap();
        let selector = |path: String, key: String| FileKeySelector {
            volume_name: "v".to_owned(),
            path,
            key,
            optional: None,
        };
        let selected: Vec<_> = (0..5000)
            .map(|n| selector("f".to_owned(), format!("N{n}")))
            .chain([selector("f".to_owned(), "M".to_owned())])
            .collect();
        let began = std::time::Instant::now();
        let read = |selected: &[_]| EnvFiles::read(selected, |_| Some(tmp.path()));
        let files = read(&selected[..5000]).unwrap();
        assert_eq!(files.get(&selected[4999]), Some("4999"));
        assert!(matches!(
            read(&selected),
            Err(EnvFileError::MissingKey { .. })
        ));
        // names of one file are files of their own to whoever reads them
        let selected: Vec<_> = (0..100)
            .map(|n| selector(format!("f{n}"), "L".to_owned()))
            .collect();
        for of in &selected {
            std::fs::hard_link(tmp.path().join("f"), tmp.path().join(&of.path)).unwrap();
        }
        let many = read(&selected);
        assert!(matches!(
            many,
            Err(EnvFileError::TooMuch | EnvFileError::TooLong)
        ));
        assert!(began.elapsed() < std::time::Duration::from_secs(30));
    }

    #[test]
    fn the_first_value_of_a_name_as_it_is_written() {
        let value = |key| value_of(FILE, key).unwrap();
        assert_eq!(value("A").as_deref(), Some("one"));
        assert_eq!(value("B").as_deref(), Some("two\n # three\n\nfour"));
        assert_eq!(value("C").as_deref(), Some("$A=\"\\n\""));
        assert_eq!(value("EMPTY").as_deref(), Some(""));
        assert_eq!(value("NOTHING"), None);
        assert_eq!(value("D"), None);
    }

    #[test]
    fn what_a_shell_would_read_otherwise_is_refused_up_to_the_name() {
        for (line, fault) in [
            ("A", "missing '='"),
            ("='x'", "empty variable name"),
            ("A ='x'", "whitespace before '=' is not allowed"),
            ("A=x", "value must be enclosed in single quotes"),
            ("A=\"x\"", "value must be enclosed in single quotes"),
            ("A=", "value must be enclosed in single quotes"),
            ("A='x''y'", "unexpected content after closing quote"),
            ("A='x\ny", "unclosed single quote"),
        ] {
            let text = format!("# two\n{line}\n");
            assert_eq!(value_of(&text, "B"), Err((2, fault)), "{line}");
            let text = format!("B='found'\n{line}\n");
            assert_eq!(value_of(&text, "B").unwrap().unwrap(), "found", "{line}");
        }
    }

    fn select(path: &str, key: &str, optional: bool) -> FileKeySelector {
        FileKeySelector {
            volume_name: "v".into(),
            path: path.into(),
            key: key.into(),
            optional: Some(optional),
        }
    }

    #[test]
    fn files_are_read_inside_their_volume() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let volume = dir.join("volume");
        std::fs::create_dir_all(volume.join("etc")).unwrap();
        std::fs::write(volume.join("etc/env"), FILE).unwrap();
        std::fs::write(volume.join("broken"), "A: one\n").unwrap();
        std::fs::write(dir.join("outside"), "A='of the host'\n").unwrap();
        symlink(dir.join("outside"), volume.join("absolute")).unwrap();
        symlink("../../outside", volume.join("etc/relative")).unwrap();
        symlink("/etc/env", volume.join("inside")).unwrap();
        std::fs::write(volume.join("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
        let read = |selector: &FileKeySelector| {
            let place = |name: &str| (name == "v").then_some(volume.as_path());
            EnvFiles::read(std::slice::from_ref(selector), place)
                .map(|files| files.get(selector).map(str::to_owned))
                .map_err(|error| error.to_string())
        };
        for path in ["etc/env", "inside"] {
            assert_eq!(read(&select(path, "A", false)).unwrap().unwrap(), "one");
        }
        for path in ["absolute", "etc/relative", "none"] {
            let error = read(&select(path, "A", false)).unwrap_err();
            assert!(error.starts_with("couldn't read env file"), "{error}");
            assert_eq!(read(&select(path, "A", true)), Ok(None));
        }
        for path in ["large", "etc"] {
            assert!(read(&select(path, "A", true)).is_err(), "{path}");
        }
        assert!(
            read(&select("broken", "A", true))
                .unwrap_err()
                .contains("line 1")
        );
        for key in ["D", "EMPTY"] {
            assert_eq!(read(&select("etc/env", key, true)), Ok(None));
            let error = read(&select("etc/env", key, false)).unwrap_err();
            assert!(error.starts_with(&format!("environment variable key \"{key}\" not found")));
        }
        let other = FileKeySelector {
            volume_name: "w".into(),
            ..select("etc/env", "A", true)
        };
        assert!(read(&other).unwrap_err().contains("volume \"w\""));
    }
}
