//! Any patch on any pod: no panic.
#![no_main]

use davit_api::kinds::builtin;
use davit_schema::decode::{Encoding, decode_value, parse};
use davit_schema::patch::{JsonPatch, merge_patch, strategic_merge_patch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(split) = data.iter().position(|b| *b == 0) else {
        return;
    };
    let (document, patch) = (&data[..split], &data[split + 1..]);
    let Ok(document) = parse(document, Encoding::Json) else {
        return;
    };
    let types = &builtin().types;
    let root = types.id("core/v1.Pod").expect("the table has pods");
    if let Ok(patch) = JsonPatch::parse(patch) {
        let _ = patch.apply(&document);
    }
    let Ok(patch) = parse(patch, Encoding::Json) else {
        return;
    };
    let _ = merge_patch(document.clone(), patch.clone());
    if let Ok(patched) = strategic_merge_patch(types, root, document, patch) {
        let _ = decode_value(types, root, patched);
    }
});
