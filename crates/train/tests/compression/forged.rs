//! Codes that nobody would write.

use std::thread;
use std::time::{Duration, Instant};

use ringstep_comm::Group;
use ringstep_comm::call::{Call, Collective};
use ringstep_comm::transport::{Aborter, Incoming, Outgoing, Shared, Traffic, Transport, TransportError, mem};
use ringstep_train::compress::{Compression, Method};
use ringstep_train::worker;

use crate::{IMAGES, data, ddp, job};

/// Sends one code that is changed on its way.
struct Forger<T> {
    inner: T,
    change: fn(&mut [u8]),
    /// Whether the next message has this rank's own code.
    armed: bool,
}

impl<T: Transport> Transport for Forger<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin(&mut self, call: Call) {
        self.armed = matches!(call.collective, Collective::AllGatherVaried | Collective::ExchangeVaried);
        self.inner.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        match outgoing {
            Some(Outgoing { to, data }) if self.armed => {
                self.armed = false;
                let mut data = data.to_vec();
                (self.change)(&mut data);
                self.inner.transfer(Some(Outgoing { to, data: &data }), incoming)
            }
            outgoing => self.inner.transfer(outgoing, incoming),
        }
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.inner.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        self.inner.hosts()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        self.inner.shared()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn aborter(&self) -> Aborter {
        self.inner.aborter()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        self.inner.split(members)
    }
}

/// Rank 2 of 3 forges; its right neighbour gets it first.
#[test]
fn a_forged_code_is_an_error_that_names_its_rank() {
    let data = data(IMAGES);
    type Case = (Method, fn(&mut [u8]), &'static str);
    let cases: [Case; 6] = [
        (Method::TopK { keep: 0.01 }, |code| code[4 + 21 * 4..][..4].fill(0xff), "index 4294967295 of 2108"),
        (Method::TopK { keep: 0.01 }, |code| code[0] = 21, "180 bytes for 21 numbers"),
        (Method::Threshold { threshold: 0.0 }, |code| code[8..12].fill(0), "index 0 after index 0"),
        (Method::Sign, |code| code[3] = 0xff, "block 0 has the scale -"),
        (Method::Int8, |code| code[4] = 0, "block 0 has a number beyond its scale"),
        (Method::Dgc { keep: 0.01, warm_up_epochs: 0, clip: None }, |code| code[0] = 1, "180 bytes for 1 numbers"),
    ];
    for (method, change, problem) in cases {
        let job = job(ddp(usize::MAX), 3, Compression::new(method));
        let errors: Vec<String> = thread::scope(|scope| {
            let (job, data) = (&job, &data);
            let ranks = mem::mesh(3).into_iter().map(|inner| {
                scope.spawn(move || {
                    let mut group = match inner.rank() {
                        2 => Group::new(Forger { inner, change, armed: false }),
                        _ => Group::new(inner),
                    };
                    worker::run(job, data, &mut group, &mut |_| ()).unwrap_err().to_string()
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let expected = format!("rank 0: bucket 0: rank 2 sent no valid {} code: {problem}", method.name());
        assert!(errors[0].starts_with(&expected), "{errors:?}");
    }
}
