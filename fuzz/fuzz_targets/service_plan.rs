//! `service_plan` guided by coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| davit_fuzz::targets::objects::service_plan(data));
