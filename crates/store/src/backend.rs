//! Which engine to open.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::{Error, Result, Store};

/// The engine of a store, as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Backend {
    /// The engine inside the process: `embedded`.
    #[default]
    Embedded,
    /// An etcd cluster: `etcd=URL,...`.
    Etcd {
        /// The client URLs.
        endpoints: Vec<String>,
    },
}

/// The text does not name an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("store {text:?} is neither \"embedded\" nor \"etcd=URL,...\"")]
pub struct BackendParseError {
    text: String,
}

impl FromStr for Backend {
    type Err = BackendParseError;

    fn from_str(text: &str) -> Result<Self, BackendParseError> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        let error = || BackendParseError {
            text: text.to_owned(),
        };
        let urls = text.strip_prefix("etcd=").ok_or_else(error)?;
        let endpoints: Vec<String> = urls.split(',').map(|url| url.trim().to_owned()).collect();
        let is_url = |url: &String| {
            url.strip_prefix("http://")
                .or_else(|| url.strip_prefix("https://"))
                .is_some_and(|rest| !rest.is_empty())
        };
        if endpoints.iter().all(is_url) {
            Ok(Self::Etcd { endpoints })
        } else {
            Err(error())
        }
    }
}

/// Opens the store `backend` names; `dir` is where the embedded engine keeps its
/// files, and is created if it does not exist.
///
/// Fails with [`Error::NotBuilt`] for an engine this version does not have, and as
/// [`EmbeddedStore::open`] does.
pub async fn open(backend: &Backend, dir: &Path) -> Result<Arc<dyn Store>> {
    match backend {
        Backend::Embedded => {
            let store = EmbeddedStore::open(dir, EmbeddedOptions::default()).await?;
            Ok(Arc::new(store))
        }
        Backend::Etcd { .. } => Err(Error::NotBuilt { engine: "etcd" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_parse() {
        assert_eq!("embedded".parse(), Ok(Backend::Embedded));
        let two = vec!["http://a:2379".to_owned(), "https://b:2379".to_owned()];
        assert_eq!(
            "etcd=http://a:2379, https://b:2379".parse(),
            Ok(Backend::Etcd { endpoints: two })
        );
        for bad in ["", "etcd", "etcd=", "etcd=a:1", "etcd=http://a,", "redb"] {
            let error = bad.parse::<Backend>().unwrap_err();
            assert!(error.to_string().contains("embedded"), "{error}");
        }
    }

    #[tokio::test]
    async fn etcd_says_that_it_is_not_built() {
        let backend = "etcd=http://a:2379".parse().unwrap();
        let error = open(&backend, Path::new("/nonexistent"))
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "store engine etcd is not built into this version"
        );
    }
}
