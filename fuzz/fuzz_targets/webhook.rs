//! Any answer of an admission webhook: it is believed or refused, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = serde_json::from_slice(bytes) else {
        return;
    };
    for version in ["v1", "v1beta1"] {
        for mutating in [true, false] {
            let _ = davit_apiserver::admission::check_webhook_answer(&answer, version, "u", mutating);
        }
    }
});
