use super::*;

#[test]
fn the_authority_is_made_once_and_leaves_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    let admin = pki.admin().unwrap();
    let again = Pki::open(dir.path()).unwrap();
    assert_eq!(pki.ca_certificate(), again.ca_certificate());
    assert_eq!(admin.certificate, again.admin().unwrap().certificate);
}

#[test]
fn a_serving_certificate_is_renewed_when_its_names_grow() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    let names = api_server_names(&["10.96.0.1".to_owned()], &[]);
    let first = pki.serving("apiserver", "kube-apiserver", &names).unwrap();
    let same = pki.serving("apiserver", "kube-apiserver", &names).unwrap();
    assert_eq!(first.certificate, same.certificate);
    let more = api_server_names(&["10.96.0.1".to_owned()], &["192.0.2.7".to_owned()]);
    let other = pki.serving("apiserver", "kube-apiserver", &more).unwrap();
    assert_ne!(first.certificate, other.certificate);
}

#[test]
fn leaves_are_renewed_a_year_before_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let years = |n: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_hours(n * 365 * 24);
    let at = |clock| Pki::open_as(dir.path(), "davit-ca", clock).unwrap();
    let first = at(jiff::Timestamp::now).admin().unwrap();
    let after_a_year: Clock =
        || jiff::Timestamp::now() + jiff::SignedDuration::from_hours(365 * 24);
    assert_eq!(
        at(after_a_year).admin().unwrap().certificate,
        first.certificate
    );
    let in_time: Clock = || jiff::Timestamp::now() + jiff::SignedDuration::from_hours(800 * 24);
    let renewed = at(in_time).admin().unwrap();
    assert_ne!(renewed.certificate, first.certificate);
    let der = first_certificate(&renewed.certificate).unwrap();
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    assert!(parsed.validity().not_after.timestamp() > years(4).as_second());
    assert_eq!(
        at(in_time).admin().unwrap().certificate,
        renewed.certificate
    );
}

#[cfg(unix)]
#[test]
fn keys_are_readable_by_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    pki.service_account_key().unwrap();
    for file in ["ca.key", "sa.key"] {
        let mode = std::fs::metadata(dir.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[test]
fn a_key_of_another_certificate_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let pki = Pki::open(dir.path()).unwrap();
    let first = pki.client("admin", "a", &[]).unwrap();
    // As if the process had ended between the two files of a renewal.
    let new = pki.client("other", "a", &[]).unwrap();
    std::fs::write(file("admin.key"), &new.key).unwrap();
    let again = pki.client("admin", "a", &[]).unwrap();
    assert_ne!(again.certificate, first.certificate);
    let key = KeyPair::from_pem(&again.key).unwrap();
    assert!(belongs(&key, &again.certificate));
    assert_eq!(pki.client("admin", "a", &[]).unwrap().key, again.key);
    // An authority is not replaced: nobody would know it any more.
    std::fs::write(file("ca.key"), &new.key).unwrap();
    let error = Pki::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("ca.key is not the key of ca.crt"),
        "{error}"
    );
}
