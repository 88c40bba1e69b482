//! Counters: plain numbers with a name, one writer each.

/// Declares a struct of `u64` counters whose names can be listed.
macro_rules! counters {
    ($(#[$outer:meta])* $vis:vis struct $name:ident { $($(#[$inner:meta])* $field:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$inner])* pub $field: u64,)*
        }

        impl $name {
            /// Every counter with its name, in the order of declaration.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                // Taken apart in full: a new counter cannot be forgotten here.
                let Self { $($field,)* } = *self;
                [$((stringify!($field), $field),)*].into_iter()
            }
        }
    };
}
pub(crate) use counters;
