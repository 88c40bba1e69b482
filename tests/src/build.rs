//! Where the build left the library and the helper programs.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The release build of `liblstack.so`, or what `LSTACK_LIB` names.
///
/// # Errors
///
/// When it has not been built.
pub fn library() -> Result<PathBuf> {
    if let Some(path) = env::var_os("LSTACK_LIB") {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("LSTACK_LIB names {}, which cannot be read", path.display()));
    }
    let path = target_folder()?.join("release/liblstack.so");
    if !path.is_file() {
        bail!("{} is missing: `cargo xtask test` builds it and runs the tests", path.display());
    }
    Ok(path)
}

/// A helper program of this package, such as `rig-peer`.
///
/// # Errors
///
/// When it has not been built.
pub fn helper(name: &str) -> Result<PathBuf> {
    let target = target_folder()?;
    ["release", "debug"]
        .iter()
        .map(|profile| target.join(profile).join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "{name} is missing in {}: `cargo xtask test` builds it and runs the tests",
                target.display()
            )
        })
}

/// The `target` folder this executable lies in.
fn target_folder() -> Result<PathBuf> {
    let executable = env::current_exe().context("finding our own executable")?;
    executable
        .ancestors()
        .find(|folder| folder.ends_with("debug") || folder.ends_with("release"))
        .and_then(Path::parent)
        .map(Path::to_path_buf)
        .with_context(|| format!("{} does not lie in a target folder", executable.display()))
}
