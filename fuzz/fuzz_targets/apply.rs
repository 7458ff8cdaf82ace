//! Any configuration applied to, and any update of, any object of any kind: no panic, and who
//! applies the same again changes nothing.
#![no_main]

use davit_api::kinds::builtin;
use davit_schema::apply::{FieldManager, Filter, Schema, ignore_times, strip};
use davit_schema::decode::{Encoding, decode_value, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, body @ ..] = data else { return };
    let Some(split) = body.iter().position(|b| *b == 0) else {
        return;
    };
    let parsed = |bytes| parse(bytes, Encoding::Yaml).ok().filter(|v| v.is_object());
    let (Some(live), Some(mut applied)) = (parsed(&body[..split]), parsed(&body[split + 1..]))
    else {
        return;
    };
    let table = builtin();
    let row = &table.resources[usize::from(*kind) % table.resources.len()];
    let api_version = row.api_version();
    let manager = FieldManager {
        schema: Schema::new(&table.types, row.type_id),
        api_version: &api_version,
        kind: row.kind,
        subresource: "",
        filter: &Filter::All,
        versions: None,
        now: "2024-01-01T00:00:00Z",
    };
    let Ok(live) = decode_value(&table.types, row.type_id, live) else {
        return;
    };
    let live = manager.update(None, live.object, "first");
    applied["apiVersion"] = api_version.clone().into();
    applied["kind"] = row.kind.into();
    strip(&mut applied);
    let Ok(once) = manager.apply(Some(&live), &applied, "second", true) else {
        return;
    };
    let Ok(once) = decode_value(&table.types, row.type_id, once) else {
        return;
    };
    if let Ok(again) = manager.apply(Some(&once.object), &applied, "second", false)
        && let Ok(mut again) = decode_value(&table.types, row.type_id, again)
    {
        ignore_times(&once.object, &mut again.object);
    }
});
