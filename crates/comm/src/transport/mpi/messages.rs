//! Messages by MPI's point-to-point calls: a header and the data in pieces, through memory that belongs to the transport.
//!
//! Only so can a transfer be given up whose peer is gone or silent: what MPI still holds then is not the caller's. It costs a
//! copy at each end, as pipes in shared memory do.

use std::collections::VecDeque;

use super::Mpi;
use super::ffi::{Buffer, MpiError, Pending};
use super::seats::Kind;
use crate::call::Header;
use crate::transport::{Cause, Incoming, Outgoing, Sink, Traffic, TransportError};

/// The data of a piece: as much as algorithms pass on at a time within a host.
const PIECE: usize = 256 << 10;
/// How many of a message's pieces are under way at a time.
const AHEAD: usize = 2;

fn buffer(pool: &mut Vec<Buffer>) -> Buffer {
    pool.pop().unwrap_or_else(|| vec![0; (Header::LENGTH + PIECE) / 8].into())
}

/// A message on its way out.
struct Writer<'a> {
    to: usize,
    header: Header,
    data: &'a [u8],
    /// Bytes of header and data that MPI has been given.
    given: usize,
    under_way: VecDeque<Pending>,
}

impl Writer<'_> {
    fn is_done(&self) -> bool {
        self.given == Header::LENGTH + self.data.len() && self.under_way.is_empty()
    }
}

/// A message on its way in.
struct Reader<'a> {
    from: usize,
    expected: Header,
    sink: Sink<'a>,
    /// The length of the data, once the header has said so.
    bytes: Option<usize>,
    /// Bytes of header and data that MPI has been asked for, and that have been taken in.
    asked: usize,
    read: usize,
    under_way: VecDeque<Pending>,
}

impl Reader<'_> {
    fn is_done(&self) -> bool {
        self.bytes.is_some_and(|bytes| self.read == Header::LENGTH + bytes)
    }

    /// The bytes of the piece that begins here.
    fn piece(at: usize, bytes: usize) -> usize {
        if at == 0 { Header::LENGTH + bytes.min(PIECE) } else { (Header::LENGTH + bytes - at).min(PIECE) }
    }

    /// Takes a piece in.
    fn take(&mut self, piece: &[u8]) -> Result<(), Cause> {
        let mut data = piece;
        if self.read == 0 {
            let (header, rest) = piece.split_at_checked(Header::LENGTH).ok_or(Cause::Nonsense)?;
            self.bytes = Some(self.sink.accept(&self.expected, &bytemuck::pod_read_unaligned(header))?);
            data = rest;
        }
        let bytes = self.bytes.expect("the header was the first");
        if piece.len() != Self::piece(self.read, bytes) {
            return Err(Cause::Nonsense);
        }
        let done = self.read.saturating_sub(Header::LENGTH);
        match &mut self.sink {
            Sink::Fill(room) => room[done..done + data.len()].copy_from_slice(data),
            Sink::Take { into, .. } => into[done..done + data.len()].copy_from_slice(data),
            Sink::Fold { fold, .. } if !data.is_empty() => fold(data),
            Sink::Fold { .. } => {}
        }
        self.read += piece.len();
        Ok(())
    }
}

/// Why nothing moves any more: MPI, or what a peer has sent.
enum Stop {
    Mpi(MpiError),
    Message(Cause),
}

impl From<MpiError> for Stop {
    fn from(error: MpiError) -> Self {
        Self::Mpi(error)
    }
}

impl Mpi {
    /// Moves whatever can move, in both directions, until both are done.
    pub(super) fn transfer_messages(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let call = self.call();
        let mut writer = outgoing.map(|Outgoing { to, data }| {
            let header = Header::new(&call, data.len());
            Writer { to, header, data, given: 0, under_way: VecDeque::new() }
        });
        let mut reader = incoming.map(|Incoming { from, sink }| {
            let expected = sink.expected(&call);
            Reader { from, expected, sink, bytes: None, asked: 0, read: 0, under_way: VecDeque::new() }
        });
        let mut pool = std::mem::take(&mut self.pool);
        loop {
            let writing = writer.as_ref().filter(|writer| !writer.is_done()).map(|writer| writer.to);
            let reading = reader.as_ref().filter(|reader| !reader.is_done()).map(|reader| reader.from);
            // Who is to blame if nothing moves any more: rather the sender that does not send.
            let blame = |cause: Cause| match (reading, writing) {
                (Some(from), _) => TransportError::receiving(from, cause),
                (None, to) => TransportError::sending(to.unwrap_or(self.post.rank), cause),
            };
            let Some(on) = reading.or(writing) else { break };
            let mut malformed = None;
            let look = || match self.advance(&mut writer, &mut reader, &mut pool) {
                Ok(moved) => Ok(moved.then_some(())),
                Err(Stop::Mpi(error)) => Err(error),
                Err(Stop::Message(cause)) => {
                    malformed = Some(cause);
                    Ok(Some(()))
                }
            };
            self.wait(self.limit(), std::iter::once(on), look).map_err(|(_, cause)| blame(cause))?;
            if let (Some(cause), Some(reader)) = (malformed, &reader) {
                return Err(TransportError::receiving(reader.from, cause));
            }
        }
        let sent = writer.map(|writer| Traffic::sent(writer.data.len(), writer.given));
        let received = reader.map(|reader| Traffic::received(reader.read - Header::LENGTH, reader.read));
        [sent, received].into_iter().flatten().for_each(|message| self.traffic += message);
        self.pool = pool;
        Ok(())
    }

    /// Moves what can move without waiting, and says whether anything did.
    fn advance(
        &self,
        writer: &mut Option<Writer<'_>>,
        reader: &mut Option<Reader<'_>>,
        pool: &mut Vec<Buffer>,
    ) -> Result<bool, Stop> {
        let mut moved = false;
        if let Some(writer) = writer.as_mut().filter(|writer| !writer.is_done()) {
            moved |= self.advance_writer(writer, pool)?;
        }
        if let Some(reader) = reader.as_mut().filter(|reader| !reader.is_done()) {
            moved |= self.advance_reader(reader, pool)?;
        }
        Ok(moved)
    }

    fn advance_writer(&self, writer: &mut Writer<'_>, pool: &mut Vec<Buffer>) -> Result<bool, Stop> {
        let (post, mut moved) = (&self.post, false);
        let length = Header::LENGTH + writer.data.len();
        while writer.given < length && writer.under_way.len() < AHEAD {
            let mut buffer = buffer(pool);
            let room: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer);
            let count = if writer.given == 0 {
                let count = writer.data.len().min(PIECE);
                room[..Header::LENGTH].copy_from_slice(bytemuck::bytes_of(&writer.header));
                room[Header::LENGTH..][..count].copy_from_slice(&writer.data[..count]);
                Header::LENGTH + count
            } else {
                let rest = &writer.data[writer.given - Header::LENGTH..];
                let count = rest.len().min(PIECE);
                room[..count].copy_from_slice(&rest[..count]);
                count
            };
            let tag = post.seats.tag(Kind::Data, post.rank, writer.to);
            writer.under_way.push_back(post.comm.send(buffer, count, post.seats.process(writer.to), tag)?);
            writer.given += count;
            moved = true;
        }
        while let Some(first) = writer.under_way.front_mut() {
            if first.test()?.is_none() {
                break;
            }
            pool.extend(writer.under_way.pop_front().map(Pending::take));
            moved = true;
        }
        Ok(moved)
    }

    fn advance_reader(&self, reader: &mut Reader<'_>, pool: &mut Vec<Buffer>) -> Result<bool, Stop> {
        let (post, mut moved) = (&self.post, false);
        loop {
            // The first piece says how many follow.
            let more = match reader.bytes {
                None => reader.asked == 0,
                Some(bytes) => reader.asked < Header::LENGTH + bytes && reader.under_way.len() < AHEAD,
            };
            if !more {
                break;
            }
            let tag = post.seats.tag(Kind::Data, reader.from, post.rank);
            reader.under_way.push_back(post.comm.recv(buffer(pool), post.seats.process(reader.from), tag)?);
            // What is asked for first is at least the header.
            reader.asked += reader.bytes.map_or(Header::LENGTH, |bytes| Reader::piece(reader.asked, bytes));
        }
        let Some(first) = reader.under_way.front_mut() else { return Ok(moved) };
        if let Some(count) = first.test()? {
            let piece = reader.under_way.pop_front().map(Pending::take).expect("there is a first");
            let taken = reader.take(&bytemuck::cast_slice(&piece)[..count]);
            pool.push(piece);
            taken.map_err(Stop::Message)?;
            reader.asked = reader.asked.max(reader.read);
            moved = true;
        }
        Ok(moved)
    }
}
