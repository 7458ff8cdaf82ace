//! Names of definitions, as upstream's generator gives them.

/// The definition of a type such as `core/v1.Pod`: `io.k8s.api.core.v1.Pod`. Names that are no
/// type names of the built-in table come back with `/` replaced by `.`.
pub fn definition_name(type_name: &str) -> String {
    let (package, name) = type_name.rsplit_once('.').unwrap_or(("", type_name));
    let dotted = package.replace('/', ".");
    let prefix = match package.split('/').next().unwrap_or_default() {
        "" => return name.to_owned(),
        "meta" => "io.k8s.apimachinery.pkg.apis.",
        "apiextensions" => "io.k8s.apiextensions-apiserver.pkg.apis.",
        "apiregistration" => "io.k8s.kube-aggregator.pkg.apis.",
        "metrics" => "io.k8s.metrics.pkg.apis.",
        _ => "io.k8s.api.",
    };
    format!("{prefix}{dotted}.{name}")
}

pub(super) const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
pub(super) const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
pub(super) const DURATION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
pub(super) const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
pub(super) const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
