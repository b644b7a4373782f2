//! Sending a typed mailbox through the NIC driver.
//!
//! Knows: that an answer's header is looked at before the rest.
//! Must not know: what any command does.

use warpverbs_wire::prm::header::Reply;
use warpverbs_wire::prm::{self, Command};

use crate::driver::{DriverError, DriverErrorKind, Nic, NicHandle};
use crate::error::{Error, Result};

/// Executes a command that creates no object.
pub(super) fn command<C: Command>(nic: &dyn Nic, doing: &'static str, input: &C) -> Result<C::Out> {
    let (input, mut output) = (encode(input)?, C::reply());
    nic.command(input.as_ref(), output.as_mut())
        .map_err(Error::driver(doing))?;
    decode::<C>(doing, output.as_ref())
}

/// Creates an object. It exists whether or not the answer can be read: its owner is made first, and undoes it.
pub(super) fn create<C: Command>(
    nic: &dyn Nic,
    doing: &'static str,
    input: &C,
) -> Result<(NicHandle, Result<C::Out>)> {
    let (input, mut output) = (encode(input)?, C::reply());
    let object = nic
        .create(input.as_ref(), output.as_mut())
        .map_err(Error::driver(doing))?;
    Ok((object, decode::<C>(doing, output.as_ref())))
}

/// Modifies an object.
pub(super) fn modify<C: Command>(
    nic: &dyn Nic,
    object: NicHandle,
    doing: &'static str,
    input: &C,
) -> Result<C::Out> {
    let (input, mut output) = (encode(input)?, C::reply());
    nic.modify(object, input.as_ref(), output.as_mut())
        .map_err(Error::driver(doing))?;
    decode::<C>(doing, output.as_ref())
}

/// Queries an object.
pub(super) fn query<C: Command>(
    nic: &dyn Nic,
    object: NicHandle,
    doing: &'static str,
    input: &C,
) -> Result<C::Out> {
    let (input, mut output) = (encode(input)?, C::reply());
    nic.query(object, input.as_ref(), output.as_mut())
        .map_err(Error::driver(doing))?;
    decode::<C>(doing, output.as_ref())
}

fn encode<C: Command>(input: &C) -> Result<C::InBytes> {
    input.encode().map_err(|misfit| Error::InvalidArgument {
        what: format!("{}: {misfit}", C::NAME),
        cure: "stay within the field's range",
    })
}

fn decode<C: Command>(doing: &'static str, output: &[u8]) -> Result<C::Out> {
    let unreadable = |error: prm::Error| {
        Error::driver(doing)(DriverError::new(
            C::NAME,
            DriverErrorKind::Unsupported,
            format!("unreadable answer: {error}"),
        ))
    };
    // A driver reports a refusal itself; one that does not is not believed.
    let reply = Reply::parse(output).map_err(unreadable)?;
    reply.into_result().map_err(|refused| {
        let kind = DriverErrorKind::Command {
            status: refused.status.code(),
            syndrome: refused.syndrome,
        };
        Error::driver(doing)(DriverError::new(C::NAME, kind, refused.to_string()))
    })?;
    C::decode(output).map_err(unreadable)
}
