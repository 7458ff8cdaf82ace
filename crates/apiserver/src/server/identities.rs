//! The certificates that this server shows: as a server, to nodes, and to aggregated servers. Its own can be renewed while
//! it runs; those given by configuration stay as they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use davit_webhook::tls::ShownIdentity;

use super::Error;
use davit_pki::{Identity, Pki, PkiError, ServingIdentity};

/// Where an identity of this server's own comes from: the one that is kept, or a new one in time.
type Source = fn(&Pki, &[String]) -> Result<Identity, PkiError>;

struct OwnIdentity {
    shown: Arc<ShownIdentity>,
    /// None for one given by configuration.
    source: Option<Source>,
}

/// A serving certificate that is given, in PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingFiles {
    /// The certificate and those of its issuers.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What this server shows.
pub(crate) struct OwnIdentities {
    /// The names by which this server is reached.
    names: Vec<String>,
    serving: Option<OwnIdentity>,
    /// Shown instead, and where it is read from.
    given: Option<(Arc<ShownIdentity>, ServingFiles)>,
    kubelet_client: Option<OwnIdentity>,
    front_proxy: Option<OwnIdentity>,
}

impl OwnIdentities {
    pub(crate) fn new(
        pki: Option<&Pki>,
        names: Vec<String>,
        serving: Option<&ServingFiles>,
        kubelet_client: Option<&Identity>,
        front_proxy: Option<&Identity>,
    ) -> Result<Self, Error> {
        let own = |given: Option<&Identity>, source: Source| -> Result<_, Error> {
            let (identity, source) = match (given, pki) {
                (Some(given), _) => (given.clone(), None),
                (None, Some(pki)) => (source(pki, &names)?, Some(source)),
                (None, None) => return Ok(None),
            };
            let shown = ShownIdentity::new(&identity)?;
            Ok(Some(OwnIdentity { shown, source }))
        };
        let given = match serving {
            None => None,
            Some(files) => Some((ShownIdentity::new(&read(files)?)?, files.clone())),
        };
        Ok(Self {
            given,
            serving: own(None, |pki, names| {
                pki.serving("apiserver", "kube-apiserver", names)
            })?,
            kubelet_client: own(kubelet_client, |pki, _| pki.kubelet_client())?,
            front_proxy: own(front_proxy, |pki, _| Ok(pki.front_proxy()?.client))?,
            names,
        })
    }

    pub(crate) fn serving(&self) -> Option<ServingIdentity> {
        let given = self.given.as_ref().map(|(shown, _)| Arc::clone(shown));
        let own = shown(self.serving.as_ref())?;
        Some(ServingIdentity { own, given })
    }

    /// The files of the serving certificate that is given.
    pub(crate) fn given_files(&self) -> [Option<PathBuf>; 2] {
        let files = self.given.as_ref().map(|(_, files)| files.clone());
        files.map_or([None, None], |files| {
            [Some(files.certificate), Some(files.key)]
        })
    }

    /// Shows what the files hold now; whether that is another certificate than before.
    pub(crate) fn read_given(&self) -> Result<bool, Error> {
        match &self.given {
            None => Ok(false),
            Some((shown, files)) => Ok(shown.renew(&read(files)?)?),
        }
    }

    pub(crate) fn kubelet_client(&self) -> Option<Arc<ShownIdentity>> {
        shown(self.kubelet_client.as_ref())
    }

    pub(crate) fn front_proxy(&self) -> Option<Arc<ShownIdentity>> {
        shown(self.front_proxy.as_ref())
    }

    /// Shows what `pki` has renewed; how many that are.
    pub(crate) fn renew(&self, pki: &Pki) -> Result<usize, Error> {
        let mut renewed = 0;
        let all = [&self.serving, &self.kubelet_client, &self.front_proxy];
        for own in all.into_iter().flatten() {
            if let Some(source) = own.source
                && own.shown.renew(&source(pki, &self.names)?)?
            {
                renewed += 1;
            }
        }
        Ok(renewed)
    }
}

fn read(files: &ServingFiles) -> Result<Identity, Error> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| Error::ServingFile {
            path: path.to_owned(),
            error,
        })
    };
    Ok(Identity {
        certificate: read(&files.certificate)?,
        key: read(&files.key)?,
    })
}

fn shown(own: Option<&OwnIdentity>) -> Option<Arc<ShownIdentity>> {
    own.map(|own| Arc::clone(&own.shown))
}
