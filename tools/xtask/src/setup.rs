//! `cargo xtask setup`: the Debian packages that building and testing need.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt_sources::{with_non_free_in_lines, with_non_free_in_stanzas};
use crate::step;

/// Installs what is missing.
pub fn run() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        println!("Everything is there.");
        return Ok(());
    }
    step::need_root("setup installs packages")?;
    if find_program("apt-get").is_none() {
        bail!("this is not Debian; install what these packages hold: {}", missing.join(" "));
    }
    if missing.contains(&"netperf") {
        enable_non_free()?;
    }
    let has_lists = all_known(&missing)?;
    if !has_lists {
        step::run("package lists", update())?;
    }
    if let Err(error) = step::run("packages", install(&missing)) {
        // Old lists name versions that mirrors no longer have.
        if !has_lists {
            return Err(error);
        }
        step::run("package lists", update())?;
        step::run("packages", install(&missing))?;
    }
    let still_missing = self::missing();
    if !still_missing.is_empty() {
        bail!("installed, and yet not found: {}", still_missing.join(" "));
    }
    Ok(())
}

/// The packages of which something is not there.
pub fn missing() -> Vec<&'static str> {
    NEEDS.iter().filter(|(need, _)| !need.is_met()).map(|(_, package)| *package).collect()
}

/// How to see that a package is there, whoever installed it.
enum Need {
    /// A program in the path.
    Program(&'static str),
    /// A file.
    File(&'static str),
    /// A library by its pkg-config name.
    Library(&'static str),
    /// Some version of libclang, which bindgen loads.
    Libclang,
}

const NEEDS: &[(Need, &str)] = &[
    (Need::Program("cc"), "gcc"),
    (Need::File("/usr/include/stdio.h"), "libc6-dev"),
    (Need::Program("pkg-config"), "pkg-config"),
    (Need::Library("libdpdk"), "libdpdk-dev"),
    (Need::Library("numa"), "libnuma-dev"),
    (Need::Library("libxdp"), "libxdp-dev"),
    (Need::Library("libbpf"), "libbpf-dev"),
    (Need::Libclang, "libclang-dev"),
    (Need::Program("netperf"), "netperf"),
    (Need::Program("iperf"), "iperf"),
    (Need::Program("iperf3"), "iperf3"),
    (Need::Program("ip"), "iproute2"),
    (Need::Program("ethtool"), "ethtool"),
    (Need::Program("iptables"), "iptables"),
    (Need::Program("setpriv"), "util-linux"),
];

impl Need {
    fn is_met(&self) -> bool {
        match self {
            Self::Program(name) => find_program(name).is_some(),
            Self::File(path) => Path::new(path).is_file(),
            Self::Library(name) => Command::new("pkg-config")
                .args(["--exists", name])
                .status()
                .is_ok_and(|status| status.success()),
            Self::Libclang => libclang_is_there(),
        }
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    // Root's tools are not in everybody's path, but a rig runs as root.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn libclang_is_there() -> bool {
    let Ok(folders) = fs::read_dir("/usr/lib") else { return false };
    folders.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-")).any(
        |entry| {
            let library = entry.path().join("lib");
            ["libclang.so", "libclang.so.1"].iter().any(|name| library.join(name).exists())
        },
    )
}

/// Whether apt has heard of all packages, so that fetching the lists can be spared.
fn all_known(packages: &[&str]) -> Result<bool> {
    let output = Command::new("apt-cache")
        .arg("policy")
        .args(packages)
        .output()
        .context("asking apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let known = text
        .lines()
        .filter(|line| line.trim_start().starts_with("Candidate:") && !line.ends_with("(none)"))
        .count();
    Ok(known == packages.len())
}

/// netperf's licence puts it into Debian's component non-free.
fn enable_non_free() -> Result<()> {
    let release = release_name()?;
    let folder = Path::new("/etc/apt/sources.list.d");
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir(folder) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let changed = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => with_non_free_in_stanzas(&text, &release),
            Some("list") => with_non_free_in_lines(&text, &release),
            _ => None,
        };
        if let Some(changed) = changed {
            println!("== enabling the component non-free in {}", path.display());
            fs::write(&path, changed).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

fn release_name() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    text.lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release names no release")
}

fn update() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("update");
    command
}

/// Installs without starting the servers some packages bring: netperf's would listen to the world.
/// The shell's trap takes the policy away again, also after Ctrl-C.
fn install(packages: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-c", INSTALL_WITHOUT_STARTING, "install"])
        .args(packages);
    command
}

const INSTALL_WITHOUT_STARTING: &str = r#"
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
apt-get install --yes --no-install-recommends "$@"
"#;
