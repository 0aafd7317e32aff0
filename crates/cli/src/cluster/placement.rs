//! Which part of a job this process has, as the launcher that started it says in the environment.
//!
//! | launcher | process, of how many | which of its host | where they meet |
//! | --- | --- | --- | --- |
//! | torchrun | RANK, WORLD_SIZE, with TORCHELASTIC_RUN_ID | LOCAL_RANK, LOCAL_WORLD_SIZE | MASTER_ADDR, MASTER_PORT |
//! | Kubeflow | PET_NODE_RANK, PET_NNODES; each starts PET_NPROC_PER_NODE | | PET_MASTER_ADDR, PET_MASTER_PORT |
//! | Open MPI | OMPI_COMM_WORLD_RANK, _SIZE | OMPI_COMM_WORLD_LOCAL_RANK, _LOCAL_SIZE | |
//! | MPICH, Intel MPI | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS | |
//! | srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE | SLURM_STEP_NODELIST |
//! | PMIx | PMIX_RANK, WORLD_SIZE | | |
//! | Kubernetes | JOB_COMPLETION_INDEX, WORLD_SIZE | | |
//! | by hand | RANK, WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE | |
//!
//! MASTER_ADDR and MASTER_PORT say where they meet for those that have no variables of their own for it, and for srun too.
//! Of several launchers that one counts which was started last, by the others: it stands further up.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};

use super::nodelist;

/// What a process was started with.
pub type Environment = BTreeMap<String, String>;

/// The part of a job that a process has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Who has started it.
    pub launcher: Launcher,
    /// Which of the processes it is.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// Which it is of those on its host, if that is known.
    pub local_rank: Option<usize>,
    /// How many are on its host, if that is known.
    pub local_size: Option<usize>,
    /// Which host it is on, if that is known.
    pub node: Option<usize>,
    /// What it is.
    pub share: Share,
    /// Where they meet, if somebody has said so.
    pub rendezvous: Option<(String, u16)>,
    /// What no other job is called, if the launcher has such a name.
    pub job: Option<String>,
}

/// What a process that somebody has started is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// One worker.
    Worker,
    /// What starts the workers of a node, so many if that was said.
    Node(Option<usize>),
}

/// What starts processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    Torchrun,
    Kubeflow,
    OpenMpi,
    Mpich,
    Slurm,
    Pmix,
    Kubernetes,
    /// A script, or a person.
    Hand,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Kubeflow => "Kubeflow",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "srun",
            Self::Pmix => "PMIx",
            Self::Kubernetes => "Kubernetes",
            Self::Hand => "whoever set RANK",
        })
    }
}

/// What variables of the environment say.
struct Variables<'a>(&'a Environment);

impl Variables<'_> {
    /// What is empty has not been said.
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let parse = |text: &str| text.parse().ok().with_context(|| format!("{name} is {text:?}, which is no number"));
        self.text(name).map(parse).transpose()
    }

    /// Two that say something only together.
    fn pair(&self, [process, processes]: [&str; 2]) -> Result<Option<(usize, usize)>> {
        match (self.number(process)?, self.number(processes)?) {
            (Some(number), Some(of)) => {
                ensure!(number < of, "{process} is {number} and {processes} is {of}: ranks count from 0");
                Ok(Some((number, of)))
            }
            (None, None) => Ok(None),
            (Some(_), None) => bail!("{process} is set and {processes} is not: set both, or neither"),
            (None, Some(_)) => bail!("{processes} is set and {process} is not: set both, or neither"),
        }
    }

    fn address(&self, [host, port]: [&str; 2]) -> Result<Option<(String, u16)>> {
        let Some(address) = self.text(host) else { return Ok(None) };
        let number = self.number(port)?.with_context(|| format!("{host} is set and {port} is not: set both"))?;
        let number = u16::try_from(number).ok().filter(|&number| number > 0);
        let number =
            number.with_context(|| format!("{port} is {}, which is no port", self.text(port).unwrap_or("")))?;
        Ok(Some((address.to_owned(), number)))
    }

    fn master(&self) -> Result<Option<(String, u16)>> {
        self.address(["MASTER_ADDR", "MASTER_PORT"])
    }
}

impl Placement {
    /// What the environment says; `None` if nobody has started this process as one of several.
    pub fn find(environment: &Environment) -> Result<Option<Self>> {
        let variables = Variables(environment);
        let ways = [torchrun, kubeflow, open_mpi, mpich, slurm, pmix, kubernetes, hand];
        let mut found: Option<Self> = None;
        for way in ways {
            found = way(&variables)?;
            if found.is_some() {
                break;
            }
        }
        let Some(mut placement) = found.filter(|placement| placement.processes > 1) else { return Ok(None) };
        let Self { launcher, process, processes, .. } = placement;
        // Ranks that somebody has set beside those of a launcher are meant to be the same.
        if !matches!(launcher, Launcher::Torchrun | Launcher::Kubeflow | Launcher::Hand) {
            let by_hand = variables.number("RANK")?.zip(variables.number("WORLD_SIZE")?);
            if let Some((rank, world)) = by_hand.filter(|&by_hand| by_hand != (process, processes)) {
                bail!(
                    "RANK is {rank} of {world}, but {launcher} says {process} of {processes}: unset the one that is wrong"
                );
            }
        }
        if let (Some(rank), Some(size)) = (placement.local_rank, placement.local_size) {
            ensure!(
                rank < size && size <= processes,
                "{launcher} says that this is process {rank} of {size} on its host, and {process} of {processes} in all"
            );
        }
        if placement.rendezvous.is_none() {
            placement.rendezvous = variables.master()?;
        }
        Ok(Some(placement))
    }

    fn new(launcher: Launcher, (process, processes): (usize, usize)) -> Self {
        Self {
            launcher,
            process,
            processes,
            local_rank: None,
            local_size: None,
            node: None,
            share: Share::Worker,
            rendezvous: None,
            job: None,
        }
    }

    /// Whether all processes are known to be on one host.
    pub fn is_one_host(&self) -> bool {
        self.local_size == Some(self.processes)
    }
}

fn torchrun(variables: &Variables<'_>) -> Result<Option<Placement>> {
    let Some(run) = variables.text("TORCHELASTIC_RUN_ID") else { return Ok(None) };
    let Some(place) = variables.pair(["RANK", "WORLD_SIZE"])? else { return Ok(None) };
    let mut rendezvous = variables.master()?;
    let job = rendezvous.as_ref().map(|(_, port)| format!("torchrun-{run}-{port}"));
    // The agent itself listens at the port then, for its own store.
    if variables.text("TORCHELASTIC_USE_AGENT_STORE") == Some("True") {
        rendezvous = rendezvous.map(|(host, port)| (host, port.checked_add(1).unwrap_or(port - 1)));
    }
    Ok(Some(Placement {
        local_rank: variables.number("LOCAL_RANK")?,
        local_size: variables.number("LOCAL_WORLD_SIZE")?,
        node: variables.number("GROUP_RANK")?,
        rendezvous,
        job,
        ..Placement::new(Launcher::Torchrun, place)
    }))
}

/// Kubeflow's trainer configures torchrun by these; whoever reads them starts the workers of a node.
fn kubeflow(variables: &Variables<'_>) -> Result<Option<Placement>> {
    if variables.text("PET_NODE_RANK").is_none() && variables.text("PET_NNODES").is_none() {
        return Ok(None);
    }
    let nodes = variables.text("PET_NNODES").unwrap_or_default();
    ensure!(!nodes.contains(':'), "PET_NNODES is {nodes}: this takes a fixed number of nodes");
    let Some(place) = variables.pair(["PET_NODE_RANK", "PET_NNODES"])? else { return Ok(None) };
    // `auto` and its like leave the number to whoever starts them: --workers.
    let workers = variables.text("PET_NPROC_PER_NODE").and_then(|number| number.parse().ok());
    Ok(Some(Placement {
        node: Some(place.0),
        share: Share::Node(workers),
        rendezvous: variables.address(["PET_MASTER_ADDR", "PET_MASTER_PORT"])?,
        ..Placement::new(Launcher::Kubeflow, place)
    }))
}

fn open_mpi(variables: &Variables<'_>) -> Result<Option<Placement>> {
    let Some(place) = variables.pair(["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"])? else { return Ok(None) };
    let job = variables.text("PMIX_NAMESPACE").or(variables.text("OMPI_MCA_ess_base_jobid"));
    Ok(Some(Placement {
        local_rank: variables.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size: variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
        job: job.map(|job| format!("openmpi-{job}")),
        ..Placement::new(Launcher::OpenMpi, place)
    }))
}

fn mpich(variables: &Variables<'_>) -> Result<Option<Placement>> {
    // srun sets them too, for programs that speak PMI, and says more itself.
    if variables.text("MPI_LOCALRANKID").is_none() && variables.text("SLURM_STEP_ID").is_some() {
        return Ok(None);
    }
    let Some(place) = variables.pair(["PMI_RANK", "PMI_SIZE"])? else { return Ok(None) };
    Ok(Some(Placement {
        local_rank: variables.number("MPI_LOCALRANKID")?,
        local_size: variables.number("MPI_LOCALNRANKS")?,
        ..Placement::new(Launcher::Mpich, place)
    }))
}

fn slurm(variables: &Variables<'_>) -> Result<Option<Placement>> {
    // A batch script has most of these variables as well; only what srun starts is a step.
    let (Some(job), Some(step)) = (variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID")) else {
        return Ok(None);
    };
    let processes = match variables.text("SLURM_STEP_NUM_TASKS") {
        Some(_) => "SLURM_STEP_NUM_TASKS",
        None => "SLURM_NTASKS",
    };
    let Some(place) = variables.pair(["SLURM_PROCID", processes])? else { return Ok(None) };
    let node = variables.number("SLURM_NODEID")?;
    let tasks = variables.text("SLURM_STEP_TASKS_PER_NODE").or(variables.text("SLURM_TASKS_PER_NODE"));
    let tasks = tasks.map(nodelist::counts).transpose()?;
    let nodes = variables.text("SLURM_STEP_NODELIST").or(variables.text("SLURM_JOB_NODELIST"));
    let nodes = nodes.map(nodelist::hosts).transpose()?;
    let rendezvous = match variables.master()? {
        Some(address) => Some(address),
        None => nodes.and_then(|nodes| Some((nodes.into_iter().next()?, port_of(job, step)))),
    };
    Ok(Some(Placement {
        local_rank: variables.number("SLURM_LOCALID")?,
        local_size: tasks.zip(node).and_then(|(tasks, node)| tasks.get(node).copied()),
        node,
        rendezvous,
        job: Some(format!("slurm-{job}-{step}")),
        ..Placement::new(Launcher::Slurm, place)
    }))
}

/// A port that the ranks of a job find alike and that hardly another job does, below those that systems hand out.
fn port_of(job: &str, step: &str) -> u16 {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    15_000 + ((number(job).wrapping_mul(31).wrapping_add(number(step))) % 15_000) as u16
}

fn pmix(variables: &Variables<'_>) -> Result<Option<Placement>> {
    let Some(process) = variables.number("PMIX_RANK")? else { return Ok(None) };
    let world = variables.number("WORLD_SIZE")?;
    let world =
        world.with_context(|| format!("PMIx says that this is rank {process} but not of how many: set WORLD_SIZE"))?;
    ensure!(process < world, "PMIX_RANK is {process} and WORLD_SIZE is {world}: ranks count from 0");
    let job = variables.text("PMIX_NAMESPACE").map(|job| format!("pmix-{job}"));
    Ok(Some(Placement { job, ..Placement::new(Launcher::Pmix, (process, world)) }))
}

fn kubernetes(variables: &Variables<'_>) -> Result<Option<Placement>> {
    let Some(process) = variables.number("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    // Pods of an indexed job need not belong together.
    let Some(world) = variables.number("WORLD_SIZE")? else { return Ok(None) };
    ensure!(process < world, "JOB_COMPLETION_INDEX is {process} and WORLD_SIZE is {world}: ranks count from 0");
    Ok(Some(Placement::new(Launcher::Kubernetes, (process, world))))
}

fn hand(variables: &Variables<'_>) -> Result<Option<Placement>> {
    let Some(place) = variables.pair(["RANK", "WORLD_SIZE"])? else { return Ok(None) };
    Ok(Some(Placement {
        local_rank: variables.number("LOCAL_RANK")?,
        local_size: variables.number("LOCAL_WORLD_SIZE")?,
        ..Placement::new(Launcher::Hand, place)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(text: &str) -> Environment {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn find(text: &str) -> Placement {
        Placement::find(&environment(text)).unwrap().unwrap()
    }

    fn refused(text: &str) -> String {
        Placement::find(&environment(text)).unwrap_err().to_string()
    }

    /// As Open MPI 4.1's mpirun sets them.
    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
        OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4 OMPI_MCA_ess_base_jobid=64880641 \
        OMPI_MCA_orte_num_nodes=2 PMIX_RANK=3 PMIX_NAMESPACE=64880641";
    /// As MPICH 4.0's Hydra sets them.
    const MPICH: &str = "PMI_RANK=2 PMI_SIZE=4 PMI_FD=8 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4 \
        MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm";
    /// As srun of Slurm 22.05 sets them.
    const SLURM: &str = "SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_PROCID=5 SLURM_NTASKS=6 \
        SLURM_NPROCS=6 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_NNODES=3 SLURM_STEP_NUM_NODES=3 \
        SLURM_JOB_NODELIST=node[1-2,07] SLURM_STEP_NODELIST=node[1-2,07] SLURM_STEP_TASKS_PER_NODE=2(x3) \
        SLURM_TASKS_PER_NODE=2(x3) SLURM_RESTART_COUNT=1";
    /// As torchrun of PyTorch 2 sets them.
    const TORCHRUN: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=2 ROLE_RANK=1 \
        ROLE_NAME=default ROLE_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none \
        TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True";
    /// As Kubeflow's trainer sets them for the nodes of a job.
    const KUBEFLOW: &str = "PET_NNODES=2 PET_NPROC_PER_NODE=3 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job \
        PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1";

    #[test]
    fn each_launcher_is_recognised_by_what_it_sets() {
        let place = |placement: Placement| {
            let Placement { launcher, process, processes, local_rank, local_size, node, .. } = placement;
            (launcher, [process, processes], [local_rank, local_size, node])
        };
        assert_eq!(place(find(OPEN_MPI)), (Launcher::OpenMpi, [3, 4], [Some(1), Some(2), None]));
        assert_eq!(place(find(MPICH)), (Launcher::Mpich, [2, 4], [Some(2), Some(4), None]));
        assert_eq!(place(find(SLURM)), (Launcher::Slurm, [5, 6], [Some(1), Some(2), Some(2)]));
        assert_eq!(place(find(TORCHRUN)), (Launcher::Torchrun, [1, 4], [Some(1), Some(2), Some(0)]));
        assert_eq!(place(find(KUBEFLOW)), (Launcher::Kubeflow, [1, 2], [None, None, Some(1)]));
        assert_eq!((find(KUBEFLOW).share, find(MPICH).share), (Share::Node(Some(3)), Share::Worker));
        assert_eq!(find(&KUBEFLOW.replace("NODE=3", "NODE=auto")).share, Share::Node(None));
        let kubernetes = "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=job-0.job MASTER_PORT=29500";
        assert_eq!(place(find(kubernetes)), (Launcher::Kubernetes, [2, 3], [None; 3]));
        assert_eq!(place(find("PMIX_RANK=1 PMIX_NAMESPACE=x WORLD_SIZE=2")), (Launcher::Pmix, [1, 2], [None; 3]));
        assert_eq!(place(find("RANK=0 WORLD_SIZE=2")), (Launcher::Hand, [0, 2], [None; 3]));
    }

    #[test]
    fn where_to_meet_is_known_if_somebody_says_so() {
        let meet = |text: &str| find(text).rendezvous.map(|(host, port)| format!("{host}:{port}"));
        assert_eq!(meet(OPEN_MPI), None);
        assert_eq!(meet(&format!("{OPEN_MPI} MASTER_ADDR=node1 MASTER_PORT=4711")).unwrap(), "node1:4711");
        assert_eq!(meet(SLURM).unwrap(), "node1:15527");
        assert_eq!(meet(&format!("{SLURM} MASTER_ADDR=node2 MASTER_PORT=4711")).unwrap(), "node2:4711");
        // The agent's own store is at MASTER_PORT.
        assert_eq!(meet(TORCHRUN).unwrap(), "node1:29401");
        assert_eq!(meet(&TORCHRUN.replace("True", "False")).unwrap(), "node1:29400");
        assert_eq!(meet(KUBEFLOW).unwrap(), "job-node-0-0.job:29500");
        assert!(find(MPICH).is_one_host() && !find(OPEN_MPI).is_one_host() && !find(SLURM).is_one_host());
    }

    #[test]
    fn of_several_launchers_the_last_one_counts() {
        assert_eq!(find(&format!("{SLURM} {OPEN_MPI}")).launcher, Launcher::OpenMpi);
        assert_eq!(find(&format!("{SLURM} {TORCHRUN}")).launcher, Launcher::Torchrun);
        assert_eq!(find(&format!("{KUBEFLOW} {TORCHRUN}")).launcher, Launcher::Torchrun);
        assert_eq!(find(&format!("{SLURM} PMI_RANK=5 PMI_SIZE=6 PMI_FD=3")).launcher, Launcher::Slurm);
        assert_eq!(find(&format!("{OPEN_MPI} RANK=3 WORLD_SIZE=4")).launcher, Launcher::OpenMpi);
    }

    #[test]
    fn without_others_it_is_an_ordinary_process() {
        for text in [
            "",
            "HOME=/root MASTER_ADDR=node1 MASTER_PORT=29500",
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
            "JOB_COMPLETION_INDEX=3",
            // A batch script, which srun has not started.
            "SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NODEID=0 SLURM_LOCALID=0",
        ] {
            assert_eq!(Placement::find(&environment(text)).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn half_a_word_is_refused_in_one_line() {
        for (text, told) in [
            ("RANK=1", "RANK is set and WORLD_SIZE is not: set both, or neither"),
            ("WORLD_SIZE=2", "WORLD_SIZE is set and RANK is not: set both, or neither"),
            ("RANK=2 WORLD_SIZE=2", "RANK is 2 and WORLD_SIZE is 2: ranks count from 0"),
            ("PMI_RANK=x PMI_SIZE=2", "PMI_RANK is \"x\", which is no number"),
            ("PMIX_RANK=1", "PMIx says that this is rank 1 but not of how many: set WORLD_SIZE"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_ADDR is set and MASTER_PORT is not: set both"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT is 70000, which is no port"),
            ("PET_NODE_RANK=0 PET_NNODES=1:4", "PET_NNODES is 1:4: this takes a fixed number of nodes"),
            (
                "PMI_RANK=1 PMI_SIZE=2 RANK=0 WORLD_SIZE=2",
                "RANK is 0 of 2, but MPICH says 1 of 2: unset the one that is wrong",
            ),
            (
                "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
                "whoever set RANK says that this is process 2 of 2 on its host, and 0 of 2 in all",
            ),
        ] {
            assert_eq!(refused(text), told);
        }
    }
}
