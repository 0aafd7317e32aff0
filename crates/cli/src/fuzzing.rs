//! What users, launchers, other processes and files say, for fuzzers.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use ringstep_nn::Network;
use ringstep_train::job::Design;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::checkpoints::find;
use crate::cluster::{Environment, Placement, nodelist};
use crate::launch::protocol::{Answer, Ordered, Request, Said, Start};
use crate::names::{Bytes, Share};
use crate::settings::{Every, Link, Mode, ModelName, SlowRanks, file};
use crate::simulate::args::{Compute, Failing, Scales, Stragglers, Wire};
use crate::trace_file::spans_before;

fn text(input: &[u8]) -> &str {
    std::str::from_utf8(input).unwrap_or_default()
}

/// An experiment file, and the runs that it means; they mean the same once they are written down.
pub fn experiment(input: &[u8]) -> bool {
    let read = |text: &str| file::parse(Path::new("file"), text);
    let Ok(experiment) = read(text(input)) else { return false };
    let Ok((complete, runs)) = experiment.resolve(Mode::Compare) else { return false };
    assert!(!runs.is_empty() && read(&complete.to_toml().expect("what was read can be written")).is_ok());
    true
}

/// A file with a network.
pub fn model(input: &[u8]) -> bool {
    let network = file::parse_toml::<Network>(Path::new("file"), text(input));
    let design = network.ok().and_then(|network| Design::new("network", network).ok());
    design.is_some_and(|design| design.network().parameters().is_ok() && design.classes() > 0)
}

/// A checkpoint's sums, a zero byte, and its manifest.
pub fn checkpoint(input: &[u8]) -> bool {
    let mut parts = input.splitn(2, |&byte| byte == 0);
    let (sums, manifest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let sums = find::listed(text(sums)).is_ok_and(|files| {
        assert!(files.iter().all(|(_, path)| !path.contains("/..") && !path.starts_with('/')));
        !files.is_empty()
    });
    find::parse(manifest).is_ok() && sums
}

/// Slurm's short forms of hosts and of numbers, in turn.
pub fn nodelist(input: &[u8]) -> bool {
    let hosts = nodelist::hosts(text(input)).is_ok_and(|hosts| !hosts.is_empty());
    nodelist::counts(text(input)).is_ok() || hosts
}

/// An environment, a variable a line.
pub fn launcher(input: &[u8]) -> bool {
    let pairs = text(input).lines().filter_map(|line| line.split_once('='));
    let environment: Environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let Ok(Some(placement)) = Placement::find(&environment) else { return false };
    assert!(placement.process < placement.processes);
    true
}

/// Whether a text means something, and then the same again as it is shown.
fn shown<T: FromStr + Display + PartialEq + Debug>(text: &str) -> bool {
    let Ok(value) = text.parse::<T>() else { return false };
    let again = value.to_string().parse::<T>();
    assert!(again.is_ok_and(|again| again == value || text.to_lowercase().contains("nan")), "{text}");
    true
}

/// What is written behind a flag: which kind of flag it is, then the text.
pub fn flag(input: &[u8]) -> bool {
    let [kind, rest @ ..] = input else { return false };
    let text = text(rest);
    match kind % 11 {
        0 => shown::<Link>(text),
        1 => shown::<SlowRanks>(text),
        2 => shown::<Bytes>(text),
        3 => shown::<Share>(text),
        4 => shown::<Every>(text),
        5 => shown::<ModelName>(text),
        6 => shown::<Wire>(text),
        7 => text.parse::<Compute>().is_ok(),
        8 => text.parse::<Scales>().is_ok_and(|scales| !scales.0.is_empty()),
        9 => text.parse::<Stragglers>().is_ok(),
        _ => text.parse::<Failing>().is_ok(),
    }
}

/// What launcher, processes and workers tell each other.
pub fn order(input: &[u8]) -> bool {
    fn again<T: DeserializeOwned + Serialize>(input: &[u8]) -> bool {
        serde_json::from_slice::<T>(input).is_ok_and(|message| serde_json::to_vec(&message).is_ok())
    }
    [again::<Start>, again::<Request>, again::<Answer>, again::<Ordered>, again::<Said>]
        .iter()
        .any(|again| again(input))
}

/// The trace of a run that is gone on with.
pub fn trace(input: &[u8]) -> bool {
    spans_before(input, &[3, 1]).iter().any(|spans| !spans.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;
    use crate::replay::replay;
    use crate::settings::Run;

    fn run() -> Run {
        let experiment = file::parse(Path::new("file"), "model = \"mlp\"\nsync = \"ddp\"\nsteps = 3").unwrap();
        experiment.resolve(Mode::Train).unwrap().1.remove(0)
    }

    fn texts(all: &[&str]) -> Vec<Vec<u8>> {
        all.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn files_of_users() {
        let ways = include_str!("../../../experiments/synchronisation.toml");
        let codes = include_str!("../../../experiments/compression.toml");
        let rows = "samples = 40\n[[row]]\nsync = \"ddp\"\nbucket = \"64kB\"\n[[row]]\nsync = \"sma\"\nlearners = 2\n";
        replay("experiment", experiment, &texts(&[ways, codes, rows]));
        let small = "input = [4, 4, 1]\n[[layer]]\ntype = \"linear\"\noutputs = 10\n";
        replay("model", model, &texts(&[include_str!("../../nn/examples/own_model.toml"), small]));
    }

    #[test]
    fn what_launchers_say() {
        replay("nodelist", nodelist, &texts(&["node[1-3,07-09],login1", "rack[1-2]n[1,3]x,b", "2(x3),1"]));
        let slurm = "SLURM_JOB_ID=17\nSLURM_STEP_ID=0\nSLURM_PROCID=5\nSLURM_NTASKS=6\nSLURM_LOCALID=1\nSLURM_NODEID=2\n\
            SLURM_STEP_NODELIST=node[1-2,07]\nSLURM_STEP_TASKS_PER_NODE=2(x3)";
        let torchrun = "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nGROUP_RANK=0\nMASTER_ADDR=node1\n\
            MASTER_PORT=29400\nTORCHELASTIC_RUN_ID=none\nTORCHELASTIC_USE_AGENT_STORE=True";
        let open_mpi = "OMPI_COMM_WORLD_RANK=3\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=1\n\
            OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=6";
        let kubeflow = "PET_NNODES=2\nPET_NPROC_PER_NODE=3\nPET_NODE_RANK=1\nPET_MASTER_ADDR=a\nPET_MASTER_PORT=29500";
        replay("launcher", launcher, &texts(&[slurm, torchrun, open_mpi, kubeflow, "PMI_RANK=1\nPMI_SIZE=2"]));
    }

    #[test]
    fn flags() {
        let written = [
            "\0bandwidth=100Mbit,latency=1ms",
            "\u{1}1:2+3:4:0.1",
            "\u{2}64KiB",
            "\u{3}1%",
            "\u{4}10m",
            "\u{5}vgg11",
            "\u{6}25gbit,20us",
            "\u{7}12.5",
            "\u{8}2..4096",
            "\u{9}exponential:0.5",
            "\u{a}between=30d,restart=2min,every=1000",
        ];
        replay("flag", flag, &texts(&written));
    }

    #[test]
    fn what_processes_and_checkpoints_say() {
        let run = run();
        let task = json!({ "Train": {
            "run": to_value(&run).unwrap(), "model_file": "m", "checkpoints": null, "resume": null
        } });
        let work = json!({
            "task": task, "world": 4, "transport": "tcp", "timeout": { "secs": 60, "nanos": 0 }, "link": null
        });
        let said = json!({ "rank": 1, "message": { "Failed": { "error": "rank 1: no", "blame": "Died" } } });
        let orders =
            [json!({ "Work": { "work": work, "places": [[0], [1]] } }), json!({ "End": { "failed": true } }), said];
        replay("order", order, &orders.map(|order| order.to_string().into_bytes()));

        let manifest = json!({
            "format": 1, "step": 3, "job": to_value(&run.job).unwrap(), "data": to_value(&run.data).unwrap(),
            "images": 100, "ranks": []
        });
        let sums = "00ff  rank-0.safetensors\n00ff  ../tests/200.safetensors\n";
        replay("checkpoint", checkpoint, &texts(&[&format!("{sums}\0{manifest}")]));
        let event = json!({ "ph": "X", "name": "bucket 0", "cat": "communication", "pid": 1, "tid": 1, "ts": 2.5,
            "dur": 1e3, "args": { "step": 0 } });
        replay("trace", trace, &texts(&[&json!({ "traceEvents": [event] }).to_string()]));
    }
}
