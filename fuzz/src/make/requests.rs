//! Inputs for what a path of a request asks for.

use crate::Numbers;

const STARTS: [&str; 10] = [
    "/api/v1",
    "/api/v1",
    "/apis/apps/v1",
    "/apis/rbac.authorization.k8s.io/v1",
    "/apis/example.com/v1",
    "/api",
    "/apis",
    "//api/v1",
    "/API/v1",
    "",
];
const WORDS: [&str; 30] = [
    "namespaces",
    "namespaces",
    "pods",
    "nodes",
    "secrets",
    "services",
    "persistentvolumes",
    "deployments",
    "clusterroles",
    "things",
    "default",
    "kube-system",
    "a",
    "b",
    "status",
    "finalize",
    "scale",
    "proxy",
    "watch",
    "log",
    "exec",
    "token",
    "",
    ".",
    "..",
    "%2e%2e",
    "a%2Fb",
    "%252e",
    "%",
    "a%00",
];
const QUERIES: [&str; 10] = [
    "watch",
    "watch=false",
    "watch=0&watch=1",
    "fieldSelector=metadata.name%3Da",
    "fieldSelector=metadata.name=a,metadata.name=b",
    "fieldSelector=metadata.name%3D..",
    "labelSelector=a%3Db",
    "command=sh&stdin=true",
    "a=b;watch=1",
    "%77atch=1",
];

/// A method, a path of words that mean something somewhere, and a query; some letters are escaped.
pub(crate) fn request_path(n: &mut Numbers) -> Vec<u8> {
    let mut out = vec![n.byte()];
    let mut path = (*n.one(&STARTS)).to_owned();
    for _ in 0..n.below(8) {
        path.push('/');
        path.push_str(WORDS[n.below(WORDS.len())]);
    }
    if n.once_in(6) {
        path.push('/');
    }
    for byte in path.bytes() {
        if n.once_in(40) {
            out.extend(format!("%{byte:02x}").bytes());
        } else {
            out.push(byte);
        }
    }
    if n.once_in(2) {
        out.push(b'?');
        out.extend(n.one(&QUERIES).bytes());
    }
    out
}
