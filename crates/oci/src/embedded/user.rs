//! Who a container's process runs as: names and numbers looked up in the image's own lists.

use crate::image::Image;
use crate::runtime::{Error, Result};
use davit_beneath::{Links, Root};
use davit_proto::cri::v1 as cri;
use rustix::fs::FileType;
use std::fs;
use std::path::{Path, PathBuf};

/// A resolved identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// Lists of users and groups are read into memory for each container; no image needs one of this size.
const LIST_LIMIT: u64 = 1024 * 1024;

/// What a layer has to say about a file.
enum Said {
    /// Nothing: the layers below decide.
    Nothing,
    /// It is hidden, or something that is not read: no list.
    Hidden,
    /// Its content.
    Content(Vec<u8>),
}

fn failed(path: &Path) -> impl Fn(davit_beneath::Error) -> Error {
    move |e| Error::InvalidArgument(format!("image: cannot read {}: {e}", path.display()))
}

/// Looks in one layer. No link is followed: it would have to be followed in the whole image.
fn in_layer(layer: &Root, path: &Path) -> davit_beneath::Result<Said> {
    let mut opaque = false;
    let mut so_far = PathBuf::new();
    for part in path.components() {
        so_far.push(part);
        let inode = match layer.entry_itself(&so_far) {
            Err(e) if e.is_not_found() && opaque => return Ok(Said::Hidden),
            Err(e) if e.is_not_found() => return Ok(Said::Nothing),
            other => other?,
        };
        match inode.kind()? {
            FileType::Directory if so_far != path => opaque |= inode.is_opaque(),
            FileType::RegularFile if so_far == path => {
                return layer.read_limited(path, LIST_LIMIT).map(Said::Content);
            }
            _ => return Ok(Said::Hidden),
        }
    }
    Ok(Said::Nothing)
}

/// A list of an image without mounting it: the topmost layer that has it, or hides it, decides. Empty when there is none.
pub(super) fn image_file(layers_dir: &Path, image: &Image, path: &str) -> Result<String> {
    let path = Path::new(path);
    let failed = failed(path);
    let text = |content: Vec<u8>| String::from_utf8(content).unwrap_or_default();
    if image.is_host() {
        return Ok(fs::read_to_string(Path::new("/").join(path)).unwrap_or_default());
    }
    for layer in image.layers.iter().rev() {
        let root = match Root::open(layers_dir.join(layer), Links::Refused) {
            Err(error) if error.is_not_found() => continue,
            other => other.map_err(&failed)?,
        };
        match in_layer(&root, path).map_err(&failed)? {
            Said::Nothing => {}
            Said::Hidden => break,
            Said::Content(content) => return Ok(text(content)),
        }
    }
    Ok(String::new())
}

struct Lists {
    passwd: String,
    group: String,
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.trim().split(':').collect())
}

impl Lists {
    /// Name, uid and gid of a user by name.
    fn user(&self, name: &str) -> Option<(u32, u32)> {
        fields(&self.passwd)
            .find(|f| f.len() > 3 && f[0] == name)
            .and_then(|f| Some((f[2].parse().ok()?, f[3].parse().ok()?)))
    }

    /// Name and gid of a user by number.
    fn uid(&self, uid: u32) -> Option<(String, u32)> {
        let uid = uid.to_string();
        fields(&self.passwd)
            .find(|f| f.len() > 3 && f[2] == uid)
            .and_then(|f| Some((f[0].to_owned(), f[3].parse().ok()?)))
    }

    fn group(&self, name: &str) -> Option<u32> {
        fields(&self.group)
            .find(|f| f.len() > 2 && f[0] == name)
            .and_then(|f| f[2].parse().ok())
    }

    /// Groups that list the user as a member.
    fn memberships<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u32> + 'a {
        fields(&self.group)
            .filter(move |f| f.len() > 3 && f[3].split(',').any(|member| member == name))
            .filter_map(|f| f[2].parse().ok())
    }
}

/// The image's user as a number and a name, as CRI reports it: one of the two.
pub(super) fn image_user(user: &str) -> (Option<i64>, String) {
    let name = user.split(':').next().unwrap_or_default();
    if name.is_empty() {
        return (Some(0), String::new());
    }
    // Read as `resolve` reads it: what is no number of a user is a name, which the image's own list may give any number.
    match name.parse::<u32>() {
        Ok(uid) => (Some(uid.into()), String::new()),
        Err(_) => (None, name.to_owned()),
    }
}

fn number(value: i64, what: &str) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::InvalidArgument(format!("{what} {value}")))
}

/// Resolves the identity from the security context and the image.
pub(super) fn resolve(
    layers_dir: &Path,
    image: &Image,
    context: &cri::LinuxContainerSecurityContext,
) -> Result<User> {
    let lists = Lists {
        passwd: image_file(layers_dir, image, "etc/passwd")?,
        group: image_file(layers_dir, image, "etc/group")?,
    };
    let (wanted, wanted_group) = match image.config.user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (image.config.user.as_str(), None),
    };
    let by_name = |name: &str| {
        lists.user(name).ok_or_else(|| {
            Error::InvalidArgument(format!("user {name:?}: no matching entries in passwd file"))
        })
    };
    let own_choice = context.run_as_user.is_some() || !context.run_as_username.is_empty();
    let (uid, mut gid) = if let Some(uid) = &context.run_as_user {
        let uid = number(uid.value, "runAsUser")?;
        (uid, lists.uid(uid).map_or(0, |(_, gid)| gid))
    } else {
        let name = if context.run_as_username.is_empty() {
            wanted
        } else {
            &context.run_as_username
        };
        match name.parse::<u32>() {
            _ if name.is_empty() => (0, lists.uid(0).map_or(0, |(_, gid)| gid)),
            Ok(uid) => (uid, lists.uid(uid).map_or(0, |(_, gid)| gid)),
            Err(_) => by_name(name)?,
        }
    };
    if let Some(group) = &context.run_as_group {
        gid = number(group.value, "runAsGroup")?;
    } else if let (Some(group), false) = (wanted_group.filter(|g| !g.is_empty()), own_choice) {
        gid = match group.parse() {
            Ok(gid) => gid,
            Err(_) => lists.group(group).ok_or_else(|| {
                Error::InvalidArgument(format!(
                    "group {group:?}: no matching entries in group file"
                ))
            })?,
        };
    }
    // The order is containerd's, which shows in `status.containerStatuses[].user` and `id -G`.
    let mut groups = vec![gid];
    if context.supplemental_groups_policy != cri::SupplementalGroupsPolicy::Strict as i32
        && let Some((name, _)) = lists.uid(uid)
    {
        groups.extend(lists.memberships(&name));
    }
    for group in &context.supplemental_groups {
        groups.push(number(*group, "supplementalGroups")?);
    }
    let mut seen = std::collections::HashSet::new();
    groups.retain(|group| seen.insert(*group));
    Ok(User { uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageConfig;

    fn image(user: &str) -> Image {
        Image {
            id: String::new(),
            tags: Default::default(),
            digests: Default::default(),
            layers: vec!["low".into(), "high".into()],
            size: 0,
            config: ImageConfig {
                user: user.to_owned(),
                ..ImageConfig::default()
            },
        }
    }

    fn layers() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for layer in ["low", "high"] {
            fs::create_dir_all(dir.path().join(layer).join("etc")).unwrap();
        }
        let write = |path: &str, text: &str| fs::write(dir.path().join(path), text).unwrap();
        write(
            "low/etc/passwd",
            "root:x:0:0::/root:/bin/sh\nold:x:5:5::/:/bin/sh\n",
        );
        write(
            "high/etc/passwd",
            "root:x:0:0::/root:/bin/sh\napp:x:1000:2000::/home/app:/bin/sh\n",
        );
        write(
            "low/etc/group",
            "root:x:0:\napps:x:2000:\nvideo:x:44:app,other\n",
        );
        dir
    }

    fn who(user: &str, context: &cri::LinuxContainerSecurityContext) -> Result<User> {
        let dir = layers();
        resolve(dir.path(), &image(user), context)
    }

    /// CVE-2024-40635: a number too large for a user passes for somebody who is not root, while the image's list makes it
    /// root.
    #[test]
    fn what_is_no_number_of_a_user_is_a_name() {
        for odd in ["4294967296", "-1", "9223372036854775807", "0x0"] {
            assert_eq!(image_user(odd), (None, odd.to_owned()));
            let dir = layers();
            let list = dir.path().join("high/etc/passwd");
            fs::write(list, format!("{odd}:x:0:0::/:/bin/sh\n")).unwrap();
            let none = cri::LinuxContainerSecurityContext::default();
            let user = resolve(dir.path(), &image(odd), &none).unwrap();
            assert_eq!(
                user.uid, 0,
                "the runtime goes by the list, so the node must be told the name"
            );
        }
        assert_eq!(
            image_user("4294967295:0"),
            (Some(4_294_967_295), String::new())
        );
        assert_eq!(image_user("00"), (Some(0), String::new()));
    }

    #[test]
    fn names_numbers_and_groups() {
        let none = cri::LinuxContainerSecurityContext::default();
        assert_eq!(
            who("", &none).unwrap(),
            User {
                uid: 0,
                gid: 0,
                groups: vec![0]
            }
        );
        assert_eq!(
            who("app", &none).unwrap(),
            User {
                uid: 1000,
                gid: 2000,
                groups: vec![2000, 44]
            }
        );
        assert_eq!(
            who("1000:video", &none).unwrap(),
            User {
                uid: 1000,
                gid: 44,
                groups: vec![44]
            }
        );
        assert_eq!(
            who("77", &none).unwrap(),
            User {
                uid: 77,
                gid: 0,
                groups: vec![0]
            }
        );
        assert!(who("old", &none).is_err(), "the upper layer's list counts");
        let context = cri::LinuxContainerSecurityContext {
            run_as_user: Some(cri::Int64Value { value: 1000 }),
            run_as_group: Some(cri::Int64Value { value: 7 }),
            supplemental_groups: vec![9, 7],
            ..none.clone()
        };
        assert_eq!(
            who("nobody:x", &context).unwrap(),
            User {
                uid: 1000,
                gid: 7,
                groups: vec![7, 44, 9]
            }
        );
        let strict = cri::LinuxContainerSecurityContext {
            supplemental_groups_policy: cri::SupplementalGroupsPolicy::Strict as i32,
            ..context
        };
        assert_eq!(who("", &strict).unwrap().groups, [7, 9]);
    }

    #[test]
    fn lists_that_are_no_lists() {
        let dir = layers();
        let passwd = dir.path().join("high/etc/passwd");
        let read = || image_file(dir.path(), &image(""), "etc/passwd");
        assert!(read().unwrap().contains("app"));
        // Larger than memory, for all that is known.
        fs::File::create(&passwd).unwrap().set_len(1 << 40).unwrap();
        assert!(read().is_err());
        fs::remove_file(&passwd).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &passwd).unwrap();
        assert_eq!(read().unwrap(), "");
        fs::remove_file(&passwd).unwrap();
        let fifo = FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &passwd, fifo, mode, 0).unwrap();
        assert_eq!(read().unwrap(), "");
        fs::remove_dir_all(dir.path().join("high/etc")).unwrap();
        assert!(read().unwrap().contains("old"));
        std::os::unix::fs::symlink("/etc", dir.path().join("high/etc")).unwrap();
        assert_eq!(read().unwrap(), "");
    }
}
