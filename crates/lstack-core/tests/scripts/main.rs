//! Packet scripts: one stack, and a peer that a script plays segment by segment in virtual time.
//! A scenario is a file `*.pkt` in a folder named after its subject; the words are in [`language`].
//!
//! `cargo test -p lstack-core --test scripts tail_loss` runs those with that in their name.

#[allow(dead_code, reason = "shared with netsim, which uses all of it")]
#[path = "../netsim/tcp/script.rs"]
mod script;
#[allow(dead_code, reason = "shared with netsim, which uses all of it")]
#[path = "../netsim/support/mod.rs"]
mod support;

mod language;
mod values;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let files = scripts(&root).expect("the folder of the scripts can be read");
    assert!(!files.is_empty(), "there are no scripts in {}", root.display());
    let trials = files.into_iter().map(|file| {
        let name = file.strip_prefix(&root).unwrap_or(&file).with_extension("");
        Trial::test(name.display().to_string(), move || {
            let text = fs::read_to_string(&file)?;
            language::run(&text).map_err(|error| format!("{}:{error}", file.display()).into())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// All `*.pkt` below a folder, in order.
fn scripts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(scripts(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
