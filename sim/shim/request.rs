//! An ioctl: its header, its attributes, and what each method accepts.
//!
//! Knows: the checks that the kernel makes before a method is called (drivers/infiniband/core/uverbs_ioctl.c).
//! Must not know: what a method does.

use crate::abi::verbs::{self, IoctlHeader};
use crate::abi::{Field, padded};
use crate::errno::{Errno, Result};
use crate::sys;

/// Most attributes of an ioctl; the kernel's limit is a page.
const MOST: u16 = 256;

/// What an attribute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes to the kernel, so many at least.
    In(u16),
    /// Bytes from the kernel, so many at least.
    Out(u16),
    /// An object.
    Object,
    /// A new object.
    NewObject,
    /// A descriptor.
    Fd,
    /// A new descriptor.
    NewFd,
}

/// What a method accepts as an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) id: u16,
    pub(crate) kind: Kind,
    pub(crate) mandatory: bool,
}

/// An attribute that must be there.
pub(crate) const fn must(id: u16, kind: Kind) -> Spec {
    Spec {
        id,
        kind,
        mandatory: true,
    }
}

/// An attribute that may be there.
pub(crate) const fn may(id: u16, kind: Kind) -> Spec {
    Spec {
        id,
        kind,
        mandatory: false,
    }
}

#[derive(Clone, Copy, Debug)]
struct Attr {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: u64,
    /// Where it lies.
    at: u64,
}

/// An ioctl, read and checked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) object: u16,
    pub(crate) method: u16,
    attrs: Vec<Attr>,
}

impl Request {
    /// Reads an ioctl's header and attributes at `address`.
    pub(crate) fn read(address: u64) -> Result<Self> {
        let header = IoctlHeader::parse(&sys::copy_in(address, IoctlHeader::SIZE)?);
        let len = IoctlHeader::SIZE + usize::from(header.num_attrs) * verbs::ATTR;
        if header.num_attrs > MOST || usize::from(header.length) != len {
            return Err(Errno::INVAL);
        }
        if header.reserved1 != 0 || header.reserved2 != 0 {
            return Err(Errno::PROTONOSUPPORT);
        }
        if header.driver_id != verbs::DRIVER_MLX5 {
            return Err(Errno::INVAL);
        }
        let bytes = sys::copy_in(address, len)?;
        let attrs = bytes
            .get(IoctlHeader::SIZE..)
            .unwrap_or_default()
            .chunks_exact(verbs::ATTR)
            .zip(0u64..)
            .map(|(bytes, index)| Attr {
                id: u16::from_ne_bytes(padded(bytes, 0)),
                len: u16::from_ne_bytes(padded(bytes, 2)),
                flags: u16::from_ne_bytes(padded(bytes, 4)),
                reserved: u16::from_ne_bytes(padded(bytes, 6)),
                data: u64::from_ne_bytes(padded(bytes, 8)),
                at: address + (IoctlHeader::SIZE + index as usize * verbs::ATTR) as u64,
            })
            .collect();
        Ok(Self {
            object: header.object_id,
            method: header.method_id,
            attrs,
        })
    }

    /// Refuses attributes that the method does not accept, and misses those that it needs. What is not known and not
    /// mandatory is dropped.
    pub(crate) fn check(&mut self, specs: &[Spec]) -> Result<()> {
        let mut kept: Vec<Attr> = Vec::with_capacity(self.attrs.len());
        for attr in &self.attrs {
            let Some(spec) = specs.iter().find(|spec| spec.id == attr.id) else {
                if attr.flags & verbs::ATTR_MANDATORY != 0 {
                    return Err(Errno::PROTONOSUPPORT);
                }
                continue;
            };
            let fits = attr.reserved == 0
                && match spec.kind {
                    Kind::In(least) | Kind::Out(least) => attr.len >= least,
                    Kind::Object | Kind::NewObject | Kind::NewFd => attr.len == 0,
                    Kind::Fd => attr.len == 0 && i32::try_from(attr.data as i64).is_ok(),
                };
            if !fits || kept.iter().any(|other| other.id == attr.id) {
                return Err(Errno::INVAL);
            }
            kept.push(*attr);
        }
        let has = |id| kept.iter().any(|attr| attr.id == id);
        if specs.iter().any(|spec| spec.mandatory && !has(spec.id)) {
            return Err(Errno::INVAL);
        }
        self.attrs = kept;
        Ok(())
    }

    fn attr(&self, id: u16) -> Option<&Attr> {
        self.attrs.iter().find(|attr| attr.id == id)
    }

    fn need(&self, id: u16) -> Result<&Attr> {
        self.attr(id).ok_or(Errno::INVAL)
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.attr(id).is_some()
    }

    /// Bytes of an input; none if it is not there. Up to 8 bytes lie in the attribute itself.
    pub(crate) fn input(&self, id: u16) -> Result<Vec<u8>> {
        let Some(attr) = self.attr(id) else {
            return Ok(Vec::new());
        };
        let len = usize::from(attr.len);
        match attr.data.to_ne_bytes().get(..len) {
            Some(inline) => Ok(inline.to_vec()),
            None => sys::copy_in(attr.data, len),
        }
    }

    /// An input that is a number or a structure; zero if it is not there.
    pub(crate) fn value<T: Field>(&self, id: u16) -> Result<T> {
        Ok(T::read(&self.input(id)?))
    }

    /// A number of up to 8 bytes.
    pub(crate) fn number(&self, id: u16) -> Result<u64> {
        self.value(id)
    }

    /// A number of 32 bits, however wide it is passed.
    pub(crate) fn number32(&self, id: u16) -> Result<u32> {
        u32::try_from(self.number(id)?).map_err(|_| Errno::INVAL)
    }

    /// The handle of an object that must be there.
    pub(crate) fn handle(&self, id: u16) -> Result<u32> {
        u32::try_from(self.need(id)?.data).map_err(|_| Errno::NOENT)
    }

    /// The handle of an object, if it is there.
    pub(crate) fn optional_handle(&self, id: u16) -> Result<Option<u32>> {
        if self.has(id) {
            self.handle(id).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A descriptor, if it is there.
    pub(crate) fn fd(&self, id: u16) -> Option<i32> {
        self.attr(id)
            .and_then(|attr| i32::try_from(attr.data as i64).ok())
    }

    /// Bytes that the program has room for in an output.
    pub(crate) fn room(&self, id: u16) -> usize {
        self.attr(id).map_or(0, |attr| usize::from(attr.len))
    }

    /// Fills an output: as much as fits, and zeroes behind it. One that is not there is not wanted.
    pub(crate) fn output(&self, id: u16, bytes: &[u8]) -> Result<()> {
        let Some(attr) = self.attr(id) else {
            return Ok(());
        };
        let mut filled = bytes.to_vec();
        filled.resize(usize::from(attr.len), 0);
        sys::copy_out(attr.data, &filled)?;
        let flags = attr.flags | verbs::ATTR_VALID_OUTPUT;
        sys::copy_out(attr.at + 4, &flags.to_ne_bytes())
    }

    /// Names a new object or descriptor.
    pub(crate) fn created(&self, id: u16, name: i64) -> Result<()> {
        sys::copy_out(self.need(id)?.at + 8, &name.to_ne_bytes())
    }
}
