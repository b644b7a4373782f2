//! Operations of one message, by one thread.
//!
//! Knows: how a length is checked. Must not know: segments, or how a post is made.
//!
//! Zero bytes are a success without a WQE, where a message without bytes would say nothing: a write and a read.

use crate::{
    error::Error,
    mode::{CqForm, Doorbell, Sharing},
    op::{
        Inline, Length, Local, Nop, Read, Remote, Send, SendImm, SendInline, Work, Write, WriteImm,
        WriteInline,
    },
    sq::{Sq, Ticket},
};

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Posts an RDMA write of `len` bytes. Zero bytes are a success without a WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s, and [`Error::InvalidArgument`] for more than the port's largest message.
    #[inline(always)]
    pub fn post_write(&mut self, local: Local, remote: Remote, len: u32) -> Result<Ticket, Error> {
        self.post_some(len, |len| Write::new(local, remote, len))
    }

    /// Posts an RDMA read of `len` bytes. Zero bytes are a success without a WQE.
    ///
    /// Its completion may not prove that the data is visible to the GPU: see [`Self::get`] and [`Self::settle_reads`].
    ///
    /// # Errors
    ///
    /// As [`Self::post_write`]'s.
    #[inline(always)]
    pub fn post_read(&mut self, local: Local, remote: Remote, len: u32) -> Result<Ticket, Error> {
        self.post_some(len, |len| Read::new(local, remote, len))
    }

    /// Posts an RDMA write of bytes that travel in the WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_write_inline(&mut self, remote: Remote, data: Inline) -> Result<Ticket, Error> {
        self.post(WriteInline::new(remote, data))
    }

    /// Posts an RDMA write of `len` bytes, not zero, with immediate data.
    ///
    /// # Errors
    ///
    /// As [`Self::post_write`]'s, and [`Error::InvalidArgument`] for no bytes.
    #[inline(always)]
    pub fn post_write_imm(
        &mut self,
        local: Local,
        remote: Remote,
        len: u32,
        immediate: u32,
    ) -> Result<Ticket, Error> {
        let write = Write::new(local, remote, self.length(len)?);
        self.post(WriteImm::new(write, immediate))
    }

    /// Posts a send of `len` bytes, not zero.
    ///
    /// # Errors
    ///
    /// As [`Self::post_write_imm`]'s.
    #[inline(always)]
    pub fn post_send(&mut self, local: Local, len: u32) -> Result<Ticket, Error> {
        let len = self.length(len)?;
        self.post(Send::new(local, len))
    }

    /// Posts a send of `len` bytes, not zero, with immediate data.
    ///
    /// # Errors
    ///
    /// As [`Self::post_write_imm`]'s.
    #[inline(always)]
    pub fn post_send_imm(
        &mut self,
        local: Local,
        len: u32,
        immediate: u32,
    ) -> Result<Ticket, Error> {
        let send = Send::new(local, self.length(len)?);
        self.post(SendImm::new(send, immediate))
    }

    /// Posts a send of bytes that travel in the WQE, with immediate data if there is some.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_send_inline(
        &mut self,
        data: Inline,
        immediate: Option<u32>,
    ) -> Result<Ticket, Error> {
        self.post(SendInline::new(data, immediate))
    }

    /// Posts a NOP.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_nop(&mut self) -> Result<Ticket, Error> {
        self.post(Nop)
    }

    #[inline(always)]
    fn post_some<W: Work>(
        &mut self,
        len: u32,
        work: impl FnOnce(Length) -> W,
    ) -> Result<Ticket, Error> {
        match self.length(len) {
            Ok(len) => self.post(work(len)),
            Err(_) if len == 0 => Ok(self.nothing_to_do()),
            Err(error) => Err(error),
        }
    }
}
