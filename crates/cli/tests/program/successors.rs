//! Processes that somebody else has started, and that die under a job that goes on: those that are left stay, and others come in
//! the place of the lost ones.

use std::process::{Child, Output};

use super::cluster::{errors, free_port, start, weights};
use super::endings::{children_of, is_gone, signal, wait_until};
use super::*;

/// A job that depends on all that there is to remember, and takes a while.
const JOB: &str = "--sync ddp --momentum 0.9 --shuffle --augment crop --samples 40 --epochs 300 --test-every 100";

/// The processes of a job, each started as somebody else would.
struct Processes<'a> {
    place: &'a Place,
    arguments: String,
    variables: Box<dyn Fn(usize) -> String>,
    children: Vec<Child>,
}

/// How they are started.
type Begin<'a> = fn(&'a Place, usize, &str) -> Processes<'a>;

impl<'a> Processes<'a> {
    /// So many ranks, one a process.
    fn ranks(place: &'a Place, count: usize, arguments: &str) -> Self {
        let port = free_port();
        // Whoever comes later believes that there are more.
        let variables = move |rank: usize| {
            let world = count.max(rank + 1);
            format!("RANK={rank} WORLD_SIZE={world} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}")
        };
        Self::begin(place, count, arguments.to_owned(), Box::new(variables))
    }

    /// So many nodes, each of which starts two.
    fn nodes(place: &'a Place, count: usize, arguments: &str) -> Self {
        let rendezvous = format!("--nodes {count} --rendezvous localhost:{}", free_port());
        let variables = |node| format!("JOB_COMPLETION_INDEX={node}");
        Self::begin(place, count, format!("{arguments} {rendezvous} --workers 2"), Box::new(variables))
    }

    fn begin(place: &'a Place, count: usize, arguments: String, variables: Box<dyn Fn(usize) -> String>) -> Self {
        let arguments = format!("train {arguments} --out run --overwrite --json");
        let _ = std::fs::remove_file(place.path("run/steps.jsonl"));
        let mut processes = Self { place, arguments, variables, children: Vec::new() };
        processes.children = (0..count).map(|process| processes.start(process)).collect();
        processes
    }

    fn start(&self, process: usize) -> Child {
        start(self.place, &self.arguments, &(self.variables)(process))
    }

    /// Waits until so many steps are done.
    fn reach(&self, steps: usize) -> &Self {
        let file = self.place.path("run/steps.jsonl");
        wait_until("steps are done", || std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() >= steps));
        self
    }

    /// Kills a process, with all that it has started.
    fn kill(&mut self, process: usize) {
        let workers = children_of(self.children[process].id());
        self.children[process].kill().unwrap();
        self.children[process].wait().unwrap();
        wait_until("its workers end", || workers.iter().all(|&worker| is_gone(worker)));
    }

    /// What the first one said.
    fn end(mut self) -> (Value, String) {
        let outputs: Vec<Output> = self.children.drain(..).map(|child| child.wait_with_output().unwrap()).collect();
        let told = errors(&outputs[0]);
        assert!(outputs[0].status.success(), "{told}");
        (serde_json::from_slice::<Value>(&outputs[0].stdout).unwrap()["runs"][0].clone(), told)
    }
}

/// A test that fails leaves nobody behind.
impl Drop for Processes<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A worker of each node, of which the second has its states in the memory of another process than the first one's.
#[test]
fn a_node_starts_workers_anew_and_all_others_stay() {
    let place = Place::new();
    place.ok(&format!("train {JOB} --workers 4 --out whole"));
    let processes = Processes::nodes(&place, 2, &format!("{JOB} --max-restarts 3"));
    for node in [1, 0] {
        let workers = processes.reach(16).children.iter().flat_map(|node| children_of(node.id())).collect::<Vec<_>>();
        let killed = children_of(processes.children[node].id())[1];
        signal("KILL", killed);
        let now = || processes.children.iter().flat_map(|node| children_of(node.id())).collect::<Vec<_>>();
        wait_until("another is there", || now().len() == 4 && !now().contains(&killed));
        assert_eq!(now().iter().filter(|worker| workers.contains(worker)).count(), 3, "the others stay");
    }
    let (summary, told) = processes.end();
    assert!(weights(&place, "run") == weights(&place, "whole"), "{told}");
    let restarts = summary["restarts"].as_array().unwrap();
    assert_eq!(restarts.len(), 2, "{told}");
    assert!(told.contains("rank 3 on 127.0.0.1 died: killed by signal 9"), "{told}");
}

/// A node and a rank come again, and go on from the last checkpoint.
#[test]
fn whoever_comes_in_the_place_of_a_lost_process_goes_on_with_its_part() {
    let place = Place::new();
    place.ok(&format!("train {JOB} --workers 4 --out whole"));
    let job = format!("{JOB} --max-restarts 3 --checkpoint-every 5");
    for (begin, count) in [(Processes::nodes as Begin<'_>, 2), (Processes::ranks, 4)] {
        let mut processes = begin(&place, count, &job);
        processes.reach(16);
        let last = processes.children.len() - 1;
        let ids: Vec<u32> = processes.children.iter().map(Child::id).collect();
        processes.kill(last);
        processes.children[last] = processes.start(last);
        let now: Vec<u32> = processes.children.iter().map(Child::id).collect();
        assert_eq!(now[..last], ids[..last]);
        let (summary, told) = processes.end();
        assert!(weights(&place, "run") == weights(&place, "whole"), "{told}");
        assert_eq!(summary["restarts"].as_array().unwrap().len(), 1, "{told}");
        assert!(told.contains(" to come again, "), "{told}");
    }
}

/// Nobody comes: that is the end, and says so.
#[test]
fn a_lost_process_is_waited_for_as_long_as_any() {
    let place = Place::new();
    let mut processes = Processes::ranks(&place, 2, "--samples 40 --epochs 1000000 --max-restarts 3 --timeout 2");
    processes.reach(16);
    processes.kill(1);
    let first = processes.children.remove(0).wait_with_output().unwrap();
    let told = errors(&first);
    assert_eq!(first.status.code(), Some(1), "{told}");
    let last = told.lines().last().unwrap();
    assert!(last.starts_with("error: rank 1 on 127.0.0.1 died: its process is gone, or cut off"), "{told}");
    assert!(last.ends_with("; of 2 processes 1 did not come within 2s"), "{told}");
}

/// All images of all epochs are trained on, once, whoever has left and come meanwhile.
fn assert_all_images(place: &Place, epochs: usize, told: &str) {
    let parsed = |name: &str| -> Vec<Value> {
        let lines = read(place.path(name));
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let images = |lines: &[Value]| lines.iter().map(|line| line["images"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(images(&parsed("run/steps.jsonl")), 100 * epochs as u64, "{told}");
    let metrics = parsed("run/metrics.jsonl");
    for epoch in 0..epochs as u64 {
        let of_epoch: Vec<Value> = metrics.iter().filter(|line| line["epoch"] == epoch).cloned().collect();
        assert_eq!(images(&of_epoch), 100, "epoch {epoch}: {told}");
    }
}

/// With --elastic others may join: one that was there before, with what it starts, and one that never was.
#[test]
fn more_go_on_where_others_come() {
    let place = Place::new();
    let job = "--sync ddp --compress dgc --keep 0.2 --momentum 0.9 --shuffle --samples 100 --epochs 100";
    let mut processes = Processes::nodes(&place, 2, &format!("{job} --elastic 2:4"));
    processes.reach(16);
    processes.kill(1);
    processes.reach(50);
    processes.children[1] = processes.start(1);
    let (summary, told) = processes.end();
    assert_eq!((summary["workers"].as_u64(), summary["epochs"].as_u64()), (Some(4), Some(100)), "{told}");
    assert!(told.contains("process 1 has come; going on from step"), "{told}");
    assert_all_images(&place, 100, &told);

    // One joins, and another finds no room. When the first is killed at once the other does, and nobody goes back to the beginning.
    let mut processes = Processes::ranks(&place, 2, &format!("{job} --elastic 1:3"));
    processes.reach(50);
    let joined = |count: usize| {
        let lines = read(place.path("run/steps.jsonl"));
        lines.lines().filter(|line| line.contains(r#""images":15"#)).count() >= count
    };
    for late in [2, 3] {
        let process = processes.start(late);
        processes.children.push(process);
        wait_until("one joins", || joined(5 * (late - 1)));
    }
    processes.kill(2);
    let (summary, told) = processes.end();
    let restarts = summary["restarts"].as_array().unwrap();
    let steps: Vec<u64> = restarts.iter().map(|restart| restart["step"].as_u64().unwrap()).collect();
    assert!(steps.len() >= 2 && steps[0] > 0 && steps.is_sorted(), "{steps:?}: {told}");
    assert_eq!(summary["workers"].as_u64(), Some(3), "{told}");
    assert_all_images(&place, 100, &told);
}

/// With --elastic the others go on, by the states that each has in its own memory.
#[test]
fn fewer_go_on_where_fewer_will_do() {
    let place = Place::new();
    let job = "--sync ddp --momentum 0.9 --shuffle --samples 100 --epochs 100 --elastic 2:4";
    for (begin, count, left) in [(Processes::nodes as Begin<'_>, 2, 2), (Processes::ranks, 4, 3)] {
        let mut processes = begin(&place, count, job);
        processes.reach(16);
        processes.kill(processes.children.len() - 1);
        let (summary, told) = processes.end();
        assert_eq!((summary["workers"].as_u64(), summary["epochs"].as_u64()), (Some(left), Some(100)), "{told}");
        assert!(summary["restarts"][0]["step"].as_u64().unwrap() > 0, "{told}");
        assert_all_images(&place, 100, &told);
    }
}

/// Whoever takes orders from a process that hangs says so; one that was suspended itself has not waited meanwhile.
#[test]
fn a_first_process_that_stops_is_missed_by_all_others() {
    let place = Place::new();
    let mut processes = Processes::ranks(&place, 3, "--sync ddp --epochs 1000000 --timeout 2");
    let first = processes.reach(4).children[0].id();
    for member in &processes.children[1..] {
        signal("STOP", member.id());
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    for member in &processes.children[1..] {
        signal("CONT", member.id());
    }
    let steps = std::fs::read_to_string(place.path("run/steps.jsonl")).unwrap().lines().count();
    processes.reach(steps + 100);
    signal("STOP", first);
    for member in processes.children.drain(1..) {
        let output = member.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let expected = "the first process of the job, on 127.0.0.1, does not answer any more (nothing heard for 2s)";
        assert!(errors(&output).contains(expected), "{}", errors(&output));
    }
    signal("CONT", first);
    assert_eq!(processes.children.remove(0).wait().unwrap().code(), Some(1));
}
