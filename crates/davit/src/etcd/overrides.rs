//! Kinds that are in an etcd of their own (`--etcd-servers-overrides`), as kube-apiserver has them.

use davit_api::kinds;
use davit_etcd::EndpointUrl;
use std::str::FromStr;

/// Kinds of which the API server follows the keys themselves, in the store of everything else.
const FOLLOWED: &str = "flowcontrol.apiserver.k8s.io";

/// One kind, and its etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServersOverride {
    /// The group of the resource, empty for the core group.
    pub(crate) group: String,
    /// Its plural name.
    pub(crate) plural: String,
    /// The members' client URLs.
    pub(crate) servers: Vec<EndpointUrl>,
}

impl FromStr for ServersOverride {
    type Err = String;

    /// Reads `GROUP/RESOURCE#URL;URL`, where the core group is empty.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "expected `GROUP/RESOURCE#URL[;URL...]`, like `/events#https://etcd-2:2379`";
        let (resource, urls) = text.split_once('#').ok_or_else(form)?;
        let (group, plural) = resource.split_once('/').ok_or_else(form)?;
        let urls: Result<Vec<EndpointUrl>, _> = urls.split(';').map(str::parse).collect();
        let servers = urls.map_err(|error| error.to_string())?;
        is_stored_there(group, plural)?;
        Ok(Self {
            group: group.to_owned(),
            plural: plural.to_owned(),
            servers,
        })
    }
}

/// Whether objects are kept under this name.
fn is_stored_there(group: &str, plural: &str) -> Result<(), String> {
    let table = kinds::builtin();
    let mut rows = table.resources.iter();
    let found = rows.find(|row| row.group == group && row.plural == plural);
    let Some(row) = found.filter(|row| row.has_verb("get") && row.has_verb("create")) else {
        return Err(format!(
            "{group}/{plural} is no built-in resource whose objects are stored"
        ));
    };
    let stored = table.storage_row(row);
    if (stored.group, stored.plural) != (group, plural) {
        return Err(format!(
            "{group}/{plural} is stored as {}/{}: name that",
            stored.group, stored.plural
        ));
    }
    if group == FOLLOWED || row.is_classic_dra() {
        return Err(format!("{group}/{plural} stays in --etcd-servers"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_named_as_it_is_stored() {
        let read: ServersOverride = "/events#http://a:1;http://b:2".parse().unwrap();
        assert_eq!((&*read.group, &*read.plural), ("", "events"));
        assert_eq!(read.servers.len(), 2);
        let leases: ServersOverride = "coordination.k8s.io/leases#https://a".parse().unwrap();
        assert_eq!(leases.group, "coordination.k8s.io");
        for (wrong, why) in [
            ("events", "expected"),
            ("events#http://a", "expected"),
            ("/events", "expected"),
            ("/events#", "URL"),
            ("/things#http://a", "no built-in resource"),
            ("/bindings#http://a", "no built-in resource"),
            ("events.k8s.io/events#http://a", "is stored as /events"),
            ("flowcontrol.apiserver.k8s.io/flowschemas#http://a", "stays"),
        ] {
            let error = wrong.parse::<ServersOverride>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
