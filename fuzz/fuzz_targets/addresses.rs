//! `addresses` guided by coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| davit_fuzz::targets::objects::addresses(data));
