//! Any text as a selector: no panic, and the printed form means the same.
#![no_main]

use davit_api::fields::FieldSelector;
use davit_api::labels::Selector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = Selector::parse(text) {
        let printed = selector.to_string();
        let again = Selector::parse(&printed).expect("printed form");
        assert_eq!(again.to_string(), printed);
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let again = FieldSelector::parse(&selector.to_string()).expect("printed form");
        assert_eq!(again, selector);
    }
});
