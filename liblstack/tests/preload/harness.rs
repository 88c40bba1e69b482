//! Builds the library and small C programs, runs them plain and preloaded.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The library: what `LSTACK_LIB` names, or a release build made now.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = env::var_os("LSTACK_LIB") {
            return PathBuf::from(path);
        }
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--package", "liblstack"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs, it runs this test");
        assert!(built.success(), "the library doesn't build");
        target_directory().join("release/liblstack.so")
    })
}

/// Compiles `tests/programs/<name>.c`.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    // One for each test: a file that is being written can't be executed.
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    let count = COMPILED.fetch_add(1, Ordering::Relaxed);
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}-{}-{count}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-Wall", "-Werror", "-Wno-deprecated-declarations", "-pthread"])
        .args(flags)
        .arg("-o")
        .args([&binary, &source])
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "{} doesn't compile", source.display());
    binary
}

/// A program without anything of ours in its environment.
pub fn plain(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("LSTACK_") || name_text.starts_with("GAZELLE_") {
            command.env_remove(&name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// A program with the library, and a configuration that is not there: it runs on the kernel.
pub fn preloaded(program: impl AsRef<Path>) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library()).env("LSTACK_CONF_PATH", NO_FILE);
    command
}

/// Runs a program both ways; what it prints and how it ends must be the same. Returns what the
/// preloaded one printed on standard error.
pub fn same_as_plain(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let run = |mut command: Command| command.args(arguments).output().expect("the program starts");
    let expected = run(plain(program.as_ref()));
    let found = run(preloaded(program.as_ref()));
    assert!(expected.status.success(), "the test itself is wrong: {expected:?}");
    let shown = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(shown(&found), shown(&expected), "preloaded (left) and plain, {found:?}");
    assert_eq!(found.status, expected.status);
    String::from_utf8_lossy(&found.stderr).into_owned()
}

/// What a program says that wanted the stack and has no configuration.
pub fn notice() -> String {
    format!(
        "lstack: cannot read {NO_FILE}: No such file or directory (os error 2); \
         the program runs on the kernel\n"
    )
}

const NO_FILE: &str = "/nonexistent/lstack.conf";

fn target_directory() -> PathBuf {
    // <target>/<profile>/deps/<this test>.
    let test = env::current_exe().expect("a running program has a file");
    test.ancestors().nth(3).expect("cargo puts tests three levels down").to_owned()
}
