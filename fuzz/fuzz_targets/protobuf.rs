//! Any bytes as a protobuf object: no panic, and what comes out can be written and read again.
#![no_main]

use davit_api::kinds::builtin;
use davit_schema::protobuf::{decode, encode, envelope};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = envelope(data);
    let [kind, raw @ ..] = data else { return };
    let table = builtin();
    let row = &table.resources[usize::from(*kind) % table.resources.len()];
    let Ok(value) = decode(&table.types, row.type_id, raw) else {
        return;
    };
    if let Ok(written) = encode(&table.types, row.type_id, &value) {
        decode(&table.types, row.type_id, &written).expect("what was written can be read");
    }
});
