//! A transport with the bandwidth and delay of a slower one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Aborter, Incoming, Outgoing, Traffic, Transport, TransportError};
use crate::call::Call;

/// Lets each message leave only after `delay`, and no faster than `bandwidth` allows, as if every rank were on a host of
/// its own. There is no shared memory on such a wire.
#[derive(Debug)]
pub struct Shaped<T> {
    inner: T,
    delay: Duration,
    bytes_per_second: f64,
    hosts: Vec<usize>,
    /// When the wire has carried all that was sent so far.
    idle_from: Instant,
}

impl<T: Transport> Shaped<T> {
    /// A wire with this delay for a message, and this many bytes in a second.
    pub fn new(inner: T, delay: Duration, bytes_per_second: f64) -> Self {
        let hosts = (0..inner.world()).collect();
        Self { inner, delay, bytes_per_second, hosts, idle_from: Instant::now() }
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

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.inner.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn aborter(&self) -> Aborter {
        self.inner.aborter()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        let inner = self.inner.split(members)?;
        Ok(Box::new(Shaped::new(inner, self.delay, self.bytes_per_second)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mem;
    use crate::{Algorithm, Group, Op};

    /// Not sooner than the wire allows: 3 messages of 10 ms, and 3000 bytes at 100 kB/s are 30 ms more.
    #[test]
    fn a_slow_wire_is_slow_and_right() {
        let began = Instant::now();
        let ranks: Vec<_> = mem::mesh(2)
            .into_iter()
            .map(|transport| {
                std::thread::spawn(move || {
                    let mut group = Group::new(Shaped::new(transport, Duration::from_millis(10), 100e3));
                    assert!(!group.can_be_direct());
                    let mut data = vec![1i32; 250];
                    for _ in 0..3 {
                        group.all_reduce(&mut data, Op::Sum, Algorithm::RecursiveDoubling).unwrap();
                    }
                    data
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), vec![8; 250]);
        }
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}
