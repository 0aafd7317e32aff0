//! `bench scaling`: every cell is there and adds up, what is measured is left behind, and nonsense is refused. What the times are
//! is nobody's business here.

use std::process::Stdio;

use serde_json::Value;

use super::endings::{signal, wait_until};
use super::{Place, read};

const KEYS: [&str; 13] = [
    "bandwidth",
    "batch",
    "comm_seconds",
    "compute_seconds",
    "efficiency",
    "exposed_comm_seconds",
    "predicted_seconds",
    "scaling",
    "seconds",
    "seconds_with_data",
    "speedup",
    "threads",
    "workers",
];

fn number(cell: &Value, key: &str) -> f64 {
    cell[key].as_f64().unwrap_or_else(|| panic!("{key} in {cell}"))
}

#[test]
fn weak_and_strong_scaling_of_every_batch_and_number_of_workers() {
    let place = Place::new();
    let json = place.json("bench scaling --model lenet5 --samples 64 --batches 8,16 --workers 1,2 --json --out lab");
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(json["stopped"], Value::Null);
    let sizes: Vec<String> = cells
        .iter()
        .map(|cell| format!("{} {}x{}", cell["scaling"].as_str().unwrap(), cell["workers"], cell["batch"]))
        .collect();
    assert_eq!(
        sizes,
        ["weak 1x8", "weak 2x8", "strong 1x8", "strong 2x4", "weak 1x16", "weak 2x16", "strong 1x16", "strong 2x8"]
    );
    for cell in cells {
        let keys: Vec<_> = cell.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS);
        let (workers, seconds) = (number(cell, "workers"), number(cell, "seconds"));
        assert!(seconds > 0.0 && seconds <= number(cell, "seconds_with_data"));
        assert!((number(cell, "efficiency") - number(cell, "speedup") / workers).abs() < 1e-9);
        assert!(number(cell, "exposed_comm_seconds") <= number(cell, "comm_seconds"));
        assert!(number(cell, "compute_seconds") + number(cell, "exposed_comm_seconds") <= seconds + 1e-9);
        assert!(number(cell, "predicted_seconds") > 0.0);
        // One worker has nobody to talk to.
        assert_eq!(cell["bandwidth"].is_null(), workers == 1.0);
        assert!(workers > 1.0 || number(cell, "speedup") == 1.0);
    }
    let left: Value = serde_json::from_str(&read(place.path("lab/summary.json"))).unwrap();
    assert_eq!(left["cells"].as_array().unwrap().len(), cells.len());
    let csv = read(place.path("lab/cells.csv"));
    assert_eq!(csv.lines().count(), 1 + cells.len());
    let page = read(place.path("lab/report.html"));
    for part in
        ["Table 1", "Table 2", "Table 3", "weak, 8 a worker", "strong, 16 a step", "Weak scaling, 8 images a worker: 2"]
    {
        assert!(page.contains(part), "{part}");
    }
    // Weights of models that nobody asked for are not left.
    assert!(!place.path("lab/2x8").exists());
}

#[test]
fn people_get_tables_and_what_is_on_the_network() {
    let place = Place::new();
    let text = place.ok("bench scaling --model lenet5 --samples 32 --batches 8 --workers 2 --sync data-parallel");
    for part in [
        "Table 1: time of an epoch",
        "Table 2: computation",
        "Table 3: bandwidth",
        "What is on the network",
        "Efficiency is the speed-up over the number of workers.",
        "Most is sent by 2 x 4: ",
        "20 workers of 8 images on 10 machines",
        "Report: runs/scaling-1/report.html",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The 16 images that rank 1 gets in an epoch, with a label each of one byte.
    let csv = read(place.path("runs/scaling-1/cells.csv"));
    let headings: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let images = headings.iter().position(|heading| *heading == "image_bytes").unwrap();
    let sent = csv.lines().find(|line| line.starts_with("weak,2,")).unwrap().split(',').nth(images).unwrap();
    assert_eq!(sent, (16 * (32 * 32 * 4 + 1)).to_string());
}

#[test]
fn batches_grow_until_memory_or_images_end() {
    let place = Place::new();
    let stopped = |flags: &str| {
        let json = place.json(&format!("bench scaling --model lenet5 --workers 1 --samples 256 {flags} --json"));
        let batches: Vec<u64> =
            json["cells"].as_array().unwrap().iter().map(|cell| cell["batch"].as_u64().unwrap()).collect();
        (batches, json["stopped"].clone())
    };
    let (batches, stop) = stopped("");
    assert_eq!(batches, [32, 32, 128, 128]);
    assert_eq!(
        (&stop["batch"], &stop["why"]),
        (&512.into(), &"a step of 1 x 512 takes 512 images, and an epoch has 256".into())
    );
    let (batches, stop) = stopped("--memory 14MB");
    assert_eq!((batches, &stop["batch"]), (vec![32, 32], &128.into()));
    let why = stop["why"].as_str().unwrap();
    assert!(why.starts_with("lenet5 needs 247 kB for parameters") && why.ends_with("the limit is 14.0 MB"), "{why}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let place = Place::new();
    for (arguments, error) in [
        ("--batches 0", "--batches 0: each is at least 1"),
        ("--workers 0,1", "--workers 0,1: each is at least 1"),
        ("--batches 64,32", "--batches 64,32: each must be larger than the one before"),
        ("--workers 2,2", "--workers 2,2: each must be larger than the one before"),
        ("--workers 1,2000", "--workers 2000: at most 1024 are possible"),
        (
            "--samples 100 --batches 8,64",
            "a step of 4 x 64 takes 256 images, and an epoch has 100: smaller --batches, or more --samples",
        ),
        ("--samples 0", "--samples 0: at least 1 image is needed"),
        ("--threads 0", "0 threads: at least 1 is needed"),
        ("--memory 1XB", "'1XB' is no size: write 4096, 64KiB or 1MB"),
        ("--sync single", "single has one worker, not 2: the same job is --sync single --workers 1 --batch 64"),
    ] {
        assert_eq!(place.refused(&format!("bench scaling --model lenet5 {arguments}")), error);
    }
    let refusal = place.refused("bench scaling --model lenet5 --batches 8 --memory 1kB");
    assert!(
        refusal.starts_with("not even 1 x 8: lenet5 needs ") && refusal.ends_with("the limit is 1.00 kB"),
        "{refusal}"
    );
    assert!(!place.path("runs").exists());
}

#[test]
fn what_is_measured_is_left_when_it_is_stopped() {
    let place = Place::new();
    let command =
        "bench scaling --model lenet5 --samples 2000 --batches 2,4,8,16,32,64,128,256 --workers 1,2,4 --out lab";
    let child = place.command(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("a cell is measured", || place.path("lab/summary.json").exists());
    signal("TERM", child.id());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(143), "{errors}");
    let last = errors.lines().last().unwrap();
    assert!(last.contains(" trainings are measured, and in lab/report.html: interrupted by signal 15"), "{errors}");
    assert!(errors.contains("1 of 26 done in "), "{errors}");
    let json: Value = serde_json::from_str(&read(place.path("lab/summary.json"))).unwrap();
    assert!(!json["cells"].as_array().unwrap().is_empty());
    assert!(read(place.path("lab/report.html")).contains(" of those that were asked for are not."));
}
