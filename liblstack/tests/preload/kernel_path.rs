//! Programs without a configuration: they run on the kernel, and nothing but one message tells
//! that the library is there.

use std::fs;
use std::path::Path;

use crate::harness::{self, compile, notice, plain, preloaded, same_as_plain};

#[test]
fn errno_is_touched_by_failures_only() {
    assert_eq!(same_as_plain(compile("errno", &[]), &[]), notice());
}

#[test]
fn signal_handlers_look_and_work_as_ever() {
    assert_eq!(same_as_plain(compile("signals", &[]), &[]), notice());
}

#[test]
fn descriptors_are_the_kernel_s() {
    for flags in [&[][..], &["-D_FILE_OFFSET_BITS=64"]] {
        assert_eq!(same_as_plain(compile("descriptors", flags), &[]), notice());
    }
}

#[test]
fn threads_can_be_cancelled_and_left_in_hooked_calls() {
    assert_eq!(same_as_plain(compile("cancel", &[]), &[]), notice());
}

#[test]
fn children_live_and_end_as_ever() {
    assert_eq!(same_as_plain(compile("children", &[]), &[]), notice());
}

#[test]
fn fortified_calls_work_and_report_overruns() {
    let program = compile("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    assert_eq!(same_as_plain(&program, &[]), notice());
    let overrun = |mut command: std::process::Command| command.arg("17").output().unwrap();
    let [expected, found] = [overrun(plain(&program)), overrun(preloaded(&program))];
    assert!(!expected.status.success());
    assert_eq!((found.status, found.stdout), (expected.status, expected.stdout));
}

#[test]
fn first_sockets_may_come_early_and_together() {
    let program = compile("early", &[]);
    assert_eq!(same_as_plain(&program, &[]), notice());
    let early = preloaded(&program).env("EARLY", "1").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&early.stdout), "first 3\n");
    assert_eq!(String::from_utf8_lossy(&early.stderr), notice());
}

#[test]
fn programs_without_internet_sockets_hear_nothing() {
    let script = "ls / | wc -l; echo $(echo inner); exit 7";
    let run = |mut command: std::process::Command| command.args(["-c", script]).output().unwrap();
    let [expected, found] = [run(plain("/bin/sh")), run(preloaded("/bin/sh"))];
    assert_eq!(expected.status.code(), Some(7));
    assert_eq!(found, expected);
}

#[test]
fn a_filtered_program_hears_nothing() {
    let program = compile("early", &[]);
    let filtered = preloaded(&program).env("LSTACK_BIND_PROCNAME", "another").output().unwrap();
    assert!(filtered.status.success());
    assert_eq!(String::from_utf8_lossy(&filtered.stderr), "");
}

#[test]
fn without_any_file_the_message_names_all_places() {
    let places = ["/etc/lstack.conf", "/etc/gazelle/lstack.conf"];
    if places.iter().any(|place| Path::new(place).exists()) {
        return;
    }
    let program = compile("early", &[]);
    let output = preloaded(program).env_remove("LSTACK_CONF_PATH").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(message.lines().count(), 1, "{message}");
    for place in places.into_iter().chain(["LSTACK_CONF_PATH"]) {
        assert!(message.contains(place), "{message}");
    }
}

#[test]
fn wrong_keys_are_told_at_once_and_the_file_may_ask_for_the_end() {
    let program = compile("early", &[]);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong.conf");
    fs::write(&file, "first = 1\nsecond = 2\non_init_failure = \"abort\"\n").unwrap();
    let output = preloaded(&program).env("LSTACK_CONF_PATH", &file).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.lines().all(|line| line.starts_with("lstack: ")), "{message}");
    for key in ["first", "second"] {
        assert!(message.contains(key), "{message}");
    }
    assert!(message.ends_with("the program ends (on_init_failure)\n"), "{message}");
}

#[test]
fn allocators_that_make_calls_of_their_own_start_in_either_order() {
    let libraries = ["libjemalloc.so.2", "libtcmalloc.so.4", "libmimalloc.so.2"];
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let candidates = places
        .iter()
        .flat_map(|place| libraries.iter().map(move |library| Path::new(place).join(library)));
    let program = compile("early", &[]);
    for allocator in candidates.filter(|path| path.exists()) {
        let (own, other) = (harness::library().display(), allocator.display());
        for order in [format!("{own} {other}"), format!("{other} {own}")] {
            let output = preloaded(&program).env("LD_PRELOAD", &order).output().unwrap();
            assert!(output.status.success(), "{order}: {output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stderr), notice(), "{order}");
        }
    }
}
