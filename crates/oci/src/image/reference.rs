//! Image references as Docker reads them: `busybox` is `docker.io/library/busybox:latest`.

use std::fmt;

/// A normalised reference: registry, repository and a tag or digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Registry host with optional port.
    pub registry: String,
    /// Repository path.
    pub repository: String,
    /// Tag; `latest` when neither tag nor digest is given, `None` when there is only a digest.
    pub tag: Option<String>,
    /// `sha256:<hex>`.
    pub digest: Option<String>,
}

/// The text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {name:?}: {why}")]
pub struct ParseError {
    name: String,
    why: &'static str,
}

/// Whether the text is a sha256 digest.
pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn repository_ok(path: &str) -> bool {
    let part_ok = |part: &str| {
        let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        ends(part.bytes().next())
            && ends(part.bytes().next_back())
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
    };
    path.len() <= 255 && path.split('/').all(part_ok)
}

fn tag_ok(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

impl Reference {
    /// Reads and normalises a reference.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let failed = |why| ParseError {
            name: text.to_owned(),
            why,
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => return Err(failed("invalid digest")),
            None => (text, None),
        };
        // A colon after the last slash begins the tag; one before it is a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (rest, None),
        };
        if tag.as_deref().is_some_and(|tag| !tag_ok(tag)) {
            return Err(failed("invalid tag"));
        }
        let (registry, path) = match name.split_once('/') {
            Some(("index.docker.io", path)) => ("docker.io", path),
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, path)
            }
            _ => ("docker.io", name),
        };
        let repository = match registry {
            "docker.io" if !path.contains('/') => format!("library/{path}"),
            _ => path.to_owned(),
        };
        if path.is_empty() || !repository_ok(&repository) {
            return Err(failed("invalid reference format"));
        }
        let tag = tag.or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Reference {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }

    /// Registry and repository.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The form with the tag, when there is one.
    #[must_use]
    pub fn tagged(&self) -> Option<String> {
        self.tag
            .as_ref()
            .map(|tag| format!("{}:{tag}", self.name()))
    }

    /// The form with the digest, when there is one.
    #[must_use]
    pub fn digested(&self) -> Option<String> {
        self.digest
            .as_ref()
            .map(|digest| format!("{}@{digest}", self.name()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalises() {
        let full = |text: &str| Reference::parse(text).unwrap().to_string();
        assert_eq!(full("busybox"), "docker.io/library/busybox:latest");
        assert_eq!(full("busybox:1.36"), "docker.io/library/busybox:1.36");
        assert_eq!(full("nvidia/cuda"), "docker.io/nvidia/cuda:latest");
        assert_eq!(full("localhost:5000/a/b"), "localhost:5000/a/b:latest");
        assert_eq!(full("localhost/a"), "localhost/a:latest");
        assert_eq!(full("davit.local/host"), "davit.local/host:latest");
        assert_eq!(full("index.docker.io/library/x:1"), "docker.io/library/x:1");
        assert_eq!(full("docker.io/x:1"), "docker.io/library/x:1");
        assert_eq!(full("index.docker.io/x"), "docker.io/library/x:latest");
        assert_eq!(full("docker.io/a/x"), "docker.io/a/x:latest");
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            full(&format!("registry.k8s.io/pause@{digest}")),
            format!("registry.k8s.io/pause@{digest}")
        );
        assert_eq!(
            full(&format!("x.io/p:3@{digest}")),
            format!("x.io/p:3@{digest}")
        );
    }

    #[test]
    fn refuses() {
        for text in [
            "",
            "UPPER",
            "a b",
            "x:",
            "x@sha256:12",
            "x.io/",
            "docker.io/",
            "-x",
            "x:.1",
            "a//b",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }
}
