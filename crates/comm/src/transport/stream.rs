//! A message on a connection: header, data, and some bytes between and behind them that keep the data in its place.
//!
//! The kernel copies what is sent into pages of its own, and from there to the receiver, in a way that is slow where
//! addresses differ by the wrong number of bytes ([`crate::copy`] says which). So the data of a large message keeps its
//! place among 32 bytes from one memory to the other: a lead as long as its address modulo 32 goes before it, and a tail
//! behind it lets the next message begin at a multiple of 32 again.

use std::io::{IoSlice, IoSliceMut, Read, Write};

use bytemuck::{Pod, Zeroable};

use super::tcp::is_transient;
use super::{Cause, Incoming, Outgoing, Sink, Traffic};
use crate::call::{Call, Header};

/// The most that is folded at once: little enough to be in the cache still.
const PIECE: usize = 64 << 10;

/// The most that is written before it is looked whether something has arrived: what is on the way then stays in the cache.
const BURST: usize = 1 << 20;

/// What addresses are kept modulo.
const PLACES: usize = 32;

/// Messages from here on have a lead. The header of a shorter one comes with its data in one read, if its length is known.
const LARGE: usize = 16 << 10;

/// What a connection's pieces wait on until they are folded: [`tray`].
#[derive(Debug, Clone, Copy, Zeroable, Pod)]
#[repr(C, align(32))]
pub(super) struct Line([u8; PLACES]);

/// Room for a piece in any place.
pub(super) fn tray() -> Vec<Line> {
    vec![Line::zeroed(); PIECE / PLACES + 1]
}

/// What must follow so many bytes.
fn tail(length: usize) -> usize {
    length.next_multiple_of(PLACES) - length
}

/// A message on its way into a connection.
pub(super) struct StreamWriter<'a> {
    pub to: usize,
    /// Header and lead.
    front: [u8; Header::LENGTH + PLACES],
    front_length: usize,
    data: &'a [u8],
    /// Bytes written of front, data and tail.
    written: usize,
    /// Whether they have all left this process.
    flushed: bool,
}

impl<'a> StreamWriter<'a> {
    pub fn new(call: &Call, outgoing: Outgoing<'a>) -> Self {
        let data = outgoing.data;
        let lead = if data.len() < LARGE { 0 } else { data.as_ptr().addr() % PLACES };
        let mut header = Header::new(call, data.len());
        header.lead = lead as u32;
        let mut front = [0; Header::LENGTH + PLACES];
        front[..Header::LENGTH].copy_from_slice(bytemuck::bytes_of(&header));
        Self { to: outgoing.to, front, front_length: Header::LENGTH + lead, data, written: 0, flushed: false }
    }

    pub fn is_done(&self) -> bool {
        self.flushed
    }

    fn is_written(&self) -> bool {
        self.written == (self.front_length + self.data.len()).next_multiple_of(PLACES)
    }

    pub fn traffic(&self) -> Traffic {
        Traffic::sent(self.data.len(), self.written)
    }

    /// Writes what the connection takes, up to a burst.
    pub fn advance(&mut self, mut stream: impl Write) -> Result<bool, Cause> {
        if self.is_written() {
            return self.flush(stream);
        }
        let done = self.written.saturating_sub(self.front_length).min(self.data.len());
        let (end, length) = ((done + BURST).min(self.data.len()), self.front_length + self.data.len());
        let tail = if end == self.data.len() { tail(length) } else { 0 };
        let mut skip = self.written;
        let parts = [&self.front[..self.front_length], &self.data[..end], &[0; PLACES][..tail]].map(|part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            IoSlice::new(&part[skipped..])
        });
        match stream.write_vectored(&parts) {
            Ok(count) => {
                self.written += count;
                if self.is_written() {
                    self.flush(stream)?;
                }
                Ok(count > 0)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what was written and still waits, as what is encrypted may.
    fn flush(&mut self, mut stream: impl Write) -> Result<bool, Cause> {
        match stream.flush() {
            Ok(()) => self.flushed = true,
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.flushed)
    }
}

/// A message on its way out of a connection.
pub(super) struct StreamReader<'a, 'b> {
    pub from: usize,
    expected: Header,
    /// Header and lead; how long the lead is stands in the header.
    front: [u8; Header::LENGTH + PLACES],
    front_length: usize,
    sink: Sink<'a>,
    /// The length of the data; where the sender decides it, known from the header on.
    bytes: usize,
    /// Where the data of a piece lies as it did at the sender, among 32 bytes.
    tray: &'b mut [u8],
    /// Bytes of the piece that are not folded yet.
    waiting: usize,
    /// Bytes read of front, data and tail.
    read: usize,
}

impl<'a, 'b> StreamReader<'a, 'b> {
    pub fn new(call: &Call, Incoming { from, sink }: Incoming<'a>, tray: &'b mut [Line]) -> Self {
        Self {
            from,
            expected: sink.expected(call),
            front: [0; Header::LENGTH + PLACES],
            front_length: Header::LENGTH,
            bytes: sink.bytes().unwrap_or(0),
            sink,
            tray: bytemuck::cast_slice_mut(tray),
            waiting: 0,
            read: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.read == (self.front_length + self.bytes).next_multiple_of(PLACES)
    }

    pub fn traffic(&self) -> Traffic {
        Traffic::received(self.bytes, self.read)
    }

    /// Reads what has arrived, up to a piece.
    pub fn advance(&mut self, stream: impl Read) -> Result<bool, Cause> {
        let (header_was_open, before) = (self.read < Header::LENGTH, self.data_read());
        match self.read_from(stream) {
            Ok(0) => return Err(Cause::Closed),
            Ok(count) => self.read += count,
            Err(error) if is_transient(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if header_was_open && self.read >= Header::LENGTH {
            self.check_header()?;
        }
        self.fold(self.data_read() - before);
        Ok(true)
    }

    /// Bytes of the data that have been read.
    fn data_read(&self) -> usize {
        self.read.saturating_sub(self.front_length).min(self.bytes)
    }

    fn read_from(&mut self, mut stream: impl Read) -> std::io::Result<usize> {
        let (done, bytes) = (self.data_read(), self.bytes);
        let decided = self.sink.bytes().is_some();
        let front = &mut self.front[self.read.min(self.front_length)..self.front_length];
        if self.read < Header::LENGTH && (bytes >= LARGE || !decided) {
            return stream.read(front);
        }
        // Header and data in one go: if the header is not the expected one, nobody needs the data any more.
        let room = match &mut self.sink {
            Sink::Fill(data) => &mut data[done..],
            Sink::Take { into, .. } => &mut into[done..],
            Sink::Fold { .. } => {
                let piece = &mut self.tray[self.front_length - Header::LENGTH..][..PIECE];
                let end = PIECE.min(self.waiting + bytes - done);
                &mut piece[self.waiting..end]
            }
        };
        let length = self.front_length + bytes;
        let tail = if room.len() == bytes - done { tail(length) - self.read.saturating_sub(length) } else { 0 };
        let parts = [front, room, &mut [0; PLACES][..tail]];
        stream.read_vectored(&mut parts.map(IoSliceMut::new))
    }

    /// Whether the message is the expected one, and where its data begins.
    fn check_header(&mut self) -> Result<(), Cause> {
        let mut header: Header = bytemuck::pod_read_unaligned(&self.front[..Header::LENGTH]);
        let lead = std::mem::take(&mut header.lead) as usize;
        self.bytes = self.sink.accept(&self.expected, &header)?;
        let most = if self.bytes < LARGE { 1 } else { PLACES };
        let grain = if let Sink::Fold { grain, .. } = self.sink { grain } else { 1 };
        if lead >= most || !lead.is_multiple_of(grain) {
            return Err(Cause::Nonsense);
        }
        self.front_length = Header::LENGTH + lead;
        Ok(())
    }

    /// Hands the piece on once it is full, or the last.
    fn fold(&mut self, arrived: usize) {
        let last = self.data_read() == self.bytes;
        let Sink::Fold { grain, fold, .. } = &mut self.sink else { return };
        self.waiting += arrived;
        if self.waiting == PIECE || (last && self.waiting > 0) {
            debug_assert!(self.waiting.is_multiple_of(*grain));
            fold(&self.tray[self.front_length - Header::LENGTH..][..self.waiting]);
            self.waiting = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::call::Collective;
    use crate::element::ElementType;

    fn call() -> Call {
        Call::plain(1, Collective::SendRecv, ElementType::U8, 0)
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (out, listener.accept().unwrap().0)
    }

    #[test]
    fn large_data_keeps_its_place_and_the_next_message_begins_at_a_multiple() {
        let (out, mut incoming) = connection();
        let data = vec![7; LARGE + 100];
        for skip in [0, 1, 5, 31, 32, 99] {
            for length in [0, 1, 31, 32, LARGE - 1, LARGE] {
                let data = &data[skip..skip + length];
                let mut writer = StreamWriter::new(&call(), Outgoing { to: 1, data });
                while !writer.is_done() {
                    writer.advance(&out).unwrap();
                }
                let mut wire = vec![0; writer.written];
                incoming.read_exact(&mut wire).unwrap();
                let place = if length < LARGE { 0 } else { data.as_ptr().addr() };
                let begins = wire.iter().skip(Header::LENGTH).position(|&byte| byte == 7);
                assert!(begins.is_none_or(|begins| begins == place % PLACES), "{length} bytes behind {skip}");
                assert_eq!(wire.iter().skip(Header::LENGTH).filter(|&&byte| byte == 7).count(), length);
                assert!(wire.len().is_multiple_of(PLACES));
            }
        }
    }

    #[test]
    fn a_lead_that_cannot_be_is_nonsense() {
        // Too long, of a message that has none, and one that leaves no float in its place.
        for (bytes, lead) in [(LARGE, PLACES as u32), (LARGE - 4, 4), (LARGE, 3)] {
            let (mut out, incoming) = connection();
            let mut header = Header::new(&call(), bytes);
            header.lead = lead;
            out.write_all(bytemuck::bytes_of(&header)).unwrap();
            let mut tray = tray();
            let sink = Sink::Fold { bytes, grain: 4, fold: &mut |_| panic!("there is no data") };
            let mut reader = StreamReader::new(&call(), Incoming { from: 0, sink }, &mut tray);
            assert!(matches!(reader.advance(&incoming), Err(Cause::Nonsense)), "{lead} before {bytes}");
        }
    }
}
