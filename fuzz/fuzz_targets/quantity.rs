//! Any text as a quantity: no panic, and the canonical form has the same value.
#![no_main]

use davit_api::quantity::Quantity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        assert_eq!(Quantity::parse(&printed).expect("printed form"), quantity);
        let kept = Quantity::canonicalize(text).expect("parsed before");
        assert_eq!(Quantity::parse(&kept).expect("canonical form"), quantity);
        let _ = (quantity.value(), quantity.milli_value(), quantity + quantity);
    }
});
