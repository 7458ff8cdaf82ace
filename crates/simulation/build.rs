//! Makes the test program's own `getrandom` findable by `dlsym`, by which crates look for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=getrandom");
}
