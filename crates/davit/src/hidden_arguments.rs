//! Secrets of the command line, which every account of the machine reads in `/proc/PID/cmdline`: they are blotted out of
//! the process's own memory as soon as they are read, as k3s does (kubeadm leaves them). Until then, some milliseconds,
//! they can be seen; a file (`--token-file`) or a variable (`DAVIT_TOKEN`) never is.

use davit_client::bootstrap_token::BootstrapToken;
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// What stands in the place of a secret.
const BLOT: u8 = b'*';
/// Where the addresses of the arguments stand in `/proc/PID/stat` (proc_pid_stat(5)), counted from what follows the name.
const ARG_START: usize = 45;
const ARG_END: usize = 46;
/// Arguments and environment together have 6 MiB at most (execve(2)).
const MAX_ARGUMENTS: u64 = 8 << 20;

/// Blots out the secrets of this process's command line. It is called once, before there are threads: the words are in
/// no use any more.
///
/// # Errors
/// The kernel does not let the process write its own memory.
pub(crate) fn hide() -> Result<()> {
    let odd = || Error::from(ErrorKind::InvalidData);
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or_else(odd)?;
    let field = |at| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
    let start = field(ARG_START).ok_or_else(odd)?;
    let end = field(ARG_END).ok_or_else(odd)?;
    let length = end
        .checked_sub(start)
        .filter(|l| (1..=MAX_ARGUMENTS).contains(l));
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")?;
    let mut words = vec![0; usize::try_from(length.ok_or_else(odd)?).map_err(Error::other)?];
    memory.read_exact_at(&mut words, start)?;
    for secret in secrets(&words) {
        memory.write_all_at(&vec![BLOT; secret.len()], start + secret.start as u64)?;
    }
    Ok(())
}

/// Where secrets are in the words of a command line, which a zero ends each.
fn secrets(words: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    for word in words.split(|byte| *byte == 0) {
        // `--token=…`
        let value = word
            .iter()
            .position(|byte| *byte == b'=')
            .map_or(0, |sign| sign + 1);
        for begin in [0, value] {
            let token = std::str::from_utf8(&word[begin..]).ok();
            let token = token.and_then(|text| text.parse::<BootstrapToken>().ok());
            if let Some(token) = token {
                let end = at + word.len();
                found.push(end - token.secret().len()..end);
            }
        }
        at += word.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_part_of_tokens_is_found() {
        let shown = |line: &str| {
            let mut words = line.replace(' ', "\0").into_bytes();
            for secret in secrets(&words) {
                words[secret].fill(BLOT);
            }
            String::from_utf8(words).unwrap().replace('\0', " ")
        };
        let (token, blotted) = ("abcdef.0123456789abcdef", "abcdef.****************");
        for line in [
            "davit node --join h:1 --token T --node-name n",
            "davit node --token=T",
            "davit token create T",
            "davit token delete abcdef T",
            "davit install --node -- --token=T",
        ] {
            assert_eq!(shown(&line.replace('T', token)), line.replace('T', blotted));
        }
        for line in ["davit node --node-name abcdef.0123456789abcde", "davit", ""] {
            assert_eq!(shown(line), line);
        }
    }
}
