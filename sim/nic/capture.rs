//! A pcap file of the frames on a wire.
//!
//! Knows: the file's format, times.
//! Must not know: what a frame says, or what becomes of it.

use std::io::{self, Write};

use crate::config::LinkLayer;
use warpverbs_wire::pcap::{ErfHeader, FileHeader, RecordHeader};

/// The capture of a wire, if one is taken.
#[derive(Default)]
pub(crate) struct Capture {
    file: Option<Box<dyn Write + Send>>,
    /// What frames are, if not Ethernet's.
    infiniband: bool,
    /// Time of the last frame.
    last: u64,
    error: Option<io::Error>,
}

impl Capture {
    /// What frames are, said before a file begins.
    pub(crate) fn carries(&mut self, layer: LinkLayer) {
        self.infiniband = layer == LinkLayer::InfiniBand;
    }

    /// Begins a file.
    pub(crate) fn begin(&mut self, mut file: impl Write + Send + 'static) -> io::Result<()> {
        let header = if self.infiniband {
            FileHeader::ERF
        } else {
            FileHeader::ETHERNET
        };
        file.write_all(&header.emit())?;
        self.file = Some(Box::new(file));
        Ok(())
    }

    /// Ends it, and says whether all of it was written.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match (self.error.take(), self.file.take()) {
            (Some(error), _) => Err(error),
            (None, Some(mut file)) => file.flush(),
            (None, None) => Ok(()),
        }
    }

    /// Adds a frame.
    pub(crate) fn record(&mut self, now: u64, frame: &[u8]) {
        let Some(file) = &mut self.file else {
            return;
        };
        // Work takes no simulated time: a nanosecond each keeps frames apart.
        self.last = now.max(self.last + 1);
        let erf = match u16::try_from(frame.len()) {
            Ok(len) if self.infiniband => &ErfHeader::infiniband(self.last, len).emit()[..],
            _ => &[],
        };
        let header = RecordHeader::new(self.last, (erf.len() + frame.len()) as u32);
        let written = file
            .write_all(&header.emit())
            .and_then(|()| file.write_all(erf))
            .and_then(|()| file.write_all(frame));
        if let Err(error) = written {
            self.error = Some(error);
            self.file = None;
        }
    }
}
