//! The authority of an API server, from the kubeconfig by which it is reached.

use anyhow::{Context, Result};
use std::path::Path;

/// The CA that a kubeconfig's current cluster names, in PEM.
pub(crate) fn cluster_ca(kubeconfig: &Path) -> Result<Option<String>> {
    use base64::Engine as _;
    let unusable = || format!("kubeconfig {}", kubeconfig.display());
    let config = kube::config::Kubeconfig::read_from(kubeconfig).with_context(unusable)?;
    let current = config.current_context.clone().unwrap_or_default();
    let context = config
        .contexts
        .iter()
        .find(|c| c.name == current)
        .and_then(|c| c.context.as_ref());
    let cluster = context.and_then(|c| config.clusters.iter().find(|k| k.name == c.cluster));
    let Some(cluster) = cluster.and_then(|c| c.cluster.as_ref()) else {
        return Ok(None);
    };
    if let Some(data) = &cluster.certificate_authority_data {
        let pem = base64::engine::general_purpose::STANDARD
            .decode(data)
            .with_context(unusable)?;
        return Ok(Some(String::from_utf8(pem).with_context(unusable)?));
    }
    let Some(file) = &cluster.certificate_authority else {
        return Ok(None);
    };
    Ok(Some(
        std::fs::read_to_string(file).with_context(|| format!("CA {file}"))?,
    ))
}
