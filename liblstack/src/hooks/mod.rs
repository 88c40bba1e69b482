//! The exported names: C's arguments in, typed calls out, one file per subject.
//!
//! [`hooks!`] defines them. `redhook`'s `hook!` is not used for that: it wraps the body, the real
//! call included, in `catch_unwind` and declares it `extern "C"`, and either ends the process when
//! a thread is cancelled while it waits in the real call (seen: "FATAL: exception not rethrown").
//! Panics are caught further in, see `entry.rs`.

pub mod epoll;
pub mod fd;
pub mod poll;
pub mod process;
pub mod signal;
pub mod socket;
pub mod transfer;

/// Defines hooks. The body gives `Some` answer, or `None` for the real call with the caller's
/// arguments. Those declared `waits` are cancellation points, see `cancel.rs`.
macro_rules! hooks {
    (@answer $body:block) => { $body };
    (@answer waits $body:block) => {{
        $crate::cancel::point();
        loop {
            let answer = $body;
            if !$crate::cancel::was_refused($crate::entry::is_interrupted(&answer)) {
                break answer;
            }
        }
    }};
    ($(
        $(#[$about:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $returns:ty $(, $waits:ident)? $body:block
    )*) => {
        /// The functions behind the names of this file.
        #[allow(non_upper_case_globals, reason = "named as the functions are")]
        pub(crate) mod real {
            use super::*;
            $(
                pub static $name: $crate::symbol::Symbol<
                    unsafe extern "C-unwind" fn($($kind),*) -> $returns
                > = {
                    // SAFETY: the signature is libc's, as the hook of the same name has it.
                    unsafe { $crate::symbol::Symbol::new(concat!(stringify!($name), "\0")) }
                };
            )*
        }

        /// All of them, for the constructor.
        pub(crate) static LOOKUPS: &[&$crate::symbol::Lookup] = &[$(real::$name.lookup()),*];

        $(
            $(#[$about])*
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $returns {
                let answer: Option<$returns> = $crate::hooks::hooks!(@answer $($waits)? $body);
                match answer {
                    Some(answer) => answer,
                    // SAFETY: the caller's own arguments, for the function the caller meant.
                    None => unsafe { real::$name.get()($($arg),*) },
                }
            }
        )*
    };
}
pub(crate) use hooks;

use crate::symbol::Lookup;

/// Looks up every real function.
pub fn resolve_all() {
    let files: [&[&Lookup]; 7] = [
        epoll::LOOKUPS,
        fd::LOOKUPS,
        poll::LOOKUPS,
        process::LOOKUPS,
        signal::LOOKUPS,
        socket::LOOKUPS,
        transfer::LOOKUPS,
    ];
    for lookup in files.into_iter().flatten() {
        lookup.resolve();
    }
}
