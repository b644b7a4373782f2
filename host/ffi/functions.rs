//! The functions of libibverbs and libmlx5 that the driver calls, by name and version.
//!
//! Knows: how a symbol of a version is found. Must not know: when it is called.
//!
//! One of the files with `unsafe`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::bindings::*;

/// Why rdma-core cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLoaded {
    /// A library is missing.
    #[error(
        "{library} cannot be loaded ({why}): install rdma-core 44 or later (Debian: ibverbs-providers)"
    )]
    Library {
        /// Its file.
        library: &'static str,
        /// What the loader says.
        why: String,
    },
    /// A library is too old.
    #[error("{library} has no {symbol}@{version}: install rdma-core 44 or later")]
    Symbol {
        /// Its file.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// Its version.
        version: &'static str,
    },
}

const VERBS: &str = "libibverbs.so.1";
const MLX5: &str = "libmlx5.so.1";

/// Declares the table: `library, version: fn name(arguments) -> result;`
macro_rules! functions {
    ($($library:ident $version:literal fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions. Whoever calls one keeps to its manual page.
        #[allow(missing_debug_implementations, reason = "addresses say nothing")]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            newer: Option<DataDirect>,
        }

        impl Functions {
            fn find() -> Result<Self, NotLoaded> {
                // libmlx5 is linked with libibverbs: both are of one version, or the loader refuses.
                let verbs = open(VERBS)?;
                let mlx5 = open(MLX5)?;
                Ok(Self {
                    $($name: {
                        let (file, library) = functions!(@library $library verbs mlx5);
                        let found = symbol(
                            library,
                            file,
                            (stringify!($name), concat!(stringify!($name), "\0")),
                            ($version, concat!($version, "\0")),
                        )?;
                        // SAFETY: `transmute` from an address to a function pointer of the same size demands that the function
                        // there has this signature: it is the one that the header declares for the symbol of this version,
                        // which ci/ffi-check has the compiler confirm.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                    newer: DataDirect::find(mlx5),
                })
            }
        }
    };
    (@library verbs $verbs:ident $mlx5:ident) => { (VERBS, $verbs) };
    (@library mlx5 $verbs:ident $mlx5:ident) => { (MLX5, $mlx5) };
}

include!("table.rs");

type RegDmabufMr =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;
type GetDataDirectSysfsPath = unsafe extern "C" fn(*mut ibv_context, *mut c_char, usize) -> c_int;

/// Functions of rdma-core 54 and later. The headers that the other declarations come from do not have them (`mlx5dv.h` of 54).
#[allow(missing_debug_implementations, reason = "addresses say nothing")]
pub(crate) struct DataDirect {
    pub(crate) mlx5dv_reg_dmabuf_mr: RegDmabufMr,
    pub(crate) mlx5dv_get_data_direct_sysfs_path: GetDataDirectSysfsPath,
}

impl DataDirect {
    fn find(mlx5: *mut c_void) -> Option<Self> {
        let version = c"MLX5_1.25";
        let register = versioned(mlx5, c"mlx5dv_reg_dmabuf_mr", version);
        let path = versioned(mlx5, c"mlx5dv_get_data_direct_sysfs_path", version);
        if register.is_null() || path.is_null() {
            return None;
        }
        // SAFETY: `transmute` as in `Functions::find`: rdma-core 54's `mlx5dv.h` declares the two of this version so.
        unsafe {
            Some(Self {
                mlx5dv_reg_dmabuf_mr: std::mem::transmute::<*mut c_void, RegDmabufMr>(register),
                mlx5dv_get_data_direct_sysfs_path: std::mem::transmute::<
                    *mut c_void,
                    GetDataDirectSysfsPath,
                >(path),
            })
        }
    }
}

impl Functions {
    /// Those of data-direct registration, where rdma-core has them.
    pub(crate) fn data_direct(&self) -> Option<&DataDirect> {
        self.newer.as_ref()
    }

    /// The functions, found at the first call.
    pub(crate) fn get() -> Result<&'static Self, NotLoaded> {
        static FUNCTIONS: OnceLock<Result<Functions, NotLoaded>> = OnceLock::new();
        FUNCTIONS
            .get_or_init(Self::find)
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// The handle of a library, which stays loaded until the process ends: its functions are kept.
fn open(library: &'static str) -> Result<*mut c_void, NotLoaded> {
    // SAFETY: loading runs the library's constructors, which demands that they are sound: those of rdma-core only register
    // providers.
    unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) }
        .map(Library::into_raw)
        .map_err(|error| NotLoaded::Library {
            library,
            why: error.to_string(),
        })
}

/// A symbol of exactly this version: the default one may be of another signature in another release. Each name comes with
/// its C string.
fn symbol(
    library: *mut c_void,
    file: &'static str,
    symbol: (&'static str, &'static str),
    version: (&'static str, &'static str),
) -> Result<*mut c_void, NotLoaded> {
    let missing = NotLoaded::Symbol {
        library: file,
        symbol: symbol.0,
        version: version.0,
    };
    let (Ok(name), Ok(of)) = (
        CStr::from_bytes_with_nul(symbol.1.as_bytes()),
        CStr::from_bytes_with_nul(version.1.as_bytes()),
    ) else {
        return Err(missing);
    };
    let found = versioned(library, name, of);
    if found.is_null() {
        Err(missing)
    } else {
        Ok(found)
    }
}

#[cfg(target_env = "gnu")]
fn versioned(library: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: `dlvsym` demands an open handle, which `open` gave, and two strings.
    unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) }
}

/// Other C libraries know no versions of symbols: rdma-core is built there with the newest ones.
#[cfg(not(target_env = "gnu"))]
fn versioned(library: *mut c_void, name: &CStr, _version: &CStr) -> *mut c_void {
    // SAFETY: `dlsym` demands an open handle, which `open` gave, and a string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

#[cfg(test)]
mod tests {
    /// Newest versions of symbols in rdma-core 44.0 (its `libibverbs.map.in` and `libmlx5.map`).
    const IN_44: [(&str, u32); 2] = [("IBVERBS_1.", 14), ("MLX5_1.", 24)];

    #[test]
    fn every_function_of_the_table_is_in_rdma_core_44() {
        let lines = include_str!("table.rs").lines();
        let versions: Vec<&str> = lines
            .filter(|line| line.contains(" fn "))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(versions.len() >= 32);
        for version in versions {
            let older = IN_44.iter().any(|(family, newest)| {
                let minor = version.strip_prefix(family).map(str::parse::<u32>);
                matches!(minor, Some(Ok(minor)) if minor <= *newest)
            });
            assert!(
                older,
                "{version} must be optional, with an error that says so"
            );
        }
    }
}
