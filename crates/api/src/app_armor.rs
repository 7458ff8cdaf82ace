//! The annotations that named AppArmor profiles before there were fields (KEP-24).

use k8s_openapi::api::core::v1::AppArmorProfile;

/// What comes before the container's name in an annotation of a pod.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Where the names of profiles of the node begin in an annotation.
pub const LOCALHOST: &str = "localhost/";
/// The longest name of a profile, in bytes.
pub const LONGEST_NAME: usize = 4095;

/// The profile that an annotation names; `None` when it is no profile.
pub fn named(annotation: &str) -> Option<AppArmorProfile> {
    let profile = |type_: &str, name: Option<&str>| AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match annotation {
        "unconfined" => Some(profile("Unconfined", None)),
        "runtime/default" => Some(profile("RuntimeDefault", None)),
        _ => {
            let name = annotation.strip_prefix(LOCALHOST)?;
            let is_name = !name.is_empty() && name == name.trim() && name.len() <= LONGEST_NAME;
            is_name.then(|| profile("Localhost", Some(name)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_name_profiles_or_nothing() {
        let of = |annotation: &str| named(annotation).map(|p| (p.type_, p.localhost_profile));
        let plain = |type_: &str| Some((type_.to_owned(), None));
        assert_eq!(of("unconfined"), plain("Unconfined"));
        assert_eq!(of("runtime/default"), plain("RuntimeDefault"));
        let strict = Some(("Localhost".to_owned(), Some("strict".to_owned())));
        assert_eq!(of("localhost/strict"), strict);
        let long = |bytes: usize| of(&format!("{LOCALHOST}{}", "a".repeat(bytes)));
        assert!(long(LONGEST_NAME).is_some() && long(LONGEST_NAME + 1).is_none());
        for bad in ["", "strict", "localhost/", "localhost/ a", "runtime/other"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
