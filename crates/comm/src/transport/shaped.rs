//! A transport with the bandwidth and delay of a slower one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Incoming, Outgoing, Transport, TransportError};
use crate::call::Call;

/// Lets each message leave only after `delay`, and no faster than `bandwidth` allows. There is no shared memory on such
/// a wire.
#[derive(Debug)]
pub struct Shaped<T> {
    inner: T,
    delay: Duration,
    bytes_per_second: f64,
    /// When the wire has carried all that was sent so far.
    idle_from: Instant,
}

impl<T: Transport> Shaped<T> {
    /// A wire with this delay for a message, and this many bytes in a second.
    pub fn new(inner: T, delay: Duration, bytes_per_second: f64) -> Self {
        Self { inner, delay, bytes_per_second, idle_from: Instant::now() }
    }
}

impl<T: Transport> Transport for Shaped<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin(&mut self, call: Call) {
        self.inner.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        if let Some(Outgoing { data, .. }) = outgoing {
            let on_the_wire = Duration::from_secs_f64(data.len() as f64 / self.bytes_per_second);
            self.idle_from = self.idle_from.max(Instant::now()) + on_the_wire;
            sleep(self.delay + self.idle_from.saturating_duration_since(Instant::now()));
        }
        self.inner.transfer(outgoing, incoming)
    }

    fn hosts(&self) -> &[usize] {
        self.inner.hosts()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        let inner = self.inner.split(members)?;
        Ok(Box::new(Shaped::new(inner, self.delay, self.bytes_per_second)))
    }
}
