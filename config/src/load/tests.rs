//! The whole way from text to configuration.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::{any, proptest};

use super::{Loaded, load_file, load_first, load_with, parse};
use crate::config::{Config, Ecn, Ipv4Net, LogLevel, OnInitFailure, StackThreadMode};
use crate::document;
use crate::key::{Default, Key, Rule};
use crate::keys::KEYS;
use crate::problem::{Fault, LoadError, Problem};

const GAZELLE: &str = include_str!("../../fixtures/gazelle.conf");
const SAMPLE: &str = include_str!("../../lstack.conf");
const PAGE: &str = include_str!("../../../docs/configuration.md");

/// What every file needs, on one line so that the next line is 2.
const NEEDED: &str = "dpdk_args = [\"--vdev=net_tap0\"]; host_addr = \"198.18.0.10\"; \
                      mask_addr = \"255.255.255.0\"\n";

fn read(text: &str) -> Result<Loaded, LoadError> {
    parse(text, Path::new("test.conf"))
}

/// The configuration of a file that has this beside what every file needs.
fn with(lines: &str) -> Config {
    let loaded = read(&format!("{NEEDED}{lines}")).unwrap();
    assert_eq!(loaded.notices, []);
    loaded.config
}

fn problems(text: &str) -> Vec<Problem> {
    match read(text) {
        Err(LoadError::Invalid { problems, .. }) => problems,
        other => panic!("{text}: {other:?}"),
    }
}

/// The one problem of a file that has this beside what every file needs.
fn problem_with(line: &str) -> Problem {
    let text = format!("{NEEDED}{line}");
    let mut problems = problems(&text);
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    problems.remove(0)
}

/// A file with `line` in place of the key's own line, if it is one that every file needs.
fn file_with(key: &Key, value: &str) -> String {
    let mut text = String::new();
    for needed in KEYS {
        if let Default::Required(value) = needed.default
            && needed.name != key.name
        {
            text += &format!("{} = {value}\n", needed.name);
        }
    }
    text + &format!("{} = {value}\n", key.name)
}

fn refused(key: &Key, value: &str) {
    let text = file_with(key, value);
    let problems = problems(&text);
    let own = problems.iter().find(|problem| problem.key == key.name);
    let own = own.unwrap_or_else(|| panic!("{text}: {problems:?}"));
    assert_eq!(own.line, Some(text.lines().count()), "{text}: {own:?}");
    let Fault::Value { found, allowed } = &own.fault else { panic!("{text}: {own:?}") };
    assert!(!found.is_empty() && !allowed.is_empty(), "{text}: {own:?}");
}

#[test]
fn sample_file_works_as_it_stands() {
    let loaded = read(SAMPLE).unwrap();
    assert_eq!(loaded.notices, []);
    assert_eq!(loaded.notice(), None);
    let mut expected = Config::default_for_tests(Ipv4Addr::new(198, 18, 0, 10), 24);
    expected.dpdk_args = vec!["--vdev=net_tap0,iface=lstack0".to_owned()];
    assert_eq!(loaded.config, expected);
}

#[test]
fn documents_are_up_to_date() {
    let how = "run `cargo run -p lstack-config --example regenerate`";
    assert!(document::sample_file() == SAMPLE, "config/lstack.conf: {how}");
    assert!(document::reference_page() == PAGE, "docs/configuration.md: {how}");
}

#[test]
fn documents_name_every_key() {
    for key in KEYS {
        let name = key.name;
        let in_file = |line: &str| line.trim_start_matches('#').starts_with(&format!("{name} = "));
        assert!(SAMPLE.lines().any(in_file), "{name} is not in lstack.conf");
        assert!(PAGE.contains(&format!("| `{name}` |")), "{name} is not in configuration.md");
    }
}

#[test]
fn documented_defaults_are_what_absence_means() {
    let mut text = NEEDED.to_owned();
    for key in KEYS {
        if let Default::Value(value) = key.default {
            text += &format!("{} = {value}\n", key.name);
        }
    }
    assert_eq!(read(&text).unwrap().config, with(""));
    assert_eq!(read(&text).unwrap().notices, []);
}

#[test]
fn examples_are_accepted_and_change_something() {
    for key in KEYS {
        let Default::Absent { example, .. } = key.default else { continue };
        let loaded = read(&format!("{NEEDED}{} = {example}\n", key.name)).unwrap();
        if let Rule::Retired(_) = key.rule {
            assert_eq!(loaded.notices.len(), 1, "{}", key.name);
            assert_eq!(loaded.config, with(""));
        } else {
            assert_ne!(loaded.config, with(""), "{}", key.name);
        }
    }
}

#[test]
fn names_are_different() {
    for (index, key) in KEYS.iter().enumerate() {
        assert!(KEYS[..index].iter().all(|other| other.name != key.name), "{}", key.name);
    }
}

#[test]
fn integers_are_taken_up_to_their_limits_and_not_beyond() {
    for key in KEYS {
        let (Rule::Integer { min, max, .. } | Rule::Fixed { min, max, .. }) = key.rule else {
            continue;
        };
        for limit in [min, max] {
            // Another key may object; this one must not.
            if let Err(error) = read(&file_with(key, &limit.to_string())) {
                let LoadError::Invalid { problems, .. } = error else { panic!("{error:?}") };
                let own_range = |problem: &Problem| {
                    matches!(&problem.fault, Fault::Value { allowed, .. }
                        if *allowed == key.rule.allowed())
                };
                assert!(!problems.iter().any(own_range), "{}: {problems:?}", key.name);
            }
        }
        refused(key, &(min - 1).to_string());
        refused(key, &(max + 1).to_string());
        refused(key, "99999999999999999999");
        refused(key, "-99999999999999999999");
    }
}

#[test]
fn values_of_another_type_are_refused() {
    let values = ["1.5", "2024-01-01", "{ a = 1 }", "[[1]]"];
    for key in KEYS {
        let others: &[&str] = match key.rule {
            Rule::Retired(_) => continue,
            Rule::Switch(_) => &["\"1\"", "[1]"],
            Rule::Integer { .. } | Rule::Fixed { .. } => &["\"1\"", "true", "[1]"],
            Rule::Arguments(_) | Rule::Networks(_) => &["\"10.0.0.1\"", "1", "[1]", "[\"\"]"],
            _ => &["1", "true", "[\"2\"]", "\"\""],
        };
        for value in values.iter().chain(others) {
            refused(key, value);
        }
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let long_path = format!("\"/{}\"", "x".repeat(5000));
    for key in KEYS {
        let values: &[&str] = match key.rule {
            Rule::Switch(_) => &["2", "-1"],
            Rule::Choice(_) => &["\"x\"", "\"KERNEL\""],
            Rule::Arguments(_) => &["[]", "[\"-l\", \" \"]", "[\"secondary\"]"],
            Rule::Ipv4(_) => &[
                "\"1.2\"",
                "\"198.18.0\"",
                "\"198.18.0.256\"",
                "\"224.0.0.1\"",
                "\"255.255.255.255\"",
                "\"127.0.0.1\"",
                "\"0.1.2.3\"",
                "\"198.18.0.0\"",
                "\"198.18.0.255\"",
                "\"::1\"",
            ],
            Rule::Mask(_) => {
                &["\"255.0.255.0\"", "\"0.0.0.0\"", "\"0.255.255.255\"", "\"24\"", "\"/24\""]
            }
            Rule::Ipv6(_) => &["\"ff02::1\"", "\"::\"", "\"::1\"", "\"192.0.2.1\"", "\"x\""],
            Rule::Mac(_) => &[
                "\"02:00:00:00:00\"",
                "\"02:00:00:00:00:01:02\"",
                "\"0:0:0:0:0:1\"",
                "\"02:00:00:00:00:0g\"",
                "\"02:00:00:00:00:+1\"",
                "\"01:00:5e:00:00:01\"",
                "\"00:00:00:00:00:00\"",
                "\"0200.0000.0001\"",
            ],
            Rule::Cpus(_) => &[
                "\"a\"",
                "\"1,\"",
                "\"1-\"",
                "\"3-1\"",
                "\"1,1\"",
                "\"1-3,2\"",
                "\"1024\"",
                "\"-1\"",
                "\"+1\"",
                "\"0x\"",
                "\"0x+1\"",
                "\"0-32\"",
            ],
            Rule::Networks(_) => &[
                "[\"10.0.0.0/33\"]",
                "[\"10.0.0.0/\"]",
                "[\"10.0.0.0/+8\"]",
                "[\"10.0.0.0/-1\"]",
                "[\"10.0.0/8\"]",
                "[\"::/0\"]",
                "[\"192.0.2.1\", \"x\"]",
            ],
            Rule::File(_) => &["\"a\\u0000b\"", "\"/tmp/\"", &long_path],
            Rule::Integer { .. } | Rule::Fixed { .. } | Rule::Retired(_) => continue,
        };
        for value in values {
            refused(key, value);
        }
    }
    let too_many = vec!["\"-v\""; 129].join(",");
    assert!(matches!(problem_with_arguments(&too_many).fault, Fault::Value { .. }));
    let too_many = vec!["\"192.0.2.1\""; 257].join(",");
    assert_eq!(problem_with(&format!("stack_addresses = [{too_many}]")).key, "stack_addresses");
}

fn problem_with_arguments(words: &str) -> Problem {
    let text = format!(
        "dpdk_args = [{words}]\nhost_addr = \"192.0.2.1\"\nmask_addr = \"255.255.255.0\"\n"
    );
    problems(&text).remove(0)
}

#[test]
fn queue_sizes_are_powers_of_two() {
    for key in ["nic_rxqueue_size", "nic_txqueue_size"] {
        let problem = problem_with(&format!("{key} = 1000"));
        assert_eq!(
            problem.to_string(),
            format!(
                "2: {key}: found 1000, allowed is an integer from 64 to 8192 (descriptors), a \
                 power of two"
            )
        );
    }
    assert_eq!(with("nic_rxqueue_size = 0x200").nic_rxqueue_size, 512);
}

#[test]
fn every_kind_of_value_arrives_in_the_configuration() {
    let config = with(
        r#"
        devices = "02-00-00-00-00-0F"
        mtu = 9000
        nic_txqueue_size = 2048
        nic_read_number = 32
        nic_vlan_mode = 7
        link_up_timeout_ms = 10
        gateway_addr = "198.18.0.1"
        udp_enable = false
        stack_addresses = ["203.0.113.0/24", "192.0.2.1"]
        kernel_addresses = ["192.0.2.128/25"]
        stack_thread_mode = "run-to-wakeup"
        num_cpus = "3, 0x10-0X12,0"
        app_spin_us = 1
        idle_spin_us = 2
        stack_interrupt = 1
        low_power_mode = True
        tcp_conn_count = 1000000
        mbuf_count_per_conn = 3
        send_buffer = 5000
        send_buffer_max = 6000
        recv_buffer = 7000
        recv_buffer_max = 8000
        udp_recv_buffer = 9000
        buffer_memory_max = 2000000
        tcp_min_rto_ms = 5
        tcp_ecn = "on"
        on_init_failure = "abort"
        exit_linger_ms = 0
        log_level = "debug"
        log_file = "log"
        capture = "/tmp/c"
        stats_file = "/tmp/s"
        "#,
    );
    let mut expected = Config::default_for_tests(Ipv4Addr::new(198, 18, 0, 10), 24);
    expected.dpdk_args = vec!["--vdev=net_tap0".to_owned()];
    expected.devices = Some([2, 0, 0, 0, 0, 15]);
    expected.mtu = Some(9000);
    expected.nic_txqueue_size = 2048;
    expected.nic_read_number = 32;
    expected.vlan = Some(7);
    expected.link_up_timeout = Duration::from_millis(10);
    expected.gateway_addr = Some(Ipv4Addr::new(198, 18, 0, 1));
    expected.udp_enable = false;
    expected.stack_addresses = vec![
        Ipv4Net { address: Ipv4Addr::new(203, 0, 113, 0), prefix_len: 24 },
        Ipv4Net { address: Ipv4Addr::new(192, 0, 2, 1), prefix_len: 32 },
    ];
    expected.kernel_addresses =
        vec![Ipv4Net { address: Ipv4Addr::new(192, 0, 2, 128), prefix_len: 25 }];
    expected.stack_thread_mode = StackThreadMode::RunToWakeup;
    expected.num_cpus = Some(vec![3, 16, 17, 18, 0]);
    expected.app_spin = Duration::from_micros(1);
    expected.idle_spin = Duration::from_micros(2);
    expected.stack_interrupt = true;
    expected.low_power_mode = true;
    expected.tcp_conn_count = 1_000_000;
    expected.mbuf_count_per_conn = 3;
    expected.send_buffer = 5000;
    expected.send_buffer_max = 6000;
    expected.recv_buffer = 7000;
    expected.recv_buffer_max = 8000;
    expected.udp_recv_buffer = 9000;
    expected.buffer_memory_max = 2_000_000;
    expected.min_rto = Duration::from_millis(5);
    expected.ecn = Ecn::On;
    expected.on_init_failure = OnInitFailure::Abort;
    expected.exit_linger = Duration::ZERO;
    expected.log_level = LogLevel::Debug;
    expected.log_file = Some(PathBuf::from("log"));
    expected.capture = Some(PathBuf::from("/tmp/c"));
    expected.stats_file = Some(PathBuf::from("/tmp/s"));
    assert_eq!(config, expected);
    assert_eq!(config.stack_count(), 5);
}

#[test]
fn values_that_stand_for_none_are_none() {
    assert_eq!(with("gateway_addr = \"0.0.0.0\"").gateway_addr, None);
    assert_eq!(with("nic_vlan_mode = 0").vlan, None);
    assert_eq!(with("nic_vlan_mode = -1").vlan, None);
}

#[test]
fn gazelle_s_file_is_accepted_with_one_notice() {
    let loaded = read(GAZELLE).unwrap();
    let config = &loaded.config;
    assert_eq!(config.host_addr, Some(Ipv4Addr::new(192, 0, 2, 10)));
    assert_eq!(config.prefix_len, 24);
    assert_eq!(config.gateway_addr, Some(Ipv4Addr::new(192, 0, 2, 1)));
    assert_eq!(config.devices, Some([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]));
    assert_eq!(config.num_cpus, Some(vec![2, 4, 5, 6]));
    assert_eq!(config.stack_thread_mode, StackThreadMode::RunToWakeup);
    assert_eq!(config.tcp_conn_count, 1500);
    assert_eq!((config.nic_rxqueue_size, config.nic_txqueue_size), (4096, 2048));
    assert_eq!(config.dpdk_args.len(), 9);
    assert!(!config.dpdk_args.contains(&"--map-perfect".to_owned()));

    let noticed: Vec<_> = loaded.notices.iter().map(|notice| notice.key).collect();
    assert_eq!(
        noticed,
        [
            "dpdk_args",
            "app_bind_numa",
            "app_exclude_cpus",
            "host_addr6",
            "rpc_number",
            "mem_cache_num",
            "unix_prefix",
            "process_numa",
            "bond_miimon",
            "bond_slave_mac",
            "nonblock_mode",
            "kni_swith",
            "nic_read_num",
            "send_connect_number",
            "read_connect_number",
            "num_wakeup",
            "mbuf_pool_size",
            "send_ring_size",
            "recv_ring_size",
            "expand_send_ring",
            "rpc_msg_max",
            "seperate_send_recv",
            "mem_async_mode",
        ]
    );
    let notice = loaded.notice().unwrap();
    assert!(notice.starts_with("test.conf: settings of no effect here: line 5: dpdk_args: "));
    assert!(notice.contains("; line 19: app_bind_numa: the program's threads keep their affinity"));
    assert!(!notice.contains('\n'));
}

#[test]
fn what_nonblock_mode_0_asks_for_happens_anyway() {
    assert_eq!(with("nonblock_mode = 0\nudp_enable = 1"), with(""));
}

#[test]
fn several_stacks_contradict_single_stack_keys_with_a_notice() {
    let text = format!("{NEEDED}num_cpus = \"0,1\"\nstack_num = 1\nlisten_shadow = 0\n");
    let loaded = read(&text).unwrap();
    let shown: Vec<_> = loaded.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "line 3: stack_num: num_cpus decides: 2 stacks",
            "line 4: listen_shadow: listeners answer on every stack, as with listen_shadow = 1",
        ]
    );
    with("num_cpus = \"1\"\nstack_num = 1\nlisten_shadow = 0");
}

#[test]
fn five_wrong_keys_are_five_lines_of_one_message() {
    let text = "host_addr = \"198.18.0.10\"\n\
                mask_addr = \"255.0.255.0\" # no mask\n\
                /* two\nlines */\n\
                tcp_con_count = 5\n\
                tcp_conn_count = \"1500\"\n\
                mtu = 100000\n\
                devices = \"xyz\"\n";
    assert_eq!(
        read(text).unwrap_err().to_string(),
        "test.conf:2: mask_addr: found \"255.0.255.0\" (its one bits are not together), allowed is \
         an IPv4 netmask as a string, its one bits first, such as \"255.255.255.0\"\n\
         test.conf:5: tcp_con_count: unknown key, did you mean tcp_conn_count?\n\
         test.conf:6: tcp_conn_count: found \"1500\" (a string), allowed is an integer from 1 to \
         1000000 (connections)\n\
         test.conf:7: mtu: found 100000, allowed is an integer from 576 to 9216 (bytes)\n\
         test.conf:8: devices: found \"xyz\", allowed is a unicast hardware address as a string, \
         such as \"02:00:00:00:00:01\"\n\
         test.conf: dpdk_args: missing, needed is an array of 1 to 128 strings, none of them empty"
    );
}

#[test]
fn what_to_do_without_a_stack_is_known_even_of_a_bad_file() {
    let policy = |text: &str| read(text).unwrap_err().on_init_failure();
    let abort = "on_init_failure = \"abort\"\n";
    assert_eq!(policy("x = 1\n"), OnInitFailure::Kernel);
    assert_eq!(policy(&format!("x = 1\n{abort}")), OnInitFailure::Abort);
    assert_eq!(policy(&format!("x = [\n{abort}")), OnInitFailure::Kernel);
    assert_eq!(policy(&format!("{abort}x = [\n")), OnInitFailure::Abort);
    assert_eq!(policy("on_init_failure = \"panic\"\n"), OnInitFailure::Kernel);
    let missing = load_first(&[PathBuf::from("/nonexistent/lstack.conf")]).unwrap_err();
    assert_eq!(missing.on_init_failure(), OnInitFailure::Kernel);
}

#[test]
fn unknown_keys_get_the_nearest_name_if_one_is_near() {
    let nearest = |line: &str| match problem_with(line).fault {
        Fault::Unknown { nearest } => nearest,
        fault => panic!("{line}: {fault:?}"),
    };
    assert_eq!(nearest("hots_addr = 1"), Some("host_addr"));
    assert_eq!(nearest("TCP-Conn-Count = 1"), Some("tcp_conn_count"));
    assert_eq!(nearest("idle_spin = 1"), Some("idle_spin_us"));
    assert_eq!(nearest("[section]"), None);
    assert_eq!(nearest("colour = 1"), None);
    assert_eq!(nearest(&format!("{} = 1", "x".repeat(1000))), None);
}

#[test]
fn keys_are_compared_with_one_another() {
    let found = |line: &str| {
        let problem = problem_with(line);
        assert_eq!(problem.line, Some(2));
        match problem.fault {
            Fault::Value { found, allowed } => (problem.key, found, allowed),
            fault => panic!("{line}: {fault:?}"),
        }
    };
    for gateway in ["198.18.1.1", "198.18.0.10", "198.18.0.0", "198.18.0.255"] {
        let (key, shown, allowed) = found(&format!("gateway_addr = \"{gateway}\""));
        assert_eq!((key.as_str(), shown.as_str()), ("gateway_addr", gateway));
        assert_eq!(allowed, "another host's address in 198.18.0.0/24, the subnet of host_addr");
    }
    assert_eq!(
        found("send_buffer = 8000000"),
        (
            "send_buffer".to_owned(),
            "8000000".to_owned(),
            "at most send_buffer_max, which is 4194304".to_owned()
        )
    );
    assert_eq!(
        found("recv_buffer_max = 5000"),
        (
            "recv_buffer_max".to_owned(),
            "5000".to_owned(),
            "at least recv_buffer, which is 262144".to_owned()
        )
    );
    assert_eq!(found("buffer_memory_max = 1048576").0, "buffer_memory_max");
    let (key, shown, allowed) =
        found("kernel_addresses = [\"10.1.0.0/8\"]; stack_addresses = [\"10.2.0.0/16\"]");
    assert_eq!((key.as_str(), shown.as_str()), ("stack_addresses", "10.2.0.0/16"));
    assert!(allowed.contains("10.1.0.0/8 of kernel_addresses"), "{allowed}");
    with("kernel_addresses = [\"10.2.0.0/16\"]; stack_addresses = [\"10.0.0.0/8\"]");
}

#[test]
fn small_subnets_have_no_reserved_addresses() {
    let file = |host: &str, mask: &str| {
        read(&format!("dpdk_args = [\"-v\"]\nhost_addr = \"{host}\"\nmask_addr = \"{mask}\""))
    };
    assert_eq!(file("198.18.0.0", "255.255.255.254").unwrap().config.prefix_len, 31);
    assert_eq!(file("198.18.0.7", "255.255.255.255").unwrap().config.prefix_len, 32);
    assert!(file("198.18.0.3", "255.255.255.252").is_err());
    assert!(file("0.0.0.0", "255.255.255.0").is_err());
}

#[test]
fn syntax_errors_name_their_lines() {
    let lines = |text: &str| match read(text) {
        Err(LoadError::Syntax { errors, .. }) => {
            errors.iter().map(|error| error.line).collect::<Vec<_>>()
        }
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(lines("a = 1\nb = \nc = 2\n"), [2]);
    assert_eq!(lines("// x\n/* y\n */ a = \"open\n"), [3]);
    assert_eq!(lines("a = 1\na = 2\n"), [2]);
    assert_eq!(lines("a = 1\n\n/* never closed\n"), [3]);
    assert_eq!(lines("a = 1\nb 2\nc = 3\nd = ]\n"), [2, 4]);
    let message = read("a = [1").unwrap_err().to_string();
    assert!(message.starts_with("test.conf:1: syntax: "), "{message}");
}

#[test]
fn very_bad_files_get_a_bounded_message() {
    let text: String = (0..1000).map(|index| format!("zz{index} = 1\n")).collect();
    let message = read(&text).unwrap_err().to_string();
    assert_eq!(message.lines().count(), 41);
    assert!(message.ends_with("test.conf: and 963 more"));
    let message = problem_with(&format!("\"{}\\u001b\" = 1", "k".repeat(100)));
    assert!(message.to_string().len() < 100);
}

/// A directory of this test's own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("lstack-config-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory left behind in the system's place for such is no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn file_comes_from_the_environment() {
    let scratch = Scratch::new("environment");
    let path = scratch.file("a.conf", format!("{NEEDED}stats_file = \"x\"").as_bytes());
    let environment = |name: &str| match name {
        "LSTACK_CONF_PATH" => Some(OsString::from(&path)),
        _ => None,
    };
    let loaded = load_with(&environment).unwrap();
    assert_eq!(loaded.path, path);
    assert_eq!(loaded.config.stats_file, Some(PathBuf::from("x")));
    let environment = |name: &str| match name {
        "LSTACK_CONF_PATH" => Some(OsString::from(&path)),
        "LSTACK_STATS_FILE" => Some(OsString::from("y")),
        _ => None,
    };
    assert_eq!(load_with(&environment).unwrap().config.stats_file, Some(PathBuf::from("y")));
}

#[test]
fn file_named_by_the_environment_must_exist() {
    let error = load_with(&|name| {
        (name == "LSTACK_CONF_PATH").then(|| OsString::from("/nonexistent/lstack.conf"))
    })
    .unwrap_err();
    assert!(error.to_string().starts_with("cannot read /nonexistent/lstack.conf: No such file"));
}

#[test]
fn first_existing_place_is_used_and_its_problems_end_the_search() {
    let scratch = Scratch::new("places");
    let absent = scratch.0.join("absent.conf");
    let good = scratch.file("good.conf", NEEDED.as_bytes());
    let bad = scratch.file("bad.conf", b"x = 1");
    assert_eq!(load_first(&[absent.clone(), good.clone()]).unwrap().path, good);
    assert!(matches!(load_first(&[bad, good]), Err(LoadError::Invalid { .. })));
    let error = load_first(&[absent.clone(), absent]).unwrap_err().to_string();
    assert!(error.contains("LSTACK_CONF_PATH is not set"), "{error}");
    assert_eq!(error.matches("absent.conf").count(), 2, "{error}");
}

#[test]
fn what_is_no_text_file_is_unreadable() {
    let scratch = Scratch::new("unreadable");
    let message = |path: &Path| match load_file(path) {
        Err(error @ LoadError::Unreadable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(message(&scratch.0).ends_with("not a regular file"));
    assert!(message(Path::new("/dev/zero")).ends_with("not a regular file"));
    let binary = scratch.file("binary.conf", b"a = 1\nb = \"\xff\"\n");
    assert!(message(&binary).ends_with("line 2 is not UTF-8 text"));
    let huge = scratch.file("huge.conf", &vec![b'#'; 70_000]);
    assert!(message(&huge).ends_with("larger than 64 KiB"));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = read(&text);
    }

    #[test]
    fn arbitrary_values_of_known_keys_never_panic(
        settings in proptest::collection::vec(
            (
                0..KEYS.len(),
                "(\"[0-9a-f:.,/x-]{0,20}\"|-?[0-9]{1,22}|\\[.{0,10}\\]|.{0,10})",
            ),
            0..8,
        )
    ) {
        let text: String = settings
            .iter()
            .map(|(key, value)| format!("{} = {value}\n", KEYS[*key].name))
            .collect();
        let _ = read(&text).map_err(|error| error.to_string());
    }
}
