use super::*;

fn parse(method: &str, url: &str) -> RequestInfo {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query))
}

/// In the words of the table.
fn describe(info: &RequestInfo) -> String {
    if !info.is_resource {
        return format!("path {} {}", info.verb, info.path);
    }
    format!(
        "{} {}/{} ns={} {} name={} sub={}",
        info.verb,
        info.group,
        info.version,
        info.namespace.as_deref().unwrap_or_default(),
        info.resource,
        info.name,
        info.subresource
    )
}

#[test]
fn requests_are_read_as_kubernetes_reads_them_or_not_served() {
    let table = include_str!("upstream.txt");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (mark, line) = line.split_at(2);
        let (request, wanted) = line.split_once(" | ").unwrap();
        let (method, url) = request.split_once(' ').unwrap();
        let info = parse(method, url);
        assert_eq!(info.unserved, mark == "! ", "{request}");
        if !info.unserved {
            assert_eq!(describe(&info), wanted, "{request}");
        }
    }
}

#[test]
fn resources_below_a_namespace_are_told_from_the_namespace_itself() {
    for (path, below) in [
        ("/api/v1/namespaces", false),
        ("/api/v1/namespaces/n", false),
        ("/api/v1/namespaces/n/finalize", false),
        ("/api/v1/watch/namespaces/n", false),
        ("/api/v1/namespaces/n/namespaces", true),
        ("/api/v1/namespaces/n/namespaces/n", true),
        ("/api/v1/namespaces/n/nodes/m/status", true),
        ("/apis/apps/v1/namespaces/n", true),
        ("/api/v1/nodes/n", false),
    ] {
        assert_eq!(parse("GET", path).is_namespaced(), below, "{path}");
    }
}

#[test]
fn proxy_paths_keep_their_rest_undecoded() {
    let info = parse("GET", "/api/v1/nodes/n/proxy/logs/a%2Fb/");
    assert_eq!((info.subresource.as_str(), info.unserved), ("proxy", false));
    assert_eq!(info.rest, "/logs/a%2Fb/");
    assert_eq!(parse("GET", "/api/v1/nodes/n/proxy/").rest, "/");
    assert_eq!(parse("GET", "/api/v1/nodes/n/proxy").rest, "");
    assert_eq!(
        parse("GET", "/api/v1/nodes/n/proxy//a/../b").rest,
        "//a/../b"
    );
}
