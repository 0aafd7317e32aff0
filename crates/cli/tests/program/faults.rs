//! Workers that die under a job that goes on: the same bits in the end, by the same processes as far as they are left.

use std::fs;
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use super::endings::{children_of, is_gone, signal, wait_until};
use super::{Place, read};

/// A job that depends on all that there is to remember.
const JOB: &str = "--momentum 0.9 --shuffle --augment crop --workers 4 --samples 40 --epochs 60 --test-every 20 \
                  ";

/// Batch norm and dropout.
const NETWORK: &str = "input = [28, 28, 1]\n[[layer]]\ntype = \"conv\"\nfilters = 4\nkernel = 3\nstride = 2\npadding = 1\n\
                   [[layer]]\ntype = \"batch-norm\"\n[[layer]]\ntype = \"relu\"\n[[layer]]\ntype = \"dropout\"\nrate = 0.2\n\
                   [[layer]]\ntype = \"linear\"\noutputs = 10\n";

/// A job that runs, and its folder.
struct Running {
    launcher: Option<Child>,
    steps: std::path::PathBuf,
}

impl Running {
    fn start(place: &Place, job: &str) -> Self {
        let launcher = place.command(&format!("train {job} --out run --overwrite --json"));
        let launcher = { launcher }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = fs::remove_file(place.path("run/steps.jsonl"));
        Self { launcher: Some(launcher), steps: place.path("run/steps.jsonl") }
    }

    /// Waits until so many steps are done.
    fn reach(&self, steps: usize) -> &Self {
        wait_until("steps are done", || {
            fs::read_to_string(&self.steps).is_ok_and(|text| text.lines().count() >= steps)
        });
        self
    }

    /// The processes of the ranks that are there, by the ranks that they were started as.
    fn workers(&self) -> Vec<(usize, u32)> {
        let children = children_of(self.launcher.as_ref().unwrap().id()).into_iter();
        let rank = |id: u32| {
            let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
            String::from_utf8(line).ok()?.split('\0').nth(2)?.parse().ok()
        };
        let mut workers: Vec<_> = children.filter_map(|id| Some((rank(id)?, id))).collect();
        workers.sort_unstable();
        workers
    }

    fn kill(&self, rank: usize) -> &Self {
        let (_, id) = self.workers().into_iter().find(|(its, _)| *its == rank).unwrap();
        signal("KILL", id);
        wait_until("a worker ends", || is_gone(id));
        self
    }

    fn end(mut self) -> (Value, String) {
        let Output { status, stdout, stderr } = self.launcher.take().unwrap().wait_with_output().unwrap();
        let told = String::from_utf8(stderr).unwrap();
        assert!(status.success(), "{told}");
        (serde_json::from_slice::<Value>(&stdout).unwrap()["runs"][0].clone(), told)
    }
}

/// A test that fails leaves nobody behind.
impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
    }
}

fn steps(place: &Place, run: &str) -> Vec<(Value, Value)> {
    let lines = read(place.path(&format!("{run}/steps.jsonl")));
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (line["step"].clone(), line["loss"].clone())).collect()
}

/// The chief, the last one, servers, two at once, one again before the job has gone on.
#[test]
fn whoever_is_killed_the_job_ends_with_the_same_bits_and_one_record() {
    let place = Place::new();
    fs::write(place.path("net.toml"), NETWORK).unwrap();
    let ways: [(&str, &[usize]); 8] = [
        ("ddp", &[0]),
        ("ddp --compress top-k --keep 0.1 --error-feedback", &[3, 1]),
        ("all-reduce --batch-norm sync --transport tcp", &[2]),
        ("local-sgd --every 5", &[0]),
        ("sma --learners 2", &[1]),
        ("none --checkpoint-every 8", &[2]),
        ("parameter-server --servers 1 --checkpoint-every 8", &[4]),
        ("stale --staleness 0 --servers colocated --checkpoint-every 8", &[1]),
    ];
    for (way, killed) in ways {
        let job = format!("{JOB} --model net.toml --sync {way}");
        let whole = place.json(&format!("train {job} --out whole --overwrite --json"));
        let running = Running::start(&place, &format!("{job} --max-restarts 3"));
        let before = running.reach(16).workers();
        for &rank in killed {
            running.kill(rank);
        }
        let replaced = |(old, new): (&(usize, u32), &(usize, u32))| (old == new) != killed.contains(&old.0);
        wait_until("others are there", || {
            let now = running.workers();
            now.len() == before.len() && before.iter().zip(&now).all(replaced)
        });
        let after = running.workers();
        for ((rank, was), (_, is)) in before.iter().zip(&after) {
            assert_eq!(was == is, !killed.contains(rank), "{way}: rank {rank}");
        }
        let (summary, told) = running.end();
        assert_eq!(summary["weights_sha256"], whole["runs"][0]["weights_sha256"], "{way}: {told}");
        let keys = ["steps", "epochs", "epoch_losses", "epoch_test_accuracies", "bytes_sent"];
        // What servers answer to those that are saved counts, too.
        for key in &keys[..if way.contains("--servers") { 4 } else { 5 }] {
            assert_eq!(summary[key], whole["runs"][0][key], "{way}: {key}");
        }
        let sorted = |run| {
            let mut steps = steps(&place, run);
            steps.sort_by_key(|(step, loss)| (step.as_u64(), loss.to_string()));
            steps
        };
        assert_eq!(sorted("run"), sorted("whole"), "{way}");
        let metrics = |run: &str| read(place.path(&format!("{run}/metrics.jsonl"))).lines().count();
        assert_eq!(metrics("run"), metrics("whole"), "{way}");
        let restarts = summary["restarts"].as_array().unwrap();
        assert!(!restarts.is_empty() && restarts.len() <= killed.len(), "{way}: {told}");
        let said = format!("; going on from step {} with 4 workers", restarts[0]["step"]);
        assert!(told.contains(&said), "{way}: {told}");
    }
}

/// A new worker dies before it has met the others, and one of these after it: each is one failure more, and the bits stay.
#[test]
fn whoever_is_killed_while_others_recover_the_job_goes_on() {
    let place = Place::new();
    // So long that it is not over before the last of them is killed.
    let job = "--model mlp --sync ddp --momentum 0.9 --shuffle --workers 4 --samples 40 --epochs 300 --test-every 100";
    let whole = place.json(&format!("train {job} --out whole --overwrite --json"));
    let running = Running::start(&place, &format!("{job} --max-restarts 9"));
    let mut ids = running.reach(16).workers();
    running.kill(2);
    for rank in [2, 0] {
        wait_until("another is there", || {
            let now = running.workers();
            now.len() == 4 && now != ids
        });
        ids = running.workers();
        running.kill(rank);
    }
    let (summary, told) = running.end();
    assert_eq!(summary["weights_sha256"], whole["runs"][0]["weights_sha256"], "{told}");
    let restarts = summary["restarts"].as_array().unwrap();
    assert!((2..=3).contains(&restarts.len()), "{told}");
    let page = read(place.path("run/report.html"));
    assert!(page.contains("Workers that were lost") && page.matches("killed by signal 9").count() >= 2, "{told}");
}

#[test]
fn killed_again_and_again_a_job_ends_when_it_may_not_go_on() {
    let place = Place::new();
    let running = Running::start(&place, "--workers 2 --samples 20 --epochs 1000000 --max-restarts 2");
    for kill in 1..=3 {
        let ids = running.reach(20).workers();
        running.kill(kill % 2);
        if kill < 3 {
            wait_until("another is there", || running.workers().len() == 2 && running.workers() != ids);
        }
    }
    let mut running = running;
    let output = running.launcher.take().unwrap().wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.lines().last().unwrap().starts_with("error: rank 1 died: killed by signal 9"), "{told}");
    assert!(told.contains("(restart 2 of 2)"), "{told}");
}

/// What would happen again is not tried again.
#[test]
fn a_job_that_diverges_is_not_gone_on_with() {
    let place = Place::new();
    let error = place.refused("train --lr 1e20 --max-restarts 5");
    assert!(error.contains("diverged"), "{error}");
}

#[test]
fn faults_that_cannot_be_survived_are_refused() {
    let place = Place::new();
    for (arguments, expected) in [
        ("compare --max-restarts 1", "--max-restarts is for train: a comparison is not gone on with"),
        (
            "train --max-restarts 1 --launch threads",
            "--max-restarts is for worker processes; these workers are threads of one, and die together",
        ),
        ("train --elastic 3:2", "'3:2' is no range of workers: write 2:4 for at least 2 and at most 4"),
        ("train --elastic 0:4", "'0:4' is no range of workers: write 2:4 for at least 2 and at most 4"),
        ("train --elastic 2:3", "4 workers are not within --elastic 2:3"),
        (
            "train --elastic 2:4 --sync async",
            "--elastic 2:4: async needs all its workers; --max-restarts starts new ones",
        ),
        (
            "train --elastic 2:4 --shard contiguous",
            "--elastic 2:4: pieces of --shard contiguous cannot be shared out anew",
        ),
    ] {
        assert_eq!(place.refused(arguments), expected);
    }
}

/// Four begin and three end, or two: every image of every epoch is trained on, once.
#[test]
fn with_elastic_the_others_go_on_with_all_images() {
    let place = Place::new();
    fs::write(place.path("net.toml"), NETWORK).unwrap();
    let job =
        "--sync ddp --model net.toml --shuffle --momentum 0.9 --samples 100 --epochs 12 --test-every 4 --elastic 2:4";
    for killed in [&[0][..], &[1, 3]] {
        let running = Running::start(&place, job);
        let before = running.reach(16).workers();
        for &rank in killed {
            running.kill(rank);
        }
        let after = running.reach(36).workers();
        let left: Vec<_> = before.into_iter().filter(|(rank, _)| !killed.contains(rank)).collect();
        assert_eq!(after, left, "they keep their processes");
        let (summary, told) = running.end();
        let workers = 4 - killed.len();
        assert_eq!(
            (summary["workers"].as_u64(), summary["epochs"].as_u64()),
            (Some(workers as u64), Some(12)),
            "{told}"
        );
        let lines = read(place.path("run/steps.jsonl"));
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let numbers: Vec<_> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..lines.len() as u64).collect::<Vec<_>>(), "{told}");
        assert_eq!(summary["steps"].as_u64(), Some(lines.len() as u64));
        let images: u64 = lines.iter().map(|line| line["images"].as_u64().unwrap()).sum();
        assert_eq!(images, 12 * 100, "{told}");
        let metrics = read(place.path("run/metrics.jsonl"));
        let mut epochs = vec![0; 12];
        for line in metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            epochs[line["epoch"].as_u64().unwrap() as usize] += line["images"].as_u64().unwrap();
        }
        assert_eq!(epochs, [100; 12], "{told}");
        assert_eq!(summary["tests"].as_array().unwrap().len(), 3, "{told}");
        assert!(told.contains("going on from step"), "{told}");
    }
}

/// One of four dies, and when the other three have gone on for a while all of them, with their launcher: three go on.
#[test]
fn what_was_left_of_a_job_is_gone_on_with() {
    let place = Place::new();
    fs::write(place.path("net.toml"), NETWORK).unwrap();
    let job = "--sync ddp --model net.toml --shuffle --momentum 0.9 --samples 100 --epochs 40 --elastic 2:4";
    let mut running = Running::start(&place, &format!("{job} --checkpoint-every 5"));
    running.reach(16).kill(1).reach(60);
    let mut launcher = running.launcher.take().unwrap();
    signal("KILL", launcher.id());
    launcher.wait().unwrap();
    let summary = place.json("train --resume run --json")["runs"][0].clone();
    assert_eq!((summary["workers"].as_u64(), summary["epochs"].as_u64()), (Some(3), Some(40)));
    let lines = read(place.path("run/steps.jsonl"));
    let images = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["images"].as_u64().unwrap());
    assert_eq!(images.sum::<u64>(), 40 * 100);
}
