//! Writes the documents that are made from the table of keys.

use std::fs;
use std::io;
use std::path::Path;

use lstack_config::document::{reference_page, sample_file};

fn main() -> io::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::write(package.join("lstack.conf"), sample_file())?;
    fs::write(package.join("../docs/configuration.md"), reference_page())
}
