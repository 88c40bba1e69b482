//! Checks that need more than one key.

use crate::config::{Config, Ipv4Net};
use crate::key::Default;
use crate::keys::KEYS;
use crate::load::Draft;
use crate::problem::Fault;

/// Words that only openEuler's build of DPDK knows; any other stops at them.
const OPENEULER_ARGUMENTS: [&str; 1] = ["--map-perfect"];

/// Checks `draft` as a whole, after all its keys.
pub(crate) fn across_keys(draft: &mut Draft) {
    required(draft);
    addresses(draft);
    buffers(draft);
    lists(draft);
    dpdk_arguments(draft);
    stacks(draft);
    if draft.config.host_addr6.is_some() {
        draft.notice(
            "host_addr6",
            "the stack has IPv4 only; IPv6 sockets use the kernel".to_owned(),
        );
    }
}

fn required(draft: &mut Draft) {
    for key in KEYS {
        if matches!(key.default, Default::Required(_)) && !draft.given.contains_key(key.name) {
            draft.problem(key.name, Fault::Missing { allowed: key.rule.allowed() });
        }
    }
}

fn addresses(draft: &mut Draft) {
    if is_bad(draft, &["host_addr", "mask_addr"]) || !draft.given.contains_key("host_addr") {
        return;
    }
    let Some(host) = draft.config.host_addr else {
        draft.problem(
            "host_addr",
            Fault::Value {
                found: "0.0.0.0".to_owned(),
                allowed: "the stack's own address".to_owned(),
            },
        );
        return;
    };
    if !draft.given.contains_key("mask_addr") {
        return;
    }
    let subnet = Ipv4Net { address: host, prefix_len: draft.config.prefix_len };
    let range = format!("{}/{}", subnet.network(), subnet.prefix_len);
    // Ranges of one or two addresses have no network and no broadcast address (RFC 3021).
    let reserved = |address| {
        subnet.prefix_len < 31 && (address == subnet.network() || address == subnet.broadcast())
    };
    if reserved(host) {
        draft.problem(
            "host_addr",
            Fault::Value {
                found: format!("{host}, the network or broadcast address of {range}"),
                allowed: format!("a host's address in {range}"),
            },
        );
    }
    let Some(gateway) = draft.config.gateway_addr.filter(|_| !is_bad(draft, &["gateway_addr"]))
    else {
        return;
    };
    if !subnet.contains(gateway) || reserved(gateway) || gateway == host {
        draft.problem(
            "gateway_addr",
            Fault::Value {
                found: gateway.to_string(),
                allowed: format!("another host's address in {range}, the subnet of host_addr"),
            },
        );
    }
}

/// Each default within its maximum, and room in all for at least one socket.
fn buffers(draft: &mut Draft) {
    let Config { send_buffer, send_buffer_max, recv_buffer, recv_buffer_max, .. } = draft.config;
    let pairs = [
        ("send_buffer", send_buffer, "send_buffer_max", send_buffer_max),
        ("recv_buffer", recv_buffer, "recv_buffer_max", recv_buffer_max),
    ];
    for (key, size, max_key, max) in pairs {
        if size > max && !is_bad(draft, &[key, max_key]) {
            // The one that was written is the one to look at.
            let written = if draft.given.contains_key(key) { key } else { max_key };
            let (found, allowed) = if written == key {
                (size, format!("at most {max_key}, which is {max}"))
            } else {
                (max, format!("at least {key}, which is {size}"))
            };
            draft.problem(written, Fault::Value { found: found.to_string(), allowed });
        }
    }
    let one = send_buffer_max + recv_buffer_max;
    let all = draft.config.buffer_memory_max;
    if all < one && !is_bad(draft, &["buffer_memory_max", "send_buffer_max", "recv_buffer_max"]) {
        draft.problem(
            "buffer_memory_max",
            Fault::Value {
                found: all.to_string(),
                allowed: format!("at least send_buffer_max and recv_buffer_max together, {one}"),
            },
        );
    }
}

/// The kernel's list comes first: a range of the stack's within one of the kernel's would never
/// be used.
fn lists(draft: &mut Draft) {
    let Config { kernel_addresses, stack_addresses, .. } = &draft.config;
    let hidden = stack_addresses.iter().find_map(|stack| {
        let kernel = kernel_addresses.iter().find(|kernel| {
            kernel.prefix_len <= stack.prefix_len && kernel.contains(stack.address)
        })?;
        Some((*stack, *kernel))
    });
    if let Some((stack, kernel)) = hidden {
        draft.problem(
            "stack_addresses",
            Fault::Value {
                found: format!("{}/{}", stack.address, stack.prefix_len),
                allowed: format!(
                    "a range that does not lie in {}/{} of kernel_addresses, which come first",
                    kernel.address, kernel.prefix_len
                ),
            },
        );
    }
}

fn dpdk_arguments(draft: &mut Draft) {
    for word in OPENEULER_ARGUMENTS {
        let before = draft.config.dpdk_args.len();
        draft.config.dpdk_args.retain(|argument| argument != word);
        if draft.config.dpdk_args.len() < before {
            draft.notice(
                "dpdk_args",
                format!("{word} is known only to openEuler's DPDK; it is left out"),
            );
        }
    }
    let secondary = draft
        .config
        .dpdk_args
        .iter()
        .any(|argument| argument == "secondary" || argument == "--proc-type=secondary");
    if secondary {
        draft.problem(
            "dpdk_args",
            Fault::Value {
                found: "process type \"secondary\"".to_owned(),
                allowed: "\"primary\" or \"auto\": each process has a device of its own".to_owned(),
            },
        );
    }
}

/// Keys of Gazelle whose meaning depends on the number of stacks.
fn stacks(draft: &mut Draft) {
    let number = |key| draft.given.get(key).and_then(|given| given.number);
    let (stack_num, listen_shadow) = (number("stack_num"), number("listen_shadow"));
    let count = draft.config.stack_count();
    if stack_num == Some(1) && count > 1 {
        draft.notice("stack_num", format!("num_cpus decides: {count} stacks"));
    }
    if listen_shadow == Some(0) && count > 1 {
        draft.notice(
            "listen_shadow",
            "listeners answer on every stack, as with listen_shadow = 1".to_owned(),
        );
    }
}

fn is_bad(draft: &Draft, keys: &[&str]) -> bool {
    keys.iter().any(|key| draft.bad.contains(key))
}
