//! Who a container's process runs as: names and numbers looked up in the image's own lists.

use crate::image::Image;
use crate::runtime::{Error, Result};
use davit_proto::cri::v1 as cri;
use rustix::fs::FileType;
use std::fs;
use std::path::{Component, Path};

/// A resolved identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// A file of an image without mounting it: the topmost layer that has it, or hides it, decides. Empty when there is none.
pub(super) fn image_file(layers_dir: &Path, image: &Image, path: &str) -> String {
    if image.is_host() {
        return fs::read_to_string(Path::new("/").join(path)).unwrap_or_default();
    }
    'layers: for layer in image.layers.iter().rev() {
        let mut so_far = layers_dir.join(layer);
        let parts: Vec<_> = Path::new(path).components().collect();
        for (index, part) in parts.iter().enumerate() {
            let Component::Normal(part) = part else {
                continue;
            };
            so_far.push(part);
            let Ok(metadata) = so_far.symlink_metadata() else {
                continue 'layers;
            };
            let last = index + 1 == parts.len();
            if last && metadata.is_file() {
                return fs::read_to_string(&so_far).unwrap_or_default();
            }
            let kind = FileType::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&metadata));
            // A whiteout, a link (which would have to be followed in the image) or anything odd: no list.
            if last || kind != FileType::Directory {
                return String::new();
            }
        }
    }
    String::new()
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
    match name.parse() {
        Ok(uid) => (Some(uid), String::new()),
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
        passwd: image_file(layers_dir, image, "etc/passwd"),
        group: image_file(layers_dir, image, "etc/group"),
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
    let mut groups = vec![gid];
    for group in &context.supplemental_groups {
        groups.push(number(*group, "supplementalGroups")?);
    }
    if context.supplemental_groups_policy != cri::SupplementalGroupsPolicy::Strict as i32
        && let Some((name, _)) = lists.uid(uid)
    {
        groups.extend(lists.memberships(&name));
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
                groups: vec![7, 9, 44]
            }
        );
        let strict = cri::LinuxContainerSecurityContext {
            supplemental_groups_policy: cri::SupplementalGroupsPolicy::Strict as i32,
            ..context
        };
        assert_eq!(who("", &strict).unwrap().groups, [7, 9]);
    }
}
