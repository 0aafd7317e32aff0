//! Processes that somebody else has started: four real ones each time, with the variables that a launcher sets.

use std::net::TcpListener;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::Duration;

use super::endings::{signal, wait_until};
use super::*;

const JOB: &str = "--epochs 2 --samples 40";
const SECRET: &str = "what the processes of this test were given";

/// What a launcher sets for each process.
type Variables = Box<dyn Fn(usize) -> String>;

/// What each of so many processes said.
fn all(place: &Place, processes: usize, arguments: &str, variables: impl Fn(usize) -> String) -> Vec<Output> {
    // The first one last: the others have to wait for it.
    let start = |process| start(place, arguments, &variables(process));
    let mut children: Vec<Child> = (0..processes).rev().map(start).collect();
    children.reverse();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

pub fn start(place: &Place, arguments: &str, variables: &str) -> Child {
    let pairs = variables.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    let mut command = place.command(arguments);
    command.envs(pairs).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn weights(place: &Place, folder: &str) -> Vec<u8> {
    std::fs::read(place.path(folder).join("model.safetensors")).unwrap()
}

/// A port that nobody listens at.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn under_each_launcher_a_job_ends_with_the_same_weights() {
    let place = Place::new();
    place.ok(&format!("train {JOB} --workers 4 --out alone"));
    let (id, port) = (std::process::id(), free_port());
    let launchers: [(&str, Variables); 6] = [
        (
            "openmpi",
            Box::new(move |rank| {
                format!(
                    "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK={rank} \
                     OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK={rank} PMIX_NAMESPACE=test-{id}"
                )
            }),
        ),
        ("mpich", Box::new(|rank| format!("PMI_RANK={rank} PMI_SIZE=4 MPI_LOCALRANKID={rank} MPI_LOCALNRANKS=4"))),
        (
            "srun",
            Box::new(move |rank| {
                format!(
                    "SLURM_JOB_ID={id} SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID={rank} \
                     SLURM_NODEID=0 SLURM_STEP_NODELIST=node1 SLURM_STEP_TASKS_PER_NODE=4"
                )
            }),
        ),
        (
            "torchrun",
            Box::new(move |rank| {
                format!(
                    "RANK={rank} WORLD_SIZE=4 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT={port} \
                     TORCHELASTIC_RUN_ID=test-{id} TORCHELASTIC_USE_AGENT_STORE=True"
                )
            }),
        ),
        ("hand", Box::new(move |rank| format!("RANK={rank} WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"))),
        (
            "kubernetes",
            Box::new(move |rank| {
                format!(
                    "JOB_COMPLETION_INDEX={rank} WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT={port} \
                     RINGSTEP_SECRET=0123456789abcdef"
                )
            }),
        ),
    ];
    for (launcher, variables) in launchers {
        let outputs = all(&place, 4, &format!("train {JOB} --json --out {launcher}"), variables);
        for output in &outputs {
            assert!(output.status.success(), "{launcher}: {}", errors(output));
        }
        // The first one alone has something to say.
        let summary: Value = serde_json::from_slice(&outputs[0].stdout).unwrap();
        assert_eq!(summary["runs"][0]["workers"], 4, "{launcher}");
        assert!(outputs[1..].iter().all(|output| output.stdout.is_empty() && output.stderr.is_empty()), "{launcher}");
        assert!(place.path(launcher).join("report.html").exists());
        assert_eq!(weights(&place, launcher), weights(&place, "alone"), "{launcher}");
    }
}

#[test]
fn nodes_start_workers_of_their_own() {
    let place = Place::new();
    place.ok(&format!("train {JOB} --sync stale --staleness 0 --servers colocated --workers 4 --out alone"));
    let job = format!("train {JOB} --sync stale --staleness 0 --servers colocated --workers 2");
    let nodes = format!("{job} --nodes 2 --rendezvous localhost:{} --out nodes", free_port());
    let variables = |node: usize| format!("JOB_COMPLETION_INDEX={node}");
    for output in all(&place, 2, &nodes, variables) {
        assert!(output.status.success(), "{}", errors(&output));
    }
    assert_eq!(weights(&place, "nodes"), weights(&place, "alone"));
    place.ok(&format!("{job} --hosts localhost,localhost --out hosts"));
    assert_eq!(weights(&place, "hosts"), weights(&place, "alone"));
}

#[test]
fn a_comparison_takes_as_many_processes_as_each_row_needs() {
    let place = Place::new();
    let port = free_port();
    let variables = |rank| format!("RANK={rank} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
    let outputs =
        all(&place, 2, &format!("compare {JOB} --json --out rows --sync single,ddp,data-parallel"), variables);
    assert!(outputs.iter().all(|output| output.status.success()), "{}", errors(&outputs[0]));
    let summary: Value = serde_json::from_slice(&outputs[0].stdout).unwrap();
    assert_eq!(summary["runs"].as_array().unwrap().len(), 3);
}

#[test]
fn a_process_that_is_killed_is_named_and_all_end() {
    let place = Place::new();
    let port = free_port();
    let job = "train --epochs 100000 --out run --json";
    let variables = |rank| format!("RANK={rank} WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
    let mut children = [0, 1, 2].map(|rank| start(&place, job, &variables(rank)));
    while std::fs::metadata(place.path("run/metrics.jsonl")).map_or(0, |file| file.len()) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    children[2].kill().unwrap();
    let [first, second, _] = children.map(|child| child.wait_with_output().unwrap());
    let told = errors(&first);
    assert!(told.starts_with("error: rank 2 on 127.0.0.1 died: its process is gone, or cut off"), "{told}");
    assert_eq!((first.status.code(), second.status.code()), (Some(1), Some(1)));
    assert_eq!(errors(&second), "");
}

/// What a scheduler sends to all processes: every rank is saved, wherever it is, and the job goes on under its launcher.
#[test]
fn a_preempted_job_is_saved_on_all_nodes_and_goes_on() {
    let place = Place::new();
    let job = "--epochs 300 --samples 40 --momentum 0.9";
    place.ok(&format!("train {job} --workers 4 --out alone"));
    let port = free_port();
    let ranks: (_, _, Variables) = (
        "ranks",
        "",
        Box::new(move |rank| format!("RANK={rank} WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}")),
    );
    let rendezvous = format!("--nodes 2 --rendezvous localhost:{port}");
    let nodes: (_, _, Variables) = ("nodes", &rendezvous[..], Box::new(|node| format!("JOB_COMPLETION_INDEX={node}")));
    for ((run, flags, variables), processes) in [(ranks, 4), (nodes, 2)] {
        let each = if flags.is_empty() { "" } else { "--workers 2" };
        let first = format!("train {job} {flags} {each} --checkpoint-every 1h --out {run}");
        let children: Vec<Child> = (0..processes).map(|process| start(&place, &first, &variables(process))).collect();
        let done = place.path(run).join("steps.jsonl");
        wait_until("training begins", || std::fs::metadata(&done).is_ok_and(|file| file.len() > 1000));
        children.iter().rev().for_each(|child| signal("TERM", child.id()));
        let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let told = errors(&outputs[0]);
        assert_eq!(outputs[0].status.code(), Some(75), "{run}: {told}");
        assert!(told.ends_with(&format!("; to go on: ringstep train --resume {run}\n")), "{told}");
        assert!(outputs[1..].iter().all(|output| output.status.success() && output.stderr.is_empty()), "{run}");
        for output in all(&place, processes, &format!("train {flags} --resume {run}"), variables) {
            assert!(output.status.success(), "{run}: {}", errors(&output));
        }
        assert!(weights(&place, run) == weights(&place, "alone"), "{run}: other weights");
    }
}

#[test]
fn whoever_has_another_secret_is_told_on_both_sides() {
    let place = Place::new();
    let port = free_port();
    let variables = |rank: usize| {
        let secret = SECRET.replace(' ', if rank == 0 { "-" } else { "_" });
        format!("RANK={rank} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port} RINGSTEP_SECRET={secret}")
    };
    let outputs = all(&place, 2, "train --timeout 1", variables);
    assert!(errors(&outputs[0]).contains("of 2 processes 1 did not come within 1s; "), "{}", errors(&outputs[0]));
    assert!(errors(&outputs[0]).contains("did not know the job's secret"));
    assert!(errors(&outputs[1]).contains("another secret than this job"), "{}", errors(&outputs[1]));
    // Nothing was begun.
    assert!(!place.path("runs").exists());
}

#[test]
fn what_launchers_say_must_make_sense() {
    let place = Place::new();
    for (arguments, variables, told) in [
        ("train", "RANK=1", "RANK is set and WORLD_SIZE is not: set both, or neither"),
        (
            "train",
            "RANK=0 WORLD_SIZE=2",
            "whoever set RANK has started 2 processes, and nothing says where they meet: --rendezvous HOST:PORT",
        ),
        (
            "train --workers 3",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1",
            "this job takes 3 processes, and whoever set RANK has started 2",
        ),
        (
            "train --sync data-parallel",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1",
            "this job takes 1 processes, and whoever set RANK has started 2",
        ),
        (
            "train --start-with nice",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1",
            "--start-with is for workers that ringstep starts here; these are started by whoever set RANK",
        ),
        (
            "train --nodes 2 --node-rank 0 --rendezvous node1:29500",
            "",
            "processes meet at node1:29500, where others may come too: give all of them one secret, by RINGSTEP_SECRET or \
             --secret-file",
        ),
        ("train --secret-file no-such", "", "--secret-file no-such: No such file or directory (os error 2)"),
        (
            "train --hosts no-such-host.invalid --workers 1",
            "",
            "no-such-host.invalid: no way there is known; --interface says at which address hosts find this one: failed to \
             lookup address information: Name or service not known",
        ),
    ] {
        let output = start(&place, arguments, variables).wait_with_output().unwrap();
        assert_eq!(errors(&output), format!("error: {told}\n"), "{arguments}");
        assert_eq!(output.status.code(), Some(1));
    }
}
