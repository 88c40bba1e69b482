//! The table of all keys.

use std::time::Duration;

use crate::config::{Ecn, LogLevel, OnInitFailure, StackThreadMode};
use crate::key::Default::{Absent, Required, Value};
use crate::key::Rule::{
    Arguments, Choice, Cpus, File, Fixed, Integer, Ipv4, Ipv6, Mac, Mask, Networks, Retired, Switch,
};
use crate::key::{Default, Group, Key, Rule, Unit};

/// A setter that stores an integer whose range fits the field.
macro_rules! store {
    ($field:ident) => {
        |config, number| {
            config.$field = number.try_into().expect("the range of the key fits the field");
        }
    };
}

// Sizes of memory are 64 bits wide in the file; so are they in the configuration.
const _: () = assert!(usize::BITS == 64, "lstack is for 64-bit systems");

/// Largest socket buffer: TCP's window, 2^30 bytes, cannot use more (RFC 7323 section 2.3).
const MAX_BUFFER: i64 = 1 << 30;
/// Smallest socket buffer: two segments of the usual MTU, below which TCP waits for delayed ACKs.
const MIN_BUFFER: i64 = 4096;

/// A key with a field of [`crate::Config`].
const fn key(
    name: &'static str,
    group: Group,
    rule: Rule,
    default: Default,
    about: &'static str,
) -> Key {
    Key { name, group, rule, default, about }
}

/// A key of Gazelle that does not choose anything here.
const fn fixed(
    name: &'static str,
    (min, max): (i64, i64),
    same: &'static [i64],
    default: &'static str,
    instead: &'static str,
) -> Key {
    let rule = Fixed { min, max, same, instead };
    key(name, Group::Compatibility, rule, Value(default), instead)
}

/// A key of old files that is without effect.
const fn retired(name: &'static str, example: &'static str, instead: &'static str) -> Key {
    let default = Absent { meaning: "", example };
    key(name, Group::Compatibility, Retired(instead), default, instead)
}

/// Every key, in the order in which documents list them.
pub static KEYS: &[Key] = &[
    key(
        "dpdk_args",
        Group::Device,
        Arguments(|config, words| config.dpdk_args = words),
        Required(r#"["--vdev=net_tap0,iface=lstack0"]"#),
        "Arguments for DPDK; they name the port. What they leave out is added: --no-huge and -m when \
         nothing is said of memory, --no-pci when a virtual device is named, --no-shconf, \
         --no-telemetry, a --file-prefix of this process, and the CPUs. A physical port needs --allow=<PCI address> and huge pages, for instance \
         [\"--allow=0000:01:00.0\", \"--socket-mem=1024\"].",
    ),
    key(
        "devices",
        Group::Device,
        Mac(|config, address| config.devices = Some(address)),
        Absent { meaning: "the only port", example: "\"02:00:00:00:00:01\"" },
        "Hardware address of the port to use, when DPDK finds more than one.",
    ),
    key(
        "mtu",
        Group::Device,
        Integer {
            min: 576,
            max: 9216,
            unit: Unit::Bytes,
            set: |config, number| {
                config.mtu = Some(number.try_into().expect("the range of the key fits the field"));
            },
        },
        Absent { meaning: "what the device has", example: "1500" },
        "Largest IP packet.",
    ),
    key(
        "nic_rxqueue_size",
        Group::Device,
        Integer { min: 64, max: 8192, unit: Unit::Descriptors, set: store!(nic_rxqueue_size) },
        Value("1024"),
        "Length of each receive queue. A device with a smaller limit gets its limit.",
    ),
    key(
        "nic_txqueue_size",
        Group::Device,
        Integer { min: 64, max: 8192, unit: Unit::Descriptors, set: store!(nic_txqueue_size) },
        Value("1024"),
        "Length of each transmit queue. A device with a smaller limit gets its limit.",
    ),
    key(
        "nic_read_number",
        Group::Device,
        Integer { min: 1, max: 8192, unit: Unit::Frames, set: store!(nic_read_number) },
        Value("128"),
        "Most frames taken from the device before other threads get a turn at the stack.",
    ),
    key(
        "nic_vlan_mode",
        Group::Device,
        Integer {
            min: -1,
            max: 4094,
            unit: Unit::None,
            set: |config, number| {
                // 0 is the tag that stands for "no VLAN" (IEEE 802.1Q).
                config.vlan = u16::try_from(number).ok().filter(|vlan| *vlan > 0);
            },
        },
        Value("-1"),
        "VLAN of the stack: frames are sent with this tag, and received only with it. -1 and 0: \
         frames without tag.",
    ),
    key(
        "link_up_timeout_ms",
        Group::Device,
        Integer {
            min: 0,
            max: 600_000,
            unit: Unit::Milliseconds,
            set: |config, number| {
                config.link_up_timeout = Duration::from_millis(number.unsigned_abs());
            },
        },
        Value("3000"),
        "How long the start waits for the device's link.",
    ),
    key(
        "host_addr",
        Group::Addresses,
        Ipv4(|config, address| config.host_addr = address),
        Required("\"198.18.0.10\""),
        "IPv4 address of the stack. No kernel interface may have it.",
    ),
    key(
        "mask_addr",
        Group::Addresses,
        Mask(|config, prefix_len| config.prefix_len = prefix_len),
        Required("\"255.255.255.0\""),
        "Netmask of host_addr.",
    ),
    key(
        "gateway_addr",
        Group::Addresses,
        Ipv4(|config, address| config.gateway_addr = address),
        Absent {
            meaning: "destinations outside the subnet use the kernel",
            example: "\"198.18.0.1\"",
        },
        "Default gateway, in the subnet of host_addr. \"0.0.0.0\" is as good as absent.",
    ),
    key(
        "host_addr6",
        Group::Addresses,
        Ipv6(|config, address| config.host_addr6 = Some(address)),
        Absent { meaning: "none", example: "\"2001:db8::10\"" },
        "IPv6 address of the stack. Checked, and then unused: IPv6 sockets use the kernel.",
    ),
    key(
        "udp_enable",
        Group::Addresses,
        Switch(|config, on| config.udp_enable = on),
        Value("1"),
        "Whether UDP sockets may use the stack. With 0 all of them use the kernel.",
    ),
    key(
        "stack_addresses",
        Group::Addresses,
        Networks(|config, nets| config.stack_addresses = nets),
        Value("[]"),
        "Destinations that use the stack even if the kernel has an interface in their subnet.",
    ),
    key(
        "kernel_addresses",
        Group::Addresses,
        Networks(|config, nets| config.kernel_addresses = nets),
        Value("[]"),
        "Destinations that use the kernel even if the stack could reach them. They come before \
         stack_addresses, so no range of those may lie in one of these.",
    ),
    key(
        "stack_thread_mode",
        Group::Threads,
        Choice(&[
            ("run-to-completion", |config| {
                config.stack_thread_mode = StackThreadMode::RunToCompletion;
            }),
            ("run-to-wakeup", |config| config.stack_thread_mode = StackThreadMode::RunToWakeup),
        ]),
        Value("\"run-to-completion\""),
        "Who drives the stack. run-to-completion: the program's own threads, inside their socket \
         calls; lowest latency. run-to-wakeup: a thread per stack, pinned to its CPU. (Gazelle's \
         default is run-to-wakeup.)",
    ),
    key(
        "num_cpus",
        Group::Threads,
        Cpus(|config, cpus| config.num_cpus = Some(cpus)),
        Absent { meaning: "one stack, not pinned", example: "\"0,1\"" },
        "One stack, with a queue of the device and a thread pinned there, for each CPU.",
    ),
    key(
        "app_spin_us",
        Group::Threads,
        Integer {
            min: 0,
            max: 1_000_000,
            unit: Unit::Microseconds,
            set: |config, number| {
                config.app_spin = Duration::from_micros(number.unsigned_abs());
            },
        },
        Value("200"),
        "How long a program's thread polls in a blocking call before it sleeps. Longer: fewer slow \
         answers when the peer is held up for a moment; shorter: less processor time for programs that \
         wait often.",
    ),
    key(
        "idle_spin_us",
        Group::Threads,
        Integer {
            min: 0,
            max: 1_000_000,
            unit: Unit::Microseconds,
            set: |config, number| {
                config.idle_spin = Duration::from_micros(number.unsigned_abs());
            },
        },
        Value("50"),
        "How long the stack's thread polls without work before it sleeps.",
    ),
    key(
        "stack_interrupt",
        Group::Threads,
        Switch(|config, on| config.stack_interrupt = on),
        Value("0"),
        "Whether the stack's thread sleeps on the device's receive interrupt, if there is one, \
         rather than in short timed sleeps.",
    ),
    key(
        "low_power_mode",
        Group::Threads,
        Switch(|config, on| config.low_power_mode = on),
        Value("0"),
        "Whether an idle stack's thread sleeps at once, and longer: less power, more latency.",
    ),
    key(
        "tcp_conn_count",
        Group::Connections,
        Integer { min: 1, max: 1_000_000, unit: Unit::Connections, set: store!(tcp_conn_count) },
        Value("20000"),
        "Most TCP sockets of the process. Beyond it, socket calls fail as they do when the system \
         has no more memory for sockets. (In Gazelle only a factor of the packet memory.)",
    ),
    key(
        "mbuf_count_per_conn",
        Group::Connections,
        Integer { min: 1, max: 65_535, unit: Unit::Frames, set: store!(mbuf_count_per_conn) },
        Value("170"),
        "Packet buffers for each connection: with tcp_conn_count an upper limit of the packet \
         memory above what the queues need. Data does not stay in packet buffers, so there is \
         seldom a reason to change it.",
    ),
    key(
        "send_buffer",
        Group::Connections,
        Integer { min: MIN_BUFFER, max: MAX_BUFFER, unit: Unit::Bytes, set: store!(send_buffer) },
        Value("262144"),
        "Send buffer of a new TCP socket.",
    ),
    key(
        "send_buffer_max",
        Group::Connections,
        Integer {
            min: MIN_BUFFER,
            max: MAX_BUFFER,
            unit: Unit::Bytes,
            set: store!(send_buffer_max),
        },
        Value("4194304"),
        "Largest send buffer that tuning or SO_SNDBUF can reach.",
    ),
    key(
        "recv_buffer",
        Group::Connections,
        Integer { min: MIN_BUFFER, max: MAX_BUFFER, unit: Unit::Bytes, set: store!(recv_buffer) },
        Value("262144"),
        "Receive buffer of a new TCP socket.",
    ),
    key(
        "recv_buffer_max",
        Group::Connections,
        Integer {
            min: MIN_BUFFER,
            max: MAX_BUFFER,
            unit: Unit::Bytes,
            set: store!(recv_buffer_max),
        },
        Value("6291456"),
        "Largest receive buffer that tuning or SO_RCVBUF can reach.",
    ),
    key(
        "udp_recv_buffer",
        Group::Connections,
        Integer {
            min: MIN_BUFFER,
            max: MAX_BUFFER,
            unit: Unit::Bytes,
            set: store!(udp_recv_buffer),
        },
        Value("1048576"),
        "Receive queue of a new UDP socket.",
    ),
    key(
        "buffer_memory_max",
        Group::Connections,
        Integer { min: 1 << 20, max: 1 << 40, unit: Unit::Bytes, set: store!(buffer_memory_max) },
        Value("536870912"),
        "All socket buffers of the process together. When they come near it, windows shrink.",
    ),
    key(
        "tcp_min_rto_ms",
        Group::Connections,
        Integer {
            min: 1,
            max: 10_000,
            unit: Unit::Milliseconds,
            set: |config, number| {
                config.min_rto = Duration::from_millis(number.unsigned_abs());
            },
        },
        Value("200"),
        "Shortest retransmission timeout. Peers delay acknowledgements by up to 40 ms (Linux) or \
         200 ms; a shorter timeout sends data again that was not lost.",
    ),
    key(
        "tcp_ecn",
        Group::Connections,
        Choice(&[
            ("off", |config| config.ecn = Ecn::Off),
            ("on", |config| config.ecn = Ecn::On),
            ("accept", |config| config.ecn = Ecn::Accept),
        ]),
        Value("\"accept\""),
        "Explicit congestion notification (RFC 3168): routers mark packets instead of dropping \
         them. off: never used. on: asked for with every connection, and used where the peer agrees. \
         accept: used with peers that ask for it. (Linux's tcp_ecn 0, 1 and 2.)",
    ),
    key(
        "on_init_failure",
        Group::Operation,
        Choice(&[
            ("kernel", |config| config.on_init_failure = OnInitFailure::Kernel),
            ("abort", |config| config.on_init_failure = OnInitFailure::Abort),
        ]),
        Value("\"kernel\""),
        "What happens when the stack cannot start. kernel: one message, and the program runs on \
         the kernel's sockets. abort: one message, and the program ends with status 1.",
    ),
    key(
        "exit_linger_ms",
        Group::Operation,
        Integer {
            min: 0,
            max: 600_000,
            unit: Unit::Milliseconds,
            set: |config, number| {
                config.exit_linger = Duration::from_millis(number.unsigned_abs());
            },
        },
        Value("5000"),
        "How long the exit of the program waits, at most, for data that it has sent to reach the \
         peer.",
    ),
    key(
        "log_level",
        Group::Operation,
        Choice(&[
            ("off", |config| config.log_level = LogLevel::Off),
            ("error", |config| config.log_level = LogLevel::Error),
            ("warn", |config| config.log_level = LogLevel::Warn),
            ("info", |config| config.log_level = LogLevel::Info),
            ("debug", |config| config.log_level = LogLevel::Debug),
            ("trace", |config| config.log_level = LogLevel::Trace),
        ]),
        Value("\"warn\""),
        "How much is logged.",
    ),
    key(
        "log_file",
        Group::Operation,
        File(|config, path| config.log_file = Some(path)),
        Absent { meaning: "standard error", example: "\"/var/log/lstack.log\"" },
        "File to which the log is appended.",
    ),
    key(
        "capture",
        Group::Operation,
        File(|config, path| config.capture = Some(path)),
        Absent { meaning: "no capture", example: "\"/tmp/lstack.pcapng\"" },
        "File to which all frames are written (pcapng). Costs speed.",
    ),
    key(
        "stats_file",
        Group::Operation,
        File(|config, path| config.stats_file = Some(path)),
        Absent { meaning: "none", example: "\"/tmp/lstack.json\"" },
        "File to which counters and sockets, with the reason why each is on the kernel or the \
         stack, are written at exit (JSON). The variable LSTACK_STATS_FILE comes before it.",
    ),
    fixed(
        "use_ltran",
        (0, 1),
        &[0],
        "0",
        "the process uses the device itself; sharing it through ltran is not available",
    ),
    fixed(
        "stack_num",
        (0, 320),
        &[0, 1],
        "0",
        "the number of stacks comes from num_cpus; without it there is one",
    ),
    fixed("listen_shadow", (0, 1), &[0, 1], "1", "listeners answer on every stack"),
    fixed(
        "app_bind_numa",
        (0, 1),
        &[0],
        "0",
        "the program's threads keep their affinity; use taskset or numactl",
    ),
    fixed(
        "main_thread_affinity",
        (0, 1),
        &[0],
        "0",
        "the calling thread keeps its affinity; use taskset",
    ),
    fixed(
        "kni_switch",
        (0, 1),
        &[0],
        "0",
        "there is no kernel interface on the stack's port; give the kernel a port of its own, \
         such as another net_tap in dpdk_args",
    ),
    fixed(
        "flow_bifurcation",
        (0, 1),
        &[0],
        "0",
        "the stack's port is not shared with the kernel; give the kernel a port of its own",
    ),
    fixed(
        "tuple_filter",
        (0, 1),
        &[0],
        "0",
        "flows are divided among stacks by the device's RSS or in software; no filter is needed",
    ),
    fixed(
        "num_process",
        (1, 255),
        &[1],
        "1",
        "processes do not share a port; give each its own, such as a virtual function, in dpdk_args",
    ),
    fixed(
        "process_idx",
        (0, 255),
        &[0],
        "0",
        "processes do not share a port; give each its own, such as a virtual function, in dpdk_args",
    ),
    fixed(
        "bond_mode",
        (-1, 6),
        &[-1],
        "-1",
        "bonding is DPDK's: use --vdev=net_bonding0,mode=1,slave=<port>,slave=<port> in dpdk_args",
    ),
    fixed(
        "use_sockmap",
        (0, 1),
        &[0],
        "0",
        "connections within the process stay inside the stack; those between processes of a host \
         use the network",
    ),
    fixed(
        "send_cache_mode",
        (0, 1),
        &[0],
        "0",
        "frames are always sent in bursts, and never wait for a later one",
    ),
    fixed(
        "nonblock_mode",
        (0, 1),
        &[0],
        "0",
        "each socket's own O_NONBLOCK is honoured by every call, accept included",
    ),
    fixed(
        "mem_async_mode",
        (0, 1),
        &[0],
        "0",
        "received data moves to the socket's buffer at once; packet buffers return without delay",
    ),
    retired(
        "app_exclude_cpus",
        "\"7,8\"",
        "the program's threads keep their affinity; use taskset",
    ),
    retired(
        "bond_miimon",
        "10",
        "bonding is DPDK's: use lsc_poll_period_ms=<ms> of --vdev=net_bonding0 in dpdk_args",
    ),
    retired(
        "bond_slave_mac",
        "\"02:00:00:00:00:01;02:00:00:00:00:02\"",
        "bonding is DPDK's: use slave=<port> of --vdev=net_bonding0 in dpdk_args",
    ),
    retired("bond4_slave_mac", "\"\"", "use slave=<port> of --vdev=net_bonding0 in dpdk_args"),
    retired("use_bond4", "0", "use --vdev=net_bonding0,mode=4 in dpdk_args"),
    retired("process_numa", "\"0\"", "use --socket-mem or --numa-mem in dpdk_args"),
    retired(
        "unix_prefix",
        "\"\"",
        "there is no control socket whose name it could be part of; see stats_file",
    ),
    retired("rpc_number", "4", "calls work on the stack directly; there is no queue of calls"),
    retired("rpc_msg_max", "4096", "calls work on the stack directly; there is no queue of calls"),
    retired("mem_cache_num", "32", "threads keep no packet buffers of their own"),
    retired("mbuf_pool_size", "1024000", "replaced by tcp_conn_count and mbuf_count_per_conn"),
    retired("nic_read_num", "128", "replaced by nic_read_number"),
    retired("kni_swith", "0", "there is no kernel interface on the stack's port"),
    retired(
        "send_connect_number",
        "4",
        "replaced by nic_read_number, which bounds one turn of the stack",
    ),
    retired(
        "read_connect_number",
        "4",
        "replaced by nic_read_number, which bounds one turn of the stack",
    ),
    retired("num_wakeup", "\"3\"", "waiters are woken directly; there are no wake-up threads"),
    retired("send_ring_size", "32", "replaced by send_buffer and send_buffer_max"),
    retired("recv_ring_size", "128", "replaced by recv_buffer and recv_buffer_max"),
    retired("expand_send_ring", "0", "replaced by send_buffer_max"),
    retired("seperate_send_recv", "0", "a stack sends and receives on the same queue pair"),
    retired("xdp_eth_name", "\"eth0\"", "use --vdev=net_af_xdp0,iface=<name> in dpdk_args"),
];
