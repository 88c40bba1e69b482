//! The library exports what `exports.txt` lists, and nothing else: a name too many would replace
//! one of the program's own functions.

use std::collections::BTreeSet;
use std::process::Command;

use crate::harness;

const LISTED: &str = include_str!("../../exports.txt");

#[test]
fn exports_are_the_reviewed_ones() {
    let library = harness::library();
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<_> = names.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let listed: BTreeSet<_> = LISTED.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(exported, listed, "exported (left) and listed");
}

#[test]
fn the_list_is_in_order() {
    let names: Vec<_> = LISTED.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(names.is_sorted(), "{names:?}");
}
