//! The files of a new project. The programs are examples of the SDK, which the build compiles and the tests check.

use anyhow::{Result, bail};
use davit_api::names;
use std::fmt::Write as _;
use std::path::Path;

const DEVICE_PLUGIN: &str = include_str!("../../../sdk/examples/new_device_plugin.rs");
const DRA_DRIVER: &str = include_str!("../../../sdk/examples/new_dra_driver.rs");
/// What pods ask for in the example, and the driver's name there.
const RESOURCE: &str = "vendor.example/widget";
const DRIVER: &str = "widget.vendor.example";
/// Names of devices are made of that of the project.
const LONGEST_NAME: usize = 40;
/// As long may the name of a driver be.
const LONGEST_DRIVER: usize = names::LABEL_MAX;

/// What a project is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProjectKind {
    DevicePlugin,
    DraDriver,
}

/// A project to write.
#[derive(Debug)]
pub(super) struct ProjectPlan {
    kind: ProjectKind,
    name: String,
    /// The resource, or the driver's name.
    serves: String,
    sdk: String,
}

impl ProjectPlan {
    /// `sdk` is the value of the dependency in Cargo.toml, without braces.
    ///
    /// # Errors
    /// A name is none.
    pub(super) fn new(
        kind: ProjectKind,
        name: &str,
        serves: Option<String>,
        sdk: String,
    ) -> Result<Self> {
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
        if name.len() > LONGEST_NAME || !starts || !names::is_dns1123_label(name) {
            bail!(
                "{name:?} is no name of a project: up to {LONGEST_NAME} lower case letters, digits and dashes, a letter first"
            );
        }
        let serves = serves.unwrap_or_else(|| match kind {
            ProjectKind::DevicePlugin => format!("vendor.example/{name}"),
            ProjectKind::DraDriver => format!("{name}.vendor.example"),
        });
        let wrong = match kind {
            ProjectKind::DevicePlugin if !serves.contains('/') => {
                vec!["it has no domain".to_owned()]
            }
            ProjectKind::DevicePlugin => names::check_qualified_name(&serves),
            ProjectKind::DraDriver if serves.len() > LONGEST_DRIVER => {
                vec![names::too_long_text(LONGEST_DRIVER)]
            }
            ProjectKind::DraDriver => names::check_dns1123_subdomain(&serves),
        };
        if let Some(wrong) = wrong.first() {
            bail!("{serves:?}: {wrong}");
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
            serves,
            sdk,
        })
    }

    /// Paths and texts.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Cargo.toml", self.manifest()),
            ("src/main.rs", self.program()),
            ("README.md", self.readme()),
            (".gitignore", "/target\n".to_owned()),
        ]
    }

    fn program(&self) -> String {
        let (text, example) = match self.kind {
            ProjectKind::DevicePlugin => (DEVICE_PLUGIN, RESOURCE),
            ProjectKind::DraDriver => (DRA_DRIVER, DRIVER),
        };
        let variable = self.name.to_uppercase().replace('-', "_");
        let type_name: String = self.name.split('-').map(capitalized).collect();
        // The whole name first: it has the word in it.
        text.split(example)
            .map(|part| {
                part.replace("WIDGET", &variable)
                    .replace("Widget", &type_name)
                    .replace("widget", &self.name)
            })
            .collect::<Vec<_>>()
            .join(&self.serves)
    }

    fn manifest(&self) -> String {
        let name = &self.name;
        let features = match self.kind {
            ProjectKind::DevicePlugin => ", default-features = false",
            ProjectKind::DraDriver => "",
        };
        let mut text = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n[dependencies]\n\
             davit-sdk = {{ {}{features} }}\nanyhow = \"1\"\nclap = {{ version = \"4\", features = [\"derive\", \"env\"] }}\n",
            self.sdk
        );
        if self.kind == ProjectKind::DraDriver {
            text.push_str(
                "rustls = { version = \"0.23\", default-features = false, features = [\"ring\", \"std\"] }\n",
            );
        }
        text.push_str(
            "tokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\", \"signal\", \"time\"] }\n\n\
             # A workspace of its own, wherever the directory is.\n[workspace]\n",
        );
        text
    }

    fn readme(&self) -> String {
        let Self { name, serves, .. } = self;
        let mut text = format!("# {name}\n\n");
        let (run, ask) = match self.kind {
            ProjectKind::DevicePlugin => {
                let _infallible = writeln!(
                    text,
                    "A device plugin for `{serves}`, on davit's SDK. `discover` in src/main.rs says which devices there are,\n\
                     `allocate` what a container gets."
                );
                (
                    format!(
                        "cargo run                              # in another, as root\ndavit devices --watch                  # {name}-0, {name}-1"
                    ),
                    format!("`resources: {{limits: {{{serves}: 1}}}}`"),
                )
            }
            ProjectKind::DraDriver => {
                let _infallible = writeln!(
                    text,
                    "A driver of dynamic resource allocation, `{serves}`, on davit's SDK. `discover` in src/main.rs says which\n\
                     devices there are, `prepare` and `unprepare` make them ready for claims."
                );
                (
                    "cargo run -- --node-name \"$(hostname)\" --kubeconfig /var/lib/davit/admin.kubeconfig   # in another, as root\nkubectl get resourceslices".to_owned(),
                    format!("a claim of a DeviceClass with the selector `device.driver == '{serves}'`"),
                )
            }
        };
        let _infallible = write!(
            text,
            "\n```sh\ncargo build\n{}\n\ndavit up                               # in one terminal, as root\n{run}\n```\n\n\
             A pod asks by {ask}. `davit explain pod NAME` says why it does not get one.\n",
            self.check()
        );
        text
    }

    /// The command that checks the program.
    fn check(&self) -> String {
        let program = format!("target/debug/{}", self.name);
        match self.kind {
            ProjectKind::DevicePlugin => format!(
                "davit lab check device-plugin -- {program} --socket-dir {{device-plugins}}"
            ),
            ProjectKind::DraDriver => format!(
                "davit lab check dra-driver -- {program} --kubelet-dir {{dir}} --cdi-dir {{cdi-dir}} \\\n    \
                 --node-name {{node}} --kubeconfig {{kubeconfig}} --instance {{instance}}"
            ),
        }
    }

    /// What to do with what was written.
    pub(super) fn next_steps(&self, dir: &Path) -> String {
        let what = match self.kind {
            ProjectKind::DevicePlugin => "a device plugin for",
            ProjectKind::DraDriver => "the driver",
        };
        format!(
            "{dir} is {what} {serves}. Next:\n\n  cd {dir}\n  cargo build\n  {}\n",
            self.check().replace("\\\n", "\\\n  "),
            dir = dir.display(),
            serves = self.serves,
        )
    }
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kind: ProjectKind, name: &str, serves: Option<&str>) -> Result<ProjectPlan> {
        ProjectPlan::new(
            kind,
            name,
            serves.map(str::to_owned),
            "path = \"/s\"".to_owned(),
        )
    }

    #[test]
    fn names_stand_where_the_examples_have_theirs() {
        let plugin = plan(
            ProjectKind::DevicePlugin,
            "ip-camera",
            Some("acme.example/eye"),
        )
        .unwrap();
        let text = plugin.program();
        for wanted in [
            "const RESOURCE: &str = \"acme.example/eye\";",
            "format!(\"ip-camera-{n}\")",
            "env(\"IP_CAMERAS\"",
            "/dev/ip-cameras/{id}",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        let driver = plan(ProjectKind::DraDriver, "ip-camera", None).unwrap();
        let text = driver.program();
        for wanted in [
            "const DRIVER: &str = \"ip-camera.vendor.example\";",
            "struct IpCameras {",
            "IP_CAMERA_{}",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        for text in [plugin.program(), driver.program()] {
            assert!(!text.to_lowercase().contains("widget"), "{text}");
        }
        let manifest = driver.manifest();
        assert!(
            manifest.contains("davit-sdk = { path = \"/s\" }"),
            "{manifest}"
        );
        assert!(
            plugin
                .manifest()
                .contains("path = \"/s\", default-features = false")
        );
        assert!(
            plugin
                .next_steps(Path::new("d"))
                .contains("lab check device-plugin")
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in ["", "Camera", "1st", "a_b", "x-", &"x".repeat(41)] {
            assert!(
                plan(ProjectKind::DevicePlugin, name, None).is_err(),
                "{name}"
            );
        }
        for resource in ["camera", "acme.example/", "Acme!/x"] {
            assert!(
                plan(ProjectKind::DevicePlugin, "x", Some(resource)).is_err(),
                "{resource}"
            );
        }
        for driver in ["Acme", "a..b", &"x".repeat(64)] {
            assert!(
                plan(ProjectKind::DraDriver, "x", Some(driver)).is_err(),
                "{driver}"
            );
        }
    }
}
