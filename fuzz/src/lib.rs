//! Arbitrary input for everything that reads what strangers send: what each target promises, inputs that come close to
//! what it takes, and a driver that runs them on any toolchain.
#![forbid(unsafe_code)]

pub mod driver;
mod make;
mod numbers;
pub mod targets;

pub use numbers::Numbers;

/// One thing that reads input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// By which the driver and cargo-fuzz know it.
    pub name: &'static str,
    /// Reads one input; a panic is a finding.
    pub run: fn(&[u8]),
    /// An input that is, or nearly is, what the target takes.
    pub make: fn(&mut Numbers) -> Vec<u8>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "addresses",
        run: targets::objects::addresses,
        make: make::objects::addresses,
    },
    Target {
        name: "apply",
        run: targets::apply,
        make: make::apply,
    },
    Target {
        name: "backup",
        run: targets::wire::backup,
        make: make::wire::backup,
    },
    Target {
        name: "cel",
        run: targets::cel,
        make: make::cel,
    },
    Target {
        name: "certificate_request",
        run: targets::access::certificate_request,
        make: make::access::certificate_request,
    },
    Target {
        name: "conversion",
        run: targets::conversion,
        make: make::conversion,
    },
    Target {
        name: "decode",
        run: targets::decode,
        make: make::decode,
    },
    Target {
        name: "dns",
        run: targets::wire::dns,
        make: make::wire::dns,
    },
    Target {
        name: "image",
        run: targets::wire::image,
        make: make::wire::image,
    },
    Target {
        name: "network_policy",
        run: targets::objects::network_policy,
        make: make::objects::network_policy,
    },
    Target {
        name: "patch",
        run: targets::patch,
        make: make::patch,
    },
    Target {
        name: "plugin",
        run: targets::wire::plugin,
        make: make::wire::plugin,
    },
    Target {
        name: "protobuf",
        run: targets::protobuf,
        make: make::protobuf,
    },
    Target {
        name: "stored",
        run: targets::stored,
        make: make::stored,
    },
    Target {
        name: "quantity",
        run: targets::quantity,
        make: make::quantity,
    },
    Target {
        name: "registry",
        run: targets::registry::registry,
        make: make::registry::registry,
    },
    Target {
        name: "request_path",
        run: targets::requests::request_path,
        make: make::requests::request_path,
    },
    Target {
        name: "samples",
        run: targets::objects::samples,
        make: make::objects::samples,
    },
    Target {
        name: "schedule",
        run: targets::objects::schedule,
        make: make::objects::schedule,
    },
    Target {
        name: "scheduler_config",
        run: targets::objects::scheduler_config,
        make: make::objects::scheduler_config,
    },
    Target {
        name: "selectors",
        run: targets::selectors,
        make: make::selectors,
    },
    Target {
        name: "service_plan",
        run: targets::objects::service_plan,
        make: make::objects::service_plan,
    },
    Target {
        name: "spdy",
        run: targets::wire::spdy,
        make: make::wire::spdy,
    },
    Target {
        name: "structural",
        run: targets::structural,
        make: make::structural,
    },
    Target {
        name: "webhook",
        run: targets::webhook,
        make: make::webhook,
    },
];
