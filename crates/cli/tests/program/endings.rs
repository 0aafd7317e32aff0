//! Ctrl-C, a worker that dies, a launcher that is killed: all processes end, and nobody is left behind.

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Place;

/// A job of four processes that would go on for hours.
struct Job {
    place: Place,
    launcher: Option<Child>,
    workers: Vec<u32>,
}

const PATIENCE: Duration = Duration::from_secs(20);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([format!("-{name}"), process.to_string()]).status().unwrap().success());
}

/// Ended, though perhaps not collected by whoever takes care of orphans here.
fn is_gone(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ")
}

impl Job {
    /// Starts the job and waits until its workers are training.
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(options: &str) -> Self {
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
        assert_eq!(workers.len(), 4);
        Self { place, launcher: Some(launcher), workers }
    }

    fn launcher_id(&self) -> u32 {
        self.launcher.as_ref().unwrap().id()
    }

    /// Waits for the end, and checks that it took everyone along.
    fn end(mut self) -> Output {
        let output = self.launcher.take().unwrap().wait_with_output().unwrap();
        for &worker in &self.workers {
            wait_until("a worker ends", || is_gone(worker));
        }
        output
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

#[test]
fn ctrl_c_ends_all() {
    let job = Job::start();
    // A terminal sends it to the whole group.
    for &worker in &job.workers {
        signal("INT", worker);
    }
    signal("INT", job.launcher_id());
    let output = job.end();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(errors(&output), "error: interrupted by signal 2; all workers are ended\n");
}

#[test]
fn a_polite_request_to_end_ends_all() {
    let job = Job::start();
    signal("TERM", job.launcher_id());
    let output = job.end();
    assert_eq!(output.status.code(), Some(143));
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
        assert_eq!(errors(&output), "error: rank 2 died: killed by signal 9\n");
    }
}

#[test]
fn a_worker_that_stops_is_given_up_after_the_timeout_and_named() {
    for transport in ["auto", "tcp"] {
        let job = Job::start_with(&format!("--timeout 3 --transport {transport}"));
        signal("STOP", job.workers[2]);
        let output = job.end();
        assert_eq!(output.status.code(), Some(1));
        let told = errors(&output);
        assert!(
            told.starts_with("error: rank 2 does not answer any more (") && told.contains("timed out after 3s"),
            "{told}"
        );
    }
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
