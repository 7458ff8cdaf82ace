//! Which files went from the directory of static pods between two looks at it, those among them that are there again.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// So many events are taken at one look; the kernel keeps the rest.
const MOST: usize = 16_384;

/// A watch on a directory, as long as there is one.
#[derive(Debug, Default)]
pub(super) struct RemovedManifests {
    watch: Option<OwnedFd>,
}

impl RemovedManifests {
    /// Files of `dir` that were deleted or moved away since the last call. One that another replaces was not.
    pub(super) fn take(&mut self, dir: &Path) -> BTreeSet<PathBuf> {
        let mut gone = BTreeSet::new();
        let Some(watch) = &self.watch else {
            self.watch = watch_for(dir);
            return gone;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(watch, &mut buffer);
        let mut is_over = false;
        for _ in 0..MOST {
            // Nothing more is an error, too.
            let Ok(event) = reader.next() else { break };
            is_over |= event.events().contains(ReadFlags::IGNORED);
            if let Some(name) = event.file_name() {
                gone.insert(dir.join(name.to_string_lossy().as_ref()));
            }
        }
        if is_over {
            self.watch = watch_for(dir);
        }
        gone
    }
}

fn watch_for(dir: &Path) -> Option<OwnedFd> {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    let wanted = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
    inotify::add_watch(&watch, dir, wanted).ok()?;
    Some(watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_went_and_came_back_is_known() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("manifests");
        let file = dir.join("a.yaml");
        let mut removed = RemovedManifests::default();
        assert!(removed.take(&dir).is_empty(), "no directory");
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "1").unwrap();
        assert!(removed.take(&dir).is_empty());
        fs::remove_file(&file).unwrap();
        fs::write(&file, "1").unwrap();
        assert_eq!(removed.take(&dir), [file.clone()].into());
        assert!(removed.take(&dir).is_empty());
        // Editors write another file and put it in the place of the first.
        fs::write(dir.join(".new"), "2").unwrap();
        fs::rename(dir.join(".new"), &file).unwrap();
        assert_eq!(removed.take(&dir), [dir.join(".new")].into());
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        removed.take(&dir);
        fs::write(&file, "1").unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(removed.take(&dir), [file].into());
    }
}
