//! Whether a path names a resource where it is: inside a namespace or in the cluster.
//!
//! A path says itself in which namespace authorization is asked. Were one that puts a cluster-scoped
//! resource below a namespace believed, a role in that namespace would rule the cluster.

use davit_access::RequestInfo;

use crate::server::ApiServer;

/// Takes the namespace from a request whose path puts something there that is in none, and marks
/// what is not served. The caller still learns by authorization, at the scope of the cluster,
/// whether it may know that.
pub(super) fn correct(server: &ApiServer, info: &mut RequestInfo) {
    if info.is_resource {
        let namespaced = scope(server, info);
        info.hold_to(namespaced);
    }
}

/// Whether objects of the resource are in namespaces; `None` for what is not known here.
fn scope(server: &ApiServer, info: &RequestInfo) -> Option<bool> {
    if info.prefix == "apis" {
        let view = server.aggregation().view();
        if let Some(remote) = view.find(&info.group, &info.version) {
            let entries = remote.resources.iter();
            let entry = entries
                .filter(|entry| entry["resource"] == info.resource.as_str())
                .find_map(|entry| entry["scope"].as_str());
            return entry.map(|scope| scope == "Namespaced");
        }
    }
    let snapshot = server.registry().snapshot();
    let resource = snapshot.get(&info.group, &info.version, &info.resource)?;
    Some(resource.row.namespaced)
}
