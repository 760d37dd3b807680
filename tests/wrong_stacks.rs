//! Stacks that cannot work do not compile, and the compiler says what is missing.
//!
//! Each program is a mistake, and beside it stands what the compiler says to it. After a change of the words, look at
//! what `TRYBUILD=overwrite cargo test --all-features --test wrong_stacks` writes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    env,
    io::{Write, stderr},
    process::Command,
};

/// The compiler whose words stand beside the programs: others say the same in other words.
const SPEAKER: &str = "rustc 1.95.";

#[test]
fn the_compiler_says_what_a_wrong_stack_lacks() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    if !version.starts_with(SPEAKER) {
        // Not by a macro, whose words are kept back when a test passes.
        let told = format!("SKIPPED wrong_stacks: the words are those of {SPEAKER}x, and this is {version}");
        stderr().write_all(told.as_bytes()).unwrap();
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/wrong_stacks/*.rs");
}
