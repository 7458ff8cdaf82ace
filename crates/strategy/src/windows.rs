//! Windows: what the security contexts of pods say of it, and what does not exist there
//! (<https://kubernetes.io/docs/concepts/windows/intro/#compatibility-v1-pod-spec-containers>).

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::status::MOST_CAUSES;
use serde_json::Value;

use super::app_armor::LISTS;
use super::json::{at, bool_at, has, is_empty, list_at, str_at};

const OPTIONS: &str = "windowsOptions";
/// Most KiB of the description of a group's service account.
const LONGEST_CREDENTIALS: usize = 64;
/// Bytes that a user's domain stays below.
const LONGEST_DOMAIN: usize = 256;
/// Most bytes of a user's name.
const LONGEST_USER: usize = 104;

/// Faults of the options that a security context at `path` has.
pub(super) fn options(context: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child(OPTIONS);
    let text = |key: &str| at(context, &[OPTIONS, key]).as_str();
    if let Some(name) = text("gmsaCredentialSpecName") {
        let path = path.child("gmsaCredentialSpecName");
        errors.extend(invalid_each(
            &path,
            name,
            names::check_dns1123_subdomain(name),
        ));
    }
    if let Some(credentials) = text("gmsaCredentialSpec") {
        let fault = match credentials.len() {
            0 => "gmsaCredentialSpec cannot be an empty string".to_owned(),
            length if length > LONGEST_CREDENTIALS * 1024 => {
                format!("gmsaCredentialSpec size must be under {LONGEST_CREDENTIALS} KiB")
            }
            _ => String::new(),
        };
        if !fault.is_empty() {
            let path = path.child("gmsaCredentialSpec");
            errors.push(FieldError::invalid(&path, credentials, fault));
        }
    }
    if let Some(name) = text("runAsUserName") {
        let path = path.child("runAsUserName");
        errors.extend(invalid_each(&path, name, user_faults(name)));
    }
}

/// What is wrong with `DOMAIN\USER` or `USER`.
fn user_faults(name: &str) -> Vec<String> {
    const NOT_IN_USERS: &str = "\"/\\:;|=,+*?<>@[]";
    let alone = |fault: &str| vec![format!("runAsUserName {fault}")];
    if name.is_empty() {
        return alone("cannot be an empty string");
    }
    if name.contains(|c: char| c.is_ascii_control()) {
        return alone("cannot contain control characters");
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, user)) if user.contains('\\') => {
            return alone("cannot contain more than one backslash");
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut faults = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= LONGEST_DOMAIN {
            faults.push(format!(
                "runAsUserName's Domain length must be under {LONGEST_DOMAIN} characters"
            ));
        }
        if !is_netbios(domain) && !is_dns(domain) {
            let fault = "runAsUserName's Domain doesn't match the NetBios nor the DNS format";
            faults.push(fault.to_owned());
        }
    }
    if user.is_empty() {
        faults.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > LONGEST_USER {
        faults.push(format!(
            "runAsUserName's User length must not be longer than {LONGEST_USER} characters"
        ));
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        faults.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(|c| NOT_IN_USERS.contains(c)) {
        faults.push(format!(
            "runAsUserName's User cannot contain the following characters: {NOT_IN_USERS}"
        ));
    }
    faults
}

/// At most 15 characters, of which the first is no dot.
fn is_netbios(domain: &str) -> bool {
    const NOT_THERE: &str = "\\/:*?\"<>|";
    (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(|c| NOT_THERE.contains(c))
}

/// Labels of letters in either case, with dots between them.
fn is_dns(domain: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let inner = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-';
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        label.len() <= 63 && bytes.iter().all(inner) && edge(bytes.first()) && edge(bytes.last())
    };
    domain.split('.').all(is_label)
}

/// The security contexts of the containers of the pod spec at `path`, with their places.
fn contexts<'a>(spec: &'a Value, path: &Path) -> impl Iterator<Item = (&'a Value, Path)> {
    LISTS.into_iter().flat_map(move |list| {
        let path = path.child(list);
        let containers = list_at(spec, &[list]).iter().enumerate();
        containers.map(move |(i, container)| {
            let context = at(container, &["securityContext"]);
            (context, path.index(i).child("securityContext"))
        })
    })
}

/// Either all containers run as processes of the host, in its network, or none does.
pub(super) fn host_process(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let host_process = |context: &Value| at(context, &[OPTIONS, "hostProcess"]).as_bool();
    let of_pod = host_process(at(spec, &["securityContext"]));
    let (mut all, mut of_host) = (0, 0);
    for (context, path) in contexts(spec, path) {
        if errors.len() > MOST_CAUSES {
            return;
        }
        let own = host_process(context);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let fault = format!(
                "pod hostProcess value must be identical if both are specified, was {of_pod}"
            );
            let path = path.child(OPTIONS).child("hostProcess");
            errors.push(FieldError::invalid(&path, own, fault));
        }
        all += 1;
        of_host += usize::from(own.or(of_pod) == Some(true));
    }
    if of_host == 0 {
        return;
    }
    if of_host != all {
        let fault = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", fault));
    }
    if !bool_at(spec, &["hostNetwork"]) {
        let fault = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(
            &path.child("hostNetwork"),
            false,
            fault,
        ));
    }
}

/// Faults of a pod that says on which system it runs: it has nothing of the other one.
pub(super) fn other_system(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let context = at(spec, &["securityContext"]);
    let at_context = path.child("securityContext");
    match str_at(spec, &["os", "name"]) {
        "linux" => {
            let of_pod = std::iter::once((context, at_context));
            for (context, path) in of_pod.chain(contexts(spec, path)) {
                if has(context, &[OPTIONS]) && errors.len() <= MOST_CAUSES {
                    let why = "windows options cannot be set for a linux pod";
                    errors.push(FieldError::forbidden(&path.child(OPTIONS), why));
                }
            }
        }
        "windows" => {
            of_linux(context, &OF_PODS, &at_context, errors);
            for key in ["hostUsers", "shareProcessNamespace"] {
                of_linux(spec, &[key], path, errors);
            }
            for key in ["hostPID", "hostIPC"] {
                if bool_at(spec, &[key]) {
                    of_linux(spec, &[key], path, errors);
                }
            }
            for (context, path) in contexts(spec, path) {
                of_linux(context, &OF_CONTAINERS, &path, errors);
            }
        }
        _ => {}
    }
}

/// Fields of a pod's security context that Linux alone has.
const OF_PODS: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];

/// Those of a container's.
const OF_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

fn of_linux(of: &Value, fields: &[&str], path: &Path, errors: &mut ErrorList) {
    let is_given = |key: &str| match at(of, &[key]) {
        list @ Value::Array(_) => !is_empty(list),
        value => !value.is_null(),
    };
    for key in fields.iter().filter(|key| is_given(key)) {
        if errors.len() > MOST_CAUSES {
            return;
        }
        let why = "cannot be set for a windows pod";
        errors.push(FieldError::forbidden(&path.child(key), why));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn faults(part: Value) -> Vec<String> {
        let mut spec = json!({"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File"}], "restartPolicy": "Always", "dnsPolicy": "Default"});
        for (key, value) in part.as_object().into_iter().flatten() {
            match key.as_str() {
                "context" => spec["containers"][0]["securityContext"] = value.clone(),
                key => spec[key] = value.clone(),
            }
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": spec});
        let errors = crate::strategy("", "v1", "Pod").validate(&pod);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_has_nothing_of_the_other_system() {
        let windows = json!({"name": "windows"});
        assert!(faults(json!({"os": windows})).is_empty());
        assert_eq!(
            faults(
                json!({"os": windows, "hostPID": true, "hostIPC": false, "hostUsers": true,
                "resources": {"requests": {"cpu": "1"}},
                "securityContext": {"fsGroup": 1, "sysctls": []}, "context": {"privileged": false}})
            ),
            [
                "spec.resources: Forbidden: may not be set for a windows pod",
                "spec.securityContext.fsGroup: Forbidden: cannot be set for a windows pod",
                "spec.hostUsers: Forbidden: cannot be set for a windows pod",
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
            ]
        );
        let options = json!({"windowsOptions": {}});
        assert_eq!(
            faults(
                json!({"os": {"name": "linux"}, "securityContext": options, "context": options})
            ),
            [
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
                "spec.containers[0].securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ]
        );
    }

    #[test]
    fn users_have_a_domain_or_none() {
        let of = super::user_faults;
        for good in ["u", "Domain\\user", "a.example.com\\u", "d d\\a b"] {
            assert!(of(good).is_empty(), "{good}");
        }
        for (bad, fault) in [
            ("", "runAsUserName cannot be an empty string"),
            ("a\u{7}", "runAsUserName cannot contain control characters"),
            (
                "a\\b\\c",
                "runAsUserName cannot contain more than one backslash",
            ),
            ("d\\", "runAsUserName's User cannot be empty"),
            (
                "d\\. .",
                "runAsUserName's User cannot contain only periods or spaces",
            ),
            (
                ".long-name-of-a-domain\\u",
                "runAsUserName's Domain doesn't match the NetBios nor the DNS format",
            ),
            (
                "a:b",
                "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
            ),
        ] {
            assert_eq!(of(bad), [fault], "{bad}");
        }
        let long = of(&format!("{}\\{}", "a".repeat(256), "b".repeat(105)));
        assert_eq!(long.len(), 3, "{long:?}");
    }

    #[test]
    fn all_containers_are_processes_of_the_host_or_none() {
        let options = |host: bool| json!({"windowsOptions": {"hostProcess": host}});
        assert!(faults(json!({"securityContext": options(true), "hostNetwork": true})).is_empty());
        assert_eq!(
            faults(json!({"securityContext": options(true), "context": options(false)})),
            [
                "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: false: pod hostProcess value must be identical if both are specified, was true",
            ]
        );
        let other = json!([{"name": "i", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]);
        assert_eq!(
            faults(json!({"context": options(true), "initContainers": other})),
            [
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
                "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
            ]
        );
    }
}
