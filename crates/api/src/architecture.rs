//! Processor architectures by the names that Kubernetes, Go and images have for them.

/// Go's name of the architecture that this program was built for (`GOARCH`).
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
