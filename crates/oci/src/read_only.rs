//! Whether mounts are read-only with what is mounted below them (KEP-3857).

use crate::runtime::Runtime;
use davit_proto::cri::v1 as cri;

/// Whether a runtime can do it; one that does not say cannot.
pub async fn of(runtime: &dyn Runtime) -> bool {
    let status = runtime.status().await;
    status.is_ok_and(|status| all_recursive(&status.runtime_handlers))
}

/// Whether all handlers of a runtime can. A pod's handler is known only when it is started.
fn all_recursive(handlers: &[cri::RuntimeHandler]) -> bool {
    let can = |h: &cri::RuntimeHandler| h.features.is_some_and(|f| f.recursive_read_only_mounts);
    !handlers.is_empty() && handlers.iter().all(can)
}

/// Whether a read-only mount with this `recursiveReadOnly` has to be; `supported` says whether it can. One that has to be and
/// cannot is the runtime's to refuse.
pub fn is_recursive(mode: Option<&str>, supported: bool) -> bool {
    match mode {
        Some("Enabled") => true,
        Some("IfPossible") => supported,
        _ => false,
    }
}

/// The same in the words of the API, for the status.
pub fn effective(mode: Option<&str>, supported: bool) -> &'static str {
    match is_recursive(mode, supported) {
        true => "Enabled",
        false => "Disabled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_recursive_is() {
        for (mode, supported, expected) in [
            (Some("IfPossible"), true, true),
            (Some("IfPossible"), false, false),
            (Some("Enabled"), false, true),
            (Some("Disabled"), true, false),
            (None, true, false),
        ] {
            assert_eq!(is_recursive(mode, supported), expected, "{mode:?}");
            assert_eq!(effective(mode, supported) == "Enabled", expected);
        }
        let handler = |recursive_read_only_mounts| cri::RuntimeHandler {
            name: String::new(),
            features: Some(cri::RuntimeHandlerFeatures {
                recursive_read_only_mounts,
                user_namespaces: false,
            }),
        };
        assert!(all_recursive(&[handler(true)]));
        assert!(!all_recursive(&[handler(true), handler(false)]));
        assert!(!all_recursive(&[]));
    }
}
