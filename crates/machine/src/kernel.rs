//! What of the kernel and of this process a node agent asks for at its start.

use std::path::Path;
use std::{fs, io};

/// What the kubelet sets, and with `protectKernelDefaults` only looks at: the file below `/proc/sys`, and its value.
const WANTED: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Settings of the kernel below `dir` (`/proc/sys`) that are not as the kubelet would have them, in words.
#[must_use]
pub fn unprotected_settings(dir: &Path) -> Vec<String> {
    let odd = WANTED.iter().filter_map(|(file, wanted)| {
        let name = file.replace('/', ".");
        match fs::read_to_string(dir.join(file)) {
            Ok(text) if text.trim() == *wanted => None,
            Ok(text) => Some(format!("{name} is {}, not {wanted}", text.trim())),
            Err(error) => Some(format!("{name}: {error}")),
        }
    });
    odd.collect()
}

/// Sets by how much the kernel would rather kill this process, or rather not, when memory runs out.
///
/// # Errors
/// The kernel refuses: less than before needs `CAP_SYS_RESOURCE`.
pub fn set_oom_score(score: i32) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// Sets how many files this process may have open.
///
/// # Errors
/// The kernel refuses: more than before needs `CAP_SYS_RESOURCE`, and nobody may have more than `fs.nr_open`.
pub fn set_open_files(most: u64) -> io::Result<()> {
    let limit = rustix::process::Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        limit,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, value: &str| {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{value}\n")).unwrap();
        };
        for (file, value) in WANTED {
            put(file, value);
        }
        assert!(unprotected_settings(dir.path()).is_empty());
        put("vm/overcommit_memory", "0");
        fs::remove_file(dir.path().join("kernel/panic")).unwrap();
        let odd = unprotected_settings(dir.path());
        assert_eq!(odd[0], "vm.overcommit_memory is 0, not 1");
        assert!(odd[1].starts_with("kernel.panic: ") && odd.len() == 2);
    }
}
