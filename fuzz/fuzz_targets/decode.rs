//! Any body, decoded as any kind: no panic, and what comes out decodes to itself.
#![no_main]

use davit_api::kinds::builtin;
use davit_schema::decode::{Encoding, decode};
use davit_schema::{defaults, validate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, encoding, body @ ..] = data else {
        return;
    };
    let table = builtin();
    let row = &table.resources[usize::from(*kind) % table.resources.len()];
    let encoding = if encoding % 2 == 0 {
        Encoding::Json
    } else {
        Encoding::Yaml
    };
    match decode(&table.types, row.type_id, body, encoding) {
        Err(error) => {
            let _ = error.status(row.kind, row.version, body);
        }
        Ok(decoded) => {
            let bytes = serde_json::to_vec(&decoded.object).expect("JSON can be written");
            let again = decode(&table.types, row.type_id, &bytes, Encoding::Json)
                .expect("what was decoded can be decoded");
            assert_eq!(again.object, decoded.object);
            let mut object = decoded.object;
            defaults::apply(&table.types, row.type_id, &mut object);
            let _ = validate::validate(&table.types, row.type_id, &object);
        }
    }
});
