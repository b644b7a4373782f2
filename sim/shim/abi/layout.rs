//! Structures that user space and kernel share: native byte order, fields at the offsets of the C headers.
//!
//! Knows: how a field is read and written. Must not know: any structure.
//!
//! A structure is declared once by `abi!`, which makes the typed form, `parse`, `emit` and the table that ci/ffi-check
//! compares with the system's headers.

/// The table of a structure's fields, for the comparison with the C headers.
#[derive(Debug)]
pub struct Layout {
    /// The structure's name in C.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Name in C, offset and bytes of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// A value that a field holds.
pub(crate) trait Field: Sized + Default {
    const SIZE: usize;
    /// Reads it; bytes that are missing are zero, as the kernel extends what an older user space passes.
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, bytes: &mut [u8]);
}

/// `N` bytes from `offset` on; those that are missing are zero.
pub(crate) fn padded<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut padded = [0; N];
    let found = bytes.get(offset..).unwrap_or_default();
    for (to, from) in padded.iter_mut().zip(found) {
        *to = *from;
    }
    padded
}

/// Copies as much as fits.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const SIZE: usize = size_of::<$type>();
            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(padded(bytes, 0))
            }
            fn write(&self, bytes: &mut [u8]) {
                copy(&self.to_ne_bytes(), bytes);
            }
        }
    )*};
}
number!(u8, u16, u32, u64, i32);

macro_rules! array {
    ($($len:literal),*) => {$(
        impl Field for [u8; $len] {
            const SIZE: usize = $len;
            fn read(bytes: &[u8]) -> Self {
                padded(bytes, 0)
            }
            fn write(&self, bytes: &mut [u8]) {
                copy(self, bytes);
            }
        }
    )*};
}
array!(6, 16);

/// Declares a structure. `field = "c_name"` where the name in C is another.
macro_rules! abi {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $structure:ident = $c:literal, $size:literal bytes {
            $($field:ident $(= $name:literal)?: $type:ty => $offset:literal;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            $visibility struct $structure {
                $($visibility $field: $type,)*
            }

            #[allow(dead_code, reason = "each structure is read or written, few are both")]
            impl $structure {
                /// Bytes.
                pub(crate) const SIZE: usize = $size;
                /// For the comparison with the C headers.
                pub(crate) const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                    name: $c,
                    size: $size,
                    fields: &[$((
                        abi!(@name $field $($name)?),
                        $offset,
                        <$type as $crate::abi::Field>::SIZE,
                    )),*],
                };

                /// Reads it. What is missing is zero.
                pub(crate) fn parse(bytes: &[u8]) -> Self {
                    Self {
                        $($field: <$type as $crate::abi::Field>::read(
                            bytes.get($offset..).unwrap_or_default(),
                        ),)*
                    }
                }

                /// Its bytes.
                pub(crate) fn emit(&self) -> [u8; $size] {
                    let mut bytes = [0; $size];
                    $($crate::abi::Field::write(
                        &self.$field,
                        bytes.get_mut($offset..).unwrap_or_default(),
                    );)*
                    bytes
                }
            }

            impl $crate::abi::Field for $structure {
                const SIZE: usize = $size;
                fn read(bytes: &[u8]) -> Self {
                    Self::parse(bytes)
                }
                fn write(&self, bytes: &mut [u8]) {
                    $crate::abi::copy(&self.emit(), bytes);
                }
            }
        )*

        /// Every structure of this file.
        pub(crate) const LAYOUTS: &[$crate::abi::Layout] = &[$($structure::LAYOUT),*];
    };
}
pub(crate) use abi;
