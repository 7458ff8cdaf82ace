//! Volumes of iSCSI targets, in pods and as persistent volumes.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use crate::fields::required;
use crate::json::{at, bool_at, has, int_at, str_at};

const FORMAT: &str = "must be valid format";
/// The names that RFC 3720 and RFC 3980 know (section 3.2.6.3 of both).
const KINDS: [&str; 3] = ["iqn", "eui", "naa"];
/// Of a persistent volume with an initiator's name of its own: its name and portal become the name of an interface.
const LONGEST_INTERFACE: usize = 64;

/// Faults of a source; `volume` is the name of the persistent volume, if it is one's.
pub(crate) fn validate(source: &Value, volume: Option<&str>, path: &Path, errors: &mut ErrorList) {
    let portal = str_at(source, &["targetPortal"]);
    required(source, "targetPortal", path, errors);
    let initiator = at(source, &["initiatorName"]).as_str();
    let interface = volume.map_or(0, |name| name.len() + 1 + portal.len());
    if initiator.is_some() && interface > LONGEST_INTERFACE {
        let fault = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is \
                     specified.";
        errors.push(FieldError::invalid(
            &path.child("targetportal"),
            portal,
            fault,
        ));
    }
    required(source, "iqn", path, errors);
    let without_kind = match volume {
        Some(_) => FORMAT,
        None => "must be valid format starting with iqn, eui, or naa",
    };
    name(
        str_at(source, &["iqn"]),
        without_kind,
        &path.child("iqn"),
        errors,
    );
    let lun = int_at(source, &["lun"]).unwrap_or(0);
    if !(0..=255).contains(&lun) {
        let fault = "must be between 0 and 255, inclusive";
        errors.push(FieldError::invalid(&path.child("lun"), lun, fault));
    }
    let asks = |key: &str| bool_at(source, &[key]);
    let secret = path.child("secretRef");
    if has(source, &["secretRef"]) {
        if volume.is_some() {
            required(at(source, &["secretRef"]), "name", &secret, errors);
        }
    } else if asks("chapAuthDiscovery") || asks("chapAuthSession") {
        errors.push(FieldError::required(&secret, ""));
    }
    if let Some(initiator) = initiator {
        let path = path.child("initiatorname");
        if initiator.is_empty() {
            errors.push(FieldError::invalid(&path, initiator, without_kind));
        }
        name(initiator, without_kind, &path, errors);
    }
}

/// Faults of a target's or an initiator's name that is given.
fn name(name: &str, without_kind: &str, path: &Path, errors: &mut ErrorList) {
    let is_known = KINDS.iter().any(|kind| name.starts_with(kind));
    if !name.is_empty() && !is_name(name) {
        let fault = if is_known { FORMAT } else { without_kind };
        errors.push(FieldError::invalid(path, name, fault));
    }
}

fn is_name(name: &str) -> bool {
    let Some((kind, rest)) = name.split_at_checked(3) else {
        return false;
    };
    let mut rest = rest.chars();
    if kind == "iqn" {
        return rest.next() == Some('.') && is_qualified(rest.as_str());
    }
    let digits = if kind == "eui" { 16 } else { 32 };
    // what stands between is not looked at
    rest.next().is_some()
        && rest.as_str().len() == digits
        && rest.all(|c| c.is_ascii_alphanumeric())
        && KINDS.contains(&kind)
}

/// Year and month, the authority turned around, and after a colon what it chose.
fn is_qualified(name: &str) -> bool {
    let Some((date, rest)) = name.split_at_checked("2001-04.".len()) else {
        return false;
    };
    let mut as_wanted = date.bytes().zip(*b"0000-00.");
    let is_date = as_wanted.all(|(given, form)| match form {
        b'0' => given.is_ascii_digit(),
        sign => given == sign,
    });
    rest.split_once(':').is_some_and(|(authority, chosen)| {
        let of_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let is_free = |c: char| !c.is_whitespace() && !",;*&$|".contains(c);
        let are_given = !authority.is_empty() && !chosen.is_empty();
        is_date && are_given && authority.chars().all(of_host) && chosen.chars().all(is_free)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::lines;

    fn faults(source: &Value, volume: Option<&str>) -> String {
        let mut errors = ErrorList::new();
        validate(source, volume, &Path::new("iscsi"), &mut errors);
        lines(&errors)
    }

    #[test]
    fn names_of_targets() {
        for good in [
            "iqn.2001-04.com.example:disk1",
            "iqn.2001-04.com.example:a:b/c",
            "eui.02004567A425678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            let source = json!({"targetPortal": "p", "iqn": good, "initiatorName": good});
            assert_eq!(faults(&source, Some("v")), "", "{good}");
        }
        for bad in [
            "iqn.2001-4.com.example:disk1",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:a;b",
            "iqn.2001-04.:a",
            "iqn:2001-04.com.example:a",
            "eui.02004567A425678",
            "naa.62004567BA64678D0123456789ABCDEü",
            "eui",
        ] {
            let source = json!({"targetPortal": "p", "iqn": bad});
            let wanted = format!("iscsi.iqn: Invalid value: {bad:?}: must be valid format");
            assert_eq!(faults(&source, None), wanted);
        }
    }

    #[test]
    fn pods_and_persistent_volumes_are_asked_different_things() {
        let source = json!({"iqn": "-x", "lun": 256, "chapAuthSession": true, "initiatorName": ""});
        assert_eq!(
            faults(&source, None),
            "iscsi.targetPortal: Required value\n\
             iscsi.iqn: Invalid value: \"-x\": must be valid format starting with iqn, eui, or naa\n\
             iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive\n\
             iscsi.secretRef: Required value\n\
             iscsi.initiatorname: Invalid value: \"\": must be valid format starting with iqn, eui, or naa"
        );
        let portal = "a".repeat(62);
        let source = json!({"targetPortal": portal, "iqn": "-x", "secretRef": {}, "initiatorName": "eui.02004567A425678D"});
        assert_eq!(
            faults(&source, Some("vv")),
            format!(
                "iscsi.targetportal: Invalid value: {portal:?}: Total length of <volume name>:<iscsi.targetPortal> must be under \
                 64 characters if iscsi.initiatorName is specified.\n\
                 iscsi.iqn: Invalid value: \"-x\": must be valid format\n\
                 iscsi.secretRef.name: Required value"
            )
        );
    }
}
