//! Services of both families of addresses (KEP-563; spec network.md, items 7 and 20).

use davit_apiserver::{ApiServer, Options};
use serde_json::{Value, json};

use crate::cluster::Cluster;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const CLAIMS: &str = "/apis/networking.k8s.io/v1/ipaddresses";

async fn of(ranges: &'static str) -> Cluster {
    Cluster::with(move |options: &mut Options| options.service_ranges = ranges.parse().unwrap())
        .await
}

fn service(name: &str, more: &Value) -> Value {
    let mut spec = json!({ "ports": [{ "port": 80 }], "selector": { "app": "a" } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({ "metadata": { "name": name }, "spec": spec })
}

/// Policy and families of a Service, and how many addresses of each family, in their order.
fn said(service: &Value) -> (String, Vec<String>) {
    let spec = &service["spec"];
    let texts = |key: &str| -> Vec<String> {
        let list = spec[key].as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let (families, addresses) = (texts("ipFamilies"), texts("clusterIPs"));
    if addresses != ["None"] {
        let of = |ip: &String| if ip.contains(':') { "IPv6" } else { "IPv4" };
        let found: Vec<&str> = addresses.iter().map(of).collect();
        assert_eq!(found, families);
        assert_eq!(spec["clusterIP"], json!(addresses[0]));
    }
    (
        spec["ipFamilyPolicy"].as_str().unwrap().to_owned(),
        families,
    )
}

fn as_said(policy: &str, families: &[&str]) -> (String, Vec<String>) {
    let families = families.iter().map(|family| (*family).to_owned());
    (policy.to_owned(), families.collect())
}

#[tokio::test]
async fn item_020_families_and_addresses_are_given_as_asked_for() {
    let c = of("10.96.0.0/16,fd00:10:96::/112").await;
    for (name, spec, policy, families) in [
        ("single", json!({}), "SingleStack", &["IPv4"][..]),
        (
            "prefer",
            json!({ "ipFamilyPolicy": "PreferDualStack" }),
            "PreferDualStack",
            &["IPv4", "IPv6"],
        ),
        (
            "require",
            json!({ "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"] }),
            "RequireDualStack",
            &["IPv6", "IPv4"],
        ),
        (
            "six",
            json!({ "ipFamilies": ["IPv6"] }),
            "SingleStack",
            &["IPv6"],
        ),
        (
            "fixed",
            json!({ "clusterIP": "fd00:10:96::77" }),
            "SingleStack",
            &["IPv6"],
        ),
        (
            "headless",
            json!({ "clusterIP": "None", "ipFamilyPolicy": "PreferDualStack" }),
            "PreferDualStack",
            &["IPv4", "IPv6"],
        ),
        (
            "free",
            json!({ "clusterIP": "None", "selector": null }),
            "RequireDualStack",
            &["IPv4", "IPv6"],
        ),
    ] {
        let made = c.post(SERVICES, &service(name, &spec)).await.ok(201);
        assert_eq!(said(&made), as_said(policy, families), "{name}");
        for ip in made["spec"]["clusterIPs"].as_array().unwrap() {
            let ip = ip.as_str().unwrap();
            if ip != "None" {
                let claim = c.get(&format!("{CLAIMS}/{ip}")).await.ok(200);
                let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
                assert_eq!(
                    claim["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"],
                    family
                );
                assert_eq!(claim["spec"]["parentRef"]["name"], name);
            }
        }
    }
    let range = c
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await
        .ok(200);
    assert_eq!(
        range["spec"]["cidrs"],
        json!(["10.96.0.0/16", "fd00:10:96::/112"])
    );
    let taken = service("taken", &json!({ "clusterIP": "fd00:10:96::77" }));
    let refused = c.post(SERVICES, &taken).await.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("provided IP is already allocated"),
        "{message}"
    );
    // What is refused or only tried claims nothing: the first address was free as well.
    let both = json!({ "ipFamilyPolicy": "RequireDualStack", "clusterIP": "10.96.0.55", "clusterIPs": ["10.96.0.55", "fd00:10:96::77"] });
    c.post(SERVICES, &service("both", &both))
        .await
        .error(422, "Invalid");
    c.get(&format!("{CLAIMS}/10.96.0.55"))
        .await
        .error(404, "NotFound");
}

#[tokio::test]
async fn a_second_family_comes_and_goes_by_update() {
    let c = of("fd00:10:96::/112,10.96.0.0/16").await;
    let made = c.post(SERVICES, &service("a", &json!({}))).await.ok(201);
    assert_eq!(said(&made), as_said("SingleStack", &["IPv6"]));
    let at = format!("{SERVICES}/a");
    let policy = |policy: &str| json!({ "spec": { "ipFamilyPolicy": policy } });
    let tried = c
        .patch(
            &format!("{at}?dryRun=All"),
            "merge",
            &policy("PreferDualStack"),
        )
        .await
        .ok(200);
    assert_eq!(said(&tried), as_said("PreferDualStack", &["IPv6", "IPv4"]));
    let up = c
        .patch(&at, "merge", &policy("PreferDualStack"))
        .await
        .ok(200);
    assert_eq!(said(&up), as_said("PreferDualStack", &["IPv6", "IPv4"]));
    assert_eq!(
        up["spec"]["clusterIP"], made["spec"]["clusterIP"],
        "the first one stays"
    );
    let second = up["spec"]["clusterIPs"][1].as_str().unwrap();
    c.get(&format!("{CLAIMS}/{second}")).await.ok(200);
    // A writer that leaves out what was given changes nothing.
    let mut again = service("a", &json!({}));
    again["metadata"]["resourceVersion"] = up["metadata"]["resourceVersion"].clone();
    let same = c.put(&at, &again).await.ok(200);
    assert_eq!(same["spec"], up["spec"]);
    let release = json!({ "spec": { "clusterIPs": [made["spec"]["clusterIP"]] } });
    let refused = c.patch(&at, "merge", &release).await.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("must be set to 'SingleStack' when releasing the secondary clusterIP"),
        "{message}"
    );
    let down = c.patch(&at, "merge", &policy("SingleStack")).await.ok(200);
    assert_eq!(down["spec"]["clusterIPs"], made["spec"]["clusterIPs"]);
    assert_eq!(said(&down), as_said("SingleStack", &["IPv6"]));
    c.get(&format!("{CLAIMS}/{second}"))
        .await
        .error(404, "NotFound");
}

#[tokio::test]
async fn item_020_a_cluster_of_one_family_gives_no_other() {
    let c = of("10.96.0.0/16").await;
    for (spec, why) in [
        (
            json!({ "ipFamilyPolicy": "RequireDualStack" }),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({ "ipFamilies": ["IPv6"] }),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
    ] {
        let refused = c
            .post(SERVICES, &service("a", &spec))
            .await
            .error(422, "Invalid");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    let preferred = service("a", &json!({ "ipFamilyPolicy": "PreferDualStack" }));
    let made = c.post(SERVICES, &preferred).await.ok(201);
    assert_eq!(said(&made), as_said("PreferDualStack", &["IPv4"]));
}

#[tokio::test]
async fn a_cluster_becomes_one_of_both_families() {
    let one = of("10.96.0.0/16").await;
    let preferred = service("old", &json!({ "ipFamilyPolicy": "PreferDualStack" }));
    one.post(SERVICES, &preferred).await.ok(201);
    let both = one.another_with(|options| {
        options.service_ranges = "10.96.0.0/16,fd00:10:96::/112".parse().unwrap();
    });
    let both = both.await;
    let range = both
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await
        .ok(200);
    assert_eq!(
        range["spec"]["cidrs"],
        json!(["10.96.0.0/16", "fd00:10:96::/112"])
    );
    // Services change when their writers say so.
    let at = format!("{SERVICES}/old");
    let touched = json!({ "metadata": { "labels": { "a": "b" } } });
    let kept = both.patch(&at, "merge", &touched).await.ok(200);
    assert_eq!(said(&kept), as_said("PreferDualStack", &["IPv4"]));
    let required = json!({ "spec": { "ipFamilyPolicy": "RequireDualStack" } });
    let changed = both.patch(&at, "merge", &required).await.ok(200);
    assert_eq!(
        said(&changed),
        as_said("RequireDualStack", &["IPv4", "IPv6"])
    );
    // and back is no way
    let mut options = Options::new(both.store());
    options.service_ranges = "10.96.0.0/16".parse().unwrap();
    let refused = ApiServer::new(options).await.unwrap_err().to_string();
    assert!(
        refused.contains("--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"),
        "{refused}"
    );
}

#[tokio::test]
async fn item_007_the_range_is_of_the_advertised_addresss_family() {
    let c = of("10.96.0.0/16").await;
    let mut options = Options::new(c.store());
    options.advertise_address = Some("2001:db8::7".parse().unwrap());
    let refused = ApiServer::new(options).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "service IP family \"10.96.0.0/16\" must match public address family \"2001:db8::7\""
    );
}
