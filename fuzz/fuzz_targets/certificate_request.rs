//! `certificate_request` guided by coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| davit_fuzz::targets::access::certificate_request(data));
