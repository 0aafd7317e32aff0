//! Runs the real algorithm, each worker a thread, and notes all that happens.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringstep_comm::call::{Call, Collective};
use ringstep_comm::collective::live::{Event, Scratch, Slice, Wire};
use ringstep_comm::collective::{self, at_once};
use ringstep_comm::element::ElementType;
use ringstep_comm::transport::mem::{self, Mem};
use ringstep_comm::transport::{Aborter, Incoming, Outgoing, Traffic, Transport, TransportError};
use ringstep_comm::{Algorithm, Op, Topology, cost};

/// What all workers did.
pub struct Recording {
    /// The host of each worker.
    pub hosts: Vec<usize>,
    /// What each worker did.
    pub ranks: Vec<Rank>,
}

impl Recording {
    /// What a worker is called: its rank, and a letter for its host if there are several.
    pub fn name(&self, rank: usize) -> String {
        let several = self.hosts.iter().any(|&host| host > 0);
        format!("{rank}{}", if several { ["a", "b"][self.hosts[rank]] } else { "" })
    }
}

/// What one worker did.
pub struct Rank {
    /// Its values before.
    pub start: Vec<f64>,
    /// Each thing that it did.
    pub events: Vec<Event<f64>>,
    /// Its values afterwards.
    pub end: Vec<f64>,
    /// The bytes that it sent, as counted.
    pub bytes: u64,
}

/// Reduces these values, a row for each worker, over all of them.
pub fn record(algorithm: Algorithm, op: Op, values: Vec<Vec<f64>>) -> Result<Recording> {
    let (world, length) = (values.len(), values[0].len());
    // Levels can only be seen where there are some.
    let two_hosts = algorithm == Algorithm::Hierarchical;
    let hosts: Vec<usize> = (0..world).map(|rank| usize::from(two_hosts && rank >= world.div_ceil(2))).collect();
    let call = Call {
        sequence: 1,
        collective: Collective::AllReduce,
        algorithm: Some(algorithm),
        op: Some(op),
        element: ElementType::F64,
        elements: length as u64,
        root: None,
    };
    let ranks: Vec<Rank> = thread::scope(|scope| {
        let workers: Vec<_> = mem::mesh(world)
            .into_iter()
            .zip(values)
            .map(|(mem, start)| {
                let apart = two_hosts.then(|| hosts.clone());
                scope.spawn(move || match apart {
                    Some(hosts) => work(Apart { mem, hosts }, call, start),
                    None => work(mem, call, start),
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("workers do not panic")).collect::<Result<_>>()
    })?;
    let topology = Topology::new(hosts.clone(), !two_hosts);
    for (rank, worker) in ranks.iter().enumerate() {
        let formula = cost::bytes_sent(algorithm, rank, &topology, length, size_of::<f64>());
        ensure!(worker.bytes == formula as u64, "worker {rank} sent {} bytes, not {formula}", worker.bytes);
    }
    Ok(Recording { hosts, ranks })
}

/// What one worker does.
fn work<T: Transport + 'static>(mut transport: T, call: Call, start: Vec<f64>) -> Result<Rank> {
    let (algorithm, op) = call.algorithm.zip(call.op).expect("an all-reduce has both");
    let (mut data, mut scratch, mut events) = (start.clone(), Scratch::default(), Vec::new());
    let mut observer = |event| events.push(event);
    let (rank, topology) = (transport.rank(), Topology::of(&mut transport));
    transport.begin(call);
    let wire = Wire { transport: &mut transport, topology: &topology, scratch: &mut scratch };
    let mut lane = Slice::new(wire, &mut data, op, call).observed_by(&mut observer);
    at_once(collective::all_reduce(algorithm, &mut lane)).with_context(|| format!("worker {rank}"))?;
    Ok(Rank { start, events, end: data, bytes: transport.traffic().payload[0] })
}

/// Threads that pretend to be on several hosts, and to share no memory with each other: all that happens is messages.
struct Apart {
    mem: Mem,
    hosts: Vec<usize>,
}

impl Transport for Apart {
    fn rank(&self) -> usize {
        self.mem.rank()
    }

    fn world(&self) -> usize {
        self.mem.world()
    }

    fn begin(&mut self, call: Call) {
        self.mem.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        self.mem.transfer(outgoing, incoming)
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.mem.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn traffic(&self) -> Traffic {
        self.mem.traffic()
    }

    fn timeout(&self) -> Duration {
        self.mem.timeout()
    }

    fn aborter(&self) -> Aborter {
        self.mem.aborter()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        self.mem.split(members)
    }
}
