//! MPI as what worker processes talk through: only in a build with the feature `mpi`.

#[cfg(feature = "mpi")]
pub use self::with::{algorithm, check, end, group, start, watched};
#[cfg(not(feature = "mpi"))]
pub use self::without::{algorithm, check, end, group, start, watched};

/// The name of what only some builds have.
pub const NAME: &str = "mpi";

/// How to get one that has it.
pub const BUILD: &str = "cargo build --release --features mpi";

#[cfg(feature = "mpi")]
mod with {
    use std::thread;
    use std::time::Duration;

    use anyhow::{Context, Result, bail, ensure};
    use ringstep_comm::transport::mpi::{self, Mpi};
    use ringstep_comm::transport::tcp::Tcp;
    use ringstep_comm::{Algorithm, CollectiveError, Group};

    use crate::cluster::{Arrangement, Part, Share};
    use crate::launch;
    use crate::settings::{Launch, Link, ProcessTransport, Workers};

    /// How long the end of MPI may take once all is done: until all processes have come to it.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// And if something has failed, so that some may never come.
    const HASTE: Duration = Duration::from_secs(1);

    /// Starts MPI in this process, which its launcher must have started.
    pub fn start(arrangement: &Arrangement) -> Result<()> {
        let Arrangement::Part(Part { share: Share::Worker, processes, launcher, .. }) = arrangement else {
            bail!("--transport mpi is for several processes that MPI has started: mpirun -n 4 ringstep ...");
        };
        let world = mpi::start().context("--transport mpi")?;
        ensure!(
            world.size == *processes,
            "{launcher} has started {processes} processes, of which {} knows {}: this program was built for another MPI",
            world.library,
            world.size
        );
        Ok(())
    }

    /// Ends it, if it was started.
    pub fn end(failed: bool) {
        mpi::end(if failed { HASTE } else { PATIENCE });
    }

    /// The group of a rank that has met the others.
    pub fn group(tcp: Tcp, link: Option<&Link>) -> Result<Group> {
        Ok(launch::group(Mpi::over(tcp)?, link))
    }

    /// Does the work of this process's ranks. If one of them is stuck in a call of MPI, which cannot be given up, it is said in
    /// its stead what happened.
    pub fn watched(fail: &(dyn Fn(usize, &anyhow::Error) + Sync), work: impl FnOnce()) {
        let errors = mpi::listen();
        thread::scope(|scope| {
            scope.spawn(|| errors.into_iter().for_each(|error: CollectiveError| fail(error.rank, &error.into())));
            work();
            mpi::leave();
        });
    }

    /// How an all-reduce goes about it over a transport unless that is said. Links that are made slow take messages, which MPI's
    /// own all-reduce does not send by them.
    pub fn algorithm(transport: Option<ProcessTransport>, link: Option<&Link>) -> Algorithm {
        match (transport, link) {
            (Some(ProcessTransport::Mpi), None) => Algorithm::Mpi,
            _ => Algorithm::Ring,
        }
    }

    /// Whether these workers can do an all-reduce so.
    pub fn check(algorithm: Option<Algorithm>, workers: &Workers) -> Result<()> {
        let over_mpi =
            matches!(&workers.launch, Launch::Processes(processes) if processes.transport.0 == ProcessTransport::Mpi);
        if algorithm == Some(Algorithm::Mpi) {
            ensure!(over_mpi, "--algorithm mpi is MPI's own all-reduce: it needs --transport mpi");
            ensure!(workers.link.is_none(), "--net slows messages down, which --algorithm mpi does not send: use ring");
        }
        Ok(())
    }
}

#[cfg(not(feature = "mpi"))]
mod without {
    use anyhow::{Result, bail};
    use ringstep_comm::transport::tcp::Tcp;
    use ringstep_comm::{Algorithm, Group};

    use crate::cluster::Arrangement;
    use crate::settings::{Link, ProcessTransport, Workers};

    /// There is none.
    pub fn start(_: &Arrangement) -> Result<()> {
        bail!("this build has no MPI: {}", super::BUILD)
    }

    /// There is nothing to end.
    pub fn end(_: bool) {}

    /// There is none.
    pub fn group(_: Tcp, _: Option<&Link>) -> Result<Group> {
        bail!("this build has no MPI: {}", super::BUILD)
    }

    /// Does the work of this process's ranks.
    pub fn watched(_: &(dyn Fn(usize, &anyhow::Error) + Sync), work: impl FnOnce()) {
        work();
    }

    /// How an all-reduce goes about it unless that is said.
    pub fn algorithm(_: Option<ProcessTransport>, _: Option<&Link>) -> Algorithm {
        Algorithm::Ring
    }

    /// All others are checked elsewhere.
    pub fn check(_: Option<Algorithm>, _: &Workers) -> Result<()> {
        Ok(())
    }
}
