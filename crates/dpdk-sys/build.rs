//! Finds the distribution's libdpdk, prepares its archives for linking into a preload library,
//! compiles the C files and generates the bindings.
//!
//! DPDK is linked statically, and only the parts listed here: no plugin directory is scanned at
//! start, and the result is one self-contained library. Two things are changed in *copies* of the
//! archives, by renaming symbols with objcopy:
//!
//! - System calls and printing go to `c/os.c`. The library these archives end up in exports
//!   `socket`, `close`, `epoll_wait` and so on to the program; DPDK's own calls must not come back
//!   through those, and nothing of DPDK may print into the program's output.
//! - Two functions that cost time at every start become weak, and `c/os.c` has other ones.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Oldest release whose ABI and semantics the crate was written against (an LTS).
const DPDK_MIN: &str = "22.11";

const HOW_TO_GET_IT: &str = "install it with `apt-get install libdpdk-dev libclang-dev pkg-config` \
     or `cargo xtask setup`";

/// Libraries that register things in constructors nothing refers to: linked whole.
const REGISTERING_LIBRARIES: &[&str] =
    &["bus_pci", "bus_vdev", "mempool_ring", "ethdev", "mbuf", "mempool", "eal"];

/// Libraries of which the linker takes what the others use, upper layers first.
const LIBRARIES: &[&str] = &[
    "gso",
    "ip_frag",
    "security",
    "cryptodev",
    "hash",
    "timer",
    "net",
    "meter",
    "pci",
    "rcu",
    "ring",
    "telemetry",
    "kvargs",
];

/// Drivers for virtual devices.
const VIRTUAL_DRIVERS: &[&str] =
    &["net_af_packet", "net_af_xdp", "net_memif", "net_null", "net_ring", "net_tap", "net_virtio"];

/// Drivers for hardware that need no library besides DPDK's own. Chosen by what they cost when the
/// library is loaded into a program that opens no socket (page faults of relocated data).
const HARDWARE_DRIVERS: &[&str] = &[
    "common_iavf",
    "net_bnxt",
    "net_e1000",
    "net_ena",
    "net_gve",
    "net_hns3",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_igc",
    "net_ixgbe",
    "net_vmxnet3",
];

/// Calls that DPDK makes and that are answered by `lstack_dpdk_<name>` in `c/os.c` instead.
const REDIRECTED: &[&str] = &[
    // Would come back through the exported hooks.
    "accept",
    "bind",
    "close",
    "connect",
    "dup",
    "epoll_create",
    "epoll_ctl",
    "epoll_wait",
    "fcntl",
    "fcntl64",
    "getsockopt",
    "ioctl",
    "listen",
    "openat64",
    "poll",
    "__poll_chk",
    "read",
    "__read_chk",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "send",
    "sendmsg",
    "sendto",
    "setsockopt",
    "sigaction",
    "socket",
    "write",
    "writev",
    // Would be inherited by programs the host program executes.
    "eventfd",
    "memfd_create",
    "open64",
    "pipe",
    "timerfd_create",
    // Would print into the program's output, or take over its syslog identity.
    "__fprintf_chk",
    "__printf_chk",
    "__syslog_chk",
    "closelog",
    "getopt_long",
    "openlog",
    "perror",
    "printf",
    "putchar",
    "puts",
    "syslog",
    // libnuma reads /sys and changes the memory policy in its constructor, in every program.
    "numa_allocate_nodemask",
    "numa_available",
    "numa_bitmask_free",
    "numa_set_localalloc",
    "numa_set_preferred",
    "get_mempolicy",
    "set_mempolicy",
    // libxdp and libbpf are loaded when an AF_XDP device is made, not by every program.
    "bpf_map__fd",
    "bpf_map_update_elem",
    "bpf_object__close",
    "bpf_object__find_map_by_name",
    "bpf_object__load",
    "bpf_object__next_program",
    "bpf_object__open_file",
    "bpf_program__fd",
    "bpf_xdp_attach",
    "bpf_xdp_detach",
    "bpf_xdp_query_id",
    "libbpf_get_error",
    "xsk_socket__create",
    "xsk_socket__delete",
    "xsk_socket__fd",
    "xsk_umem__create",
    "xsk_umem__delete",
    // From libbsd; two functions do not deserve a library.
    "strlcat",
    "strlcpy",
    // A driver's constructor asks for the right to use I/O ports, in every process that is preloaded.
    "iopl",
];

/// DPDK's own functions that `c/os.c` has a better version of.
const REPLACED: &[&str] = &["get_tsc_freq", "__rte_trace_point_register"];

/// Calls of one driver that need an answer of their own: archive, call, symbol.
const REDIRECTED_OF: &[(&str, &str, &str)] = &[
    ("net_tap", "sigaction", "lstack_dpdk_tap_sigaction"),
    ("net_af_packet", "socket", "lstack_dpdk_packet_socket"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c");
    let dpdk = Dpdk::find();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    link(&dpdk, &out);
    compile(&dpdk);
    generate(&dpdk, &out);
}

/// Says why the build cannot go on, without a panic's noise, and stops it.
fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    println!("cargo:warning={message}");
    exit(1);
}

/// The installed libdpdk.
struct Dpdk {
    cflags: Vec<String>,
    libdir: PathBuf,
}

impl Dpdk {
    fn find() -> Self {
        let probe = pkg_config::Config::new().cargo_metadata(false).probe("libdpdk");
        let found = match probe {
            Ok(found) => found,
            Err(error) => fail(&format!("DPDK (libdpdk) was not found: {HOW_TO_GET_IT} ({error})")),
        };
        if release(&found.version) < release(DPDK_MIN) {
            fail(&format!(
                "DPDK {} is too old, {DPDK_MIN} or a newer LTS is needed: {HOW_TO_GET_IT}",
                found.version
            ));
        }
        // The crate drops flags it does not know, and `-include rte_config.h` matters.
        let output = Command::new("pkg-config").args(["--cflags", "libdpdk"]).output();
        let cflags = match output {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout);
                text.split_whitespace().map(str::to_owned).collect()
            }
            _ => fail("`pkg-config --cflags libdpdk` failed"),
        };
        let libdir = match pkg_config::get_variable("libdpdk", "libdir") {
            Ok(libdir) => PathBuf::from(libdir),
            Err(error) => fail(&format!("`pkg-config --variable=libdir libdpdk` failed: {error}")),
        };
        Self { cflags, libdir }
    }
}

/// `"22.11.3"` as comparable numbers: year and month.
fn release(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Copies the archives with their symbols renamed, and has them linked.
fn link(dpdk: &Dpdk, out: &Path) {
    println!("cargo:rustc-link-search=native={}", out.display());
    let whole = VIRTUAL_DRIVERS.iter().chain(HARDWARE_DRIVERS).chain(REGISTERING_LIBRARIES);
    for name in whole {
        link_archive(dpdk, out, name, "+whole-archive,-bundle");
    }
    // Before what it calls.
    println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=lstack_dpdk");
    for name in LIBRARIES {
        link_archive(dpdk, out, name, "-bundle");
    }
    println!("cargo:rustc-link-lib=dylib=m");
    println!("cargo:rustc-link-lib=dylib=dl");
}

fn link_archive(dpdk: &Dpdk, out: &Path, name: &str, modifiers: &str) {
    let archive = dpdk.libdir.join(format!("librte_{name}.a"));
    if !archive.exists() {
        // Drivers come and go between releases and distributions; without a library the linker
        // names what is missing.
        println!("cargo:warning={} does not exist, left out", archive.display());
        return;
    }
    let copy = format!("lstack_rte_{name}");
    rename_symbols(name, &archive, &out.join(format!("lib{copy}.a")));
    println!("cargo:rustc-link-lib=static:{modifiers}={copy}");
}

fn rename_symbols(name: &str, from: &Path, to: &Path) {
    let own: Vec<_> = REDIRECTED_OF.iter().filter(|(archive, _, _)| *archive == name).collect();
    let mut objcopy = Command::new("objcopy");
    for call in REDIRECTED {
        if own.iter().all(|(_, own_call, _)| own_call != call) {
            objcopy.arg(format!("--redefine-sym={call}=lstack_dpdk_{call}"));
        }
    }
    for (_, call, symbol) in own {
        objcopy.arg(format!("--redefine-sym={call}={symbol}"));
    }
    for symbol in REPLACED {
        objcopy.arg(format!("--weaken-symbol={symbol}"));
    }
    match objcopy.arg(from).arg(to).status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("objcopy of {} failed: {status}", from.display())),
        Err(error) => {
            fail(&format!("objcopy cannot be run ({error}): `apt-get install binutils`"));
        }
    }
}

/// The inline functions and what `REDIRECTED` names.
fn compile(dpdk: &Dpdk) {
    let mut build = cc::Build::new();
    build.files(["c/inline.c", "c/os.c", "c/xdp.c"]).opt_level(2).flag("-fvisibility=hidden");
    build.warnings(true).extra_warnings(true).flag("-Wno-unused-parameter");
    // Fortified headers would call `__read_chk` and the like again.
    build.flag("-U_FORTIFY_SOURCE");
    for flag in &dpdk.cflags {
        build.flag(flag);
    }
    // `link` says where it goes.
    build.cargo_metadata(false).compile("lstack_dpdk");
}

fn generate(dpdk: &Dpdk, out: &Path) {
    let bindings = bindgen::Builder::default()
        .header("c/wrapper.h")
        .clang_args(&dpdk.cflags)
        .allowlist_function("rte_(openlog_stream|log_cur_msg_loglevel|log_set_global_level)")
        .allowlist_function("rte_(eal_init|eal_get_runtime_dir|strerror|version)")
        .allowlist_function("rte_(mempool_free|mempool_avail_count)")
        .allowlist_function("rte_eth_(dev_info_get|dev_configure|dev_start)")
        .allowlist_function("rte_eth_(rx|tx)_queue_setup")
        .allowlist_function("rte_eth_dev_(adjust_nb_rx_tx_desc|get_mtu|get_name_by_port)")
        .allowlist_function("rte_eth_dev_rx_intr_(ctl_q_get_fd|enable|disable)")
        .allowlist_function("rte_eth_(find_next|macaddr_get|link_get_nowait|dev_socket_id)")
        .allowlist_function(
            "rte_eth_(promiscuous_enable|allmulticast_enable|stats_get|stats_reset)",
        )
        .allowlist_function("rte_eth_xstats_(get|get_names)")
        .allowlist_function("ls_.*")
        .allowlist_type("rte_(mbuf|mempool|eth_(conf|dev_info|stats|link|xstat|xstat_name))")
        .allowlist_type("ls_.*")
        .allowlist_var("LS_.*")
        .allowlist_var("RTE_(MAX_ETHPORTS|ETH_NAME_MAX_LEN|PKTMBUF_HEADROOM|LOG_.*)")
        .opaque_type("rte_(mbuf|mempool|device|eth_rxseg_capa|eth_switch_info)")
        .opaque_type("rte_eth_(rx|tx)q?_?conf_private")
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(error) => fail(&format!("bindgen failed: {error} ({HOW_TO_GET_IT})")),
    };
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR is writable");
}
