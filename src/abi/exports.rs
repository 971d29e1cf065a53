//! Makes the exported functions from `table.rs`.
//!
//! A row makes two of them, because profilers define `ncclX` themselves and call `pncclX`. Neither calls the other: such a call would
//! go through the dynamic linker, land in the profiler, and recurse.
#![allow(non_snake_case, reason = "the names of nccl.h")]
#![allow(clippy::missing_safety_doc, reason = "one promise for all, in the parent's documentation")]
#![allow(clippy::too_many_arguments, reason = "the signatures of nccl.h")]

use super::guard::enter;
use super::types::*;
use super::{communicators, operations, stubs};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// One exported function.
macro_rules! export {
    ($(#[$doc:meta])* $name:ident ($($arg:ident: $type:ty),*) -> $ret:ty = $body:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            enter(stringify!($name), || {
                tracing::trace!(target: "CALL", "{}{:?}", stringify!($name), ($($arg,)*));
                // Some of the private functions are safe.
                #[allow(unused_unsafe)]
                // SAFETY: the private function asks for what the caller of this one promised.
                unsafe { $body($($arg),*) }
            })
        }
    };
}

/// The name for a list of all pairs of names, then rows of `ncclX pncclX(arguments) -> answer = private function`.
macro_rules! nccl_api {
    ($pairs:ident: $($(#[$doc:meta])* $name:ident $twin:ident $args:tt -> $ret:ty = $body:path;)*) => {
        $(
            export! { $(#[$doc])* $name $args -> $ret = $body }
            export! { $twin $args -> $ret = $body }
        )*

        #[cfg(test)]
        const $pairs: &[(&str, &str)] = &[$((stringify!($name), stringify!($twin))),*];
    };
}

include!("table.rs");

export! {
    /// The library calls this one itself in NCCL, which is why it has no profiling twin; nothing declares it.
    ncclResetDebugInitInternal() -> () = stubs::reset_debug
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_have_matching_names() {
        assert_eq!(HOST.len() + DEVICE.len(), 82);
        for (name, twin) in HOST.iter().chain(DEVICE) {
            assert_eq!(*twin, format!("p{name}"));
        }
    }
}
