//! Ctrl-C, a worker that dies, a launcher that is killed: all processes end, and nobody is left behind.

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Place;

/// A job of some processes that would go on for hours.
struct Job {
    place: Place,
    launcher: Option<Child>,
    workers: Vec<u32>,
}

const PATIENCE: Duration = Duration::from_secs(20);

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

pub fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([format!("-{name}"), process.to_string()]).status().unwrap().success());
}

/// The processes that any thread of a process has started.
pub fn children_of(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let mut children: Vec<u32> =
        children.flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect();
    children.sort_unstable();
    children
}

/// Ended, though perhaps not collected by whoever takes care of orphans here.
pub fn is_gone(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ")
}

impl Job {
    /// Starts the job and waits until its workers are training.
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(options: &str) -> Self {
        Self::start_ranks(4, options)
    }

    fn start_ranks(ranks: usize, options: &str) -> Self {
        let place = Place::new();
        let launcher = place
            .command(&format!("train --epochs 1000000 --out run {options}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let metrics = place.path("run/metrics.jsonl");
        wait_until("training begins", || metrics.metadata().is_ok_and(|metadata| metadata.len() > 1000));
        let process = launcher.id();
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
        let workers: Vec<u32> = children.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(workers.len(), ranks);
        Self { place, launcher: Some(launcher), workers }
    }

    fn launcher_id(&self) -> u32 {
        self.launcher.as_ref().unwrap().id()
    }

    /// Waits for the end, and checks that it took everyone along.
    fn end(self) -> Output {
        self.end_and_keep().1
    }

    /// The same, and returns what was left behind.
    fn end_and_keep(mut self) -> (Place, Output) {
        let output = self.launcher.take().unwrap().wait_with_output().unwrap();
        for &worker in &self.workers {
            wait_until("a worker ends", || is_gone(worker));
        }
        (std::mem::replace(&mut self.place, Place::new()), output)
    }
}

/// A test that fails leaves nobody behind either.
impl Drop for Job {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
    }
}

fn errors(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// The steps that a message says were done.
fn steps_in(text: &str) -> usize {
    let after = text.split("after step ").nth(1).unwrap_or_else(|| panic!("{text}"));
    after.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn ctrl_c_ends_after_the_step_with_all_that_was_done() {
    for options in
        ["", "--launch threads", "--sync none --slow 1:3", "--sync async --servers 1", "--sync local-sgd --period 0.05"]
    {
        let ranks = match options {
            "--launch threads" => 0,
            "--sync async --servers 1" => 5,
            _ => 4,
        };
        let job = Job::start_ranks(ranks, options);
        // A terminal sends it to the whole group.
        for &worker in &job.workers {
            signal("INT", worker);
        }
        signal("INT", job.launcher_id());
        let (folder, output) = job.end_and_keep();
        assert_eq!(output.status.code(), Some(130), "{options}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("error: interrupted by signal 2; all workers are ended after step"), "{options}: {told}");
        assert!(told.trim_end().ends_with("; to go on: ringstep train --resume run"), "{options}: {told}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("was interrupted after") && shown.contains("Report: run/report.html"), "{shown}");
        let summary: serde_json::Value = serde_json::from_str(&super::read(folder.path("run/summary.json"))).unwrap();
        assert_eq!(summary["runs"][0]["interrupted"], true);
        assert!(folder.path("run/model.safetensors").exists());
        assert!(folder.path(&format!("run/checkpoints/{}/SHA256SUMS", steps_in(&told))).exists());
    }
}

/// What Slurm sends, to all processes: there is no time for tests, and the exit code says that it can go on.
#[test]
fn a_preempted_job_is_saved_and_goes_on() {
    for (name, options) in
        [("TERM", "--sync ddp"), ("USR1", "--sync stale --staleness 2 --servers 2"), ("TERM", "--sync async")]
    {
        let job = Job::start_ranks(
            if options.contains("ddp") {
                4
            } else if options.contains("2") {
                6
            } else {
                5
            },
            options,
        );
        job.workers.iter().for_each(|&worker| signal(name, worker));
        signal(name, job.launcher_id());
        let (folder, output) = job.end_and_keep();
        assert_eq!(output.status.code(), Some(75), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        let done = steps_in(&errors(&output));
        assert!(!folder.path("run/summary.json").exists());
        let json = folder.json(&format!("train --resume run --steps {} --json", done + 20));
        assert_eq!(json["runs"][0]["steps"], done + 20, "{options}");
    }
}

#[test]
fn asked_twice_all_end_at_once() {
    // A worker that is stopped says nothing to the first.
    let job = Job::start();
    signal("STOP", job.workers[1]);
    signal("INT", job.launcher_id());
    sleep(Duration::from_millis(200));
    signal("INT", job.launcher_id());
    let output = job.end();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(errors(&output), "error: interrupted by signal 2; all workers are ended\n");
}

#[test]
fn a_comparison_ends_with_the_rows_that_it_has() {
    let place = Place::new();
    let mut run = place
        .command("compare --sync all-reduce,ddp --epochs 1000000 --out run")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let steps = place.path("run/steps.jsonl");
    wait_until("training begins", || steps.metadata().is_ok_and(|metadata| metadata.len() > 1000));
    signal("INT", run.id());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let summary: serde_json::Value = serde_json::from_str(&super::read(place.path("run/summary.json"))).unwrap();
    assert_eq!(summary["runs"].as_array().unwrap().len(), 1);
}

/// Even a worker that is stopped.
#[test]
fn workers_have_names_and_die_with_their_launcher() {
    let job = Job::start();
    let cmdline = std::fs::read(format!("/proc/{}/cmdline", job.workers[2])).unwrap();
    assert_eq!(cmdline, b"ringstep\0worker\x002\0");
    signal("STOP", job.workers[2]);
    signal("KILL", job.launcher_id());
    job.end();
}

#[test]
fn a_worker_that_dies_ends_all_and_is_named() {
    let network = "input = [8, 8, 1]\n[[layer]]\ntype = \"batch-norm\"\n[[layer]]\ntype = \"linear\"\noutputs = 10\n";
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), network).unwrap();
    // While gradients are reduced behind backward, and statistics are added up at the same time.
    let overlapping = format!(
        "--sync ddp --bucket 100 --batch-norm sync --model {} --dataset synthetic --samples 100",
        file.path().display()
    );
    for options in ["", &overlapping] {
        let job = Job::start_with(options);
        // Started in the order of their ranks.
        signal("KILL", job.workers[2]);
        let output = job.end();
        assert_eq!(output.status.code(), Some(1));
        let told = errors(&output);
        assert!(told.starts_with("error: rank 2 died: killed by signal 9"), "{told}");
        // Where that was noticed, if those that were left had the time to say so.
        assert!(told.contains(": recv from rank 2: connection closed") || !told.contains('('), "{told}");
    }
}

/// Workers that wait for nobody, wait at a server or in a collective, and the servers themselves.
#[test]
fn under_every_way_whoever_dies_ends_all_and_is_named() {
    let alone = ["none", "local-sgd", "local-sgd --period 0.1", "post-local-sgd", "diloco", "sma --learners 2"];
    let alone = alone.map(|way| (way, 4, 2));
    let together = ["gather-scatter", "ddp --compress top-k", "ddp --slow 1:2"].map(|way| (way, 4, 3));
    let served = ["parameter-server", "stale", "async", "async --period 0.01"];
    let served = served.into_iter().flat_map(|way| [(way, 6, 1), (way, 6, 5)]);
    // A worker and a server go at once.
    let colocated = ["parameter-server --servers colocated", "async --servers colocated"].map(|way| (way, 4, 2));
    for (way, ranks, dies) in alone.into_iter().chain(together).chain(served).chain(colocated) {
        let servers = if ranks > 4 { "--servers 2" } else { "" };
        let job = Job::start_ranks(ranks, &format!("--sync {way} {servers}"));
        signal("KILL", job.workers[dies]);
        let output = job.end();
        assert_eq!(output.status.code(), Some(1), "{way}");
        let told = errors(&output);
        assert!(told.starts_with(&format!("error: rank {dies} died: killed by signal 9")), "{way}: {told}");
    }
}

/// Each rank once: those that wait for it, and those that wait for these, do not blame each other.
#[test]
fn a_worker_that_stops_is_given_up_after_the_timeout_and_named() {
    let ways = ["all-reduce --algorithm ring", "ddp", "gather-scatter", "parameter-server --servers 1"];
    for transport in ["shm", "tcp"] {
        std::thread::scope(|scope| {
            for way in ways {
                scope.spawn(move || {
                    let ranks = if way.contains("server") { 5 } else { 4 };
                    for rank in 0..ranks {
                        let options = format!("--timeout 2 --transport {transport} --sync {way}");
                        let job = Job::start_ranks(ranks, &options);
                        signal("STOP", job.workers[rank]);
                        let output = job.end();
                        assert_eq!(output.status.code(), Some(1));
                        let told = errors(&output);
                        let named = format!("error: rank {rank} does not answer any more (");
                        // A collective and its number, and what it was about.
                        let placed = told.contains('#') || told.contains("nothing from rank");
                        assert!(told.starts_with(&named) && placed, "{way} over {transport}: {told}");
                        let bucket = told.contains("bucket") || told.contains("nothing heard");
                        assert!(way != "ddp" || bucket, "{way} over {transport}: {told}");
                    }
                });
            }
        });
    }
}

/// Ways in which nobody owes anything: a worker that is stopped is missed all the same.
#[test]
fn a_worker_that_stops_is_missed_where_nobody_waits_for_it() {
    for way in ["none", "async --servers 1", "local-sgd --period 0.05"] {
        let ranks = if way.contains("server") { 5 } else { 4 };
        let job = Job::start_ranks(ranks, &format!("--timeout 2 --sync {way}"));
        signal("STOP", job.workers[1]);
        let output = job.end();
        assert_eq!(output.status.code(), Some(1));
        let told = errors(&output);
        assert!(told.starts_with("error: rank 1 does not answer any more ("), "{way}: {told}");
    }
}

/// From 10 s on it is said who is waited for; one that goes on in time is no error.
#[test]
fn a_worker_that_pauses_is_named_and_the_job_goes_on() {
    use std::io::{BufRead, BufReader};
    let mut job = Job::start();
    signal("STOP", job.workers[1]);
    let mut lines = BufReader::new(job.launcher.as_mut().unwrap().stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("waiting: rank 1 does not answer, for 10 s now; rank ") && line.contains('#'), "{line}");
    signal("CONT", job.workers[1]);
    assert_eq!(lines.next().unwrap().unwrap(), "waiting: rank 1 goes on");
    signal("INT", job.launcher_id());
    assert_eq!(job.end().status.code(), Some(130));
}

#[test]
fn workers_do_not_outlive_their_launcher() {
    let job = Job::start();
    signal("KILL", job.launcher_id());
    wait_until("the launcher ends", || is_gone(job.launcher_id()));
    // What was traced until then can be looked at.
    let trace = std::fs::read_to_string(job.place.path("run/trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
    job.end();
}

#[test]
fn training_that_diverges_ends_all_and_says_so() {
    let place = Place::new();
    for launch in ["processes", "threads"] {
        let error = place.refused(&format!("train --lr 1e20 --launch {launch}"));
        assert!(error.contains("the loss is") && error.contains("diverged"), "{error}");
        assert!(error.starts_with("rank "), "{error}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let place = Place::new();
    for arguments in ["compare -v --epochs 20 --out run", "train --json --epochs 2 --out other", "data list"] {
        let mut run = place.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(run.stdout.take());
        let output = run.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !errors.contains("panicked"), "{arguments}: {errors}");
    }
    assert!(place.path("run/report.html").exists());
}

/// As `nohup` does it.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_ringstep");
    let script = format!("trap '' HUP; exec {program} train --epochs 400 --out run --json");
    let run = Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path("."))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = place.path("run/metrics.jsonl");
    wait_until("training begins", || metrics.metadata().is_ok_and(|metadata| metadata.len() > 100));
    signal("HUP", run.id());
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn weights_that_overflow_in_the_last_step_are_no_result() {
    let place = Place::new();
    let error = place.refused("train --steps 2 --lr 1e37 --out run");
    assert!(error.contains("training diverged"), "{error}");
    assert!(!place.path("run/summary.json").exists() && !place.path("run/model.safetensors").exists());
}
