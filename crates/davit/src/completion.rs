//! Scripts by which shells complete davit's command lines. They ask the program itself, which knows its flags and asks the
//! cluster for the names of what is in it ([`crate::live`]).

use crate::live;
use anyhow::{Context, Result};
use clap_complete::Shell;
use clap_complete::env::Shells;
use std::ffi::OsString;
use std::path::Path;

/// The name under which kubectl asks what completes `kubectl davit …`.
const FOR_KUBECTL: &str = "kubectl_complete-davit";
/// What kubectl takes for: no names of files beside these.
const NO_FILES: u8 = 4;

/// The script for a shell.
///
/// # Errors
/// The shell is not known.
pub(crate) fn script(shell: Shell) -> Result<Vec<u8>> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&name).context("this shell is not known")?;
    let mut script = Vec::new();
    completer
        .write_registration(live::VARIABLE, "davit", "davit", "davit", &mut script)
        .context("cannot write the script")?;
    Ok(script)
}

/// Answers kubectl, if that is who asks: its arguments are the words behind `kubectl davit`, of which the last is not complete.
pub(crate) fn answer_kubectl(commands: impl FnOnce() -> clap::Command) -> bool {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    if Path::new(&name).file_name() != Some(FOR_KUBECTL.as_ref()) {
        return false;
    }
    let line: Vec<OsString> = [OsString::from("davit")].into_iter().chain(words).collect();
    let last = line.len() - 1;
    // What cannot be completed has no completions.
    let found = clap_complete::engine::complete(&mut commands(), line, last, None);
    for candidate in found.unwrap_or_default() {
        println!("{}", candidate.get_value().to_string_lossy());
    }
    println!(":{NO_FILES}");
    true
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    #[test]
    fn every_shell_gets_a_script_that_asks_davit() {
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(super::script(*shell).unwrap()).unwrap();
            assert!(script.contains("DAVIT_COMPLETE"), "{shell}: {script}");
        }
    }
}
