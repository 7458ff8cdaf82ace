//! `davit backup` and `davit restore`: all objects in a file, and a store made of it.

use crate::cluster_flag::Cluster;
use crate::etcd::{StoreFlags, StoreLocation};
use crate::paths;
use anyhow::{Context, Result, bail, ensure};
use davit_apiserver::KubernetesForm;
use davit_encryption::{EncryptedStore, Encryption, Naming, OwnNaming};
use davit_etcd::EtcdStore;
use davit_kubestore::{Codec, KubeNaming, KubeStore, keys};
use davit_store::backup::{BackupReader, REVISION_BUMP};
use davit_store::embedded::EmbeddedStore;
use davit_store::{KeyValue, ListOptions, Store, Write};
use futures::{AsyncReadExt, TryStreamExt};
use std::fs::File;
use std::io::{BufReader, Seek, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `davit backup`
#[derive(Debug, clap::Args)]
pub(crate) struct Backup {
    /// The file; one that is there is replaced when the backup is whole
    file: PathBuf,
    #[command(flatten)]
    cluster: Cluster,
}

/// `davit restore`
#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The file
    file: PathBuf,
    /// Where state lives [default: /var/lib/davit as root, else ~/.local/share/davit]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreFlags,
    /// Encryption at rest of the cluster, which a restore into etcd needs where values of the backup are encrypted
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
}

/// How much is read at once.
const PIECE: usize = 64 << 10;
/// Writes to etcd at one time.
const WRITES: usize = 64;
/// How long plugins that keep keys may take to answer.
const PLUGINS_READY: Duration = Duration::from_secs(20);

/// Takes a backup of the cluster of the kubeconfig.
///
/// # Errors
/// The cluster does not answer, is none of davit, or does not let this user; or the file cannot be written.
pub(crate) async fn backup(args: Backup) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let request = http::Request::post("/davit.dev/backup").body(Vec::new())?;
    let answer = client.request_stream(request).await;
    let mut answer = Box::pin(answer.context("the API server gives no backup")?);
    let part = partial(&args.file);
    let mut file = begin(&part)?;
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let read = answer.read(&mut piece).await;
        let read = read.context("the API server broke the backup off")?;
        if read == 0 {
            break;
        }
        file.write_all(&piece[..read])
            .with_context(|| part.display().to_string())?;
        bytes += read;
    }
    file.sync_all()
        .with_context(|| part.display().to_string())?;
    let (revision, count) = verified(&mut open(&part)?, &part)?;
    std::fs::rename(&part, &args.file).with_context(|| args.file.display().to_string())?;
    let dir = args.file.parent().filter(|dir| *dir != Path::new(""));
    let dir = File::open(dir.unwrap_or(Path::new(".")));
    dir.and_then(|dir| dir.sync_all())
        .with_context(|| args.file.display().to_string())?;
    println!(
        "{count} objects at revision {revision} are in {} ({bytes} bytes); keys and certificates are not: keep a copy of pki/ in the data directory, too",
        args.file.display()
    );
    Ok(())
}

/// A new file that nobody else can read: Secrets are in it. What is left of an earlier one goes; where others may write, too,
/// it may be theirs, or a link.
fn begin(part: &Path) -> Result<File> {
    match std::fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => File::options()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(part),
    }
    .with_context(|| part.display().to_string())
}

/// Beside the file, so that it can take its place.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    file.with_file_name(name)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

/// Reads all of the file; its revision and the number of objects.
fn verified(file: &mut File, path: &Path) -> Result<(u64, u64)> {
    let reader = BackupReader::new(BufReader::new(&mut *file));
    let reader = reader.with_context(|| path.display().to_string())?;
    let revision = reader.revision();
    let count = reader.verify();
    let count = count.with_context(|| path.display().to_string())?;
    file.rewind()?;
    Ok((revision, count))
}

/// Makes a store of a backup.
///
/// # Errors
/// The file is damaged, or the store is not empty; nothing is changed then.
pub(crate) async fn restore(args: Restore) -> Result<()> {
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    let mut file = open(&args.file)?;
    let (revision, count) = verified(&mut file, &args.file)?;
    match args.store.only_place(&data_dir)? {
        StoreLocation::Embedded(dir) => {
            std::fs::create_dir_all(&data_dir).with_context(|| data_dir.display().to_string())?;
            paths::protect_data_dir(&data_dir)?;
            let restored = tokio::task::spawn_blocking(move || {
                let reader = BackupReader::new(BufReader::new(file))?;
                EmbeddedStore::restore(&dir, reader).map_err(anyhow::Error::from)
            });
            restored.await??;
            println!(
                "{count} objects are restored to {}; revisions go on from {}",
                data_dir.display(),
                revision + REVISION_BUMP
            );
        }
        StoreLocation::Etcd(options) => {
            let encryption = args.encryption_provider_config.as_deref();
            let encryption = encryption.map(Encryption::from_file).transpose();
            let encryption = encryption.context("encryption at rest")?.map(Arc::new);
            if let Some(encryption) = &encryption {
                encryption.ready(PLUGINS_READY).await?;
            }
            let form = args.store.form()?.unwrap_or_default();
            let store = EtcdStore::open(*options).await.context("etcd")?;
            let store = InKubernetesForm::new(Arc::new(store), encryption, &form);
            let restored = into_etcd(&store, file, revision).await;
            store.kube.close().await;
            restored?;
            println!("{count} objects are restored to etcd");
        }
    }
    Ok(())
}

/// An etcd with objects as kube-apiserver keeps them.
struct InKubernetesForm {
    kube: KubeStore,
    encryption: Option<Arc<Encryption>>,
}

impl InKubernetesForm {
    fn new(
        store: Arc<dyn Store>,
        encryption: Option<Arc<Encryption>>,
        form: &KubernetesForm,
    ) -> Self {
        let store = match &encryption {
            None => store,
            Some(encryption) => {
                let naming = Arc::new(KubeNaming::new(&form.prefix));
                Arc::new(EncryptedStore::named(store, Arc::clone(encryption), naming))
            }
        };
        Self {
            kube: KubeStore::new(store, Codec::new(form.media)),
            encryption,
        }
    }

    /// Writes a pair of a backup. One that is encrypted is encrypted anew: its key, which is authenticated, is another one here.
    async fn write(&self, pair: KeyValue) -> Result<()> {
        // Servers make them again of what there is.
        if keys::to_kubernetes(&pair.key).is_none() {
            tracing::info!(key = &*pair.key, "not restored: it is no object");
            return Ok(());
        }
        let is_encrypted = pair.value.starts_with(b"k8s:enc:");
        let value = match &self.encryption {
            Some(encryption) => {
                let named = OwnNaming.named(&pair.key);
                encryption.unlock(&named, &pair.value).await;
                let plain = encryption.decrypt_as(&named, pair.value);
                plain.with_context(|| pair.key.to_string())?.value
            }
            None if is_encrypted => bail!(
                "{} is encrypted: --encryption-provider-config says how",
                pair.key
            ),
            None => pair.value,
        };
        self.kube.commit(Write::create(&*pair.key, value)).await?;
        Ok(())
    }
}

/// Writes the objects. Their revisions are etcd's own, which may not lie behind those that clients have seen.
async fn into_etcd(store: &InKubernetesForm, file: File, revision: u64) -> Result<()> {
    let one = ListOptions {
        limit: Some(1),
        ..ListOptions::default()
    };
    let found = store.kube.list("", one).await?;
    ensure!(
        found.items.is_empty(),
        "there are objects in that etcd already; a backup is restored into an empty one (--etcd-prefix names another place)"
    );
    if found.revision < revision {
        bail!(
            "etcd is at revision {}, the backup at {revision}: programs that go on running would wait for revisions that never come. \
             Move etcd on first: etcdctl snapshot save FILE; etcdutl snapshot restore FILE --bump-revision {} --mark-compacted",
            found.revision,
            revision + REVISION_BUMP
        );
    }
    let reader = BackupReader::new(BufReader::new(file))?;
    let pairs = futures::stream::iter(reader).map_err(anyhow::Error::from);
    let writes = pairs.map_ok(|pair| async move { store.write(pair).await });
    writes
        .try_buffer_unordered(WRITES)
        .try_for_each(|_| async { Ok(()) })
        .await
        .context("the restore was broken off; what is below the prefix is a part of the backup")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_backup_is_written_to_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("a.part");
        let other = dir.path().join("other");
        std::fs::write(&other, "as it was").unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o666)).unwrap();
        // Somebody who knows the name was there first.
        for before in [
            |part: &Path, other: &Path| symlink(other, part),
            |part: &Path, other: &Path| std::fs::hard_link(other, part),
        ] {
            before(&part, &other).unwrap();
            begin(&part).unwrap().write_all(b"Secrets").unwrap();
            assert_eq!(std::fs::read(&other).unwrap(), b"as it was");
            let found = std::fs::symlink_metadata(&part).unwrap();
            assert_eq!((found.mode() & 0o7777, found.nlink()), (0o600, 1));
            std::fs::remove_file(&part).unwrap();
        }
    }
}
