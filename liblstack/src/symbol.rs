//! The real functions behind the names this library exports.
//!
//! Owns one [`Symbol`] per hooked name. All are looked up while the library is loaded, so that no
//! hook ever waits for the dynamic linker's lock later: a constructor that runs under that lock may
//! wait for a thread that makes its first `read`. A hook that is called even earlier (an allocator's
//! own constructor) looks its name up at once. Nothing here allocates, locks or uses thread-locals.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A name and where its next definition is.
pub struct Lookup {
    /// With the terminating zero.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Lookup {
    #[inline]
    fn address(&self) -> *mut c_void {
        // Relaxed: the pointer leads to code, which was there before this library.
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.resolve() } else { address }
    }

    /// Finds the next definition. Two threads may do it at once: both find the same.
    ///
    /// `redhook`'s own `real!` keeps the address behind a `Once`. That one can't be entered again by
    /// the same thread, which happens when the look-up itself comes back through a hook (an
    /// allocator's first `calloc`, a signal handler); hence only the look-up is taken from there.
    #[cold]
    pub fn resolve(&self) -> *mut c_void {
        // SAFETY: `name` ends with a zero byte, see `Symbol::new`.
        let found = unsafe { redhook::ld_preload::dlsym_next(self.name) };
        let address = found.cast_mut().cast::<c_void>();
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The next definition of a function of type `F`, a function pointer.
pub struct Symbol<F> {
    lookup: Lookup,
    signature: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    /// # Safety
    ///
    /// `F` is a function pointer with the C signature of `name`, and `name` ends with a zero byte.
    pub const unsafe fn new(name: &'static str) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        let lookup = Lookup { name, address: AtomicPtr::new(ptr::null_mut()) };
        Self { lookup, signature: PhantomData }
    }

    /// The function.
    #[inline]
    pub fn get(&self) -> F {
        let address = self.lookup.address();
        // SAFETY: `new` requires that `F` is the function pointer type of this address.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) }
    }

    /// For the list that is looked up at load time.
    pub const fn lookup(&self) -> &Lookup {
        &self.lookup
    }
}
