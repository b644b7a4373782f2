//! Fields of big-endian hardware structures: where they lie, and how to read and write them.
//!
//! Knows: bit positions, and values of a given width.
//! Must not know: any structure of the NIC.
//!
//! A field's offset counts bits from the first bit of the structure, most significant bit of byte 0 first, as the PRM's
//! tables and `mlx5_ifc.h` count them. Each structure is declared once by the macro `structure`, which makes from its list of
//! fields the typed form, `emit`, `parse`, the pretty-printer and the raw table that `ci/wire-check` compares with the
//! vendor's headers. Overlapping or misplaced fields do not compile.

use core::fmt;

/// One field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, as the vendor's header has it; `first..last` if it spans several fields there.
    pub name: &'static str,
    /// First bit, from the start of the structure.
    pub offset: u32,
    /// Width in bits.
    pub width: u32,
    /// Where the field is documented, if not in the header that the structure names.
    pub cited: Option<&'static str>,
    /// The structure that the field holds, if it holds one.
    pub nested: Option<&'static Layout>,
}

impl Field {
    /// The field's value in `bytes`, which begin where the structure begins. `None` if they end before the field does, or
    /// if the field is wider than 64 bits.
    pub const fn get(&self, bytes: &[u8]) -> Option<u64> {
        if self.width > 64 || bytes.len() < bytes_of(self.offset.saturating_add(self.width)) {
            return None;
        }
        Some(get_bits(bytes, self.offset, self.width))
    }

    /// Writes the low `width` bits of `value` and no other bit. False, and nothing is written, where [`Self::get`] gives
    /// `None`.
    #[must_use]
    pub const fn set(&self, bytes: &mut [u8], value: u64) -> bool {
        if self.width > 64 || bytes.len() < bytes_of(self.offset.saturating_add(self.width)) {
            return false;
        }
        set_bits(bytes, self.offset, self.width, value);
        true
    }
}

/// The table of a structure's fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The structure's name in the vendor's header.
    pub name: &'static str,
    /// Which header that is.
    pub header: Header,
    /// Size in bits.
    pub bits: u32,
    /// Fields in ascending order. What lies between them is reserved, or not used here.
    pub fields: &'static [Field],
}

/// What documents a structure: a C header that `ci/wire-check` compares with, or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Linux's `include/linux/mlx5/mlx5_ifc.h`: `struct mlx5_ifc_NAME_bits`.
    Mlx5Ifc,
    /// rdma-core's `mlx5dv.h`: `struct NAME`.
    Mlx5dv,
    /// No header that is compared with: DOCA GPUNetIO's.
    Doca,
    /// Linux's headers of network protocols (`linux/ip.h` and its neighbours): `struct NAME`.
    Linux,
    /// No header: the InfiniBand Architecture specification.
    Iba,
    /// No header: IEEE 802.1Q.
    Ieee,
    /// No header: pcap-savefile(5).
    Pcap,
    /// No header and no source: assumed.
    Assumed,
}

impl Header {
    /// Where the fields of a structure are documented that has no header.
    pub const fn citation(self) -> Option<&'static str> {
        match self {
            Self::Mlx5Ifc | Self::Mlx5dv | Self::Linux => None,
            Self::Doca => {
                Some("DOCA GPUNetIO doca_gpunetio_verbs_def.h, doca_gpunetio_verbs_dev.h")
            }
            Self::Iba => Some("IBA 1.4 volume 1 chapter 9"),
            Self::Ieee => Some("IEEE 802.1Q 9.6"),
            Self::Pcap => Some("pcap-savefile(5)"),
            Self::Assumed => Some("assumed"),
        }
    }
}

impl Layout {
    /// Size in bytes.
    pub const fn size(&self) -> usize {
        bytes_of(self.bits)
    }

    /// Finds a field by name. `outer.inner` names a field of a nested structure, with its offset from the start of this
    /// one.
    pub fn field(&self, path: &str) -> Option<Field> {
        let (head, rest) = match path.split_once('.') {
            Some((head, rest)) => (head, Some(rest)),
            None => (path, None),
        };
        // Some names contain dots themselves (`rmac_47_32..rmac_31_0`): the whole path may be one.
        if let Some(whole) = self.fields.iter().find(|field| field.name == path) {
            return Some(*whole);
        }
        let field = self.fields.iter().find(|field| field.name == head)?;
        let inner = field.nested?.field(rest?)?;
        Some(Field {
            offset: field.offset + inner.offset,
            ..inner
        })
    }

    /// The first bit set in `bytes` that no field covers. Bits after the structure's end are not looked at.
    pub fn reserved_nonzero(&self, bytes: &[u8]) -> Option<u32> {
        (0u32..)
            .zip(bytes.iter().take(self.size()))
            .filter(|(_, byte)| **byte != 0)
            .flat_map(|(index, byte)| {
                (0..8)
                    .filter(move |bit| byte & (0x80 >> bit) != 0)
                    .map(move |bit| index * 8 + bit)
            })
            .find(|bit| !self.covers(*bit))
    }

    fn covers(&self, bit: u32) -> bool {
        self.fields
            .iter()
            .find(|field| (field.offset..field.offset + field.width).contains(&bit))
            .is_some_and(|field| {
                field
                    .nested
                    .is_none_or(|inner| inner.covers(bit - field.offset))
            })
    }

    /// Fails to compile a structure whose fields overlap, leave it, or hold a structure of another size.
    pub(crate) const fn assert_sound(&self) {
        let mut end = 0;
        let mut index = 0;
        while index < self.fields.len() {
            let field = &self.fields[index];
            assert!(field.width > 0, "a field is empty");
            assert!(field.offset >= end, "fields overlap or are out of order");
            end = field.offset + field.width;
            if let Some(inner) = field.nested {
                assert!(
                    inner.bits == field.width,
                    "a nested structure has another size"
                );
                assert!(
                    field.offset.is_multiple_of(8),
                    "a nested structure is not on a byte"
                );
            }
            index += 1;
        }
        assert!(end <= self.bits, "a field leaves the structure");
        assert!(
            self.bits.is_multiple_of(8),
            "a structure is not whole bytes"
        );
    }
}

/// Why bytes are not the structure that they were taken for, or values do not make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There are fewer bytes than the structure has.
    Short {
        /// The structure.
        structure: &'static str,
        /// Bytes that it has.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The mailbox is of another command.
    Opcode {
        /// The structure.
        structure: &'static str,
        /// Its opcode.
        needed: u16,
        /// The opcode found.
        found: u16,
    },
    /// A value needs more bits than its field has.
    OutOfRange {
        /// The structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
        /// The field's width in bits.
        width: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short {
                structure,
                needed,
                found,
            } => write!(f, "{structure} has {needed} bytes, found {found}"),
            Self::Opcode {
                structure,
                needed,
                found,
            } => write!(f, "{structure} has opcode {needed:#x}, found {found:#x}"),
            Self::OutOfRange {
                structure,
                field,
                width,
            } => write!(
                f,
                "the value of {structure}.{field} does not fit its {width} bits"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// What a field can hold. `offset` counts from the start of `bytes`; bits past the end read as zero and are not written.
pub(crate) trait Value: Sized + Copy + PartialEq {
    /// The table of its fields, if it is a structure.
    const LAYOUT: Option<&'static Layout> = None;

    /// Reads it.
    fn get(bytes: &[u8], offset: u32, width: u32) -> Self;
    /// Writes it: the field's bits and no other.
    fn set(self, bytes: &mut [u8], offset: u32, width: u32);
    /// What of it does not fit `width` bits, if anything.
    fn misfit(self, width: u32) -> Option<Misfit>;
    /// Prints it.
    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result;
}

/// A value that its field cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// The field of a nested structure; `None` for the value itself.
    pub(crate) nested: Option<(&'static str, u32)>,
}

/// Bytes that hold `bits` bits.
pub(crate) const fn bytes_of(bits: u32) -> usize {
    bits.div_ceil(8) as usize
}

/// `N` bytes at a bit offset that is whole bytes, if they are there.
#[inline(always)]
const fn whole<const N: usize>(bytes: &[u8], offset: u32) -> Option<[u8; N]> {
    match bytes.split_at_checked((offset / 8) as usize) {
        Some((_, rest)) => match rest.first_chunk() {
            Some(chunk) => Some(*chunk),
            None => None,
        },
        None => None,
    }
}

/// Reads at most 64 bits; those past the end of `bytes` are zero.
#[inline(always)]
pub(crate) const fn get_bits(bytes: &[u8], offset: u32, width: u32) -> u64 {
    // Most fields are whole words: with a known offset each of these is one load.
    if offset.is_multiple_of(8) {
        match width {
            8 => {
                if let Some(word) = whole(bytes, offset) {
                    return u8::from_be_bytes(word) as u64;
                }
            }
            16 => {
                if let Some(word) = whole(bytes, offset) {
                    return u16::from_be_bytes(word) as u64;
                }
            }
            24 => {
                if let Some([a, b, c]) = whole(bytes, offset) {
                    return u32::from_be_bytes([0, a, b, c]) as u64;
                }
            }
            32 => {
                if let Some(word) = whole(bytes, offset) {
                    return u32::from_be_bytes(word) as u64;
                }
            }
            64 => {
                if let Some(word) = whole(bytes, offset) {
                    return u64::from_be_bytes(word);
                }
            }
            _ => {}
        }
    }
    get_bits_one_by_one(bytes, offset, width)
}

/// As [`get_bits`], of any field.
const fn get_bits_one_by_one(bytes: &[u8], offset: u32, width: u32) -> u64 {
    let mut value = 0;
    let mut done = 0;
    while done < width {
        let at = offset + done;
        let in_byte = 8 - at % 8;
        let take = if in_byte < width - done {
            in_byte
        } else {
            width - done
        };
        let index = (at / 8) as usize;
        let byte = if index < bytes.len() { bytes[index] } else { 0 };
        let chunk = (byte >> (in_byte - take)) & low_mask(take);
        value = (value << take) | chunk as u64;
        done += take;
    }
    value
}

/// Writes `word` at a bit offset that is whole bytes; false if there is no room for all of it.
#[inline(always)]
const fn put_whole<const N: usize>(bytes: &mut [u8], offset: u32, word: [u8; N]) -> bool {
    match bytes.split_at_mut_checked((offset / 8) as usize) {
        Some((_, rest)) => match rest.first_chunk_mut() {
            Some(chunk) => {
                *chunk = word;
                true
            }
            None => false,
        },
        None => false,
    }
}

/// Writes the low `width` bits of `value`, at most 64; those past the end of `bytes` are dropped.
#[inline(always)]
pub(crate) const fn set_bits(bytes: &mut [u8], offset: u32, width: u32, value: u64) {
    let done = offset.is_multiple_of(8)
        && match width {
            8 => put_whole(bytes, offset, (value as u8).to_be_bytes()),
            16 => put_whole(bytes, offset, (value as u16).to_be_bytes()),
            24 => {
                let [_, a, b, c] = (value as u32).to_be_bytes();
                put_whole(bytes, offset, [a, b, c])
            }
            32 => put_whole(bytes, offset, (value as u32).to_be_bytes()),
            64 => put_whole(bytes, offset, value.to_be_bytes()),
            _ => false,
        };
    if !done {
        set_bits_one_by_one(bytes, offset, width, value);
    }
}

/// As [`set_bits`], of any field.
const fn set_bits_one_by_one(bytes: &mut [u8], offset: u32, width: u32, value: u64) {
    let mut done = 0;
    while done < width {
        let at = offset + done;
        let in_byte = 8 - at % 8;
        let take = if in_byte < width - done {
            in_byte
        } else {
            width - done
        };
        let index = (at / 8) as usize;
        let shift = in_byte - take;
        let chunk = ((value >> (width - done - take)) as u8) & low_mask(take);
        if index < bytes.len() {
            bytes[index] = (bytes[index] & !(low_mask(take) << shift)) | (chunk << shift);
        }
        done += take;
    }
}

/// The low `bits` (1 to 8) bits.
const fn low_mask(bits: u32) -> u8 {
    (0xff_u16 >> (8 - bits)) as u8
}

/// `None` if `value` fits `width` bits.
pub(crate) const fn misfit(value: u64, width: u32) -> Option<Misfit> {
    if width < 64 && value >> width != 0 {
        Some(Misfit { nested: None })
    } else {
        None
    }
}

macro_rules! unsigned {
    ($($ty:ty),*) => {$(
        impl Value for $ty {
            #[inline(always)]
            fn get(bytes: &[u8], offset: u32, width: u32) -> Self {
                get_bits(bytes, offset, width) as $ty
            }
            #[inline(always)]
            fn set(self, bytes: &mut [u8], offset: u32, width: u32) {
                set_bits(bytes, offset, width, self as u64);
            }
            fn misfit(self, width: u32) -> Option<Misfit> {
                misfit(self as u64, width)
            }
            fn show(&self, f: &mut fmt::Formatter<'_>, _: usize) -> fmt::Result {
                write!(f, "{self:#x}")
            }
        }
    )*};
}
unsigned!(u8, u16, u32, u64);

impl Value for bool {
    fn get(bytes: &[u8], offset: u32, width: u32) -> Self {
        get_bits(bytes, offset, width) != 0
    }
    fn set(self, bytes: &mut [u8], offset: u32, width: u32) {
        set_bits(bytes, offset, width, self as u64);
    }
    fn misfit(self, _: u32) -> Option<Misfit> {
        None
    }
    fn show(&self, f: &mut fmt::Formatter<'_>, _: usize) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Bytes in the order in which they lie in the structure: GIDs, MAC addresses.
impl<const N: usize> Value for [u8; N] {
    fn get(bytes: &[u8], offset: u32, _: u32) -> Self {
        let mut value = [0; N];
        for (at, byte) in (offset..).step_by(8).zip(&mut value) {
            *byte = get_bits(bytes, at, 8) as u8;
        }
        value
    }
    fn set(self, bytes: &mut [u8], offset: u32, _: u32) {
        for (at, byte) in (offset..).step_by(8).zip(self) {
            set_bits(bytes, at, 8, byte as u64);
        }
    }
    fn misfit(self, _: u32) -> Option<Misfit> {
        None
    }
    fn show(&self, f: &mut fmt::Formatter<'_>, _: usize) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Prints one line of a pretty-printed structure.
pub(crate) fn show_field<V: Value>(
    f: &mut fmt::Formatter<'_>,
    depth: usize,
    name: &str,
    value: &V,
) -> fmt::Result {
    write!(f, "\n{:1$}{name}: ", "", depth * 2)?;
    value.show(f, depth)
}

/// Declares a structure: a typed form with one public field for each line
/// `name [= "NAME IN THE HEADER"]: Type => OFFSET, WIDTH [cited "WHERE ELSE IT IS DOCUMENTED"];`
///
/// The type gets `LEN` (bytes), `LAYOUT`, `emit`, `parse`, `check`, `reserved_nonzero` and a pretty-printer.
/// `opcode CODE` makes it a command's input mailbox: it emits and demands that opcode, whose header fields (`opcode`,
/// `uid`, `op_mod`) are in the table but not in the typed form.
macro_rules! structure {
    (
        $(#[$meta:meta])*
        pub struct $ty:ident: $header:ident $name:literal, $bits:literal bits $(, opcode $opcode:literal)? {
            $(
                $(#[$field_meta:meta])*
                $field:ident $(= $field_name:literal)?: $value:ty => $offset:literal, $width:literal $(cited $cited:literal)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $ty {
            $(
                $(#[$field_meta])*
                pub $field: $value,
            )*
        }

        const _: () = $ty::LAYOUT.assert_sound();

        impl $ty {
            /// Size in bytes.
            pub const LEN: usize = $bits / 8;
            $(
                /// The command's opcode.
                pub const OPCODE: u16 = $opcode;
            )?
            /// The table of its fields.
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: $name,
                header: $crate::layout::Header::$header,
                bits: $bits,
                fields: &[
                    $(
                        structure!(@opcode $opcode),
                        $crate::prm::header::UID,
                        $crate::prm::header::OP_MOD,
                    )?
                    $($crate::layout::Field {
                        name: structure!(@name $field $($field_name)?),
                        offset: $offset,
                        width: $width,
                        cited: structure!(@cited $($cited)?),
                        nested: <$value as $crate::layout::Value>::LAYOUT,
                    },)*
                ],
            };

            /// Its bytes, with every reserved bit zero. Of a value that does not fit its field only the low bits are
            /// emitted, and no neighbour is touched: [`Self::check`] finds such values.
            pub fn emit(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                $(
                    $crate::layout::set_bits(&mut bytes, 0, 16, $opcode);
                )?
                <Self as $crate::layout::Value>::set(*self, &mut bytes, 0, $bits);
                bytes
            }

            /// Reads it from the start of `bytes`. Bytes after it, and its reserved bits, are ignored.
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::layout::Error> {
                if bytes.len() < Self::LEN {
                    return Err($crate::layout::Error::Short {
                        structure: $name,
                        needed: Self::LEN,
                        found: bytes.len(),
                    });
                }
                $(
                    let found = $crate::layout::get_bits(bytes, 0, 16) as u16;
                    if found != $opcode {
                        return Err($crate::layout::Error::Opcode {
                            structure: $name,
                            needed: $opcode,
                            found,
                        });
                    }
                )?
                Ok(<Self as $crate::layout::Value>::get(bytes, 0, $bits))
            }

            /// An error that names the first value which does not fit its field.
            pub fn check(&self) -> Result<(), $crate::layout::Error> {
                match <Self as $crate::layout::Value>::misfit(*self, $bits) {
                    Some($crate::layout::Misfit { nested: Some((field, width)) }) => {
                        Err($crate::layout::Error::OutOfRange { structure: $name, field, width })
                    }
                    _ => Ok(()),
                }
            }

            /// The first reserved bit that is set in `bytes`.
            pub fn reserved_nonzero(bytes: &[u8]) -> Option<u32> {
                Self::LAYOUT.reserved_nonzero(bytes)
            }
        }

        impl $crate::layout::Value for $ty {
            const LAYOUT: Option<&'static $crate::layout::Layout> = Some(&$ty::LAYOUT);

            #[inline]
            #[allow(unused_variables, reason = "a structure may have no fields")]
            fn get(bytes: &[u8], offset: u32, _: u32) -> Self {
                Self {
                    $($field: $crate::layout::Value::get(bytes, offset + $offset, $width),)*
                }
            }

            #[inline]
            #[allow(unused_variables, reason = "a structure may have no fields")]
            fn set(self, bytes: &mut [u8], offset: u32, _: u32) {
                $($crate::layout::Value::set(self.$field, bytes, offset + $offset, $width);)*
            }

            fn misfit(self, _: u32) -> Option<$crate::layout::Misfit> {
                $(
                    if let Some(misfit) = $crate::layout::Value::misfit(self.$field, $width) {
                        let own = (structure!(@name $field $($field_name)?), $width);
                        return Some($crate::layout::Misfit { nested: Some(misfit.nested.unwrap_or(own)) });
                    }
                )*
                None
            }

            #[allow(unused_variables, reason = "a structure may have no fields")]
            fn show(&self, f: &mut core::fmt::Formatter<'_>, depth: usize) -> core::fmt::Result {
                write!(f, "{}", $name)?;
                $(
                    // Zero is what an emitted structure holds by default: only what differs is worth a line.
                    if self.$field != <$value as Default>::default() {
                        $crate::layout::show_field(
                            f,
                            depth + 1,
                            structure!(@name $field $($field_name)?),
                            &self.$field,
                        )?;
                    }
                )*
                Ok(())
            }
        }

        impl core::fmt::Display for $ty {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::layout::Value::show(self, f, 0)
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@opcode $opcode:literal) => { $crate::prm::header::OPCODE };
    (@cited) => { None };
    (@cited $cited:literal) => { Some($cited) };
}
pub(crate) use structure;

/// Declares an enumeration whose unnamed values are data: `Unknown` keeps them.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $ty:ident: $repr:ty {
            $(
                $(#[$variant_meta:meta])*
                $variant:ident = $code:literal $(as $constant:literal)?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $ty {
            $(
                $(#[$variant_meta])*
                $variant,
            )*
            /// A value with no name here.
            Unknown($repr),
        }

        impl $ty {
            /// Names of the values in the vendor's headers, with the values.
            pub const CONSTANTS: &'static [(&'static str, u64)] = &[$($(($constant, $code),)?)*];

            /// The value.
            #[inline(always)]
            pub const fn code(self) -> $repr {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// What a value names.
            #[inline(always)]
            pub const fn from_code(code: $repr) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    code => Self::Unknown(code),
                }
            }
        }

        impl Default for $ty {
            /// The meaning of zero.
            fn default() -> Self {
                Self::from_code(0)
            }
        }

        impl $crate::layout::Value for $ty {
            #[inline(always)]
            fn get(bytes: &[u8], offset: u32, width: u32) -> Self {
                Self::from_code($crate::layout::get_bits(bytes, offset, width) as $repr)
            }
            #[inline(always)]
            fn set(self, bytes: &mut [u8], offset: u32, width: u32) {
                $crate::layout::set_bits(bytes, offset, width, self.code() as u64);
            }
            fn misfit(self, width: u32) -> Option<$crate::layout::Misfit> {
                $crate::layout::misfit(self.code() as u64, width)
            }
            fn show(&self, f: &mut core::fmt::Formatter<'_>, _: usize) -> core::fmt::Result {
                write!(f, "{:#x} ({self:?})", self.code())
            }
        }
    };
}
pub(crate) use open_enum;
