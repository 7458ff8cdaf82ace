//! Compresses the files of the console, so that the binary carries them as most browsers take them.

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::{Error, Result, Write as _};
use std::path::Path;
use std::{env, fs};

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=files");
    let out = env::var("OUT_DIR").map_err(Error::other)?;
    let mut table = String::from("&[\n");
    let mut entries = fs::read_dir("files")?.collect::<Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let content = fs::read(entry.path())?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&content)?;
        let packed = Path::new(&out).join(format!("{name}.gz"));
        fs::write(&packed, encoder.finish()?)?;
        let hash = Sha256::digest(&content);
        let tag = hash[..12].iter().fold(String::new(), |mut tag, byte| {
            // a String takes everything
            let _infallible = write!(tag, "{byte:02x}");
            tag
        });
        let _infallible = writeln!(
            table,
            "    File {{ name: {name:?}, etag: \"\\\"{tag}\\\"\", length: {}, gzip: include_bytes!({packed:?}) }},",
            content.len()
        );
    }
    table.push_str("]\n");
    fs::write(Path::new(&out).join("files.rs"), table)
}
