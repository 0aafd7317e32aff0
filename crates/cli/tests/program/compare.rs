//! The main job and what it leaves behind.

use super::{Place, read};
use ringstep_data::file::sha256;
use serde_json::Value;

const KEYS: [&str; 18] = [
    "epoch_test_accuracies",
    "sync",
    "algorithm",
    "workers",
    "epochs",
    "steps",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "seconds",
    "seconds_per_step",
    "compute_seconds",
    "comm_seconds",
    "data_seconds",
    "bytes_sent",
    "epoch_losses",
    "epoch_accuracies",
    "weights_sha256",
];

fn losses(run: &Value) -> Vec<f64> {
    run["epoch_losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn three_ways_follow_one_curve_and_leave_everything_behind() {
    let place = Place::new();
    let json = place.json("compare --json --epochs 6 --out here");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(json.as_object().unwrap().len(), 1);

    for (run, (way, algorithm, workers)) in
        runs.iter().zip([("single", "none", 1), ("gather-scatter", "gather-scatter", 4), ("all-reduce", "ring", 4)])
    {
        let mut keys: Vec<_> = run.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = KEYS;
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (&run["sync"], &run["algorithm"], &run["workers"]),
            (&way.into(), &algorithm.into(), &workers.into())
        );
        assert_eq!((&run["epochs"], &run["steps"]), (&6.into(), &30.into()));
        for (ours, single) in losses(run).iter().zip(losses(&runs[0])) {
            assert!((ours - single).abs() < 1e-5 * single, "{way}: {ours} is not {single}");
        }
        let weights = std::fs::read(place.path("here").join(way).join("model.safetensors")).unwrap();
        assert_eq!(run["weights_sha256"], sha256(&weights));
    }
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[1]["bytes_sent"], 30 * 3 * 61_706 * 4);

    assert_eq!(serde_json::from_str::<Value>(&read(place.path("here/summary.json"))).unwrap(), json);
    let metrics = read(place.path("here/metrics.jsonl"));
    assert_eq!(metrics.lines().count(), 6 * (1 + 4 + 4));
    assert!(metrics.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].is_number()));
    assert!(metrics.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["data_seconds"].is_number()));

    let page = read(place.path("here/report.html"));
    for text in ["all-reduce, ring", "gather-scatter", "aria-label=\"loss over epochs\"", "CC BY-SA 3.0", "epochs = 6"]
    {
        assert!(page.contains(text), "the report lacks {text}");
    }
    for outside in ["src=", "href=", "url(", "@import", "{{"] {
        assert!(!page.contains(outside), "the report is not self-contained: {outside}");
    }
}

#[test]
fn a_runs_own_configuration_repeats_it_bit_for_bit() {
    let place = Place::new();
    let hashes = |json: &Value| -> Vec<Value> {
        json["runs"].as_array().unwrap().iter().map(|run| run["weights_sha256"].clone()).collect()
    };
    let first = place.json("compare --json --epochs 3 --seed 7 --shuffle --workers 3 --batch 4 --out first");
    let again = place.json("compare first/config.toml --json");
    let in_threads = place.json("compare first/config.toml --json --launch threads");
    assert_eq!(hashes(&first), hashes(&again));
    assert_eq!(hashes(&first), hashes(&in_threads));
    // Without --out each run gets a folder of its own.
    assert!(place.path("runs/compare-1/report.html").exists() && place.path("runs/compare-2/report.html").exists());
}

#[test]
fn people_get_a_table_and_the_way_to_the_report() {
    let place = Place::new();
    let text = place.ok("compare --epochs 2 --sync all-reduce,gather-scatter --workers 2");
    for part in ["all-reduce, ring", "gather-scatter", "2 x 5", "Report: runs/compare-1/report.html"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("single"));
}
