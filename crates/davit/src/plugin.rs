//! davit as a plugin of kubectl: `kubectl davit …`.

use std::path::Path;

/// The name under which kubectl finds this binary.
pub(crate) const NAME: &str = "kubectl-davit";

/// Whether this process was started under that name.
pub(crate) fn is_running() -> bool {
    std::env::args_os()
        .next()
        .as_deref()
        .map(Path::new)
        .and_then(|path| path.file_stem()?.to_str())
        .is_some_and(|name| name == NAME || name == "kubectl_davit")
}
